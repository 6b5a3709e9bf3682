"""How runs that are trained again are compared."""

import json
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest

from lib.publish import replay, verify
from lib.workflow.retrain import beyond_tolerance, main, other_bits, other_outputs, same_machine

RUN: dict[str, Any] = {
    "initial_weights": "a",
    "batches": "b",
    "final_weights": "c",
    "measures": {"perplexity": 10.0},
    "tables": {},
}
TRACE = pd.DataFrame({"step": range(1, 21), "loss": np.linspace(4, 2, 20), "seconds": 1.0})


def changed(**fields: Any) -> dict[str, Any]:
    return json.loads(json.dumps(RUN)) | fields


def test_seconds_may_differ_and_nothing_else_to_the_bit() -> None:
    curve = TRACE[::5].rename(columns={"loss": "dev_loss"})
    raw = {"trace": TRACE, "curve": curve, "items": pd.DataFrame()}
    slower = {name: table.assign(seconds=2.0) for name, table in raw.items() if len(table)}
    assert list(other_bits(RUN, RUN, raw, slower)) == []
    assert list(other_bits(RUN, changed(final_weights="d"), raw, raw)) == ["final_weights differ"]
    for name, column in (("trace", "loss"), ("curve", "dev_loss")):
        moved = raw[name].assign(**{column: np.nextafter(raw[name][column], 9)})
        assert list(other_bits(RUN, RUN, raw, raw | {name: moved})) == [f"{name}.parquet differs"]


def notebook(path: Path, *printed: str, picture: str = "AAAA") -> Path:
    """A 02_train whose cells print these, the last beside a picture."""
    cells = []
    for text in printed:
        outputs = [nbformat.v4.new_output("stream", text=text)]
        cells.append(nbformat.v4.new_code_cell("print(text)", outputs=outputs))
    cells[0].source = "trained = train(config)"
    data = {"image/png": picture}
    cells[-1].outputs.append(nbformat.v4.new_output("display_data", data=data))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_all_that_a_notebook_shows_but_times_is_compared(tmp_path: Path) -> None:
    stated = notebook(tmp_path / "a.ipynb", "3 s", "a sample", "a table")
    slower = notebook(tmp_path / "b.ipynb", "4 s", "a sample", "a table")
    assert list(other_outputs(stated, slower)) == []
    forged = notebook(tmp_path / "c.ipynb", "3 s", "another", "a table", picture="BBBB")
    said = "code cell {} of 02_train.ipynb shows something else"
    assert list(other_outputs(stated, forged)) == [said.format(2), said.format(3)]


@pytest.mark.parametrize(
    ("fields", "factor", "found"),
    [
        ({"final_weights": "d"}, 1.0005, []),
        ({"measures": {"perplexity": 10.1}}, 1.0, []),
        ({"batches": "x"}, 1.0, ["batches differ"]),
        ({}, 1.002, ["a loss of the first 10 steps differs by more than 0.1%"]),
        (
            {"measures": {"perplexity": 10.3}},
            1.0,
            ["perplexity is 10.3 and was 10.0: beyond 2%"],
        ),
    ],
)
def test_elsewhere_rounding_is_tolerated(
    fields: dict[str, Any], factor: float, found: list[str]
) -> None:
    again = TRACE.assign(loss=TRACE["loss"] * factor)
    assert list(beyond_tolerance(RUN, changed(**fields), TRACE, again)) == found


@pytest.mark.parametrize("name", ["device_name", "vector_level", "threads", "packages"])
def test_the_machine_is_the_same_when_all_that_changes_bits_is(name: str) -> None:
    one = {"device_name": "CPU", "vector_level": "AVX512", "threads": 1, "packages": {"torch": "2"}}
    assert same_machine(one, dict(one))
    assert not same_machine(one, one | {name: "other"})


def test_a_run_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["horizon", "--retrain", "horizon/none,fraction=1/0"]) == 1
    assert "error: horizon/none,fraction=1/0 was not trained again: " in capsys.readouterr().err


def test_a_study_may_stand_after_the_number_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[list[str]] = []
    monkeypatch.setattr(verify, "main", lambda words: verified.append(words) or 0)
    assert main(["--redraw", "--retrain", "2", "horizon"]) == 0  # of which no run is kept
    assert verified == [["--redraw", "horizon"]]


def test_what_failed_in_a_temporary_tree_names_no_file_there(tmp_path: Path) -> None:
    script = "import sys; sys.exit('error: KeyError: a; see runs/x/03_analysis.ipynb')"
    with pytest.raises(replay.ReplayError, match=r"^KeyError: a$"):
        replay.execute(tmp_path, sys.executable, "-c", script)
