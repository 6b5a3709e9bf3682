"""One run: what a notebook keeps of its result, raw files, and the measures computed from them."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, log_loss

from lib.config.metrics import MEASURES
from lib.config.schema import MachineConfig, RunConfig
from lib.config.study import Study
from lib.record.archive import Record
from lib.results import (
    BINNINGS,
    MAX_WINDOWS,
    MachineFacts,
    Provenance,
    RunResult,
    attested,
    history,
    json_rows,
    measures_of,
    read_raw,
    window_table,
    write_raw,
)
from tests.samples import EXECUTED, TRAINED, sample_runs


def scores(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Made-up scores of n characters, losses as single precision gives them."""
    rng = np.random.default_rng(seed)
    single = {name: rng.random(n, np.float32).astype(float) for name in ("nll", "embedding_norm")}
    return single | {"correct": rng.random(n) < 0.3, "brier": rng.random(n)}


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


def test_the_registry_holds_each_measure_that_is_computed_under_a_label_of_its_own() -> None:
    assert set(measures_of(raw_of(scores(100), dev=50))) <= set(MEASURES)
    assert len({m.label for m in MEASURES.values()}) == len(MEASURES)


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
    assert sum(sizes) < 7_000


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
    assert shown["text/plain"] == "tiny / none / seed 0: completed, 768 tokens"
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
def test_history_says_when_and_by_what(
    trained: dict[str, Any], executed: dict[str, Any], sentence: str
) -> None:
    assert history({"trained": TRAINED | trained, "executed": EXECUTED | executed}) == sentence


@pytest.mark.parametrize("study", ["final", "turn"])  # the oldest format that is kept, and a late
def test_recorded_results_are_readable(study: str) -> None:
    for run in Record(study).runs:
        result = RunResult.model_validate(run)
        assert {"plan", "commit", "clean", "device", "threads", "precision"} <= set(result.origin)
        assert "torch" in result.origin["packages"]
        assert history(result.provenance).startswith("trained 20")


@pytest.mark.parametrize("setting", MachineConfig.model_fields.keys() - {"checkpoint_interval"})
def test_no_setting_of_the_machine_identifies_weights_and_all_that_decides_them_does(
    setting: str,
) -> None:
    machine = MachineFacts(
        device="cpu", device_name="", vector_level="", cores=1, platform="",
        micro_batch_size=4, evaluation_batch_size=4,
    )  # fmt: skip
    values = machine.model_dump()
    other = not values[setting] if isinstance(values[setting], bool) else 2
    sections = RunConfig().model_dump(exclude={"machine"})
    usual = Provenance.model_construct(
        machine=machine, parameters=sections, plan=None, seed=0, training_digest="",
        corpus_sha256="",
    )  # fmt: skip
    moved = {"machine": machine.model_copy(update={setting: other})}
    assert usual.model_copy(update=moved).identity == usual.identity
    elsewhere = sections | {"corpus": sections["corpus"] | {"source": "elsewhere"}}
    assert usual.model_copy(update={"parameters": elsewhere}).identity == usual.identity
    rate = sections | {"training": sections["training"] | {"learning_rate": 9.0}}
    for update in ({"parameters": rate}, {"plan": "p"}, {"seed": 1}, {"training_digest": "c"},
                   {"corpus_sha256": "t"}, {"tokenizer_sha256": "t"}):  # fmt: skip
        assert usual.model_copy(update=update).identity != usual.identity
