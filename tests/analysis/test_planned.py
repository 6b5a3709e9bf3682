import numpy as np
import pandas as pd
import pytest
import yaml
from lib.analysis.planned import margins_of, planned_contrasts, planned_pairs
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from lib.study.io import PLANS
from lib.study.plan import Family, Plan
from tests.analysis.samples import design, noise, runs_of
from tests.analysis.test_verdict import made_up_runs

SECOND = yaml.safe_load((PLANS / "second.yaml").read_text("utf-8"))


@pytest.fixture
def plan() -> Plan:
    return Plan.model_validate(yaml.safe_load((PLANS / "preregistration.yaml").read_text("utf-8")))


@pytest.fixture
def second() -> Plan:
    return Plan.model_validate(SECOND)


def test_each_family_of_the_first_plan_is_adjusted_alone(plan: Plan) -> None:
    runs = made_up_runs({"macro_accuracy_zero_shot": 0.001})
    table, tests = planned_contrasts(runs, plan, np.random.default_rng(0))
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
    assert set(tests["test"]) == {"t"}
    assert len(tests) == len(family) + len(other)
    row = table.set_index(["arm", "baseline", "measure"]).loc["layernorm", "none", "perplexity"]
    values = runs.pivot(index="seed", columns="arm", values="perplexity")
    peer = stats.ttest_rel(values["layernorm"], values["none"])
    assert row["t_p"] == pytest.approx(peer.pvalue)


def confirmatory() -> pd.DataFrame:
    """Runs of the second plan's arms: `rescued` equals `none`, the others do not."""
    include = [
        {"name": "rescued",
         "levels": {"model.embedding_norm": "layernorm", "model.branch_multiplier": 35.36}}
    ]  # fmt: skip
    factors = {"model.embedding_norm": ["none", "layernorm", "rmsnorm", "scale"]}
    study = design(factors=factors, include=include, seeds=list(range(8)))
    shift = {"none": 0.0, "rescued": 0.0, "layernorm": 0.1, "rmsnorm": 0.11, "scale": 0.102}

    def of(scale: float, base: float, sign: float):
        def value(arm, seed):
            index = list(shift).index(arm.id)
            return (
                base + sign * shift[arm.id] * scale + 0.003 * scale * noise(seed, index, int(base))
            )

        return value

    return runs_of(
        study,
        of(1, 2, 1),
        macro_accuracy_zero_shot=of(0.2, 0.6, -1),
        macro_accuracy_few_shot=of(0.2, 0.7, -1),
        gradient_cosine=of(1, 0.5, 1),
    )


def test_families_of_the_second_plan_are_tested_as_it_says(second: Plan) -> None:
    runs = confirmatory()
    _, tests = planned_contrasts(runs, second, np.random.default_rng(0))
    of = {
        m: runs.pivot(index="seed", columns="arm", values=m) for m in runs if runs[m].dtype == float
    }
    for name, family in second.tests_of.items():
        own = tests[tests["family"] == name].set_index(["arm", "baseline", "measure"])
        asked = [(*pair, m) for m in family.measures for pair in family.contrasts]
        assert sorted(own.index) == sorted(asked)
        assert len(asked) <= 6
        peers = []
        for arm, baseline, measure in own.index:
            one, other = of[measure][arm], of[measure][baseline]
            if family.test == "equivalence":
                margin = second.margins[measure]
                peers.append(ttost_paired(one, other, -margin, margin)[0])
            else:
                peers.append(stats.ttest_rel(one, other).pvalue)
        assert own["p"].tolist() == pytest.approx(peers)
        assert own["p_holm"].tolist() == pytest.approx(multipletests(peers, method="holm")[1])
        assert set(own["test"]) == {family.test}
    answer = tests.set_index(["family", "arm", "baseline", "measure"])["answer"]
    assert answer["primary", "layernorm", "none", "perplexity"] == "harms"
    assert answer["smoothness", "layernorm", "none", "gradient_cosine"] == "helps"
    assert answer["mechanism", "rescued", "none", "perplexity"] == "undecided"
    key = ("equivalence", "rescued", "none", "macro_accuracy_zero_shot")
    assert answer[key] == "no difference beyond ± 0.01"


def test_a_contrast_in_two_families_keeps_one_row_and_both_tests(second: Plan) -> None:
    contrasts, tests = planned_contrasts(confirmatory(), second, np.random.default_rng(0))
    assert not contrasts.duplicated(["arm", "baseline", "measure"]).any()
    keys = "arm == 'rescued' and baseline == 'none' and measure == 'perplexity'"
    assert tests.query(keys)["family"].tolist() == ["mechanism", "equivalence"]
    (row,) = contrasts.query(keys).to_dict("records")
    (difference,) = tests.query(keys + " and test == 't'").to_dict("records")
    assert (row["family"], row["test"]) == ("mechanism", "t")
    assert row["p_holm"] == difference["p_holm"]
    alone = contrasts.query("arm == 'layernorm' and baseline == 'rmsnorm'")
    assert set(alone["family"]) == {""}  # only tested for equivalence: its difference is not


def test_margins_are_the_plans_else_of_accuracies_the_smallest_effect(
    plan: Plan, second: Plan
) -> None:
    assert margins_of(plan) == {
        "macro_accuracy_zero_shot": 0.005, "macro_accuracy_few_shot": 0.005, "accuracy": 0.005,
    }  # fmt: skip
    assert margins_of(second) == {**SECOND["margins"], "accuracy": 0.01}


@pytest.mark.parametrize(
    ("calmer", "worse"), [(8, 0), (6, 1), (5, 0), (3, 3), (0, 2), (7, 1), (0, 0)]
)
def test_the_exact_test_of_unstable_runs_is_mcnemars(calmer: int, worse: int, second: Plan) -> None:
    before = [1] * calmer + [0] * worse + [0] * (8 - calmer - worse)
    after = [0] * calmer + [1] * worse + [0] * (8 - calmer - worse)
    study = design(factors={"model.embedding_norm": ["none", "layernorm"]}, seeds=list(range(8)))
    runs = runs_of(study, lambda arm, seed: 2.0)
    runs["unstable"] = [float(x) for x in before + after]
    family = Family(contrasts=[["layernorm", "none"]], measures=["unstable"], test="exact")
    update = {"families": {"stability": family}, "secondary": ["unstable"]}
    contrasts, tests = planned_contrasts(
        runs, second.model_copy(update=update), np.random.default_rng(0)
    )
    table = [[8 - calmer - worse, worse], [calmer, 0]]
    peer = mcnemar(table, exact=True).pvalue
    (row,) = tests.to_dict("records")
    assert row["p"] == pytest.approx(peer)
    if calmer + worse:
        assert row["p"] == pytest.approx(stats.binomtest(calmer, calmer + worse).pvalue)
    said = {True: "helps" if calmer > worse else "harms", False: "undecided"}[peer < 0.05]
    assert row["answer"] == (said if calmer + worse else "no difference in any seed")
    (contrast,) = contrasts.query("measure == 'unstable'").to_dict("records")
    assert (contrast["family"], contrast["test"]) == ("stability", "exact")


def test_a_test_without_a_p_says_so_and_counts_in_its_family(second: Plan) -> None:
    runs = confirmatory()
    lost = (runs["arm"] == "rmsnorm") & (runs["seed"] > 0)
    runs.loc[lost, ["perplexity", "macro_accuracy_zero_shot", "macro_accuracy_few_shot"]] = np.nan
    _, tests = planned_contrasts(runs, second, np.random.default_rng(0))
    primary = tests[tests["family"] == "primary"].set_index(["arm", "measure"])
    assert set(primary.loc["rmsnorm", "answer"]) == {"not tested"}
    smallest = primary["p"].min()
    assert primary["p_holm"].min() == pytest.approx(6 * smallest)


def test_pairs_stay_within_their_setting(plan: Plan) -> None:
    arms = [(v, s) for s in ("a", "b") for v in ("none", "layernorm", "rmsnorm", "new")]
    runs = pd.DataFrame(
        [
            {"arm": f"{v},{s}", "variant": v, "setting": s, "baseline": f"none,{s}", "seed": 0}
            for v, s in arms
        ]
    )
    assert planned_pairs(runs, plan) == {
        pair: families
        for s in ("a", "b")
        for pair, families in {
            (f"layernorm,{s}", f"none,{s}"): ["primary"],
            (f"rmsnorm,{s}", f"none,{s}"): ["primary"],
            (f"layernorm,{s}", f"rmsnorm,{s}"): ["mechanism"],
            (f"new,{s}", f"none,{s}"): [],
        }.items()
    }


def test_a_p_of_exactly_the_level_decides_nothing(plan: Plan) -> None:
    runs = made_up_runs({"macro_accuracy_zero_shot": -0.02})
    tests = planned_contrasts(runs, plan, np.random.default_rng(0))[1]
    p = tests["p_holm"].min()
    for alpha, answer in ((p, "undecided"), (np.nextafter(p, 1), "harms")):
        other = plan.model_copy(update={"alpha": float(alpha)})
        again = planned_contrasts(runs, other, np.random.default_rng(0))[1]
        assert set(again.loc[again["p_holm"] == p, "answer"]) == {answer}


def test_a_measure_that_a_plan_lists_twice_is_tested_once(plan: Plan) -> None:
    runs = made_up_runs({})
    twice = plan.model_copy(update={"secondary": [*plan.primary, *plan.secondary]})
    one, two = (planned_contrasts(runs, p, np.random.default_rng(0)) for p in (plan, twice))
    for table, other in zip(one, two, strict=True):
        pd.testing.assert_frame_equal(table, other)
