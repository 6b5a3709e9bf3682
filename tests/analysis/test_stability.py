import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from lib.analysis import hypotheses
from lib.analysis.stability import (
    batch_noise,
    harmed,
    judge_run,
    judge_runs,
    plateau,
    rule_of,
    share_interval,
    stability_finding,
    stability_map,
    with_stability,
)
from lib.analysis.tables import summary_table
from lib.analysis.verdict import reach_verdict
from lib.record.archive import Record, raw_folder, recorded_studies
from lib.results import read_raw_file
from lib.study.io import PLANS
from lib.study.metrics import MEASURES
from lib.study.plan import INSTABILITY, Instability, Noise, Plan
from tests.analysis.samples import design, runs_of, trace_of

ENTROPY = 3.3


def falling() -> np.ndarray:
    """A loss that falls as in training, with the noise of batches."""
    noise = np.random.default_rng(0).normal(scale=0.03, size=150)
    return 2.4 + 1.8 * np.exp(-np.arange(150) / 40) + noise


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


def test_the_first_plan_has_the_usual_definition_and_no_plan_none() -> None:
    first = Plan.model_validate(yaml.safe_load((PLANS / "preregistration.yaml").read_text("utf-8")))
    assert first.instability.rise is None
    assert rule_of(first) == INSTABILITY
    assert rule_of(None) == rule_of(first.model_copy(update={"instability": None})) == Instability()
    own = Instability(noise=Noise())
    assert rule_of(first.model_copy(update={"instability": own})) == own


NOISE = Instability(noise=Noise())


def test_the_noise_is_the_sd_of_a_batchs_loss_whatever_the_slope_and_the_spikes() -> None:
    loss = 4 - 0.01 * np.arange(4000) + np.random.default_rng(0).normal(scale=0.05, size=4000)
    loss[::40] += 3.0
    found = batch_noise(loss, 1000)
    assert found[2000:] == pytest.approx(np.full(2000, 0.05), rel=0.2)
    assert (found[:1001] == found[0]).all()
    changed = loss.copy()
    changed[3000:] *= 9  # of what comes later, nothing is known
    assert (batch_noise(changed, 1000)[:3001] == found[:3001]).all()
    differences = np.diff(loss)[2499 - 1000 : 2499]  # the last 1,000 before step 2,500
    mad = np.median(np.abs(differences - np.median(differences)))
    assert found[2500] == pytest.approx(1.482602218505602 * mad / math.sqrt(2))


@pytest.mark.parametrize("unit", [0.01, 1.0])
@pytest.mark.parametrize("step", [70, 149])
def test_a_rise_counts_by_its_own_noise_whatever_its_unit(step: int, unit: float) -> None:
    loss = unit * falling()
    healthy = judge_run(loss, False, NOISE, ENTROPY)
    assert healthy["severity_in_noise"] < 8
    assert not healthy["unstable"]
    for times in (11.9, 12.1):
        loss[step] = loss[:step].min() + times * batch_noise(loss, 50)[step]
        found = judge_run(loss, False, NOISE, ENTROPY)
        assert found["unstable"] == (times > 12)
        assert found["severity_in_noise"] == pytest.approx(times)


def test_a_spike_at_the_start_does_not_hide_in_the_noise_and_a_short_run_is_not_judged() -> None:
    loss = falling()
    loss[2] += 1.0
    assert judge_run(loss, False, NOISE, ENTROPY)["transient"]
    assert not judge_run(np.r_[np.linspace(4, 2, 9), 9.0], False, NOISE, ENTROPY)["transient"]


@pytest.mark.parametrize("noise", [pytest.param(0.03, marks=pytest.mark.slow), 0.15])
def test_a_healthy_run_raises_no_alarm_however_small_its_batch(noise: float) -> None:
    """Of 500 that fall as a power of the step, in 300 steps, at most one; by half a nat, all."""
    fall, rng = 2.0 + 2.2 * np.arange(1, 301) ** -0.4, np.random.default_rng(0)
    runs = fall + rng.normal(scale=noise, size=(500, 300))
    alarms = {
        rule: sum(judge_run(loss, False, rule, ENTROPY)["unstable"] for loss in runs)
        for rule in (NOISE, INSTABILITY)
    }
    assert alarms[NOISE] <= 1
    assert alarms[INSTABILITY] == (500 if noise > 0.1 else 0)


@pytest.mark.parametrize(
    ("loss", "steps"),
    [
        ([4.0] * 10 + [2.9] * 10, 15),  # 3.12 after four of them
        ([4.0] * 4 + [2.0, 2.0, 2.9], 7),  # on average 3.2 and 2.98
        ([2.0] * 10, 5),
        ([4.0] * 20, 20),
        ([2.0] * 3, 3),
    ],
)
def test_a_plateau_lasts_until_five_steps_are_on_average_below(
    loss: list[float], steps: int
) -> None:
    assert plateau(loss, 3.0) == steps


def test_plateaus_of_the_record_tell_what_a_run_ends_with() -> None:
    """r = +0.94 with the final loss where no layer is, by plain counting; the protocol, 14.1."""
    record = Record("stability-confirm")
    found = []
    for run in record.runs:
        loss = record.raw(run)["trace"]["loss"].tolist()
        plain = next(i for i in range(5, 301) if math.fsum(loss[i - 5 : i]) / 5 < 3.0)
        assert plateau(loss, 3.0) == plain
        found += [(plain, run["measures"]["loss"])] * (run["arm"] == "none")
    assert sorted(steps for steps, _ in found) == [21, 21, 22, 24, 26, 27, 76, 87]
    assert np.corrcoef(np.transpose(found))[0, 1] == pytest.approx(0.936, abs=5e-4)


def harm_plan(**content: Any) -> Plan:
    least = {"title": "t", "question": "q", "confirmatory": [], "hypotheses": {"h": "says"}}
    return Plan.model_validate(least | content)


def test_harm_is_a_loss_above_the_arms_median_after_a_long_plateau_or_divergence() -> None:
    study = design(factors={"model.embedding_norm": ["none", "layernorm"]}, seeds=[0, 1, 2, 3, 4])
    losses = [2.0, 2.0, 2.031, 2.031, 2.029]
    runs = runs_of(study, lambda arm, seed: losses[seed] + (arm.id != "none"))
    runs["plateau"] = [20, 90, 61, 60, 90] * 2
    runs.loc[9, ["status", "loss"]] = "diverged", np.nan
    plan = harm_plan(smallest_effect_of_interest={"loss": 0.03})
    assert harmed(runs, plan)["harmful"].tolist() == [*[0] * 9, 1]
    runs["loss"] += [0, 0, 0.03, 0.03, 0] * 2  # above medians of 2.029 and 3.0305
    assert harmed(runs, plan)["harmful"].tolist() == [0, 0, 1, 0, 0, 0, 0, 1, 0, 1]
    shorter = plan.model_copy(update={"instability": Instability(plateau={"longest": 59})})
    assert harmed(runs, shorter)["harmful"].sum() == 5
    assert harmed(runs, harm_plan())["harmful"].isna().all()
    # The median is that of the runs given: a look after three seeds has another than after five.
    runs["loss"] = [2.0, 2.0, 2.1, 2.1, 2.1] * 2
    assert harmed(runs, plan)["harmful"].sum() == 1
    assert harmed(runs[runs["seed"] < 3], plan)["harmful"].tolist() == [0, 0, 1] * 2


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


def test_an_arm_whose_loss_starts_at_the_bound_is_judged() -> None:
    runs, trace = two_arms()
    runs["uniform_loss"] = 4.0
    trace.loc[trace["step"] == 1, "loss"] = 4.0 + INSTABILITY.start
    assert judge_runs(runs, trace, INSTABILITY)["judged"].all()


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
    # The line from 4.2 to 2.0 is at 3.0 in its 55th step: the middle of the five up to the 57th.
    assert words[4:] == ["Longest plateau, above 3 nats: 58 steps (none)."]
    assert len(words) == 5


@pytest.mark.usefixtures("few_resamples")
def test_a_plan_asks_for_plateaus_and_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight runs without a layer, all with longer plateaus, three end above the others; a look
    has the medians of its own runs."""
    study = design(factors={"model.embedding_norm": ["none", "layernorm"]}, seeds=[*range(8)])
    losses = {"none": [2.1, 2.1, 2.3, 2.3, 2.5, 2.1, 2.1, 2.1], "layernorm": [2.1] * 8}
    runs = runs_of(study, lambda arm, seed: losses[arm.id][seed])
    trace = trace_of(runs)
    late = (trace["arm"] == "none") & trace["step"].between(50, 70)
    trace.loc[late, "loss"] = 3.5
    least = {"says": "…", "direction": "less"}
    plan = harm_plan(
        hypotheses={
            "sooner": least | {"test": ["layernorm", "none", "plateau"], "exact": True},
            "harmless": least | {"test": ["layernorm", "none", "harmful"]},
        },
        smallest_effect_of_interest={"loss": 0.03, "plateau": 5},
    )
    verdict = reach_verdict(runs, trace, plan, np.random.default_rng(0))
    sooner, harmless = verdict.hypotheses.to_dict("records")
    assert (sooner["p"], sooner["answer"]) == (2 / 2**8, "supported")
    assert (harmless["p"], harmless["mean_delta"]) == (2 / 2**3, -3 / 8)
    assert verdict.contrasts.query("measure == 'harmful'")["t_p"].isna().all()
    assert summary_table(verdict.runs).loc["none", MEASURES["harmful"].title] == "0.38"
    assert sum(row["harmful"] for row in verdict.as_json()["stability"]) == 3
    seen: list[list[float]] = []
    real = hypotheses._deltas
    monkeypatch.setattr(
        hypotheses, "_deltas", lambda *of: seen.append((found := real(*of)).tolist()) or found
    )
    hypotheses.hypothesis_tests(verdict.runs, plan, np.random.default_rng(0), (5, 8))
    # The median of the first five is 2.3, and one is above; that of all is 2.1, and three are.
    assert [sum(deltas) for deltas in seen if set(deltas) <= {0.0, -1.0}] == [-1, -1, -3]
    table = stability_map(verdict.runs, verdict.stability, 0.05)
    assert table["harmful_runs"].tolist() == [3, 0]
    assert any(said.startswith("3 of 16 runs are harmful") for said in
               stability_finding(table, rule_of(plan)).words)  # fmt: skip


def test_without_a_definition_no_run_is_called_unstable() -> None:
    runs, trace = two_arms()
    judged = judge_runs(runs, trace, Instability())
    assert judged["unstable"].isna().all()
    assert not judged["judged"].any()
    table = stability_map(runs, judged, 0.05)
    words = stability_finding(table, Instability()).words
    assert words[:2] == [
        "No run is called unstable, as no plan says when one is.",
        "Largest rise above the running minimum: 1.00 nats (none).",
    ]
    old = judged.drop(columns=["plateau", "severity_in_noise"])  # of a verdict of before
    assert stability_map(runs, old, 0.05)["severity"].tolist() == pytest.approx([1.0, 0.0])


def test_the_map_says_what_is_not_judged_or_untrained() -> None:
    runs, trace = two_arms()
    table = stability_map(runs, judge_runs(runs, trace, INSTABILITY), 0.05)
    other = table.assign(judged=[0, 3], unstable=0, untrained_runs=[0, 2])
    _, high, low, *_ = stability_finding(other, INSTABILITY).words
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
    folders = [Record(study).folder for study in recorded_studies()]
    for path in sorted(
        path for folder in folders for path in folder.glob("*/seed-*/02_train.ipynb")
    ):
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
