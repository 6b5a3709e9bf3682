"""Whether a record's files are as the archive, and its notebooks as their source, has them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lib.publish import archive, evidence
from lib.study.git import is_checkout
from lib.study.record import read_json, status_of, write_json

STUDY = "example"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a recorded study, to be changed."""
    paper = archive.paper_of(STUDY)
    ignored = shutil.ignore_patterns("site")
    shutil.copytree(paper, tmp_path / paper.name, ignore=ignored)
    monkeypatch.setattr(archive, "PAPERS", tmp_path)
    return archive.record_folder(STUDY)


def test_a_key_that_stands_twice_and_a_comment_are_named(record: Path) -> None:
    assert list(evidence.rewritten_files(STUDY)) == []
    changed = {"01_data.ipynb": "cells", "04_figures.json": "trend"}
    for name, key in changed.items():
        text = (record / name).read_text("utf-8")
        assert f'"{key}":' in text
        (record / name).write_text(text.replace("{", f'{{"{key}":"It helps.",', 1), "utf-8")
    with (record / "parameters.yaml").open("a") as file:
        file.write("# It helps.\n")
    archive.write_manifest(STUDY)
    faults = [
        f"{name} is not written as the archive writes it" for name in [*changed, "parameters.yaml"]
    ]
    assert sorted(evidence.rewritten_files(STUDY)) == faults


def change(record: Path, edit: Callable[[Any], object]) -> None:
    notebook = read_json(record / "01_data.ipynb")
    edit(notebook)
    write_json(record / "01_data.ipynb", notebook, indent=None)


def injected(notebook: Any) -> Any:
    cells = notebook["cells"]
    return next(c for c in cells if "injected-parameters" in c["metadata"].get("tags", []))


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (
            lambda nb: nb["metadata"]["papermill"].update(output_path="It helps."),
            "01_data.ipynb names another place than its own",
        ),
        (
            lambda nb: injected(nb).update(id="it-helps"),
            "01_data.ipynb was executed with other parameters than those of its place",
        ),
        (
            lambda nb: nb.update(note="It helps."),
            "01_data.ipynb holds what no execution writes: note: Extra inputs are not permitted",
        ),
    ],
    ids=["its place", "the cell of parameters", "a note"],
)
def test_a_notebook_names_its_place_and_nothing_else(
    edit: Callable[[Any], object], fault: str, record: Path
) -> None:
    code = archive.index_entry(STUDY)["code"]
    assert list(evidence.foreign_notebooks(STUDY, code)) == []
    change(record, edit)
    assert list(evidence.foreign_notebooks(STUDY, code)) == [fault]


@pytest.mark.parametrize(
    "edit",
    [
        lambda nb: nb["cells"][0].update(source="# It helps."),
        lambda nb: nb["cells"][0].update(id="helps"),
        lambda nb: nb["cells"][0].update(cell_type="raw"),
        lambda nb: nb["cells"][0].update(attachments={}),
        lambda nb: nb["cells"][0]["metadata"].update(tags=["it-helps"]),
        lambda nb: nb["metadata"]["kernelspec"].update(display_name="It helps."),
        lambda nb: nb["metadata"]["jupytext"].update(note="It helps."),
        lambda nb: nb.update(nbformat_minor=4),
    ],
    ids=["text", "name", "kind", "attachment", "tag", "kernel", "jupytext", "format"],
)
def test_whatever_is_not_executed_is_that_of_the_commit(
    edit: Callable[[Any], object], record: Path
) -> None:
    if not is_checkout():
        pytest.skip("not a git checkout")
    accounts = {record / "01_data.ipynb": status_of(record / "01_data.ipynb")}
    assert list(evidence.uncommitted_code(STUDY, accounts)) == []
    change(record, edit)
    (fault,) = evidence.uncommitted_code(STUDY, accounts)
    assert fault.startswith("01_data.ipynb holds other code or text than that of commit")


@pytest.mark.parametrize("name", ["plan.yaml", "other-versions.json", "summary", "01_data.ipynb"])
def test_a_plan_of_a_study_without_one_and_a_link_are_no_files_of_a_record(
    name: str, record: Path
) -> None:
    runs = archive.read_runs(STUDY)
    assert list(evidence.foreign_files(STUDY, runs)) == []
    path = record / name
    path.unlink(missing_ok=True)
    if path.suffix in (".yaml", ".json"):
        path.write_text("It helps.", "utf-8")
    else:
        path.symlink_to(record)
    assert list(evidence.foreign_files(STUDY, runs)) == [f"{name} is no file of a record"]


def test_warnings_and_bars_go_into_no_record() -> None:
    def cell(*names: str) -> dict[str, Any]:
        return {"outputs": [{"output_type": "stream", "name": name} for name in names]}

    notebook = {"cells": [{"source": "text"}, cell("stderr", "stdout", "stderr")]}
    kept = archive.without_warnings(json.loads(json.dumps(notebook)))
    assert kept == {"cells": [{"source": "text"}, cell("stdout")]}
