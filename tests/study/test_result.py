"""What a run leaves behind: what a notebook shows and keeps of a result, and the steps so far."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lib.analysis.stability import training_warnings
from lib.study.config import Study
from lib.study.plan import Instability
from lib.study.result import attested, json_rows, live_file, read_live
from tests.samples import sample_runs


def test_a_notebook_keeps_the_measures_and_a_hash_that_any_change_changes(
    tiny_study: Study,
) -> None:
    result = sample_runs(tiny_study)[0]
    shown = result._repr_mimebundle_()
    assert shown["application/json"]["measures"] == result.measures
    assert "tiny / none / seed 0" in shown["text/html"]
    assert "completed" in shown["text/plain"]
    written = json.loads(result.model_dump_json())
    assert shown["application/json"] == attested(written)  # as read from the results
    for name in written:
        changed = written | {name: "another"}
        assert attested(changed)["sha256"] != attested(written)["sha256"]


def test_rows_of_a_table_have_none_where_json_has_no_number() -> None:
    table = pd.DataFrame(
        {"n": [1, 2, 3], "loss": [0.1 + 0.2, math.inf, math.nan], "x": ["a", None, ""]}
    )
    rows = [{"n": 1, "loss": 0.1 + 0.2, "x": "a"}, {"n": 2, "loss": None, "x": None}]
    assert json.loads(json.dumps(json_rows(table))) == [*rows, {"n": 3, "loss": None, "x": ""}]


@pytest.mark.parametrize("written", [None, "", "\n", "1", "1,3.2", "1,3.2,na", "x,y,z,a,b,c\n"])
def test_a_run_that_has_written_no_whole_step_has_none(tmp_path: Path, written: str | None) -> None:
    """A sweep that reads while a run opens its file has what it needs of a table without rows."""
    if written is not None:
        live_file(tmp_path).write_text(written, "utf-8")
    steps = read_live(tmp_path)
    assert steps.empty
    assert set(steps.dtypes) == {np.dtype(float)}
    assert training_warnings(steps, Instability()) == {}


def test_what_a_killed_run_did_after_its_checkpoint_is_left_out(tmp_path: Path) -> None:
    """Killed at step 7, taken up at 4, killed at 6, taken up at 5; the last line is not whole."""
    lines = [
        f"{step},{execution}.5,nan,{64 * step},0.1"
        for execution, steps in enumerate([range(1, 8), range(4, 7), range(5, 7)], start=1)
        for step in steps
    ]
    live_file(tmp_path).write_text("\n".join([*lines, "7,3.5,na"]), "utf-8")
    rows = read_live(tmp_path)
    assert rows["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert rows["loss"].tolist() == [1.5, 1.5, 1.5, 2.5, 3.5, 3.5]
    assert rows["grad_norm"].isna().all()
