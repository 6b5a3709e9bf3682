"""Executed notebooks hold nothing but what an execution writes: recorded ones, after one change."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from lib.record.notebook import foreign_content
from lib.record.record import Record, recorded_studies
from lib.record.verify import FIRST_RECORD
from lib.study.io import read_json

Notebook = dict[str, Any]
Edit = Callable[[Notebook], object]
RECORD = Record("example").folder
PLACES = {
    "01": RECORD / "01_data.ipynb",
    "02": RECORD / "constant/seed-0/02_train.ipynb",
    "04": RECORD / "04_figures.ipynb",
}


def test_recorded_notebooks_hold_nothing_else() -> None:
    studies = [name for name in recorded_studies() if name not in FIRST_RECORD]  # fixed bytes
    notebooks = [path for name in studies for path in Record(name).folder.rglob("*.ipynb")]
    assert len(notebooks) > 100
    for path in notebooks:
        assert list(foreign_content(path.read_text("utf-8"))) == [], path


FREE = {"source", "text", "text/html", "text/markdown", "text/plain", "id", "input_path"}
FREE |= {"output_path"}
"""Keys that hold any text. That it is the right one, other checks see to."""
ANY = {"jupytext", "kernelspec", "parameters", "application/json"}
"""Keys that hold anything with names."""


def places(content: Any, *kinds: Any) -> Iterator[tuple[Any, Any, str]]:
    """Every key of some JSON with what holds it and where that is, cells and outputs by kind."""
    for key in content if isinstance(content, dict) else range(len(content)):
        value, of = content[key], (*kinds, key)
        if isinstance(content, list):
            of = (*kinds, value.get("cell_type", value.get("output_type")))
        yield content, key, " ".join(of)
        if (isinstance(value, dict) and key not in ANY) or key in ("cells", "outputs"):
            yield from places(value, *of)


@pytest.mark.parametrize("name", PLACES)
def test_a_word_in_any_place_and_a_key_more_are_named(name: str) -> None:
    notebook = read_json(PLACES[name])
    seen = {of: (holder, key) for holder, key, of in places(notebook)}  # one of each kind
    assert len(seen) > 50
    for of, (holder, key) in seen.items():
        value = holder[key]
        if key not in FREE:
            holder[key] = "It helps."
            assert list(foreign_content(json.dumps(notebook))), of
        if isinstance(value, dict) and key not in ANY:
            holder[key] = value | {"note": "It helps."}
            assert list(foreign_content(json.dumps(notebook))), of
        holder[key] = value
    assert list(foreign_content(json.dumps(notebook | {"note": "It helps."})))


def code(notebook: Notebook) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def output(notebook: Notebook, key: str) -> dict[str, Any]:
    """The first output that has a key, or shows something of that kind."""
    outputs = [output for cell in code(notebook) for output in cell["outputs"]]
    return next(each for each in outputs if key in each or key in each.get("data", {}))


def add(*shown: Any, to: int = -1, at: str = "outputs") -> Edit:
    return lambda notebook: code(notebook)[to][at].extend(shown)


def put(key: str, value: Any, *path: str | int) -> Edit:
    def change(notebook: Any) -> None:
        for step in path:
            notebook = notebook[step]
        notebook[key] = value

    return change


def printed(name: str) -> Notebook:
    return {"output_type": "stream", "name": name, "text": "It helps."}


def result(count: int) -> Notebook:
    shown = {"output_type": "execute_result", "data": {"text/plain": "1"}, "metadata": {}}
    return shown | {"execution_count": count}


TIMES = {"start_time": "2026-01-01T00:00:00+00:00", "end_time": "2026-01-01T00:00:01+00:00"}
EDITS: dict[str, tuple[str, Edit]] = {
    "a language in words": ("01", put("version", "3.11 it helps", "metadata", "language_info")),
    "an end before the start": (
        "01", put("end_time", "2020-01-01T00:00:00+00:00", "metadata", "papermill")
    ),
    "a duration of nothing": ("01", put("duration", 1e6, "metadata", "papermill")),
    "a stamp of too little time": ("01", put("seconds", 0.0, "metadata", "study")),
    "a stamp of too much time": ("01", put("seconds", 1e12, "metadata", "study")),
    "a cell at another time": (
        "01", put("papermill", TIMES | {"duration": 1.0, "exception": False,
                                        "status": "completed"}, "cells", 0, "metadata")
    ),
    "a raw cell": (
        "01", lambda nb: nb["cells"].append(dict(nbformat.v4.new_raw_cell("It helps.")))
    ),
    "a tag": ("02", lambda nb: code(nb)[0]["metadata"].update(tags=["remove_input"])),
    "a tag of a text": ("02", put("tags", ["it helps"], "cells", 0, "metadata")),
    "a count left out": ("02", lambda nb: code(nb)[3].update(execution_count=None)),
    "a count twice": ("02", lambda nb: code(nb)[3].update(execution_count=3)),
    "cells in another order": ("02", lambda nb: nb["cells"].reverse()),
    "a result of another count": (
        "02", lambda nb: output(nb, "execution_count").update(execution_count=99)
    ),
    "two results of a cell": ("02", lambda nb: add(result(code(nb)[-1]["execution_count"]))(nb)),
    "a result of imports": ("02", add(result(1), to=0)),
    "a printed line of imports": ("02", add(printed("stdout"), to=0)),
    "a result of a loop": ("04", add(result(6), to=-2)),
    "a warning": ("02", add(printed("stderr"))),
    "an error": (
        "02", add({"output_type": "error", "ename": "It", "evalue": "helps", "traceback": []})
    ),
    "a kind of content": ("02", lambda nb: output(nb, "text/html")["data"].update(
        {"image/svg+xml": "<svg/>"})),
    "a text behind a table": ("02", lambda nb: output(nb, "text/html")["data"].update(
        {"text/markdown": "It helps."})),
    "a text beside a picture": ("04", lambda nb: output(nb, "image/png")["data"].update(
        {"text/plain": "It helps."})),
    "a table of imports": (
        "02", add({"output_type": "display_data", "data": {"text/html": "1"}, "metadata": {}}, to=0)
    ),
    "an output of nothing": ("02", lambda nb: output(nb, "text/html").update(data={})),
    "a picture of words": ("04", lambda nb: output(nb, "image/png")["data"].update(
        {"image/png": "It helps."})),
    "an alternative text": ("04", lambda nb: output(nb, "image/png").update(
        metadata={"image/png": {"alt": "It helps."}})),
    "a picture squashed": ("04", lambda nb: output(nb, "image/png").update(
        metadata={"image/png": {"height": 1}})),
    "a picture too small": ("04", lambda nb: output(nb, "image/png").update(
        metadata={"image/png": {"width": 1}})),
    "a size of no picture": ("02", lambda nb: output(nb, "text/html").update(
        metadata={"image/png": {"width": 1}})),
    "a width in words": ("04", lambda nb: output(nb, "image/png").update(
        metadata={"image/png": {"width": "1 onload=It-helps"}})),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_what_no_execution_writes_is_named(name: str) -> None:
    place, edit = EDITS[name]
    notebook = read_json(PLACES[place])
    edit(notebook)
    (fault, *_) = foreign_content(json.dumps(notebook))
    assert fault.startswith("holds what no execution writes: ")
    assert "\n" not in fault


def test_no_notebook_at_all_is_named(tmp_path: Path) -> None:
    for text in ("", "{", "[1]", "null"):
        assert list(foreign_content(text)), text
