import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from lib.analysis.tables import contrast_summary, power_summary
from lib.analysis.verdict import (
    direction,
    in_words,
    planned_contrasts,
    planned_pairs,
    reach_verdict,
    suite_contrasts,
)
from lib.study.paths import PARAMS
from lib.study.plan import Plan

CONTENT = yaml.safe_load((PARAMS / "preregistration.yaml").read_text("utf-8"))
SEEDS = range(8)
MEASURES = [
    *("macro_accuracy_zero_shot", "macro_accuracy_few_shot", "perplexity", "perplexity_test"),
    *("accuracy", "ece", "brier", "grad_norm"),
]


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
        ({}, {"spiky_arm": "none", "slow_arm": "layernorm"}, "R4"),
        ({"ece": -0.02}, {}, "R6"),
        ({}, {"slow_arm": "none"}, "R7"),
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
    assert f"by rule {rule}" in in_words(verdict, runs, "EXPLORATORY")


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
        ("accuracy", -0.1, float("nan"), "none"),
    ],
)
def test_a_change_is_read_in_its_measures_direction(
    measure: str, delta: float, p: float, expected: str, plan: Plan
) -> None:
    assert direction(measure, delta, p, plan) == expected


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
    assert in_words(verdict, runs, "EXPLORATORY") == "No plan, or one arm: nothing to decide."


def test_diverged_runs_are_dropped_in_pairs_and_counted(plan: Plan) -> None:
    runs = made_up_runs({})
    here = (runs["arm"] == "layernorm") & (runs["seed"] == 3)
    runs.loc[here, MEASURES] = np.nan
    runs.loc[here, "status"] = "diverged"
    verdict = reach_verdict(runs, made_up_trace(), plan, np.random.default_rng(0))
    contrasts = verdict.contrasts.set_index(["arm", "baseline", "measure"])
    row = contrasts.loc["layernorm", "none", "perplexity"]
    assert (row["n"], row["n_dropped"]) == (7, 1)
    assert "(n = 7, 1 dropped" in in_words(verdict, runs, "EXPLORATORY")
    assert contrast_summary(verdict.contrasts).loc[
        ("layernorm - none", "validation perplexity"), "n (dropped)"
    ] == "7 (1)"  # fmt: skip


def test_the_power_table_is_in_the_measures_units(plan: Plan) -> None:
    contrasts = planned_contrasts(made_up_runs({}), plan, np.random.default_rng(0))
    sd = contrasts.loc[contrasts["measure"] == "perplexity", "sd_delta"].max()
    cell = power_summary(contrasts, 0.05, 0.8).loc["validation perplexity", 5]
    assert float(cell) == pytest.approx(1.682 * sd, abs=0.0005)


def suite_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two seeds, one task, four questions; `layernorm` answers one more of them."""
    items, tasks = [], []
    for arm, right in (("none", 2), ("layernorm", 3)):
        for seed in (0, 1):
            tasks.append({"arm": arm, "seed": seed, "task": "a", "shots": 0, "accuracy": right / 4})
            items += [
                {"arm": arm, "seed": seed, "task": "a", "shots": 0, "item": i, "correct": i < right}
                for i in range(4)
            ]
    return pd.DataFrame(tasks), pd.DataFrame(items)


def test_the_suite_is_contrasted_over_tasks_and_over_questions() -> None:
    tasks, items = suite_tables()
    runs = pd.DataFrame({"arm": ["none", "layernorm"], "baseline": "none"})
    table = suite_contrasts(runs, tasks, items, np.random.default_rng(0))
    row: dict[str, Any] = table.iloc[0].to_dict()
    assert (row["arm"], row["shots"], row["seeds"]) == ("layernorm", "zero", 2)
    assert row["IQM over tasks, value"] == 0.25
    assert (row["IQM over tasks, low"], row["IQM over tasks, high"]) == (0.25, 0.25)
    assert row["all questions, value"] == 0.25
    assert row["all questions, low"] < 0.25 < row["all questions, high"]


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
    text = in_words(verdict, runs, "EXPLORATORY")
    assert "**no decision**: no primary measure was taken" in text
    assert "H0 not tested: no primary measure was taken" in text
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
