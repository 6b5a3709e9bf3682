import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from lib.analysis.planned import planned_contrasts
from scipy import stats

from lib.analysis import verdict as verdict_of
from lib.analysis.tables import contrast_summary, power_summary
from lib.analysis.verdict import cost, direction, in_words, largest_loss, reach_verdict
from lib.study.io import PLANS
from lib.study.plan import Family, Plan

pytestmark = pytest.mark.usefixtures("few_resamples")
CONTENT = yaml.safe_load((PLANS / "preregistration.yaml").read_text("utf-8"))
SEEDS = range(8)
MEASURES = [
    *("macro_accuracy_zero_shot", "macro_accuracy_few_shot", "perplexity", "perplexity_test"),
    *("accuracy", "ece", "brier", "grad_norm", "gradient_cosine"),
]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


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
                | {"status": "completed", "unigram_entropy": 3.3, "uniform_loss": 4.2, **values}
            )
    return pd.DataFrame(rows)


def made_up_trace(spiky_arm: str | None = None) -> pd.DataFrame:
    step = np.arange(1, 201)
    parts = []
    for arm in ("none", "layernorm", "rmsnorm"):
        for seed in SEEDS:
            noise = np.random.default_rng([seed, 1]).normal(scale=0.02, size=200)
            loss = 2.0 + 2.0 * np.exp(-step / 30) + noise
            if arm == spiky_arm:
                loss[150] += 5.0
            parts.append(pd.DataFrame({"arm": arm, "seed": seed, "step": step, "loss": loss}))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize(
    ("shift", "trace", "rule"),
    [
        ({"macro_accuracy_zero_shot": -0.02}, {}, "R1"),
        ({"macro_accuracy_few_shot": +0.02}, {}, "R2"),
        ({}, {"spiky_arm": "none"}, "R3"),
        ({"macro_accuracy_zero_shot": -0.02}, {"spiky_arm": "none"}, "R4"),
        ({"ece": -0.02}, {}, "R6"),
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
    assert f"by rule {rule}" in in_words(verdict, "CONFIRMATORY")


def test_an_arm_as_unstable_as_its_baseline_does_not_cure_it(plan: Plan) -> None:
    trace = made_up_trace("none")
    other = made_up_trace("layernorm")
    spiky = pd.concat([trace[trace["arm"] != "layernorm"], other[other["arm"] == "layernorm"]])
    verdict = reach_verdict(made_up_runs({}), spiky, plan, np.random.default_rng(0))
    assert {d.arm: d.rule for d in verdict.decisions} == {"layernorm": "R5", "rmsnorm": "R3"}


@pytest.mark.parametrize(
    ("measure", "delta", "p", "expected"),
    [
        ("perplexity", -1.0, 0.01, "improvement"),
        ("perplexity", +1.0, 0.01, "regression"),
        ("accuracy", +0.1, 0.01, "improvement"),
        ("accuracy", -0.1, 0.01, "regression"),
        ("accuracy", -0.1, 0.06, "none"),
        ("accuracy", -0.1, 0.05, "none"),  # exactly the level: not below it
        ("accuracy", -0.1, 0.0499, "regression"),
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
    one_pair = row | {"n": 1, "mean_delta": 0.0, "sd_delta": np.nan, "t_p": np.nan}
    assert direction(one_pair, 0.05) == "undefined"  # even when equal


def test_a_primary_measure_in_which_lower_is_better_is_judged_so(plan: Plan) -> None:
    primary = plan.model_copy(update={"primary": ["perplexity"]})
    for shift, rule in ((+0.5, "R1"), (-0.5, "R2")):
        runs = made_up_runs({"perplexity": shift})
        verdict = reach_verdict(runs, made_up_trace(), primary, np.random.default_rng(0))
        assert {d.arm: d.rule for d in verdict.decisions}["layernorm"] == rule
        contrasts = verdict.contrasts.set_index("measure")
        assert contrasts.loc["perplexity", "tost_p"].isna().all()  # no margin in its units
        assert verdict.answers["H1a"].answer == "not tested"  # it is about accuracy


def test_a_contrast_outside_every_family_is_undecided_however_large(plan: Plan) -> None:
    other = plan.model_copy(update={"families": {"primary": [["rmsnorm", "none"]]}})
    runs = made_up_runs({"macro_accuracy_zero_shot": -0.5})
    verdict = reach_verdict(runs, made_up_trace(), other, np.random.default_rng(0))
    assert {d.arm: d.rule for d in verdict.decisions} == {"layernorm": "R0", "rmsnorm": "R8"}


def test_each_hypothesis_is_answered_once_by_the_arms_of_the_first_family(plan: Plan) -> None:
    runs = made_up_runs({"macro_accuracy_zero_shot": -0.02})
    verdict = reach_verdict(runs, made_up_trace(), plan, np.random.default_rng(0))
    answers = verdict.answers
    assert {name: a.answer for name, a in answers.items()} == {
        "H0": "rejected", "H1a": "supported in part", "H1b": "not tested",
    }  # fmt: skip
    reason = answers["H0"].reason
    values = runs.pivot(index="seed", columns="arm", values="macro_accuracy_zero_shot")
    peer = stats.ttest_rel(values["layernorm"], values["none"])
    low, high = peer.confidence_interval()
    mean = (values["layernorm"] - values["none"]).mean()
    said = f"{mean:+.4f} [{low:+.4f}, {high:+.4f}], n = 8; "
    assert reason.startswith(f"layernorm (harms in macro accuracy, zero-shot: {said}")
    assert "no difference beyond ± 0.005 in macro accuracy, few-shot" in reason
    assert "; rmsnorm (" in reason
    assert reason.endswith("): not rejected")
    text = in_words(verdict, "EXPLORATORY")
    for name in plan.hypotheses:
        assert text.count(f"{name} ") == 1
    alone = plan.model_copy(update={"families": {"primary": [["rmsnorm", "none"]]}})
    assert reach_verdict(runs, made_up_trace(), alone, rng()).answers["H0"].answer == "not rejected"
    assert reach_verdict(runs, made_up_trace(), None, rng()).answers == {}


def exact(plan: Plan) -> Plan:
    """The plan with an exact test of the share of unstable runs, which decides H1b."""
    families = {"stability": Family(contrasts=[["layernorm", "none"]], measures=["unstable"],
                                    test="exact")}  # fmt: skip
    secondary = [*plan.secondary, "unstable"]
    return plan.model_copy(update={"families": plan.families | families, "secondary": secondary})


@pytest.mark.parametrize(("calm", "answer"), [(0, "supported"), (4, "not supported")])
def test_h1b_is_decided_by_the_exact_test_where_there_is_one(
    calm: int, answer: str, plan: Plan
) -> None:
    """Eight unstable baseline runs against none: p is 2/256. Four against none: 2/16."""
    runs, trace = made_up_runs({}), made_up_trace("none")
    quiet = made_up_trace()
    here = (trace["arm"] == "none") & (trace["seed"] < calm)
    trace.loc[here, "loss"] = quiet.loc[here, "loss"]
    verdict = reach_verdict(runs, trace, exact(plan), rng())
    (test,) = verdict.tests.query("test == 'exact'").to_dict("records")
    assert test["p"] == test["p_holm"] == 2 / 2 ** (8 - calm)
    assert test["answer"] == ("helps" if answer == "supported" else "undecided")
    found = verdict.answers["H1b"]
    assert found.answer == answer
    share = {0: "8 of 8 unstable [0.63, 1.00]", 4: "4 of 8 unstable [0.16, 0.84]"}[calm]
    said = f"layernorm (0 of 8 unstable [0.00, 0.37]; of its baseline {share})"
    assert found.reason.startswith(said)
    decided = {d.arm: d.rule for d in verdict.decisions}["layernorm"]
    assert decided == {0: "R3", 4: "R5"}[calm]


def test_arms_whose_loss_starts_high_are_not_judged(plan: Plan) -> None:
    runs, trace = made_up_runs({}), made_up_trace()
    trace.loc[(trace["arm"] == "none") & (trace["step"] == 1), "loss"] = 100.0
    verdict = reach_verdict(runs, trace, plan, rng())
    assert {d.rule for d in verdict.decisions} == {"R0"}
    answers = verdict.answers
    assert {a.answer for a in answers.values()} == {"not tested"}
    assert answers["H1b"].reason == "layernorm, rmsnorm: the baseline is not judged"


def test_the_rules_see_the_whole_interval_of_a_loss(plan: Plan) -> None:
    row = {"measure": "accuracy", "n": 8, "mean_delta": -0.01, "sd_delta": 0.01}
    assert largest_loss(row | {"t_low": -0.03, "t_high": 0.01}) == pytest.approx(0.03)
    assert largest_loss(row | {"t_low": 0.01, "t_high": 0.03}) == pytest.approx(-0.01)
    assert np.isnan(largest_loss(row | {"t_low": np.nan, "t_high": np.nan}))
    still = row | {"mean_delta": 0.0, "sd_delta": 0.0, "t_low": np.nan, "t_high": np.nan}
    assert largest_loss(still) == 0.0
    with_interval = row | {"t_low": -0.03, "t_high": 0.01}
    for limit, said in ((0.031, "within"), (0.03, "unclear"), (0.01, "unclear"), (0.009, "over")):
        assert cost([with_interval], limit) == said
    falls = {"measure": "perplexity", "n": 8, "mean_delta": -1.0, "sd_delta": 1.0}
    assert cost([falls | {"t_low": -2.0, "t_high": -0.1}], 0.01) == "within"
    for rows, limit in (([], 0.1), ([row | {"t_low": np.nan, "t_high": np.nan}], 0.1),
                        ([still], np.nan)):  # fmt: skip
        assert cost(rows, limit) == "unknown"
    runs, trace = made_up_runs({"macro_accuracy_few_shot": -0.0048}), made_up_trace("none")
    verdict = reach_verdict(runs, trace, plan, rng())
    (decision,) = [d for d in verdict.decisions if d.arm == "layernorm"]
    assert (decision.rule, decision.decision) == ("R0", "undecided")
    assert "cannot be told from the planned one" in decision.reason


def test_smoother_training_is_asked_for_where_the_plan_names_a_measure_of_it(plan: Plan) -> None:
    families = {
        name: Family(contrasts=[["layernorm", "none"]], measures=[measure])
        for name, measure in (
            ("primary", "macro_accuracy_zero_shot"),
            ("smooth", "gradient_cosine"),
        )
    }
    update = {"families": families, "smoothness": "gradient_cosine"}
    update |= {"secondary": [*plan.secondary, "gradient_cosine"]}
    for rise, answer in (
        (0.1, "supported"),
        (0.0, "supported in part"),
        (-0.1, "supported in part"),
    ):
        runs = made_up_runs({"macro_accuracy_zero_shot": -0.02, "gradient_cosine": rise})
        second = plan.model_copy(update=update)
        found = reach_verdict(runs, made_up_trace(), second, rng()).answers
        assert found["H1a"].answer == answer
        assert "in mean cosine between gradients of two parts of dev: " in found["H1a"].reason
        assert ("smooths training is not shown" in found["H1a"].reason) == (rise <= 0)


def test_a_measure_that_no_family_tests_for_an_arm_is_left_out_of_its_rules(plan: Plan) -> None:
    family = Family(contrasts=[["layernorm", "none"]], measures=["macro_accuracy_zero_shot"])
    other = plan.model_copy(update={"families": {"primary": family}})
    runs = made_up_runs({"macro_accuracy_few_shot": -0.5})
    verdict = reach_verdict(runs, made_up_trace(), other, rng())
    (evidence,) = [e for e in verdict.evidence if e.arm == "layernorm"]
    assert evidence.primary["macro_accuracy_few_shot"] == "untested"
    assert {d.arm: d.rule for d in verdict.decisions} == {"layernorm": "R8", "rmsnorm": "R0"}


def test_a_verdict_is_json_and_repeats(plan: Plan) -> None:
    runs, trace = made_up_runs({"accuracy": 0.1}), made_up_trace()
    one, two = (reach_verdict(runs, trace, plan, np.random.default_rng(5)).as_json() for _ in "ab")
    assert json.dumps(one, allow_nan=False) == json.dumps(two)
    assert len(one["contrasts"]) == 3 * (len(MEASURES) - 1)  # two arms, and one against the other


def test_without_a_plan_there_are_contrasts_and_no_decision() -> None:
    runs = made_up_runs({})
    verdict = reach_verdict(runs, made_up_trace(), None, np.random.default_rng(0))
    assert verdict.decisions == []
    assert set(verdict.contrasts["measure"]) <= set(MEASURES)
    text = in_words(verdict, "EXPLORATORY")
    assert re.search(r"\*\*layernorm\*\* \(exploratory\): .*validation perplexity [+-]\d", text)
    assert "rule" not in text.partition("\n")[2]
    alone = verdict.contrasts.iloc[:0]
    one_arm = replace(verdict, contrasts=alone)
    assert in_words(one_arm, "EXPLORATORY") == "One arm: nothing to compare."


def test_diverged_runs_are_dropped_in_pairs_and_counted(plan: Plan) -> None:
    runs = made_up_runs({})
    here = (runs["arm"] == "layernorm") & (runs["seed"] == 3)
    runs.loc[here, MEASURES] = np.nan
    runs.loc[here, "status"] = "diverged"
    verdict = reach_verdict(runs, made_up_trace(), plan, np.random.default_rng(0))
    contrasts = verdict.contrasts.set_index(["arm", "baseline", "measure"])
    row = contrasts.loc["layernorm", "none", "perplexity"]
    assert (row["n"], row["n_dropped"]) == (7, 1)
    assert "(n = 7, 1 dropped" in in_words(verdict, "EXPLORATORY")
    tables = {table.index.name: table for table in contrast_summary(verdict.contrasts, runs)}
    assert tables["layernorm - none"].loc["n (dropped)", "validation perplexity"] == "7 (1)"


def test_every_statistic_of_a_contrast_stands_in_its_table(plan: Plan) -> None:
    runs, name = made_up_runs({}), "macro_accuracy_few_shot"
    verdict = reach_verdict(runs, made_up_trace(), plan, rng())
    tables = {table.index.name: table for table in contrast_summary(verdict.contrasts, runs)}
    table = tables["layernorm - none"]
    values = runs.pivot(index="seed", columns="arm", values=name)
    arms = {arm: f"{of.mean():.4f} ± {of.std():.4f}" for arm, of in values.items()}
    delta = values["layernorm"] - values["none"]
    test = stats.ttest_1samp(delta, 0)
    low, high = test.confidence_interval(0.95)
    d_z = delta.mean() / delta.std()
    margin = plan.minimum_detectable_effect
    sides = stats.ttest_1samp(delta, -margin).pvalue, stats.ttest_1samp(delta, margin).pvalue
    cells = table["macro accuracy, few-shot"].drop(index=["Holm p (its family)", "bootstrap p"])
    by_resampling = cells.pop("percentile bootstrap (coverage)")
    assert re.fullmatch(r"\[-0\.000\d, \+0\.00\d+\] \(88\.7%\)", by_resampling)
    assert cells.to_dict() == {
        "n (dropped)": "8 (0)",
        "baseline, mean ± sd": arms["none"],
        "arm, mean ± sd": arms["layernorm"],
        "difference": f"{delta.mean():+.4f}",
        "t interval": f"[{low:+.4f}, {high:+.4f}]",
        "t test p": f"{test.pvalue:.2g}",
        "sign-flip p (smallest)": f"{sign_flip_p(delta):.2g} (0.0078)",
        "d_z": f"{d_z:.2f}",
        "Hedges' g_z": f"{d_z * (1 - 3 / (4 * 7 - 1)):.2f}",
        "equivalence (TOST) p": f"{max(sides) / 2:.2g}",
        "detectable at this n": f"{1.155 * delta.std():.4f}",
        "seeds to detect the margin": "3",
    }
    assert table["validation perplexity"]["seeds to detect the margin"] == "n/a"  # without a margin


def sign_flip_p(delta: pd.Series) -> float:
    """The share of all signs of the differences that have as large a mean."""
    signs = np.array([*itertools.product([-1, 1], repeat=len(delta))])
    return float((abs(signs @ delta) >= abs(delta.sum()) - 1e-12).mean())


def test_the_power_table_is_in_the_measures_units(plan: Plan) -> None:
    contrasts = planned_contrasts(made_up_runs({}), plan, np.random.default_rng(0))[0]
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


@pytest.mark.parametrize(
    ("tolerated", "share", "said"),
    [
        (0.25, 0.25, "stable"),
        (0.25, 0.26, "unstable"),
        (None, 0.0, "stable"),
        (None, 0.1, "unstable"),
        ("no definition", 0.0, "stable"),
        ("no definition", 0.1, "unstable"),
    ],
)
def test_an_arm_is_stable_up_to_the_share_that_the_plan_tolerates(
    tolerated: float | str | None, share: float, said: str, plan: Plan
) -> None:
    assert plan.instability
    rule = plan.instability.model_copy(update={"tolerated_share": tolerated})
    if tolerated == "no definition":
        rule = None
    plan = plan.model_copy(update={"instability": rule})
    assert verdict_of._stability({"judged": 8, "share": share}, plan) == said
    assert verdict_of._stability({"judged": 0, "share": share}, plan) == "not judged"


def test_without_the_task_suite_nothing_is_decided(plan: Plan) -> None:
    runs = made_up_runs({}).drop(columns=["macro_accuracy_zero_shot", "macro_accuracy_few_shot"])
    verdict = reach_verdict(runs, made_up_trace(), plan, np.random.default_rng(0))
    assert verdict.decisions == []
    text = in_words(verdict, "CONFIRMATORY")
    assert "**no decision**: no primary measure was taken" in text
    assert "**H0 not tested**: layernorm, rmsnorm: no accuracy has an adjusted p." in text
    assert json.dumps(verdict.as_json(), allow_nan=False)
