import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.analysis.resampling import crossed_bootstrap, percentile_coverage
from scipy import stats
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired

from lib.analysis.paired import (
    cohens_dz,
    contrast_table,
    hedges_gz,
    holm,
    minimum_detectable_effect,
    paired_contrast,
    seeds_needed,
    t_test,
    t_test_power,
    tost,
)
from lib.analysis.runs import tidy
from lib.study.study import Study
from tests.samples import sample_runs

NAN = float("nan")


def contrast(baseline, arm, seed: int = 0, **options: object) -> dict[str, float]:
    return paired_contrast(baseline, arm, np.random.default_rng(seed), **options)


def undefined(result: dict[str, float]) -> set[str]:
    return {name for name, value in result.items() if np.isnan(value)}


@pytest.fixture
def pairs() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    baseline = generator.normal(20.0, 0.8, size=7)
    return baseline, baseline + generator.normal(-0.5, 0.4, size=7)


# One contrast


def test_a_contrast_is_what_scipy_says(pairs):
    baseline, arm = pairs
    result = contrast(baseline, arm, equivalence_margin=0.3)
    test = stats.ttest_rel(arm, baseline)
    interval = test.confidence_interval(0.95)
    assert (result["n"], result["n_dropped"]) == (7, 0)
    assert (result["t_low"], result["t_high"]) == pytest.approx((interval.low, interval.high))
    assert result["t_p"] == pytest.approx(test.pvalue)
    assert result["mean_baseline"] == pytest.approx(baseline.mean())
    assert result["sd_arm"] == pytest.approx(arm.std(ddof=1))
    assert result["mean_delta"] == pytest.approx(result["mean_arm"] - result["mean_baseline"])
    assert result["sd_delta"] == pytest.approx((arm - baseline).std(ddof=1))
    assert result["d_z"] == pytest.approx(test.statistic / 7**0.5)
    assert result["sign_flip_smallest_p"] == 2 / 2**7
    assert result["percentile_low"] < result["mean_delta"] < result["percentile_high"]
    assert result["percentile_coverage"] == percentile_coverage(7)
    assert result["minimum_detectable_effect"] == minimum_detectable_effect(result["sd_delta"], 7)
    assert result["seeds_needed"] == seeds_needed(0.3, result["sd_delta"])


def test_alpha_and_power_reach_every_answer(pairs):
    strict = contrast(*pairs, alpha=0.01, power=0.9, equivalence_margin=0.3)
    usual = contrast(*pairs, equivalence_margin=0.3)
    for name in ("t", "percentile"):
        assert strict[f"{name}_low"] < usual[f"{name}_low"]
        assert strict[f"{name}_high"] > usual[f"{name}_high"]
    assert strict["percentile_coverage"] > usual["percentile_coverage"]
    sd = usual["sd_delta"]
    assert strict["minimum_detectable_effect"] == minimum_detectable_effect(sd, 7, 0.01, 0.9)
    assert strict["seeds_needed"] == seeds_needed(0.3, sd, 0.01, 0.9)


def test_same_seed_same_answer_and_another_seed_another(pairs):
    assert contrast(*pairs, seed=3) == contrast(*pairs, seed=3)
    one, other = (contrast(*pairs, seed=seed)["percentile_low"] for seed in (3, 4))
    assert one != other


def test_without_a_margin_what_needs_one_is_undefined(pairs):
    assert undefined(contrast(*pairs)) == {"tost_p", "seeds_needed"}
    assert undefined(contrast(*pairs, equivalence_margin=1.0)) == set()


def test_diverged_runs_leave_in_pairs_and_are_counted(pairs):
    baseline, arm = pairs
    expected = contrast(baseline[2:6], arm[2:6])
    baseline[0], arm[0], arm[1], baseline[6] = NAN, NAN, np.inf, NAN
    assert contrast(baseline, arm) == expected | {"n_dropped": 3}


def test_nothing_left_is_all_undefined():
    result = contrast([NAN, 1.0], [1.0, NAN], equivalence_margin=1.0)
    assert (result["n"], result["n_dropped"]) == (0, 2)
    assert undefined(result) == set(result) - {"n", "n_dropped"}


def test_one_seed_has_a_delta_and_no_spread():
    result = contrast([2.0], [1.5], equivalence_margin=1.0)
    defined = set(result) - undefined(result)
    means = {"mean_baseline", "mean_arm", "mean_delta"}
    tests = {"sign_flip_p", "sign_flip_smallest_p"}
    assert defined == {"n", "n_dropped", *means, *tests}
    assert result["mean_delta"] == -0.5
    assert (result["sign_flip_p"], result["sign_flip_smallest_p"]) == (1.0, 1.0)


NEEDS_SPREAD = {"t_low", "t_high", "t_p", "bootstrap_p", "d_z", "g_z", "tost_p"}
NEEDS_SPREAD |= {"minimum_detectable_effect", "seeds_needed"}


def test_equal_deltas_shrink_the_bootstrap_and_leave_the_t_test_undefined():
    baseline = np.array([0.1, 0.2, 0.3, 0.7])
    result = contrast(baseline, baseline + 0.1, equivalence_margin=1.0)
    assert undefined(result) == NEEDS_SPREAD
    ends = {result["percentile_low"], result["percentile_high"]}
    assert ends == {result["mean_delta"]} == {0.1}
    assert result["sd_delta"] == 0
    assert result["sign_flip_p"] == 2 / 2**4


def test_identical_arms_show_no_difference():
    values = np.array([0.3, 0.2, 0.5])
    result = contrast(values, values, equivalence_margin=1.0)
    assert undefined(result) == NEEDS_SPREAD
    assert (result["mean_delta"], result["percentile_low"]) == (0.0, 0.0)
    assert result["sign_flip_p"] == 1.0


def test_deltas_equal_on_paper_are_ties():
    """In floats 0.3 - 0.2 < 0.2 - 0.1 < 0.9 - 0.8, so that there would be a spread."""
    assert contrast([0.2, 0.1, 0.8], [0.3, 0.2, 0.9])["sd_delta"] == 0
    assert contrast([0.3], [0.1 + 0.2])["mean_delta"] == 0


# A property, over eighths: their sums are exact, so equal means equal

EIGHTHS = st.integers(-400, 400).map(lambda i: i / 8)
PAIRS = st.lists(st.tuples(EIGHTHS, EIGHTHS), min_size=0, max_size=6)
exhaustively = settings(max_examples=40, deadline=None, database=None, derandomize=True)


def answers(pairs, seed: int = 0) -> dict[str, float]:
    baseline, arm = [b for b, _ in pairs], [a for _, a in pairs]
    return contrast(baseline, arm, seed, equivalence_margin=2.0)


@given(PAIRS, st.randoms(use_true_random=False))
@exhaustively
def test_permuting_seeds_changes_nothing(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    assert answers(shuffled) == pytest.approx(answers(pairs), nan_ok=True)


# Its parts


def test_holm_of_four():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_an_undefined_p_stays_so_and_counts_in_the_family():
    adjusted = holm([0.01, NAN, 0.3])
    assert adjusted[[0, 2]] == pytest.approx([0.03, 0.6])
    assert np.isnan(adjusted[1])


@pytest.mark.parametrize("margin", [0.1, 0.5, 2.0])
def test_tost_is_statsmodels(margin, pairs):
    baseline, arm = pairs
    expected = ttost_paired(arm, baseline, -margin, margin)[0]
    assert tost(arm - baseline, margin) == pytest.approx(expected)


def test_cohens_dz_is_over_the_deltas_sd_not_the_arms():
    baseline, arm = np.array([10.0, 20.0, 30.0]), np.array([11.0, 22.0, 33.0])
    assert cohens_dz(arm - baseline) == pytest.approx(2.0)
    assert contrast(baseline, arm)["d_z"] == pytest.approx(2.0)


def test_hedges_gz_approaches_its_textbook_approximation_and_needs_three_seeds():
    deltas = np.random.default_rng(3).normal(1.0, 1.0, size=30)
    assert hedges_gz(deltas) / cohens_dz(deltas) == pytest.approx(1 - 3 / (4 * 29 - 1), abs=1e-4)
    assert np.isnan(hedges_gz([1.0, 2.0]))


@pytest.mark.parametrize("n", [4, 9, 30])
@pytest.mark.parametrize("decimals", [1, 8])
def test_the_t_test_is_scipys(n, decimals):
    deltas = np.random.default_rng(n).normal(0.3, 1.0, size=n).round(decimals)
    expected = stats.ttest_rel(deltas, np.zeros(n))
    assert t_test(deltas).t_p == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.9)
    assert t_test(deltas, 0.1)[2:4] == pytest.approx((interval.low, interval.high))


def test_without_spread_there_is_no_t_test():
    assert t_test([0.1, 0.1, 0.1])[:2] == (3, pytest.approx(0.1))
    for deltas in ([], [1.0], [0.1, 0.1, 0.1]):
        assert np.isnan(t_test(deltas)[2:]).all()


# The table


@pytest.fixture
def runs() -> pd.DataFrame:
    generator = np.random.default_rng(4)
    return pd.DataFrame(
        [
            {
                "arm": f"{norm},{std}",
                "baseline": f"none,{std}",
                "seed": seed,
                "perplexity": generator.normal(20),
                "grad_norm": generator.normal(1),
            }
            for norm in ("none", "layernorm", "rmsnorm")
            for std in ("a", "b")
            for seed in range(4)
        ]
    )


def test_table_pairs_each_arm_with_its_baseline_by_seed(runs):
    rng = np.random.default_rng
    table = contrast_table(
        runs.sample(frac=1, random_state=0),
        ["perplexity", "grad_norm"],
        rng(0),
        equivalence_margins={"perplexity": 0.5},
    )
    assert sorted(table["arm"].unique()) == ["layernorm,a", "layernorm,b", "rmsnorm,a", "rmsnorm,b"]
    assert len(table) == 8
    values = runs.set_index(["arm", "seed"])["perplexity"]
    row = table.query("arm == 'rmsnorm,b' and measure == 'perplexity'").iloc[0]
    expected = contrast(values["none,b"], values["rmsnorm,b"], equivalence_margin=0.5)
    assert row["baseline"] == "none,b"
    for name in ("mean_delta", "t_low", "tost_p", "seeds_needed"):
        assert row[name] == pytest.approx(expected[name]), name
    directionless = table[table["measure"] == "grad_norm"]
    assert directionless["tost_p"].isna().all()


def test_table_of_a_study_and_its_family(tiny_study: Study):
    table = contrast_table(
        tidy(sample_runs(tiny_study)), ["perplexity", "accuracy"], np.random.default_rng(0)
    )
    assert table["arm"].tolist() == ["layernorm", "layernorm"]
    assert table["mean_delta"].tolist() == [-1.5, 0.0]
    family = holm(table["t_p"])
    assert family[0] == pytest.approx(2 * table["t_p"][0])  # the other is undefined, and counts
    assert np.isnan(family[1])


def test_same_seed_same_table_and_numpys_global_state_is_left_alone(runs):
    before = np.random.get_state()
    tables = [contrast_table(runs, ["perplexity"], np.random.default_rng(5)) for _ in range(2)]
    rng = np.random.default_rng(0)
    crossed_bootstrap(rng.random((3, 9)) < 0.5, rng.random((3, 9)) < 0.5, rng)
    paired_contrast(rng.normal(size=22), rng.normal(size=22), rng)
    pd.testing.assert_frame_equal(*tables)
    after = np.random.get_state()
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(isinstance(value, (int, float)) for value in contrast([1.0], [2.0]).values())


# Power


# Up to a noncentrality of 12: from about 15 scipy's lower tail, and statsmodels' power, can be NaN.
@pytest.mark.parametrize(("d_z", "n"), [(0, 2), (2.5, 2), (1, 3), (1.7, 5), (1, 10), (0.3, 40)])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_power_is_statsmodels_power(d_z, n, alpha):
    assert t_test_power(d_z, n, alpha) == pytest.approx(TTestPower().power(d_z, n, alpha), abs=1e-9)


def test_power_stays_defined_where_scipys_lower_tail_is_not():
    critical = stats.t.isf(0.025, 4)
    assert np.isnan(stats.nct.cdf(-critical, 4, 25.0))
    assert t_test_power(25.0 / 5**0.5, 5) == pytest.approx(1.0)


@pytest.mark.parametrize("alpha", [0.05, 1e-4])
def test_two_seeds_detect_the_minimum_with_the_power_asked_for(alpha):
    d_z = minimum_detectable_effect(1.0, 2, alpha)
    assert t_test_power(d_z, 2, alpha) == pytest.approx(0.8)


@pytest.mark.parametrize("n", [4, 5, 7, 20])  # with 3, statsmodels' search ends on a NaN
@pytest.mark.parametrize(("alpha", "power"), [(0.05, 0.8), (0.025, 0.9)])
def test_minimum_detectable_effect_is_statsmodels_in_units_of_sd(n, alpha, power):
    expected = TTestPower().solve_power(nobs=n, alpha=alpha, power=power)
    assert minimum_detectable_effect(2.0, n, alpha, power) == pytest.approx(2 * expected, rel=1e-5)


@pytest.mark.parametrize(("d_z", "n"), [(0.5, 34), (1.0, 10), (-1.0, 10), (100.0, 2)])
def test_seeds_needed(d_z, n):
    assert seeds_needed(d_z, 1.0) == n
    assert seeds_needed(3 * d_z, 3.0) == n


@pytest.mark.parametrize("d_z", [0.01, 0.2, 0.8, 1.7, 4.0])
@pytest.mark.parametrize(("alpha", "power"), [(0.05, 0.8), (0.001, 0.99), (0.05, 0.06)])
def test_seeds_needed_is_the_first_number_that_is_enough(d_z, alpha, power):
    n = seeds_needed(d_z, 1.0, alpha, power)
    assert t_test_power(d_z, n, alpha) >= power
    assert n == 2 or t_test_power(d_z, n - 1, alpha) < power


def test_without_spread_seeds_or_effect_power_says_nothing():
    assert np.isnan(minimum_detectable_effect(0.0, 5))
    assert np.isnan(minimum_detectable_effect(1.0, 1))
    assert np.isnan(seeds_needed(0.0, 1.0))
    assert np.isnan(seeds_needed(1.0, NAN))
