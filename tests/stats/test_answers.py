"""How often an answer is wrong, by simulation, and how answers are put into words."""

import numpy as np
import pytest
from scipy import stats

from lib.config.plan import Hypothesis
from lib.stats.answers import exclusion, in_words, outcome, without_a_seed
from lib.stats.hypotheses import hypothesis_tests
from lib.stats.power import p_values, t_sides
from tests.stats.decay import SLOWER, decay_plan, decay_runs, deltas
from tests.stats.samples import plan_of

SMALL = {"small_effects": "negligible"}
ALPHA, SD, SMALLEST = 0.05, 0.02, 0.03
STUDIES = 4_000
ERROR = 4 * (ALPHA * (1 - ALPHA) / STUDIES) ** 0.5
"""Four standard errors of a simulated share of `ALPHA`."""


def claimed(**fields):
    return Hypothesis.model_validate({"says": "…", "test": ["a", "b", "loss"]} | fields)


@pytest.fixture(scope="module")
def simulated():
    """Return number of seeds → means and sds of simulated studies without an effect."""
    draws = np.random.default_rng(7)
    made = {}
    for n in (4, 6, 8, 20, 80):
        samples = draws.normal(0.0, SD, size=(STUDIES, n)).astype(np.float32)
        made[n] = samples.mean(axis=1, dtype=float), samples.std(axis=1, ddof=1, dtype=float)
    return made


def shares(simulated, h, plan):
    """Yield true effects, with the share of studies with n seeds that get each answer."""
    for n, (means, sds) in simulated.items():
        for effect in np.linspace(-2 * SMALLEST, 2 * SMALLEST, 17):
            tested = p_values(h, plan, *t_sides(effect + means, sds, n))
            supported, refuted, negligible = (p < ALPHA for p in tested)
            negligible &= ~supported & ~refuted
            yield effect, supported.mean(), (refuted & ~supported).mean(), negligible.mean()


@pytest.mark.parametrize("beyond", [0.0, 0.015, 0.03])
@pytest.mark.parametrize(("direction", "sign"), [("greater", 1), ("less", -1)])
def test_no_true_effect_is_likely_to_get_opposite_answers(direction, sign, beyond, simulated):
    """For any true effect and any number of seeds, each false answer is rarer than alpha."""
    h = claimed(direction=direction, beyond=beyond)
    plan = plan_of(smallest_effect_of_interest={"loss": SMALLEST}, **SMALL)
    for effect, supported, refuted, negligible in shares(simulated, h, plan):
        assert min(supported, refuted) <= ALPHA + ERROR
        if sign * effect <= beyond:
            assert supported <= ALPHA + ERROR
        if sign * effect >= beyond:
            assert refuted <= ALPHA + ERROR
        if abs(effect) >= SMALLEST:
            assert negligible <= ALPHA + ERROR


def test_older_plans_were_likely_to_give_opposite_answers_to_one_effect(simulated):
    """With few seeds the effect was refuted, as smaller than 0.03; with more it was supported."""
    plan = plan_of(smallest_effect_of_interest={"loss": SMALLEST})
    worst = max(min(s, r) for _, s, r, _ in shares(simulated, claimed(direction="less"), plan))
    assert worst > 0.3


@pytest.mark.parametrize("claim", [{"direction": "differs"}, {"equivalent_within": SMALLEST}])
def test_a_claim_of_either_side_is_as_rarely_wrong(claim, simulated):
    h = claimed(**claim)
    plan = plan_of(smallest_effect_of_interest={"loss": SMALLEST}, **SMALL)
    for effect, supported, refuted, negligible in shares(simulated, h, plan):
        assert min(supported, refuted) <= ALPHA + ERROR
        if h.direction:
            assert refuted == 0
            assert effect != 0 or supported <= ALPHA + ERROR
            assert abs(effect) < SMALLEST or negligible <= ALPHA + ERROR
        else:
            assert negligible == 0
            assert abs(effect) < SMALLEST or supported <= ALPHA + ERROR
            assert abs(effect) > SMALLEST or refuted <= ALPHA + ERROR


# In words


def found(answer, low, high, hypothesis="h", **fields):
    usual = {"hypothesis": hypothesis, "answer": answer, "measure": "loss", "n": 8}
    return usual | {"mean_delta": (low + high) / 2, "t_low": low, "t_high": high} | fields


@pytest.mark.parametrize(
    ("claim", "answer", "low", "high", "said"),
    [
        ({"direction": "greater"}, "undecided", -0.026, 0.002,
         "a cost or gain of 0.03 or more is excluded"),
        ({"direction": "greater"}, "undecided", -0.04, 0.002, "a cost of 0.03 or more is excluded"),
        ({"direction": "greater"}, "undecided", -0.002, 0.04, "a gain of 0.03 or more is excluded"),
        ({"direction": "greater"}, "undecided", -0.04, 0.04, ""),
        ({"direction": "greater"}, "undecided", -0.03, 0.03, ""),  # not beyond the smallest
        ({"direction": "greater"}, "undecided", np.nan, np.nan, ""),
        ({"direction": "greater"}, "refuted", -0.02, -0.01, "any cost is excluded"),
        ({"direction": "less"}, "refuted", -0.026, 0.002, "a gain of 0.03 or more is excluded"),
        ({"direction": "greater", "beyond": 0.01}, "refuted", -0.2, 0.005,
         "a cost of 0.01 or more is excluded"),
        ({"direction": "greater", "beyond": 0.01}, "undecided", 0.005, 0.02,
         "a cost of 0.03 or more and any gain are excluded"),
        ({"equivalent_within": 0.02}, "undecided", 0.0, 0.04, "a gain of 0.02 or more is excluded"),
        ({"equivalent_within": 0.02}, "refuted", 0.03, 0.04, "any gain is excluded"),
        ({"direction": "less", "minus": ["c", "d"]}, "undecided", -0.02, 0.04,
         "a negative interaction of 0.03 or more is excluded"),
        ({"direction": "less", "test": ["a", "b", "accuracy"]}, "undecided", -0.02, 0.005,
         "a gain of 0.01 or more is excluded"),
        ({"direction": "less", "test": ["a", "b", "grad_norm"]}, "undecided", -0.02, 0.005,
         "a rise of 0.01 or more is excluded"),
        ({"direction": "less", "test": ["a", "b", "unstable"]}, "undecided", -0.02, 0.005, ""),
    ],
)  # fmt: skip
def test_an_answer_says_what_its_interval_excludes(claim, answer, low, high, said):
    smallest = {"loss": 0.03, "accuracy": 0.01, "grad_norm": 0.01, "unstable": 0.01}
    test = {"says": "…", "test": ["a", "b", "loss"]} | claim
    plan = plan_of(hypotheses={"h": test}, smallest_effect_of_interest=smallest)
    assert exclusion(found(answer, low, high), plan) == said


SMALLER = "smaller than 0.03, the smallest effect of interest"


@pytest.mark.parametrize(
    ("rule", "answer", "low", "high", "said"),
    [
        ({}, "refuted", -0.026, 0.002,
         "refuted in its plan's words: a gain of 0.03 or more is excluded"),
        (SMALL, "refuted", 0.01, 0.05, "refuted: any gain is excluded"),
        (SMALL, "negligible", -0.02, 0.01, "negligible: smaller than 0.03"),
        (SMALL, "undecided", -0.02, 0.05, "undecided: a gain of 0.03 or more is excluded"),
        (SMALL, "undecided", -0.05, 0.05, "undecided"),
        (SMALL, "supported", -0.08, -0.02, "supported"),
        (SMALL, "supported", -0.04, -0.02, "supported"),  # on average the smallest of interest
        (SMALL, "supported", -0.04, -0.01, f"supported, though it is estimated to be {SMALLER}"),
        ({}, "supported", -0.02, -0.01, f"supported, though it is {SMALLER}"),
    ],
)  # fmt: skip
def test_an_answer_in_a_few_words(rule, answer, low, high, said):
    hypotheses = {"h": {"says": "…", "test": ["a", "b", "loss"], "direction": "less"}}
    plan = plan_of(hypotheses=hypotheses, smallest_effect_of_interest={"loss": 0.03}, **rule)
    assert outcome(found(answer, low, high), plan) == said
    robust = found(answer, low, high, needed_seeds=[7])
    assert outcome(robust, plan) == f"{said}; does not hold without seed 7"


@pytest.mark.parametrize(
    ("needed", "said"),
    [
        ([], "holds without any one seed"),
        ([7], "does not hold without seed 7"),
        ([7, 2], "does not hold without seed 7, nor without seed 2"),
        ([1, 2, 3, 4], "changes when one of 4 of its 8 seeds is left out"),
    ],
)
def test_few_seeds_are_named_and_many_counted(needed, said):
    assert without_a_seed({"n": 8, "needed_seeds": needed}) == said


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize("rule", [{}, SMALL])
@pytest.mark.parametrize("shift", [0.01, 0.014])
def test_each_seed_is_left_out_and_all_is_tested_again(shift, rule):
    """By hand, with Holm's method over the two hypotheses of the family."""
    h = {"says": "…", "test": SLOWER["test"]}
    asked = {"cost": {"direction": "greater"}, "much": {"direction": "greater", "beyond": 0.01}}
    plan = decay_plan(hypotheses={name: h | fields for name, fields in asked.items()}, **rule)
    runs = decay_runs(shift, spread=0.008)
    table = hypothesis_tests(runs, plan, np.random.default_rng(0))
    fewer = [
        hypothesis_tests(runs[runs["seed"] != seed], plan, np.random.default_rng(0))["answer"]
        for seed in range(6)
    ]
    for i, row in enumerate(table.to_dict("records")):
        needed = [seed for seed in range(6) if fewer[seed][i] != row["answer"]]
        assert row["needed_seeds"] == needed
        assert f"The answer {without_a_seed(row)}." in in_words(row, plan)


def test_two_seeds_are_too_few_to_leave_one_out():
    plan = decay_plan()
    (row, _) = hypothesis_tests(decay_runs(n=2), plan, np.random.default_rng(0)).to_dict("records")
    assert "The answer" not in in_words(row, plan)


def test_in_a_family_an_interval_that_is_not_adjusted_says_so():
    """With Holm's method a hypothesis can be undecided though the plain interval excludes zero."""
    h = {"says": "…", "test": SLOWER["test"], "direction": "greater"}
    runs = decay_runs(0.004, n=8)
    p = stats.ttest_1samp(deltas(runs, "0.3"), 0).pvalue
    rule = {"smallest_effect_of_interest": {"loss": 0.001}, "alpha": 1.5 * p} | SMALL
    plan = decay_plan(hypotheses={"a": h, "b": h}, **rule)
    row, _ = hypothesis_tests(runs, plan, np.random.default_rng(0)).to_dict("records")
    said = "any gain is excluded by the interval, which is not adjusted for its family"
    assert row["answer"] == "undecided"
    assert said in in_words(row, plan)
    alone = decay_plan(hypotheses={"a": h}, **rule | {"alpha": 0.99 * p})
    (row,) = hypothesis_tests(runs, alone, np.random.default_rng(0)).to_dict("records")
    assert "not adjusted" not in in_words(row, alone)
