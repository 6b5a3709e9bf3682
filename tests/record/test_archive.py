"""A finished study becomes a complete plain folder; a record from elsewhere is not replaced."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from lib.config.errors import UsageError
from lib.config.files import sha256, slim, write_json
from lib.config.schema import digest
from lib.record.archive import (
    SHARED,
    Record,
    files_of,
    recorded_studies,
    require_recorded,
    tag_commits,
    why_changed,
)
from tests.conftest import run_git
from tests.record.conftest import run_tiny
from tests.record.kills import contents


@pytest.mark.slow
def test_a_record_is_a_folder_with_a_file_per_notebook_that_sha256sum_checks(tiny):
    record = Record("tiny", tiny / "papers" / "paper")
    seeds = [run["seed"] for run in record.runs[:3]]
    notebooks = {f"{arm}/seed-{seed}/02_train.ipynb" for arm in ("none", "layernorm")
                 for seed in seeds}  # fmt: skip
    notebooks |= {f"{name}.ipynb" for name in ("01_data", "03_analysis", "04_figures")}
    beside = {"../../figures/tiny/loss.png", "../../results/tiny.json"}
    beside |= {"../../results/tiny.verdict.json"}
    others = {"04_figures.json", "parameters.yaml", "plan.yaml", "raw.tar.xz", "README.md"}
    assert {*record.files} == {*record.manifest} == notebooks | beside | others
    subprocess.run(["sha256sum", "-c", "MANIFEST.sha256"], cwd=record.folder, check=True)
    plan = tiny / "params" / "plans" / "plan.yaml"
    assert (record.folder / "plan.yaml").read_bytes() == plan.read_bytes()
    for run in record.runs:
        folder = tiny / "runs" / "tiny" / run["arm"] / f"seed-{run['seed']}"
        assert json.loads((folder / "result.json").read_text()) == run
        raw = record.raw_folder(run["arm"], run["seed"])
        sums = {name: sha256(raw / name) for name in run["files"]}
        assert sums == run["files"]
    assert len(record.joined("trace")) == 6 * 12


@pytest.mark.slow
def test_a_record_from_elsewhere_is_replaced_only_where_it_is_asked(tiny):
    place, done = tiny / "papers" / "paper" / "record" / "tiny", tiny / "runs/tiny/archive.json"
    before = sha256(place / "MANIFEST.sha256"), place.stat().st_ino
    done.unlink()  # as after a clone
    (place.parent / ".leftover.tiny").mkdir()
    assert "the published record is kept" in run_tiny(tiny, "archive").stdout
    assert (sha256(place / "MANIFEST.sha256"), place.stat().st_ino) == before
    assert run_tiny(tiny, "archive", "--replace").stdout == ""
    assert sha256(place / "MANIFEST.sha256") == before[0]  # same runs, same bytes
    assert place.stat().st_ino != before[1]
    assert before[0] in done.read_text()


def test_commits_of_a_record_are_tagged_and_outlive_a_rewritten_history(tmp_path, monkeypatch):
    monkeypatch.setattr("lib.config.provenance.CHECKOUT", tmp_path)
    tag_commits("trial", ["a" * 40])  # without git, archiving still works

    def commit(*words):
        run_git(tmp_path, "commit", "-q", "--allow-empty", "-m", "work", *words)
        return run_git(tmp_path, "rev-parse", "HEAD")

    def tags():
        names = "--format=%(objectname) %(refname:short)"
        lines = run_git(tmp_path, "for-each-ref", names, "refs/tags").splitlines()
        return {name: hash_ for hash_, name in map(str.split, lines)}

    run_git(tmp_path, "init", "-q")
    first, second = commit(), commit()
    tag_commits("trial", [second, first, None, second])
    assert tags() == {"record/trial": second}  # the other commit is in its history
    amended = commit("--amend", "-m", "in other words")
    run_git(tmp_path, "reflog", "expire", "--expire=now", "--all")
    run_git(tmp_path, "gc", "-q", "--prune=now")
    tag_commits("trial", [second, amended])
    assert set(tags()) == {"record/trial", "record/trial.2"}
    assert {*tags().values()} == {second, amended}
    tag_commits("other", ["a" * 40])  # also if a commit is missing
    assert "record/other" not in tags()


def test_a_slim_notebook_keeps_code_and_what_is_shown():
    table = {"text/html": "<table>", "text/plain": "a table"}
    outputs = [{"name": "stderr", "text": "W"}, {"name": "stdout", "text": "x"}, {"data": table}]
    metadata = {"tags": ["parameters"], "papermill": {"duration": 1}}
    cell = {"cell_type": "code", "source": "f()", "metadata": metadata, "outputs": outputs}
    (slimmed,) = slim({"cells": [cell]})["cells"]
    assert slimmed["metadata"] == {"tags": ["parameters"]}
    assert slimmed["source"] == "f()"
    shown = [{"name": "stdout", "text": "x"}, {"data": {"text/html": "<table>"}}]
    assert slimmed["outputs"] == shown


def test_a_study_without_a_record_is_refused_with_the_nearest_name():
    assert require_recorded(["params/turn.yaml"]) == ["turn"]
    assert {"turn", "trained", "example"} <= {*recorded_studies()}
    with pytest.raises(UsageError, match="'traind' is unknown; did you mean 'trained'"):
        require_recorded(["traind"])


def exchanged(path):
    path.write_bytes(path.read_bytes().replace(b"a", b"b"))


def emptied(path):
    for each in [*path.parent.rglob("*")]:
        if each.is_file():
            each.unlink()


def beside(path):
    path.with_name("another.png").write_bytes(b"of elsewhere")


CHANGED = {
    "figures/loss.png": (exchanged, beside, Path.unlink),
    "verdict.json": (exchanged, Path.unlink),
    "03_analysis.json": (exchanged,),
    "suite/of-a-text/task.jsonl": (exchanged, emptied),
    "03_analysis.ipynb": (exchanged,),
}


@pytest.mark.parametrize(
    ("name", "change"), [(name, change) for name in CHANGED for change in CHANGED[name]]
)
def test_what_a_notebook_left_is_archived_as_it_was_left_or_not_at_all(
    name, change, tiny_study, tmp_path, monkeypatch
):
    monkeypatch.setattr("lib.config.paths.RUNS", tmp_path)
    path = tmp_path / "tiny" / name
    for each in CHANGED:
        file = tmp_path / "tiny" / each
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a")
    for notebook in SHARED:
        cells = [{"cell_type": "code", "outputs": [{"text": "a"}]}]
        stamp = {"status": "completed", "cells": digest(cells), "files": files_of(notebook, "tiny")}
        content = {"cells": cells, "metadata": {"study": stamp}}
        write_json(tmp_path / "tiny" / f"{notebook}.ipynb", content)
    assert [why_changed(notebook, tiny_study) for notebook in SHARED] == ["", "", ""]
    path.with_name(".DS_Store").touch()
    assert [why_changed(notebook, tiny_study) for notebook in SHARED] == ["", "", ""]
    if path.suffix == ".ipynb":
        path.write_text(path.read_text().replace('"text": "a"', '"text": "b"'))
    else:
        change(path)
    said = [*filter(None, (why_changed(notebook, tiny_study) for notebook in SHARED))]
    wanted = "figures/another.png" if change is beside else name
    assert [line.partition(" ")[0] for line in said] == [wanted]


@pytest.mark.slow
def test_only_what_was_made_from_the_results_that_are_here_is_archived(tiny, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(tiny, home, ignore=shutil.ignore_patterns("checkpoints", "data"))
    file, before = home / "runs/tiny/03_analysis.ipynb", contents(home / "papers")
    notebook = json.loads(file.read_text("utf-8"))
    notebook["metadata"]["study"]["made_from"] = {"results": "0" * 64}
    file.write_text(json.dumps(notebook), "utf-8")
    said = run_tiny(home, "archive").stderr
    assert "03_analysis.ipynb was made from other results than runs/tiny has; ./run_all.sh" in said
    assert contents(home / "papers") == before
