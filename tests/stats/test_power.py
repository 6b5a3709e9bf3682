import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from lib.config.plan import Hypothesis
from lib.stats import power as powers
from lib.stats.power import expected_power, power_of, spread_of, t_test_power
from tests.stats.decay import SAME, SLOWER, decay_plan, decay_runs, deltas
from tests.stats.samples import plan_of

ASKED = {"says": "", "test": ["a", "b", "loss"]}
DIFFERS = Hypothesis.model_validate(ASKED | {"direction": "differs"})
WITHIN = Hypothesis.model_validate(ASKED | {"equivalent_within": 1.0})


# Up to a noncentrality of 12: from about 15 scipy's lower tail, and statsmodels' power, can be NaN.
@pytest.mark.parametrize(("d_z", "n"), [(0, 2), (2.5, 2), (1, 3), (1.7, 5), (1, 10), (0.3, 40)])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_power_equals_statsmodels(d_z, n, alpha):
    assert t_test_power(d_z, n, alpha) == pytest.approx(TTestPower().power(d_z, n, alpha), abs=1e-9)


def test_power_stays_defined_where_scipys_lower_tail_is_not():
    critical = stats.t.isf(0.025, 4)
    assert np.isnan(stats.nct.cdf(-critical, 4, 25.0))
    assert t_test_power(25.0 / 5**0.5, 5) == pytest.approx(1.0)


@pytest.mark.parametrize("n", [2, 4, 5, 20])
@pytest.mark.parametrize(("alpha", "power"), [(0.05, 0.8), (0.025, 0.9)])
def test_the_minimum_detectable_effect_is_statsmodels_in_units_of_sd(n, alpha, power):
    found = powers.minimum_detectable_effect(2.0, n, alpha, power)
    assert t_test_power(found / 2, n, alpha) == pytest.approx(power)
    if n > 3:  # with fewer, statsmodels' search ends on a NaN
        expected = TTestPower().solve_power(nobs=n, alpha=alpha, power=power)
        assert found == pytest.approx(2 * expected, rel=1e-5)


def test_without_spread_or_seeds_there_is_no_minimum():
    assert np.isnan(powers.minimum_detectable_effect(0.0, 5))
    assert np.isnan(powers.minimum_detectable_effect(1.0, 1))


@pytest.mark.parametrize(("d_z", "n"), [(0.0, 5), (0.5, 20), (1.0, 10), (1.682, 5)])
def test_the_power_of_a_difference_is_statsmodels(d_z, n):
    peer = TTestPower().power(d_z, n, 0.05)
    power = sum(power_of(DIFFERS, plan_of(), 0.3 * d_z, 0.3, n, 0.05))
    assert power == pytest.approx(peer, abs=0.01)


def test_the_power_of_an_equivalence_is_that_of_simulated_studies():
    samples = np.random.default_rng(1).normal(0.2, 1.0, size=(20_000, 12))
    error = samples.std(axis=1, ddof=1) / 12**0.5
    t = [(samples.mean(axis=1) - bound) / error for bound in (-1.0, 1.0)]
    both = np.mean((stats.t.sf(t[0], 11) < 0.05) & (stats.t.cdf(t[1], 11) < 0.05))
    assert power_of(WITHIN, plan_of(), 0.2, 1.0, 12, 0.05)[0] == pytest.approx(both, abs=0.015)


def test_seeds_to_decide_are_the_textbooks():
    """For d = 0.5 and 1.0 and a power of 80 %, n is 34 and 10."""
    assert [powers.seeds_to_decide(DIFFERS, plan_of(), d, 1.0, 0.05) for d in (0.5, 1.0)] == [
        34,
        10,
    ]
    assert powers.seeds_to_decide(DIFFERS, plan_of(), 0.001, 1.0, 0.05) == np.inf
    assert np.isnan(powers.seeds_to_decide(DIFFERS, plan_of(), 1.0, np.nan, 0.05))


def test_the_power_of_a_plan_follows_from_the_spread_of_another_study():
    plan, runs = decay_plan(), decay_runs()
    spread = spread_of(plan, runs)
    assert spread["same"] == pytest.approx(deltas(runs, "0.1").std())
    pilot = runs[runs["arm"] != "weight_decay=0.1"]
    assert spread_of(plan, pilot)["same"] == spread["slower"]
    assert spread_of(plan, pilot.drop(columns="loss")) == {}
    assert spread_of(plan, pilot[pilot["seed"] == 0]) == {}  # one seed has no spread
    ladder = runs.assign(arm=runs["arm"] + ",rate=1", variant=runs["arm"], setting="rate=1")
    assert spread_of(plan, ladder) == spread  # whose arms have other factors as well
    assert expected_power(plan, {"same": 0.02}, 8)["hypothesis"].tolist() == ["same"]
    table = expected_power(plan, {"slower": 0.02, "same": 0.02}, 8).set_index("hypothesis")
    assert table["difference"].to_dict() == {"slower": 0.04, "same": 0.0}
    peer = TTestPower()  # two tests share alpha
    power = peer.power(1.0, 8, 0.025)
    assert table.loc["slower", "power"] == pytest.approx(power, abs=0.01)
    needed = int(np.ceil(peer.solve_power(1.0, None, 0.025, 0.8)))
    assert table.loc["slower", "seeds"] == needed
    larger = expected_power(plan, {"slower": 0.02, "same": 0.02}, 8, effect=0.05)
    assert larger["power"][0] > power


def test_the_power_to_show_a_difference_negligible_is_that_of_simulated_studies():
    """Two one-sided tests at the plan's alpha, in a family of one; more seeds, more power."""
    greater = {"says": "…", "test": SLOWER["test"], "direction": "greater"}
    content = {
        "small_effects": "negligible",
        "hypotheses": {"h": greater, "same": SAME | {"family": "b"}},
    }
    plan = decay_plan(**content)
    table = expected_power(plan, {"h": 0.02, "same": 0.02}, 12).set_index("hypothesis")
    samples = np.random.default_rng(1).normal(0.0, 0.02, size=(20_000, 12))
    error = samples.std(axis=1, ddof=1) / 12**0.5
    t = [(samples.mean(axis=1) - bound) / error for bound in (-0.02, 0.02, 0)]
    small = (stats.t.sf(t[0], 11) < 0.05) & (stats.t.cdf(t[1], 11) < 0.05)
    undecided = 2 * stats.t.sf(np.abs(t[2]), 11) >= 0.05
    assert table.loc["h", "negligible"] == pytest.approx(np.mean(small & undecided), abs=0.015)
    assert np.isnan(table.loc["same", "negligible"])
    assert np.isnan(expected_power(decay_plan(), {"slower": 0.02}, 12)["negligible"][0])
    h = plan.hypotheses["h"]
    assert powers.seeds_to_decide(h, plan, 0.0, 0.02, 0.05) < 16
    assert powers.seeds_to_support(h, plan, 0.0, 0.02, 0.05) == np.inf


PAIRS = [["weight_decay=0.3", "weight_decay=0"], ["weight_decay=0.1", "weight_decay=0"]]
EXACT = SLOWER | {"exact": True}


@pytest.mark.parametrize(
    ("content", "seeds", "enough"),
    [
        ({"hypotheses": {"h": EXACT}}, 6, None),
        ({"hypotheses": {"h": EXACT}}, 5, 6),  # 2/2⁵ is .0625
        ({"hypotheses": {"h": EXACT}, "alpha": 2 / 32}, 5, 6),  # must be below, not at
        ({"hypotheses": {"h": EXACT, "same": SAME}}, 6, 7),  # two share alpha
        ({"hypotheses": {"h": SLOWER | {"test": [*PAIRS[0], "unstable"]}}}, 5, 6),
        ({"families": {"h": {"contrasts": PAIRS, "measures": ["loss", "perplexity"],
                             "test": "exact"}}}, 7, 8),
    ],
)  # fmt: skip
def test_an_exact_test_that_no_number_of_these_seeds_can_pass_is_named(content, seeds, enough):
    said = [*powers.out_of_reach(decay_plan(**content), seeds)]
    named = f"h: an exact test of {seeds} seeds cannot reach its level; {enough} seeds can"
    assert said == ([named] if enough else [])


def test_an_exact_test_has_no_power_where_it_cannot_reach_its_level():
    exactly = Hypothesis.model_validate(EXACT)
    assert power_of(exactly, plan_of(), 1.0, 0.1, 5, 2 / 32) == (0, 0, 0)
    assert power_of(exactly, plan_of(), 1.0, 0.1, 6, 2 / 32)[0] > 0.99
    shared = decay_plan(hypotheses={"h": EXACT, "same": SAME})  # of six seeds .031, above .05 / 2
    (row, _) = expected_power(shared, {"h": 0.001, "same": 0.01}, 6).to_dict("records")
    assert (row["power"], row["seeds"]) == (0, 7)
