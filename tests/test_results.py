"""One run: its result in the notebook, its raw tables, and the measures computed from them."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, log_loss

from lib import results
from lib.config.files import write_json
from lib.config.metrics import MEASURES
from lib.config.study import load_study
from lib.record.archive import Record
from lib.stats.runs import read_parquet
from tests.samples import EXECUTED, TRAINED, sample_runs


def scores(n, seed=0):
    """Return made-up scores of n characters, with losses in single precision."""
    rng = np.random.default_rng(seed)
    single = {name: rng.random(n, np.float32).astype(float) for name in ("nll", "embedding_norm")}
    return single | {"correct": rng.random(n) < 0.3, "brier": rng.random(n)}


def raw_of(columns, dev):
    bins = pd.DataFrame(
        [(name, 0, 4, 2.0, 3) for name in results.BINNINGS],
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
    windows = results.window_table(pd.DataFrame(columns), dev, 16)
    curve = pd.DataFrame({"step": [0, 15, 30], "dev_loss": [4.0, 3.0, 2.0]})
    curve["gradient_cosine"] = [0.9, 0.4, 0.2]
    curve["embedding_angle"] = [np.nan, 0.01, 0.03]
    raw = {"trace": trace, "curve": curve, "windows": windows, "bins": bins}
    return raw | {"positions": positions, "items": items}


def test_measures_follow_from_the_sums():
    columns = scores(1000)
    measures = results.measures_of(raw_of(columns, dev=499))
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
    assert measures["embedding_angle"] == pytest.approx(0.02)
    assert measures["grad_norm"] == 30
    assert measures["grad_norm_last_tenth"] == 29
    assert measures["ece"] == measures["ece_test_tempered"] == abs(3 - 2.0) / 4
    assert measures["macro_accuracy_zero_shot"] == (1 / 2 + 1) / 2
    assert measures["macro_accuracy_few_shot"] == (1 / 2 + 0) / 2  # a with two shots, b with one
    too_large = columns | {"nll": np.full(1000, 1e6)}
    assert results.measures_of(raw_of(too_large, dev=499))["perplexity"] == math.inf


def test_the_length_after_block_1_is_a_geometric_mean_over_steps_50_to_100():
    raw = raw_of(scores(100), dev=50)
    assert "log_residual_norm_1" not in results.measures_of(raw)  # a run of 30 steps
    curve = pd.DataFrame({"step": [0, 49, 50, 75, 100, 101], "dev_loss": 3.0})
    curve["residual_norm_1"] = [1e9, 1e9, 20.0, 40.0, 10.0, 1e9]
    measures = results.measures_of(raw | {"curve": curve})
    assert measures["log_residual_norm_1"] == pytest.approx(math.log(20.0))


def test_the_registry_holds_each_measure_that_is_computed_under_a_label_of_its_own():
    assert set(results.measures_of(raw_of(scores(100), dev=50))) <= set(MEASURES)
    assert len({m.label for m in MEASURES.values()} - {""}) == len(MEASURES)
    assert {m.better for m in MEASURES.values()} == {"lower", "higher", None}
    groups = {"summary", "headline", "comparison", "calibration"}
    assert {group for m in MEASURES.values() for group in m.groups} == groups


@pytest.mark.parametrize(("n", "dev", "length"), [(1000, 499, 16), (111_539, 55_769, 128)])
def test_windows_table_never_mixes_dev_and_test(n, dev, length):
    table = results.window_table(pd.DataFrame(scores(n)), dev, length)
    assert dev in set(table["start"])
    assert table["n"].sum() == n
    assert (table["test"] == (table["start"] >= dev)).all()
    assert len(table) <= results.MAX_WINDOWS + 2
    assert table["nll"].sum() == pytest.approx(scores(n)["nll"].sum(), rel=1e-12)


def test_raw_files_keep_every_bit_and_are_small(tmp_path):
    raw = raw_of(scores(111_539), dev=55_769)
    sizes = [results.write_raw(tmp_path, name, table).stat().st_size for name, table in raw.items()]
    for name, table in results.read_raw(tmp_path).items():
        pd.testing.assert_frame_equal(table, raw[name], check_exact=True)
    assert sum(sizes) < 7_000


@pytest.mark.parametrize("files", [[], ["stock_items.parquet"]])
def test_stock_answers_are_read_only_if_the_result_lists_them(files, tmp_path):
    """A file from an earlier measurement is from other weights."""
    raw = raw_of(scores(1000), 500)
    answers = pd.DataFrame({"task": ["t"], "shots": [0], "item": [0], "correct": [True]})
    for name, table in (raw | {results.STOCK: answers}).items():
        results.write_raw(tmp_path, name, table)
    write_json(tmp_path / "result.json", {"files": dict.fromkeys(files, "")})
    assert (results.STOCK in results.read_raw(tmp_path)) == bool(files)
    study = load_study("smoke")
    assert len(read_parquet(study, results.STOCK, lambda *_: tmp_path)) == (
        sum(len(study.seeds) for _ in study.arms()) if files else 0
    )


def test_a_diverged_run_has_files_and_no_measures(tmp_path):
    none = dict.fromkeys(("windows", "bins", "positions", "items"), pd.DataFrame())
    raw = raw_of(scores(100), 50) | none
    for name, table in raw.items():
        results.write_raw(tmp_path, name, table)
    assert results.measures_of(results.read_raw(tmp_path)) == {}


def test_a_notebook_keeps_the_measures_and_a_hash_that_any_change_changes(tiny_study):
    result = sample_runs(tiny_study)[0]
    shown = result._repr_mimebundle_()
    assert shown["application/json"]["measures"] == result.measures
    assert shown["text/plain"] == "tiny / none / seed 0: completed, 768 tokens"
    written = json.loads(result.model_dump_json())
    assert shown["application/json"] == results.attested(written)  # as read from the results
    for name in written:
        changed = written | {name: "another"}
        assert results.attested(changed)["sha256"] != results.attested(written)["sha256"]


def test_json_rows_have_none_for_nan():
    loss = [0.1 + 0.2, math.inf, math.nan]
    table = pd.DataFrame({"n": [1, 2, 3], "loss": loss, "x": ["a", None, ""]})
    rows = [{"n": 1, "loss": 0.1 + 0.2, "x": "a"}, {"n": 2, "loss": None, "x": None}]
    rows.append({"n": 3, "loss": None, "x": ""})
    assert json.loads(json.dumps(results.json_rows(table))) == rows


# Where a result comes from


@pytest.mark.parametrize(
    ("trained", "executed", "sentence"),
    [
        ({}, {}, "trained 2026-11-21 12:00:00 UTC by commit aaaaaaaaaaaa"),
        ({}, {"from_checkpoint": True},
         "trained 2026-11-21 12:00:00 UTC by commit aaaaaaaaaaaa; executed again from its "
         "weights 2026-11-22 09:30:00 UTC by commit bbbbbbbbbbbb and changes not committed"),
        ({"commit": None, "clean": None}, {},
         "trained 2026-11-21 12:00:00 UTC by commit unknown"),
        ({"code": "c" * 40}, {},
         "trained 2026-11-21 12:00:00 UTC by commit cccccccccccc"),
    ],
)  # fmt: skip
def test_history_says_when_and_by_which_commit(trained, executed, sentence):
    made = {"trained": TRAINED | trained, "executed": EXECUTED | executed}
    assert results.history(made) == sentence


@pytest.mark.parametrize("study", ["final", "turn"])  # the oldest recorded format, and a recent one
def test_recorded_results_are_readable(study):
    for run in Record(study).runs:
        result = results.RunResult.model_validate(run)
        assert {"plan", "commit", "clean", "device", "threads", "precision"} <= set(result.origin)
        assert "torch" in result.origin["packages"]
        assert results.history(result.provenance).startswith("trained 20")
