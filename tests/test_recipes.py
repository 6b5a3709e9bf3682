"""The recipes of CONTRIBUTING.md, followed to the letter in a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from lib.config.paths import ROOT
from tests.conftest import copy_repository

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
RECIPES = {
    title: (int(files), re.findall(r"```(python|yaml)\n(.*?)```", text, re.DOTALL))
    for title, files, text in re.findall(
        r"^### A (\w+).*?: (\d) files?.*?\n(.*?)(?=^##)", TEXT, re.DOTALL | re.MULTILINE
    )
}
PIECE = re.compile(r"^# (lib/\S+\.py), (above|below|one more name in) `(.+?)`.*\n", re.MULTILINE)
CHANGED = {
    "study": set[str](),
    "variant": {"train_key"},
    "measure": {"measure_key"},
    "task": {"measure_key"},
    "figure": set[str](),
}
"""Which key of the code changes with a recipe."""
CONCERNED = [
    "tests/config/test_metrics.py",
    "tests/config/test_provenance.py",
    "tests/config/test_study.py",
    "tests/data/test_suite.py",
    "tests/figures",
    "tests/train/test_evaluate.py",
    "tests/train/test_model.py",
]
"""Tests of what recipes touch: registries, keys, hashes of studies, and what reads them."""


def follow(recipe, root):
    """Follow a recipe; return the files that it changed."""
    touched = set()
    for language, block in RECIPES[recipe][1]:
        if language == "yaml":
            (name,) = re.findall(r"^name: (\w+)$", block, re.MULTILINE)
            touched.add(root / "params" / f"{name}.yaml")
            (root / "params" / f"{name}.yaml").write_text(block, "utf-8")
            continue
        first, *pieces = PIECE.split(block)
        assert not first.strip()
        for name, where, anchor, code in zip(*(pieces[i::4] for i in range(4)), strict=True):
            lines = (root / name).read_text("utf-8").split("\n")
            (at,) = [n for n, line in enumerate(lines) if line.strip().startswith(anchor)]
            if where == "one more name in":
                more = code.strip().partition("…")[2]
                lines[at] = lines[at].rstrip()[: -len(more[-1])] + more
            else:
                lines.insert(at + (where == "below"), code.rstrip("\n"))
            (root / name).write_text("\n".join(lines), "utf-8")
            touched.add(root / name)
    return touched


def in_copy(root, *words):
    done = subprocess.run(
        [sys.executable, *words], cwd=root, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


def keys(root):
    code = "from lib.config.provenance import *; print(train_key(), measure_key())"
    return dict(zip(("train_key", "measure_key"), in_copy(root, "-c", code).split(), strict=True))


def test_there_is_a_recipe_for_each_thing():
    assert set(RECIPES) == set(CHANGED)


@pytest.mark.slow
def test_recipes_touch_the_files_and_keys_that_they_say_and_what_they_touch_still_passes(tmp_path):
    root = tmp_path / "copy"
    copy_repository(root)
    shutil.copytree(ROOT / "papers", root / "papers", ignore=shutil.ignore_patterns("record"))
    before = keys(root)
    for recipe, (files, _) in RECIPES.items():
        assert len(follow(recipe, root)) == files, recipe
        after = keys(root)
        assert {name for name in before if before[name] != after[name]} == CHANGED[recipe], recipe
        before = after
    for words in (["format", "--quiet"], ["check", "--fix", "--quiet"]):
        in_copy(root, "-m", "ruff", *words, "lib")
    marks = "not slow and not long and not benchmark"
    in_copy(root, "-m", "pytest", "-p", "no:xdist", "-m", marks, *CONCERNED)
