import json

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from lib.analysis import resampling
from lib.analysis.tables import contrast_summary, power_summary
from lib.analysis.verdict import (
    answer_hypotheses,
    direction,
    in_words,
    planned_contrasts,
    planned_pairs,
    reach_verdict,
)
from lib.study.paths import PLANS
from lib.study.plan import Plan

CONTENT = yaml.safe_load((PLANS / "preregistration.yaml").read_text("utf-8"))
SEEDS = range(8)
MEASURES = [
    *("macro_accuracy_zero_shot", "macro_accuracy_few_shot", "perplexity", "perplexity_test"),
    *("accuracy", "ece", "brier", "grad_norm"),
]


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bootstrap interval decides anything; all 256 sign flips of eight seeds are taken."""
    monkeypatch.setattr(resampling, "RESAMPLES", 256)


@pytest.fixture
def plan() -> Plan:
    return Plan.model_validate(CONTENT)


def made_up_runs(shift: dict[str, float]) -> pd.DataFrame:
    """Eight seeds of three arms; `layernorm` differs from `none` by `shift`, up to noise."""
    noise = np.random.default_rng(0)
    rows = []
    for arm in ("none", "layernorm", "rmsnorm"):
        for seed in SEEDS:
            values = {name: 1.0 + 0.1 * seed + noise.normal(scale=1e-3) for name in MEASURES}
            if arm == "layernorm":
                values |= {name: values[name] + change for name, change in shift.items()}
            rows.append(
                {"arm": arm, "baseline": "none", "variant": arm, "setting": "", "seed": seed}
                | {"status": "completed", **values}
            )
    return pd.DataFrame(rows)


def made_up_trace(spiky_arm: str | None = None, slow_arm: str | None = None) -> pd.DataFrame:
    step = np.arange(1, 201)
    parts = []
    for arm in ("none", "layernorm", "rmsnorm"):
        for seed in SEEDS:
            noise = np.random.default_rng([seed, 1]).normal(scale=0.02, size=200)
            loss = 2.0 + 2.0 * np.exp(-step / 30) + noise
            if arm == spiky_arm:
                loss[150] += 5.0
            seconds = 0.22 if arm == slow_arm else 0.2
            parts.append(
                pd.DataFrame(
                    {"arm": arm, "seed": seed, "step": step, "loss": loss, "seconds": seconds}
                )
            )
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize(
    ("shift", "trace", "rule"),
    [
        ({"macro_accuracy_zero_shot": -0.02}, {}, "R1"),
        ({"macro_accuracy_few_shot": +0.02}, {}, "R2"),
        ({}, {"spiky_arm": "none"}, "R3"),
        ({"macro_accuracy_zero_shot": -0.02}, {"spiky_arm": "none"}, "R4"),
        ({}, {"spiky_arm": "none", "slow_arm": "layernorm"}, "R3"),
        ({"ece": -0.02}, {}, "R6"),
        ({}, {"slow_arm": "none"}, "R8"),  # speeds beside other work decide nothing
        ({"ece": +0.02, "perplexity": -1.0}, {}, "R8"),
    ],
)
def test_made_up_studies_meet_the_rule_of_their_case(
    shift: dict[str, float], trace: dict[str, str], rule: str, plan: Plan
) -> None:
    rng = np.random.default_rng(0)
    runs = made_up_runs(shift)
    verdict = reach_verdict(runs, made_up_trace(**trace), plan, rng)
    (decision,) = [d for d in verdict.decisions if d.arm == "layernorm"]
    assert decision.rule == rule
    assert f"by rule {rule}" in in_words(verdict, {}, runs, "EXPLORATORY")


def test_an_arm_as_unstable_as_its_baseline_does_not_cure_it(plan: Plan) -> None:
    trace = made_up_trace("none")
    other = made_up_trace("layernorm")
    spiky = pd.concat([trace[trace["arm"] != "layernorm"], other[other["arm"] == "layernorm"]])
    verdict = reach_verdict(made_up_runs({}), spiky, plan, np.random.default_rng(0))
    assert {d.arm: d.rule for d in verdict.decisions} == {"layernorm": "R5", "rmsnorm": "R3"}


def test_holm_is_over_the_primary_family_only(plan: Plan) -> None:
    runs = made_up_runs({"macro_accuracy_zero_shot": 0.001})
    table = planned_contrasts(runs, plan, np.random.default_rng(0))
    family = table[table["family"] == "primary"]
    assert set(zip(family["arm"], family["measure"], strict=True)) == {
        (arm, measure) for arm in ("layernorm", "rmsnorm") for measure in plan.primary
    }
    smallest = family["t_p"].min()
    assert family["p_holm"].min() == pytest.approx(min(1, 4 * smallest))
    assert table.loc[table["family"] == "", "p_holm"].isna().all()
    other = table[table["family"] == "mechanism"]  # one family does not pay for another
    assert set(zip(other["arm"], other["baseline"], strict=True)) == {("layernorm", "rmsnorm")}
    assert other["p_holm"].min() == pytest.approx(min(1, 2 * other["t_p"].min()))
    row = table.set_index(["arm", "baseline", "measure"]).loc["layernorm", "none", "perplexity"]
    values = runs.pivot(index="seed", columns="arm", values="perplexity")
    peer = stats.ttest_rel(values["layernorm"], values["none"])
    assert row["t_p"] == pytest.approx(peer.pvalue)


@pytest.mark.parametrize(
    ("measure", "delta", "p", "expected"),
    [
        ("perplexity", -1.0, 0.01, "improvement"),
        ("perplexity", +1.0, 0.01, "regression"),
        ("accuracy", +0.1, 0.01, "improvement"),
        ("accuracy", -0.1, 0.01, "regression"),
        ("accuracy", -0.1, 0.06, "none"),
        ("grad_norm", -0.1, 0.01, "none"),  # neither lower nor higher is better
        ("accuracy", -0.1, float("nan"), "undefined"),
        ("accuracy", 0.0, float("nan"), "none"),  # every seed the same in both arms
    ],
)
def test_a_change_is_read_in_its_measures_direction(
    measure: str, delta: float, p: float, expected: str
) -> None:
    row = {"measure": measure, "n": 3, "mean_delta": delta, "sd_delta": 0.0, "t_p": p}
    assert direction(row, 0.05) == expected


def test_one_pair_of_runs_shows_nothing_even_when_equal() -> None:
    row = {"measure": "ece", "n": 1, "mean_delta": 0.0, "sd_delta": np.nan, "t_p": np.nan}
    assert direction(row, 0.05) == "undefined"


def test_a_primary_measure_in_which_lower_is_better_is_judged_so(plan: Plan) -> None:
    primary = plan.model_copy(update={"primary": ["perplexity"]})
    for shift, rule in ((+0.5, "R1"), (-0.5, "R2")):
        runs = made_up_runs({"perplexity": shift})
        verdict = reach_verdict(runs, made_up_trace(), primary, np.random.default_rng(0))
        assert {d.arm: d.rule for d in verdict.decisions}["layernorm"] == rule
        contrasts = verdict.contrasts.set_index("measure")
        assert contrasts.loc["perplexity", "tost_p"].isna().all()  # no margin in its units
        answers = answer_hypotheses(verdict, runs, primary, None)
        assert answers["H1a"].answer == "not tested"  # it is about accuracy


def test_a_contrast_outside_every_family_is_undecided_however_large(plan: Plan) -> None:
    other = plan.model_copy(update={"families": {"primary": [["rmsnorm", "none"]]}})
    runs = made_up_runs({"macro_accuracy_zero_shot": -0.5})
    verdict = reach_verdict(runs, made_up_trace(), other, np.random.default_rng(0))
    assert {d.arm: d.rule for d in verdict.decisions} == {"layernorm": "R0", "rmsnorm": "R8"}


def test_each_hypothesis_is_answered_once_by_the_arms_of_the_first_family(plan: Plan) -> None:
    runs = made_up_runs({"macro_accuracy_zero_shot": -0.02})
    verdict = reach_verdict(runs, made_up_trace(), plan, np.random.default_rng(0))
    answers = answer_hypotheses(verdict, runs, plan, None)
    assert {name: a.answer for name, a in answers.items()} == {
        "H0": "rejected", "H1a": "supported in part", "H1b": "not tested",
    }  # fmt: skip
    assert answers["H0"].reason == "rejected (layernorm); not rejected (rmsnorm)"
    text = in_words(verdict, answers, runs, "EXPLORATORY")
    for name in plan.hypotheses:
        assert text.count(f"{name} ") == 1
    alone = plan.model_copy(update={"families": {"primary": [["rmsnorm", "none"]]}})
    assert answer_hypotheses(verdict, runs, alone, None)["H0"].answer == "not rejected"
    assert answer_hypotheses(verdict, runs, None, None) == {}


def test_over_learning_rates_h1b_is_what_the_sensitivity_says(plan: Plan) -> None:
    runs, trace = made_up_runs({}), made_up_trace(spiky_arm="none")
    verdict = reach_verdict(runs, trace, plan, np.random.default_rng(0))
    sensitivity = pd.DataFrame(
        [
            {"variant": "none", "within": "", "H1b": "baseline"},
            {"variant": "layernorm", "within": "", "H1b": "not supported"},
        ]
    )
    answer = answer_hypotheses(verdict, runs, plan, sensitivity)["H1b"]
    assert (answer.answer, answer.reason) == ("not supported", "not supported (layernorm)")


def test_a_verdict_is_json_and_repeats(plan: Plan) -> None:
    runs, trace = made_up_runs({"accuracy": 0.1}), made_up_trace()
    one, two = (reach_verdict(runs, trace, plan, np.random.default_rng(5)).as_json() for _ in "ab")
    assert json.dumps(one, allow_nan=False) == json.dumps(two)
    assert len(one["contrasts"]) == 3 * len(MEASURES)  # two arms, and one against the other


def test_without_a_plan_there_are_contrasts_and_no_decision() -> None:
    runs = made_up_runs({})
    verdict = reach_verdict(runs, made_up_trace(), None, np.random.default_rng(0))
    assert verdict.decisions == []
    assert set(verdict.contrasts["measure"]) <= set(MEASURES)
    assert in_words(verdict, {}, runs, "EXPLORATORY") == "No plan, or one arm: nothing to decide."


def test_diverged_runs_are_dropped_in_pairs_and_counted(plan: Plan) -> None:
    runs = made_up_runs({})
    here = (runs["arm"] == "layernorm") & (runs["seed"] == 3)
    runs.loc[here, MEASURES] = np.nan
    runs.loc[here, "status"] = "diverged"
    verdict = reach_verdict(runs, made_up_trace(), plan, np.random.default_rng(0))
    contrasts = verdict.contrasts.set_index(["arm", "baseline", "measure"])
    row = contrasts.loc["layernorm", "none", "perplexity"]
    assert (row["n"], row["n_dropped"]) == (7, 1)
    assert "(n = 7, 1 dropped" in in_words(verdict, {}, runs, "EXPLORATORY")
    tables = {table.index.name: table for table in contrast_summary(verdict.contrasts, runs)}
    assert tables["layernorm - none"].loc["n (dropped)", "validation perplexity"] == "7 (1)"


def test_the_power_table_is_in_the_measures_units(plan: Plan) -> None:
    contrasts = planned_contrasts(made_up_runs({}), plan, np.random.default_rng(0))
    sd = contrasts.loc[contrasts["measure"] == "perplexity", "sd_delta"].max()
    cell = power_summary(contrasts, plan).loc["validation perplexity", 5]
    assert float(cell) == pytest.approx(1.682 * sd, abs=0.0005)


def test_diverged_runs_count_once_more_as_the_plan_says(plan: Plan) -> None:
    runs = made_up_runs({})
    here = (runs["arm"] == "layernorm") & (runs["seed"] == 3)
    runs.loc[here, MEASURES] = np.nan
    runs.loc[here, "status"] = "diverged"
    verdict = reach_verdict(runs, made_up_trace(), plan, np.random.default_rng(0))
    values = runs.pivot(index="seed", columns="arm", values="perplexity")
    values.loc[3, "layernorm"] = 65.0
    row = verdict.imputed.set_index(["arm", "measure"]).loc[("layernorm", "perplexity")]
    assert row["n"] == 8
    assert row["mean_delta"] == pytest.approx((values["layernorm"] - values["none"]).mean())
    undisturbed = reach_verdict(made_up_runs({}), made_up_trace(), plan, np.random.default_rng(0))
    assert undisturbed.imputed.empty


def test_without_the_task_suite_nothing_is_decided(plan: Plan) -> None:
    runs = made_up_runs({}).drop(columns=["macro_accuracy_zero_shot", "macro_accuracy_few_shot"])
    verdict = reach_verdict(runs, made_up_trace(), plan, np.random.default_rng(0))
    assert verdict.decisions == []
    answers = answer_hypotheses(verdict, runs, plan, None)
    text = in_words(verdict, answers, runs, "EXPLORATORY")
    assert "**no decision**: no primary measure was taken" in text
    assert (
        "**H0 not tested**: not tested: no accuracy has an adjusted p (layernorm, rmsnorm)" in text
    )
    assert json.dumps(verdict.as_json(), allow_nan=False)


def test_pairs_stay_within_their_setting(plan: Plan) -> None:
    arms = [(v, s) for s in ("a", "b") for v in ("none", "layernorm", "rmsnorm")]
    runs = pd.DataFrame(
        [
            {"arm": f"{v},{s}", "variant": v, "setting": s, "baseline": f"none,{s}", "seed": 0}
            for v, s in arms
        ]
    )
    assert planned_pairs(runs, plan) == {
        ("layernorm,a", "none,a"): "primary",
        ("rmsnorm,a", "none,a"): "primary",
        ("layernorm,a", "rmsnorm,a"): "mechanism",
        ("layernorm,b", "none,b"): "primary",
        ("rmsnorm,b", "none,b"): "primary",
        ("layernorm,b", "rmsnorm,b"): "mechanism",
    }
