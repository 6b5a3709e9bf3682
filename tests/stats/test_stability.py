import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.config.plan import Instability, Noise
from lib.stats import stability
from tests.stats.samples import plan_of, runs_of, trace_of
from tests.stats.samples import two_arms as arms

INSTABILITY = Instability(rise=0.5, last=10, start=0.5)
DEFINED = plan_of(instability=INSTABILITY.model_dump(exclude_none=True))
ENTROPY = 3.3


def falling():
    """Return a loss that falls as in training, with batch noise."""
    noise = np.random.default_rng(0).normal(scale=0.03, size=150)
    return 2.4 + 1.8 * np.exp(-np.arange(150) / 40) + noise


@pytest.mark.parametrize("step", [2, 10, 64, 149])
def test_a_rise_counts_from_the_first_step_on(step):
    loss = falling()
    loss[step] = loss[:step].min() + 0.51
    found = stability.judge_run(loss, INSTABILITY, ENTROPY, diverged=False)
    assert found["unstable"]
    assert found["severity"] == pytest.approx(0.51)
    loss[step] = loss[:step].min() + 0.49
    assert not stability.judge_run(loss, INSTABILITY, ENTROPY, diverged=False)["unstable"]


@pytest.mark.parametrize(
    ("loss", "diverged", "expected"),
    [
        (np.full(100, 3.4), False, ["untrained"]),
        (np.full(100, ENTROPY), False, []),  # at the text's entropy, not above it
        (np.r_[np.full(50, 3.0), np.full(50, 3.6)], False, ["collapsed", "transient", "unstable"]),
        (np.r_[np.full(50, 3.0), 3.6, np.full(49, 3.0)], False, ["transient", "unstable"]),
        (np.r_[np.full(50, 3.0), np.nan], True, ["diverged", "unstable"]),
        (np.array([np.nan]), True, ["diverged", "unstable"]),
    ],
)
def test_kinds_of_instability_are_named(loss, diverged, expected):
    found = stability.judge_run(loss, INSTABILITY, ENTROPY, diverged=diverged)
    assert sorted(name for name, value in found.items() if value is True) == expected


def test_a_plan_defines_instability_and_without_one_nothing_does():
    own = {"noise": {"times": 9.0}}
    assert stability.rule_of(plan_of(instability=own)) == Instability(noise=Noise(times=9.0))
    assert stability.rule_of(None) == stability.rule_of(plan_of()) == Instability()
    runs, trace = two_arms()
    judged = stability.judge_runs(runs, trace, None)
    assert judged["unstable"].isna().all()
    assert not judged["judged"].any()


NOISE = Instability(noise=Noise())


def test_the_noise_is_the_sd_of_a_batchs_loss_whatever_the_slope_and_the_spikes():
    loss = 4 - 0.01 * np.arange(4000) + np.random.default_rng(0).normal(scale=0.05, size=4000)
    loss[::40] += 3.0
    found = stability.batch_noise(loss, 1000)
    assert found[2000:] == pytest.approx(np.full(2000, 0.05), rel=0.2)
    assert (found[:1001] == found[0]).all()
    changed = loss.copy()
    changed[3000:] *= 9  # later steps are unknown
    assert (stability.batch_noise(changed, 1000)[:3001] == found[:3001]).all()
    differences = np.diff(loss)[2499 - 1000 : 2499]  # the last 1,000 before step 2,500
    mad = np.median(np.abs(differences - np.median(differences)))
    assert found[2500] == pytest.approx(1.482602218505602 * mad / math.sqrt(2))


@pytest.mark.parametrize("unit", [0.01, 1.0])
@pytest.mark.parametrize("step", [70, 149])
def test_a_rise_counts_by_its_own_noise_whatever_its_unit(step, unit):
    loss = unit * falling()
    assert not stability.judge_run(loss, NOISE, ENTROPY, diverged=False)["unstable"]
    for times in (11.9, 12.1):
        loss[step] = loss[:step].min() + times * stability.batch_noise(loss, 50)[step]
        assert stability.judge_run(loss, NOISE, ENTROPY, diverged=False)["unstable"] == (times > 12)


def test_a_spike_at_the_start_does_not_hide_in_the_noise_and_a_short_run_is_not_judged():
    loss = falling()
    loss[2] += 1.0
    assert stability.judge_run(loss, NOISE, ENTROPY, diverged=False)["transient"]
    short = np.r_[np.linspace(4, 2, 9), 9.0]
    assert not stability.judge_run(short, NOISE, ENTROPY, diverged=False)["transient"]


@pytest.mark.parametrize("noise", [0.03, 0.15])
def test_a_healthy_run_raises_no_alarm_however_small_its_batch(noise):
    """Of 200 runs whose loss falls as a power of the step, the rule by noise calls at most one
    unstable. A rule of half a nat calls all of them unstable if the noise is large."""
    fall, rng = 2.0 + 2.2 * np.arange(1, 301) ** -0.4, np.random.default_rng(0)
    runs = fall + rng.normal(scale=noise, size=(200, 300))
    alarms = {
        rule: sum(
            stability.judge_run(loss, rule, ENTROPY, diverged=False)["unstable"] for loss in runs
        )
        for rule in (NOISE, INSTABILITY)
    }
    assert alarms[NOISE] <= 1
    assert alarms[INSTABILITY] == (200 if noise > 0.1 else 0)


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
def test_a_plateau_lasts_until_five_steps_are_on_average_below(loss, steps):
    assert stability.plateau(loss, 3.0) == steps


def test_harm_is_a_loss_above_the_arms_median_after_a_long_plateau_or_divergence():
    """Runs are 0.031 or 0.029 above the medians, after plateaus of 90, 61 and 60 steps."""
    losses = [2.0, 2.0, 2.031, 2.031, 2.029]
    plateaus = [20, 90, 61, 60, 90]
    runs = runs_of(arms(5), lambda arm, seed: losses[seed] + (arm.id != "none"))
    runs["loss"] += [0, 0, 0.03, 0.03, 0] * 2  # above medians of 2.029 and 3.0305
    runs.loc[9, ["status", "loss"]] = "diverged", np.nan
    parts = [
        pd.DataFrame({"arm": arm, "seed": seed, "loss": [4.0] * (n - 2) + [0.0] * 5})
        for arm in ("none", "layernorm")
        for seed, n in enumerate(plateaus)
    ]

    def harmful(**content):
        plan = plan_of(**content)
        trace = pd.concat(parts, ignore_index=True)
        return stability.judge_runs(runs, trace, plan)["harmful"].tolist()

    effects = {"smallest_effect_of_interest": {"loss": 0.03}}
    assert harmful(**effects) == [0, 0, 1, 0, 0, 0, 0, 1, 0, 1]
    assert sum(harmful(**effects, instability={"plateau": {"longest": 59}})) == 5
    assert np.isnan(harmful()).all()


def two_arms():
    runs = runs_of(arms(3), lambda arm, seed: 2.0)
    return runs, trace_of(runs, lambda arm, seed: 1.0 if arm == "none" and seed else 0.0)


def test_arms_whose_loss_starts_high_are_not_judged():
    runs, trace = two_arms()
    first = (trace["arm"] == "none") & (trace["step"] == 1)
    trace.loc[first, "loss"] = [4.0, 4.6, 5.6]  # on average 0.53 above ln V
    table = stability.judge_runs(runs, trace, DEFINED).set_index(["arm", "seed"])
    assert table.loc["none", "judged"].tolist() == [False] * 3
    assert table.loc["none", "unstable"].isna().all()
    assert table.loc["layernorm", "unstable"].tolist() == [0.0] * 3


def test_a_diverged_run_is_unstable_though_its_measures_are_missing():
    runs, trace = two_arms()
    runs.loc[runs["arm"] == "layernorm", "status"] = "diverged"
    judged = stability.judge_runs(runs, trace, DEFINED)
    table = stability.with_stability(runs, judged).set_index(["arm", "seed"])
    assert table.loc["none", "unstable"].tolist() == [0.0, 1.0, 1.0]
    assert table.loc["layernorm", "unstable"].tolist() == [1.0] * 3
    assert table.loc["layernorm", "severity"].isna().all()
    assert table.loc["none", "severity"].tolist() == pytest.approx([0.0, 1.0, 1.0])


@pytest.mark.parametrize(("count", "n"), [(0, 8), (3, 8), (8, 8), (1, 3)])
def test_the_interval_of_a_share_is_clopper_and_pearsons(count, n):
    low = stats.beta.ppf(0.025, count, n - count + 1) if count else 0.0
    high = stats.beta.ppf(0.975, count + 1, n - count) if count < n else 1.0
    assert stability.share_interval(count, n, 0.05) == pytest.approx((low, high))
    assert np.isnan(stability.share_interval(0, 0, 0.05)).all()


def steps(**columns):
    loss = 4 - np.arange(120) / 60
    table = pd.DataFrame({"step": np.arange(1, 121), "loss": loss, "grad_norm": 1.0})
    for name, (step, value) in columns.items():
        table.loc[table["step"] == step, name] = value
    return table


@pytest.mark.parametrize(
    ("columns", "rule", "said"),
    [
        ({}, INSTABILITY, {}),
        ({"loss": (60, 9.0)}, INSTABILITY,
         {"rise": "its loss is 9.00, 5.97 nats above its lowest so far at step 60"}),
        ({"loss": (60, np.nan)}, INSTABILITY,
         {"finite": "its loss or gradient is not finite at step 60"}),
        ({"grad_norm": (80, np.inf)}, INSTABILITY,
         {"finite": "its loss or gradient is not finite at step 80"}),
        ({"grad_norm": (80, np.nan)}, INSTABILITY, {}),  # a step that fp16 skipped
        ({"grad_norm": (80, 10.1)}, INSTABILITY,
         {"norm": "its gradient norm is 10.1, 10 times the usual at step 80"}),
        ({"grad_norm": (80, 9.9)}, INSTABILITY, {}),
    ],
)  # fmt: skip
def test_training_warnings(columns, rule, said):
    assert stability.training_warnings(steps(**columns), rule) == said


def test_rise_warning_without_a_rule_uses_the_noise():
    loss = falling()
    table = pd.DataFrame({"step": np.arange(1, 151), "loss": loss, "grad_norm": 1.0})
    assert stability.training_warnings(table, Instability()) == {}
    table.loc[100, "loss"] += 20 * 0.03
    assert set(stability.training_warnings(table, Instability())) == {"rise"}
