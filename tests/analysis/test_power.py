import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from lib.analysis.power import minimum_detectable_effect, power_table, seeds_needed, t_test_power


# Up to a noncentrality of 12: from about 15 scipy's lower tail, and statsmodels' power, can be NaN.
@pytest.mark.parametrize(("d_z", "n"), [(0, 2), (2.5, 2), (1, 3), (1.7, 5), (1, 10), (0.3, 40)])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_power_is_statsmodels_power(d_z, n, alpha):
    assert t_test_power(d_z, n, alpha) == pytest.approx(TTestPower().power(d_z, n, alpha), abs=1e-9)


@pytest.mark.parametrize(("d_z", "n", "alpha"), [(1.2, 5, 0.05), (5.545, 3, 0.025)])
def test_power_is_the_share_of_significant_studies(d_z, n, alpha):
    samples = np.random.default_rng(0).normal(d_z, 1.0, size=(20_000, n))
    share = np.mean(stats.ttest_1samp(samples, 0, axis=1).pvalue <= alpha)
    assert t_test_power(d_z, n, alpha) == pytest.approx(share, abs=0.01)


def test_power_stays_defined_where_scipys_lower_tail_is_not():
    critical = stats.t.isf(0.025, 4)
    assert np.isnan(stats.nct.cdf(-critical, 4, 25.0))
    assert t_test_power(25.0 / 5**0.5, 5) == pytest.approx(1.0)


def test_five_seeds_detect_1_682_standard_deviations():
    assert minimum_detectable_effect(1.0, 5) == pytest.approx(1.682, abs=5e-4)


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


def test_power_table_scales_one_column_by_each_sd():
    table = power_table({"perplexity": 0.5, "accuracy": 0.002})
    assert list(table.columns) == ["d_z", "perplexity", "accuracy"]
    assert table.index.tolist() == list(range(2, 41))
    assert table.loc[5, "perplexity"] == pytest.approx(minimum_detectable_effect(0.5, 5))
    assert table["accuracy"].is_monotonic_decreasing
    assert seeds_needed(table.loc[12, "accuracy"] * (1 + 1e-9), 0.002) == 12


def test_a_sample_without_spread_detects_anything():
    assert minimum_detectable_effect(0.0, 5) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: minimum_detectable_effect(1.0, 1), "at least 2 seeds"),
        (lambda: minimum_detectable_effect(float("nan"), 5), "sd is nan"),
        (lambda: minimum_detectable_effect(1.0, 5, alpha=0.9), "0 < alpha < power < 1"),
        (lambda: seeds_needed(0.0, 1.0), "effect is 0.0"),
        (lambda: seeds_needed(1.0, 0.0), "sd is 0.0"),
        (lambda: seeds_needed(1.0, 1.0, power=1.0), "power is 1.0"),
    ],
)
def test_errors_say_what_to_give(call, message):
    with pytest.raises(ValueError, match=message):
        call()
