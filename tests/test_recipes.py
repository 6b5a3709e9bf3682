"""The recipes of CONTRIBUTING.md, followed to the letter in a copy of the repository."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lib.study import digests
from lib.study.code import is_checkout
from lib.study.io import ROOT
from tests.conftest import copy_repository

RECIPES = {
    title: re.findall(r"```(python|yaml)\n(.*?)```", text, re.DOTALL)
    for title, text in re.findall(
        r"^### A (study|variant|measure|task|figure).*?\n(.*?)(?=^##)",
        (ROOT / "CONTRIBUTING.md").read_text("utf-8"),
        re.DOTALL | re.MULTILINE,
    )
}
PIECE = re.compile(r"^# (lib/\S+\.py), (above|below|a name more in) `(.+?)`.*\n", re.MULTILINE)
STALE = {
    "study": set(),
    "variant": {"training", "measuring", "analysing"},
    "measure": {"measuring", "analysing"},
    "task": {"measuring"},
    "figure": set(),
}
"""Which digests change with a recipe, as CONTRIBUTING.md says."""
CONCERNED = (
    *("tests/figures/test_variants.py", "tests/study/test_raw.py", "tests/study/test_config.py"),
    *("tests/run/test_model.py", "tests/run/test_measure.py", "tests/run/test_identities.py"),
    *("tests/data/test_suite.py", "tests/data/test_suite_files.py", "tests/figures"),
    *("tests/analysis/test_tables.py", "tests/analysis/test_runs.py", "tests/notebooks"),
)


def follow(recipe: str, root: Path) -> int:
    """Do what a recipe says; return how many files it touched."""
    touched = set()
    for language, block in RECIPES[recipe]:
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
            if where == "a name more in":
                lines[at] = lines[at][:-1] + code.strip().partition("…")[2]
            else:
                lines.insert(at + (where == "below"), code.rstrip("\n"))
            (root / name).write_text("\n".join(lines), "utf-8")
            touched.add(root / name)
    return len(touched)


def test_there_is_a_recipe_for_each_thing() -> None:
    assert set(RECIPES) == set(STALE)
    assert all(RECIPES.values())


@pytest.mark.parametrize("recipe", STALE)
def test_a_recipe_touches_as_many_files_as_it_says_and_makes_stale_what_it_says(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lib", "notebooks", "params"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*cache__"))
    monkeypatch.setattr(digests, "ROOT", tmp_path)
    names = ("training", "measuring", "analysing")
    made = [getattr(digests, f"{name}_digest").__wrapped__ for name in names]
    before = [of() for of in made]
    title = re.findall(
        rf"^### A {recipe}.*: (\d) file", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M
    )
    assert [str(follow(recipe, tmp_path))] == title
    assert {name for name, of, old in zip(names, made, before, strict=True) if of() != old} == (
        STALE[recipe]
    )


def follow_all(root: Path) -> None:
    """Follow all recipes, and the conventions."""
    for recipe in RECIPES:
        follow(recipe, root)
    for words in (["format", "--quiet"], ["check", "--fix", "--quiet"], ["format", "--quiet"]):
        subprocess.run([sys.executable, "-m", "ruff", *words, "lib"], cwd=root, check=True)


def run_tests(root: Path, *words: str) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-m", "not slow and not long"]
    command[-1] += " and not benchmark"
    done = subprocess.run([*command, *words], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_tests_of_what_the_recipes_touch_pass_where_all_were_followed(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    copy_repository(root)
    shutil.copytree(ROOT / "papers", root / "papers", ignore=shutil.ignore_patterns("record"))
    follow_all(root)
    run_tests(root, *CONCERNED)


@pytest.mark.long
@pytest.mark.skipif(not is_checkout(), reason="not a git checkout")
def test_all_fast_tests_pass_where_all_recipes_were_followed(tmp_path: Path) -> None:
    root = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(root)], check=True)
    follow_all(root)
    run_tests(root)
