"""One run: what a notebook keeps of its result, raw files, and the measures computed from them."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import accuracy_score, log_loss

from lib.analysis.stability import training_warnings
from lib.results import (
    BINNINGS,
    MAX_WINDOWS,
    attested,
    json_rows,
    live_file,
    measures_of,
    read_live,
    read_raw,
    read_raw_file,
    to_single_precision,
    window_table,
    write_raw,
)
from lib.study.metrics import MEASURES
from lib.study.plan import Instability
from lib.study.study import Study
from tests.samples import sample_runs


def scores(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Made-up scores of n characters, losses as single precision gives them."""
    rng = np.random.default_rng(seed)
    single = {name: rng.random(n, np.float32).astype(float) for name in ("nll", "embedding_norm")}
    named = [str(m.raw).removeprefix("windows.") for m in MEASURES.values()]
    others = {name: rng.random(n) < 0.3 for name in named if "." not in name and name != "None"}
    return others | single | {"correct": rng.random(n) < 0.3, "brier": rng.random(n)}


def raw_of(columns: dict[str, np.ndarray], dev: int) -> dict[str, pd.DataFrame]:
    bins = pd.DataFrame(
        [(name, 0, 4, 2.0, 3) for name in BINNINGS],
        columns=["binning", "bin", "n", "confidence", "correct"],
    )
    items = pd.DataFrame(
        {
            "task": ["a"] * 6 + ["b"] * 4,
            "shots": [0, 0, 1, 1, 2, 2, 0, 0, 1, 1],
            "choice": [1, 0, 1, 1, 1, 0, 1, 1, 0, 0],
        }
    )
    items["correct"] = items["choice"] == 1
    trace = pd.DataFrame({"step": range(1, 31), "grad_norm": np.arange(1.0, 31.0)})
    trace["loss"] = np.where(trace["step"] == 9, 4.5, 4 - trace["step"] / 10)
    positions = pd.DataFrame({"context": range(1, 17), "position_loss": np.linspace(3, 2, 16)})
    windows = window_table(columns, dev, 16)
    curve = pd.DataFrame({"step": [0, 15, 30], "dev_loss": [4.0, 3.0, 2.0]})
    curve["gradient_cosine"] = [0.9, 0.4, 0.2]
    raw = {"trace": trace, "curve": curve, "windows": windows, "bins": bins}
    return raw | {"positions": positions, "items": items}


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array([4.0]), pa.array([2.0])], names=["loss", "loss"])
    pq.write_table(table, tmp_path / "trace.parquet")
    with pytest.raises(ValueError, match=r"^trace\.parquet holds a column twice$"):
        read_raw_file(tmp_path, "trace")


def test_measures_follow_from_the_sums() -> None:
    columns = scores(1000)
    measures = measures_of(raw_of(columns, dev=499))
    truth, guess = columns["correct"], np.ones(1000, bool)
    assert measures["accuracy"] == pytest.approx(accuracy_score(truth, guess))
    assert measures["accuracy_test"] == pytest.approx(accuracy_score(truth[499:], guess[499:]))
    likelihood = np.exp(-columns["nll"])
    for part, where in (("", slice(None)), ("_dev", slice(499)), ("_test", slice(499, None))):
        p = np.stack([1 - likelihood[where], likelihood[where]], axis=1)
        loss = log_loss(np.ones(len(p), int), p, labels=[0, 1])
        assert measures[f"perplexity{part}"] == pytest.approx(math.exp(loss), rel=1e-9)
    assert measures["brier"] == pytest.approx(columns["brier"].mean(), rel=1e-12)
    assert measures["loss"] == pytest.approx(np.mean(columns["nll"]), rel=1e-12)
    assert measures["severity"] == pytest.approx(4.5 - (4 - 8 / 10))
    assert measures["gradient_cosine"] == pytest.approx((0.4 + 0.2) / 2)  # not of the untrained
    assert measures["grad_norm"] == 30
    assert measures["grad_norm_last_tenth"] == 29
    assert measures["ece"] == measures["ece_test_tempered"] == abs(3 - 2.0) / 4
    assert measures["macro_accuracy_zero_shot"] == (1 / 2 + 1) / 2
    assert measures["macro_accuracy_few_shot"] == (1 / 2 + 0) / 2  # a with two shots, b with one


@pytest.mark.parametrize(("nll", "perplexity"), [([np.log(2), np.log(8)], 4), ([1e6], math.inf)])
def test_perplexity_is_the_exponential_of_the_mean(nll: list[float], perplexity: float) -> None:
    columns = scores(1000) | {"nll": np.resize(nll, 1000)}
    assert measures_of(raw_of(columns, dev=500))["perplexity"] == pytest.approx(perplexity)


def test_the_registry_says_what_each_measure_is_computed_from() -> None:
    computed = set(measures_of(raw_of(scores(100), dev=50)))
    assert len({m.label for m in MEASURES.values() if m.label}) == len(MEASURES)
    stated = {name for name, m in MEASURES.items() if m.raw and "per_second" not in name}
    assert computed == stated
    raw = raw_of(scores(100), dev=50)
    for name in computed:
        file, column = str(MEASURES[name].raw).split(".")
        assert column in raw[file]


@pytest.mark.parametrize(("n", "dev", "length"), [(1000, 499, 16), (111_539, 55_769, 128)])
def test_no_window_reaches_over_the_boundary_and_all_are_summed(
    n: int, dev: int, length: int
) -> None:
    table = window_table(scores(n), dev, length)
    assert dev in set(table["start"])
    assert table["n"].sum() == n
    assert (table["test"] == (table["start"] >= dev)).all()
    assert len(table) <= MAX_WINDOWS + 2
    assert table["nll"].sum() == pytest.approx(scores(n)["nll"].sum(), rel=1e-12)


def test_files_keep_every_bit_and_are_small(tmp_path: Path) -> None:
    raw = raw_of(scores(111_539), dev=55_769)
    sizes = [write_raw(tmp_path, name, table).stat().st_size for name, table in raw.items()]
    for name, table in read_raw(tmp_path).items():
        pd.testing.assert_frame_equal(table, raw[name], check_exact=True)
    assert sum(sizes) < 6_000


def test_rounded_columns_take_half_the_room_and_the_loss_stays_as_it_was(tmp_path: Path) -> None:
    exact = np.random.default_rng(0).random(1000)
    table = pd.DataFrame({"step": range(1000), "loss": exact, "seconds": exact})
    rounded = to_single_precision(table)
    assert rounded["loss"].equals(table["loss"])
    assert rounded["step"].equals(table["step"])
    np.testing.assert_allclose(rounded["seconds"], exact, rtol=2**-24, atol=0)
    assert rounded["seconds"].dtype == np.float64  # of which sums do not round again
    sizes = [
        write_raw(tmp_path, "trace", each[["seconds"]]).stat().st_size for each in (table, rounded)
    ]
    assert sizes[1] < 0.6 * sizes[0]


def test_a_diverged_run_has_files_and_no_measures(tmp_path: Path) -> None:
    none = dict.fromkeys(("windows", "bins", "positions", "items"), pd.DataFrame())
    raw = raw_of(scores(100), 50) | none
    for name, table in raw.items():
        write_raw(tmp_path, name, table)
    assert measures_of(read_raw(tmp_path)) == {}


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
