from itertools import product

import numpy as np
import pytest
from scipy import stats

from lib.analysis.resampling import (
    RESAMPLES,
    bootstrap_interval,
    crossed_bootstrap,
    finite_deltas,
    interquartile_mean,
    interval_coverage,
    iqm_interval,
    sign_flip_test,
    t_interval,
)

TIED = [0.04, 0.01, 0.04, 0.01, 0.04]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def all_resamples(deltas) -> np.ndarray:
    """Means of all n^n resamples."""
    return np.array(list(product(deltas, repeat=len(deltas)))).mean(axis=1)


# Intervals


def test_t_interval_is_scipys():
    deltas = np.random.default_rng(1).normal(size=5)
    expected = stats.ttest_rel(deltas, np.zeros(5)).confidence_interval(0.9)
    assert t_interval(deltas, alpha=0.1) == pytest.approx((expected.low, expected.high))


def test_percentile_interval_of_tied_deltas_is_that_of_all_resamples(rng):
    assert np.quantile(all_resamples(TIED), [0.025, 0.975]) == pytest.approx([0.016, 0.040])
    assert bootstrap_interval(TIED, rng) == pytest.approx((0.016, 0.040))


@pytest.mark.parametrize("seed", range(5))
def test_percentile_interval_is_that_of_all_resamples(seed, rng):
    deltas = np.random.default_rng(seed).normal(size=5)
    exact = np.quantile(all_resamples(deltas), [0.025, 0.975])
    assert bootstrap_interval(deltas, rng) == pytest.approx(exact, abs=0.04)


@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_bootstrap_interval_is_scipys_over_sorted_deltas(method):
    deltas = np.random.default_rng(2).exponential(size=8)
    expected = stats.bootstrap(
        (np.sort(deltas),), np.mean, method=method, confidence_level=0.9, n_resamples=RESAMPLES,
        rng=np.random.default_rng(3),
    ).confidence_interval  # fmt: skip
    actual = bootstrap_interval(deltas, np.random.default_rng(3), method, alpha=0.1)
    assert actual == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_the_order_of_seeds_never_matters(method):
    deltas = np.random.default_rng(4).normal(size=6)
    intervals = {
        bootstrap_interval(order, np.random.default_rng(0), method)
        for order in (deltas, deltas[::-1], deltas[[3, 1, 5, 0, 2, 4]])
    }
    assert len(intervals) == 1


@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_swapped_arms_mirror_the_interval(method, rng):
    deltas = np.random.default_rng(5).normal(size=12)
    low, high = bootstrap_interval(deltas, rng, method)
    assert bootstrap_interval(-deltas, rng, method) == pytest.approx((-high, -low), abs=0.05)


@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_too_few_or_equal_deltas(method, rng):
    assert np.isnan(bootstrap_interval([], rng, method)).all()
    assert np.isnan(bootstrap_interval([1.0], rng, method)).all()
    assert bootstrap_interval([0.1, 0.1, 0.1], rng, method) == (0.1, 0.1)
    for deltas in ([], [1.0], [0.1, 0.1, 0.1]):
        assert np.isnan(t_interval(deltas)).all()


@pytest.mark.parametrize("deltas", [[1.0, np.nan], [np.inf], [[1.0, 2.0]]])
def test_deltas_must_be_one_finite_number_per_seed(deltas):
    with pytest.raises(ValueError, match="leave diverged pairs out"):
        finite_deltas(deltas)


@pytest.mark.parametrize(
    ("n", "t", "percentile", "bca"),
    [(5, 0.949, 0.838, 0.842), (10, 0.956, 0.908, 0.903), (20, 0.954, 0.928, 0.928)],
)
def test_coverage_is_what_was_measured_apart(n, t, percentile, bca):
    assert interval_coverage("t", n) == pytest.approx(t, abs=0.015)
    assert interval_coverage("percentile", n) == pytest.approx(percentile, abs=0.015)
    assert interval_coverage("BCa", n) == pytest.approx(bca, abs=0.015)


def test_coverage_is_the_same_every_time_and_follows_alpha():
    first = interval_coverage("percentile", 4)
    interval_coverage.cache_clear()
    assert interval_coverage("percentile", 4) == first
    assert interval_coverage("t", 4, alpha=0.5) == pytest.approx(0.5, abs=0.03)
    assert np.isnan(interval_coverage("t", 1))


# Sign-flip test


@pytest.mark.parametrize("n", [2, 5, 8, 12])
@pytest.mark.parametrize("decimals", [0, 8])  # with ties and zeros, and without
def test_sign_flip_p_is_scipys(n, decimals, rng):
    deltas = np.random.default_rng(n).normal(0.5, 1.0, size=n).round(decimals)
    expected = stats.permutation_test(
        (deltas,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", vectorized=True
    )
    assert sign_flip_test(deltas, rng).p == pytest.approx(expected.pvalue)


@pytest.mark.parametrize("n", [1, 2, 5, 7, 20])
def test_sign_flip_p_cannot_go_below_its_floor(n, rng):
    assert sign_flip_test(np.arange(1.0, n + 1), rng) == (2 / 2**n, 2 / 2**n)


def test_sign_flip_needs_seven_seeds_for_two_contrasts(rng):
    assert sign_flip_test(np.ones(5), rng).smallest_p == 0.0625
    assert 2 * sign_flip_test(np.ones(6), rng).smallest_p > 0.05
    assert 2 * sign_flip_test(np.ones(7), rng).smallest_p < 0.05


def test_zero_deltas_raise_the_floor(rng):
    assert sign_flip_test([0.0, 0.0, 1.0, 2.0, 3.0], rng) == (0.25, 0.25)
    assert sign_flip_test([0.0, 0.0], rng) == (1.0, 1.0)
    assert np.isnan(sign_flip_test([], rng)).all()


def test_sums_equal_but_for_rounding_are_ties(rng):
    tenths = [-5.0, -3.0, 1.0, 3.0]
    assert sign_flip_test(np.divide(tenths, 10), rng).p == sign_flip_test(tenths, rng).p


def test_beyond_enumeration_random_signs_come_near(rng):
    deltas = np.random.default_rng(6).normal(0.4, 1.0, size=21)
    sums = np.zeros(1)
    for delta in deltas:
        sums = np.concatenate([sums + delta, sums - delta])
    exact = np.mean(np.abs(sums) >= abs(deltas.sum()) * (1 - 1e-9))
    p, smallest = sign_flip_test(deltas, rng)
    assert p == pytest.approx(exact, abs=0.015)
    assert smallest == 1 / (RESAMPLES + 1)
    assert sign_flip_test(np.ones(30), rng).p == smallest


# Interquartile mean


def test_interquartile_mean_is_that_of_the_middle_half():
    scores = np.array([[9.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, -99.0]])
    assert interquartile_mean(scores) == (2 + 3 + 4 + 5) / 4
    assert interquartile_mean([7.0]) == 7.0
    with pytest.raises(ValueError, match="must be finite"):
        interquartile_mean([1.0, np.nan])


def test_seeds_are_resampled_whole():
    """Copies of a task add nothing; resampled task by task they would narrow the interval."""
    column = np.random.default_rng(7).normal(size=(8, 1))
    one = iqm_interval(column, np.random.default_rng(0))
    copies = iqm_interval(np.repeat(column, 6, axis=1), np.random.default_rng(0))
    assert copies == pytest.approx(one)
    assert one.low < one.value < one.high


def test_iqm_interval_ignores_the_order_of_seeds_and_drops_diverged_ones():
    deltas = np.random.default_rng(8).normal(size=(5, 4))
    expected = iqm_interval(deltas, np.random.default_rng(0))
    diverged = np.full((1, 4), np.nan)
    diverged[0, 0] = 3.0
    shuffled = np.concatenate([diverged, deltas[[4, 2, 0, 1, 3]]])
    assert iqm_interval(shuffled, np.random.default_rng(0)) == expected
    assert expected.value == interquartile_mean(deltas)


def test_iqm_of_one_seed_has_no_interval_and_of_none_no_value(rng):
    value, low, high = iqm_interval([[1.0, 2.0, 3.0, 4.0]], rng)
    assert value == 2.5
    assert np.isnan([low, high]).all()
    assert np.isnan(iqm_interval(np.full((2, 3), np.nan), rng)).all()


# Crossed bootstrap


def test_crossed_bootstrap_of_seed_effects_is_the_percentile_interval_over_seeds(rng):
    """All items of a seed agree, so resampling items changes nothing."""
    deltas = np.array([1, 1, 1, 0, 1, -1, 0, 1, 1, 1])
    arm = np.repeat(deltas[:, None] > 0, 30, axis=1)
    baseline = np.repeat(deltas[:, None] < 0, 30, axis=1)
    value, low, high = crossed_bootstrap(arm, baseline, rng)
    assert value == pytest.approx(deltas.mean())
    assert (low, high) == pytest.approx(bootstrap_interval(deltas, rng), abs=0.051)


def test_crossed_bootstrap_of_item_effects_is_the_percentile_interval_over_items(rng):
    items = np.random.default_rng(9).random(200) < 0.3
    arm = np.repeat(items[None, :], 4, axis=0)
    value, low, high = crossed_bootstrap(arm, np.zeros_like(arm), rng)
    assert value == pytest.approx(items.mean())
    assert (low, high) == pytest.approx(bootstrap_interval(items.astype(float), rng), abs=0.011)


def test_crossed_bootstrap_is_wider_than_either_alone(rng):
    generator = np.random.default_rng(10)
    ability, ease = generator.normal(size=(6, 1)), generator.normal(size=(1, 80))
    arm = ability + ease + generator.normal(size=(6, 80)) > 0
    baseline = np.zeros_like(arm)
    _, low, high = crossed_bootstrap(arm, baseline, rng)
    for axis in (0, 1):
        alone = bootstrap_interval(arm.mean(axis=axis), rng)
        assert high - low > alone.high - alone.low


def test_crossed_bootstrap_mirrors_repeats_and_ignores_the_order_of_seeds():
    generator = np.random.default_rng(11)
    arm, baseline = generator.random((5, 60)) < 0.6, generator.random((5, 60)) < 0.5
    expected = crossed_bootstrap(arm, baseline, np.random.default_rng(0))
    order = [4, 2, 0, 1, 3]
    again = crossed_bootstrap(arm[order], baseline[order], np.random.default_rng(0))
    assert again == expected
    value, low, high = crossed_bootstrap(baseline, arm, np.random.default_rng(0))
    assert (-value, -high, -low) == pytest.approx(expected, abs=0.02)


def test_crossed_bootstrap_edges(rng):
    same = np.ones((3, 4), dtype=bool)
    assert crossed_bootstrap(same, same, rng) == (0.0, 0.0, 0.0)
    value, low, high = crossed_bootstrap(same[:1], ~same[:1], rng)
    assert value == 1.0
    assert np.isnan([low, high]).all()
    for wrong in (same[:2], same[0], same[:0]):
        with pytest.raises(ValueError, match="the same seeds and items"):
            crossed_bootstrap(wrong, same if wrong.size else wrong, rng)
