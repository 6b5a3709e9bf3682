import math

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from lib.analysis.stability import (
    judge_run,
    judge_runs,
    rule_of,
    share_interval,
    stability_finding,
    stability_map,
    with_stability,
)
from lib.record.record import raw_folder
from lib.study.paths import PAPER, PLANS
from lib.study.plan import INSTABILITY, Plan
from lib.study.raw import read_raw_file
from tests.analysis.samples import design, runs_of, trace_of

ENTROPY = 3.3


def falling(n: int = 150, seed: int = 0) -> np.ndarray:
    """A loss that falls as in training, with the noise of batches."""
    noise = np.random.default_rng(seed).normal(scale=0.03, size=n)
    return 2.4 + 1.8 * np.exp(-np.arange(n) / 40) + noise


@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_only_falls_is_stable(seed: int) -> None:
    found = judge_run(falling(seed=seed), False, INSTABILITY, ENTROPY)
    assert not any(found[name] for name in ("transient", "collapsed", "untrained", "unstable"))


@pytest.mark.parametrize("step", [2, 10, 64, 149])
def test_a_rise_counts_from_the_first_step_on(step: int) -> None:
    loss = falling()
    loss[step] = loss[:step].min() + 0.51
    found = judge_run(loss, False, INSTABILITY, ENTROPY)
    assert found["unstable"]
    assert found["severity"] == pytest.approx(0.51)
    loss[step] = loss[:step].min() + 0.49
    assert not judge_run(loss, False, INSTABILITY, ENTROPY)["unstable"]


def test_a_slow_rise_counts_as_a_fast_one() -> None:
    loss = np.concatenate([np.linspace(4, 2, 50), np.linspace(2, 2.6, 50)])
    assert judge_run(loss, False, INSTABILITY, ENTROPY)["transient"]


@pytest.mark.parametrize(
    ("loss", "diverged", "expected"),
    [
        (np.full(100, 3.4), False, ["untrained"]),
        (np.r_[np.full(50, 3.0), np.full(50, 3.6)], False, ["collapsed", "transient", "unstable"]),
        (np.r_[np.full(50, 3.0), 3.6, np.full(49, 3.0)], False, ["transient", "unstable"]),
        (np.r_[np.full(50, 3.0), np.nan], True, ["diverged", "unstable"]),
        (np.array([np.nan]), True, ["diverged", "unstable"]),
    ],
)
def test_each_kind_of_trouble_has_its_name(
    loss: np.ndarray, diverged: bool, expected: list[str]
) -> None:
    found = judge_run(loss, diverged, INSTABILITY, ENTROPY)
    assert sorted(name for name, value in found.items() if value is True) == expected


def test_the_first_plan_and_none_are_judged_by_the_usual_definition() -> None:
    first = Plan.model_validate(yaml.safe_load((PLANS / "preregistration.yaml").read_text("utf-8")))
    assert first.instability.rise is None
    assert rule_of(first) == rule_of(None) == INSTABILITY
    own = first.instability.model_copy(update={"rise": 0.2})
    assert rule_of(first.model_copy(update={"instability": own})).rise == 0.2


def two_arms() -> tuple[pd.DataFrame, pd.DataFrame]:
    study = design(factors={"model.embedding_norm": ["none", "layernorm"]})
    runs = runs_of(study, lambda arm, seed: 2.0)
    return runs, trace_of(runs, lambda arm, seed: 1.0 if arm == "none" and seed else 0.0)


def test_arms_whose_loss_starts_high_are_not_judged() -> None:
    runs, trace = two_arms()
    first = (trace["arm"] == "none") & (trace["step"] == 1)
    trace.loc[first, "loss"] = [4.0, 4.6, 5.6]  # on average 0.53 above ln V
    table = judge_runs(runs, trace, INSTABILITY).set_index(["arm", "seed"])
    assert table.loc["none", "judged"].tolist() == [False] * 3
    assert table.loc["none", "unstable"].isna().all()
    assert table.loc["layernorm", "unstable"].tolist() == [0.0] * 3


def test_a_diverged_run_is_unstable_though_its_measures_are_missing() -> None:
    runs, trace = two_arms()
    runs.loc[runs["arm"] == "layernorm", "status"] = "diverged"
    table = with_stability(runs, judge_runs(runs, trace, INSTABILITY)).set_index(["arm", "seed"])
    assert table.loc["none", "unstable"].tolist() == [0.0, 1.0, 1.0]
    assert table.loc["layernorm", "unstable"].tolist() == [1.0] * 3
    assert table.loc["layernorm", "severity"].isna().all()
    assert table.loc["none", "severity"].tolist() == pytest.approx([0.0, 1.0, 1.0])


@pytest.mark.parametrize(("count", "n"), [(0, 8), (3, 8), (8, 8), (1, 3)])
def test_the_interval_of_a_share_is_clopper_and_pearsons(count: int, n: int) -> None:
    low = stats.beta.ppf(0.025, count, n - count + 1) if count else 0.0
    high = stats.beta.ppf(0.975, count + 1, n - count) if count < n else 1.0
    assert share_interval(count, n) == pytest.approx((low, high))


def test_the_share_of_no_runs_has_no_interval() -> None:
    assert np.isnan(share_interval(0, 0)).all()


def test_the_map_counts_each_arm() -> None:
    runs, trace = two_arms()
    table = stability_map(runs, judge_runs(runs, trace, INSTABILITY), 0.05).set_index("arm")
    assert table.loc["none", ["n", "judged", "unstable", "transient_runs"]].tolist() == [3, 3, 2, 2]
    assert table.loc["none", "share"] == pytest.approx(2 / 3)
    assert table.loc["none", "median_severity"] == pytest.approx(1.0)
    assert table.loc["layernorm", ["unstable", "collapsed_runs"]].tolist() == [0, 0]
    words = stability_finding(table.reset_index(), INSTABILITY).words
    assert words[0].startswith("2 of 6 judged runs are unstable")
    assert words[1].startswith("none: 2 of 3 unstable [0.09, 0.99]; 0 collapsed, 0 diverged;")
    assert len(words) == 2


def test_the_map_says_what_is_not_judged_or_untrained() -> None:
    runs, trace = two_arms()
    table = stability_map(runs, judge_runs(runs, trace, INSTABILITY), 0.05)
    other = table.assign(judged=[0, 3], unstable=0, untrained_runs=[0, 2])
    _, high, low = stability_finding(other, INSTABILITY).words
    assert high == "none: not judged, its loss falls from a height."
    assert low.startswith("layernorm: none unstable, but 2 of 3 untrained")


def by_plain_counting(loss: list[float], last: int, entropy: float) -> tuple[float, bool]:
    """The same judgement, of a run that completed, by other code: step by step."""
    lowest, severity = math.inf, 0.0
    for value in loss:
        lowest = min(lowest, value)
        severity = max(severity, value - lowest)
    return severity, severity > 0.5 and math.fsum(loss[-last:]) / last > entropy


@pytest.mark.slow
def test_every_recorded_trace_is_judged_as_plain_counting_does() -> None:
    transients = 0
    for path in sorted((PAPER / "record").glob("*/*/seed-*/02_train.ipynb")):
        loss = read_raw_file(raw_folder(path), "trace")["loss"]
        finite = loss[np.isfinite(loss)].tolist()
        judged = judge_run(loss, len(finite) < len(loss), INSTABILITY, ENTROPY)
        severity, collapsed = by_plain_counting(finite, 10, ENTROPY)
        assert judged["severity"] == severity, path
        assert judged["unstable"] == (severity > 0.5 or len(finite) < len(loss)), path
        if len(finite) == len(loss):
            assert judged["collapsed"] == collapsed, path
        transients += judged["transient"]
    assert transients
