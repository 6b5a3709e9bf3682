"""What is taken out of an executed notebook, and what of it stays."""

from io import StringIO

import nbformat
import pandas as pd
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lib.record.notebook import COMPACT, slim

TABLE = pd.DataFrame({"task": ["a < b", "c"], "n": [1, 2]})


def executed() -> nbformat.NotebookNode:
    table = {"text/html": TABLE._repr_html_(), "text/plain": str(TABLE)}
    picture = {"image/png": "iVBO\nRw0K\n", "text/plain": "<Image>"}
    outputs = [
        *(new_output("stream", name="stdout", text=text) for text in ("one\n", "two\n")),
        new_output("stream", name="stderr", text="careful\n"),
        *(new_output("display_data", data) for data in (table, picture)),
        new_output("display_data", {"text/plain": "7"}),
        new_output("stream", name="stdout", text="three\n"),
    ]
    times = {"papermill": {"duration": 1.5, "status": "completed"}, "execution": {"busy": "now"}}
    metadata = times | {"tags": ["parameters"]}
    return new_notebook(
        cells=[
            new_markdown_cell("# Title"),
            new_code_cell("x = 1", metadata=metadata, outputs=outputs, execution_count=1),
            new_code_cell("", metadata=times | {"tags": []}),
        ]
    )


def test_what_is_executed_and_shown_stays_once() -> None:
    notebook = executed()
    slim(notebook)
    title, cell, last = notebook.cells
    assert (title.source, cell.source, cell.execution_count) == ("# Title", "x = 1", 1)
    assert (cell.metadata, last.metadata) == ({"tags": ["parameters"]}, {})
    printed, warned, table, picture, number, after = cell.outputs
    assert (printed.text, warned.text, after.text) == ("one\ntwo\n", "careful\n", "three\n")
    assert set(table.data) == {"text/html"}
    assert picture.data == {"image/png": "iVBORw0K"}
    assert number.data == {"text/plain": "7"}
    nbformat.validate(notebook)


def test_a_table_holds_the_same_in_half_the_room() -> None:
    notebook = executed()
    slim(notebook)
    html = notebook.cells[1].outputs[2].data["text/html"]
    (read,) = pd.read_html(StringIO(html), index_col=0)
    pd.testing.assert_frame_equal(read, TABLE, check_names=False)
    assert len(html) < len(TABLE._repr_html_()) / 2


def test_slimming_twice_changes_nothing_and_reading_gives_the_same() -> None:
    notebook = executed()
    slim(notebook)
    once = nbformat.writes(notebook, **COMPACT)
    again = nbformat.reads(once, as_version=4)
    slim(again)
    assert nbformat.writes(again, **COMPACT) == once
