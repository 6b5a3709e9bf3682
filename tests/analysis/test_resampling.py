from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.analysis.resampling import (
    RESAMPLES,
    bootstrap,
    crossed_bootstrap,
    finite_deltas,
    percentile_coverage,
    sign_flip_test,
    suite_contrasts,
)

TIED = [0.04, 0.01, 0.04, 0.01, 0.04]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def all_resamples(deltas) -> np.ndarray:
    """Means of all n^n resamples."""
    return np.array(list(product(deltas, repeat=len(deltas)))).mean(axis=1)


# Intervals


def test_percentile_interval_of_tied_deltas_is_that_of_all_resamples(rng):
    assert np.quantile(all_resamples(TIED), [0.025, 0.975]) == pytest.approx([0.016, 0.040])
    assert bootstrap(TIED, rng)[:2] == pytest.approx((0.016, 0.040))


@pytest.mark.parametrize("seed", range(5))
def test_percentile_interval_is_that_of_all_resamples(seed, rng):
    deltas = np.random.default_rng(seed).normal(size=5)
    exact = np.quantile(all_resamples(deltas), [0.025, 0.975])
    assert bootstrap(deltas, rng)[:2] == pytest.approx(exact, abs=0.04)


def test_bootstrap_interval_is_scipys_over_sorted_deltas():
    deltas = np.random.default_rng(2).exponential(size=8)
    expected = stats.bootstrap(
        (np.sort(deltas),),
        np.mean,
        method="percentile",
        confidence_level=0.9,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(3),
    ).confidence_interval
    actual = bootstrap(deltas, np.random.default_rng(3), alpha=0.1)
    assert actual[:2] == pytest.approx((expected.low, expected.high))


def test_too_few_or_equal_deltas(rng):
    assert np.isnan(bootstrap([], rng)).all()
    assert np.isnan(bootstrap([1.0], rng)).all()
    low, high, p = bootstrap([0.1, 0.1, 0.1], rng)
    assert (low, high) == (0.1, 0.1)
    assert np.isnan(p)


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.6, 1.5])
def test_bootstrap_p_is_twice_the_resamples_beyond_zero(shift, rng):
    deltas = np.random.default_rng(12).normal(size=5) + shift
    means = all_resamples(deltas)
    exact = min(1.0, 2 * min(np.mean(means <= 0), np.mean(means >= 0)))
    low, high, p = bootstrap(deltas, rng)
    assert p == pytest.approx(exact, abs=0.015)
    if abs(p - 0.05) > 0.01:
        assert (p < 0.05) == (not low <= 0 <= high)


@pytest.mark.parametrize("deltas", [[1.0, np.nan], [np.inf], [[1.0, 2.0]]])
def test_deltas_must_be_one_finite_number_per_seed(deltas):
    with pytest.raises(ValueError, match="leave diverged pairs out"):
        finite_deltas(deltas)


@pytest.mark.parametrize(("n", "percentile"), [(5, 0.838), (10, 0.908), (20, 0.928)])
def test_coverage_is_what_was_measured_apart(n, percentile):
    assert percentile_coverage(n) == pytest.approx(percentile, abs=0.015)


def test_coverage_is_the_same_every_time_and_follows_alpha():
    first = percentile_coverage(4)
    percentile_coverage.cache_clear()
    assert percentile_coverage(4) == first
    assert percentile_coverage(30, alpha=0.5) == pytest.approx(0.5, abs=0.03)
    assert np.isnan(percentile_coverage(1))


# Sign-flip test


@pytest.mark.parametrize("n", [2, 5, 8, 12, 13])
@pytest.mark.parametrize("decimals", [0, 8])  # with ties and zeros, and without
def test_sign_flip_p_is_that_of_all_sign_patterns(n, decimals, rng):
    deltas = np.random.default_rng(n).normal(0.5, 1.0, size=n).round(decimals)
    sums = np.abs(np.array(list(product((1, -1), repeat=n))) @ deltas)
    expected = np.mean(sums >= abs(deltas.sum()) - 1e-9)
    assert sign_flip_test(deltas, rng).sign_flip_p == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 7, 13])
def test_sign_flip_p_cannot_go_below_its_floor(n, rng):
    assert sign_flip_test(np.arange(1.0, n + 1), rng) == (2 / 2**n, 2 / 2**n)


def test_zero_deltas_raise_the_floor(rng):
    assert sign_flip_test([0.0, 0.0, 1.0, 2.0, 3.0], rng) == (0.25, 0.25)
    assert sign_flip_test([0.0, 0.0], rng) == (1.0, 1.0)
    assert np.isnan(sign_flip_test([], rng)).all()


def test_sums_equal_but_for_rounding_are_ties(rng):
    tenths = [-5.0, -3.0, 1.0, 3.0]
    assert sign_flip_test(np.divide(tenths, 10), rng).sign_flip_p == (
        sign_flip_test(tenths, rng).sign_flip_p
    )


def test_beyond_enumeration_random_signs_come_near(rng):
    deltas = np.random.default_rng(6).normal(0.4, 1.0, size=21)
    sums = np.zeros(1)
    for delta in deltas:
        sums = np.concatenate([sums + delta, sums - delta])
    exact = np.mean(np.abs(sums) >= abs(deltas.sum()) * (1 - 1e-9))
    p, smallest = sign_flip_test(deltas, rng)
    assert p == pytest.approx(exact, abs=0.015)
    assert smallest == 2 / (RESAMPLES + 1)
    assert sign_flip_test(np.ones(30), rng).sign_flip_p == smallest


# Crossed bootstrap


def test_crossed_bootstrap_of_seed_effects_is_the_percentile_interval_over_seeds(rng):
    """All items of a seed agree, so resampling items changes nothing."""
    deltas = np.array([1, 1, 1, 0, 1, -1, 0, 1, 1, 1])
    arm = np.repeat(deltas[:, None] > 0, 30, axis=1)
    baseline = np.repeat(deltas[:, None] < 0, 30, axis=1)
    value, low, high = crossed_bootstrap(arm, baseline, rng)
    assert value == pytest.approx(deltas.mean())
    assert (low, high) == pytest.approx(bootstrap(deltas, rng)[:2], abs=0.051)


def test_crossed_bootstrap_of_item_effects_is_the_percentile_interval_over_items(rng):
    items = np.random.default_rng(9).random(200) < 0.3
    arm = np.repeat(items[None, :], 4, axis=0)
    value, low, high = crossed_bootstrap(arm, np.zeros_like(arm), rng)
    assert value == pytest.approx(items.mean())
    assert (low, high) == pytest.approx(bootstrap(items.astype(float), rng)[:2], abs=0.011)


def test_crossed_bootstrap_is_wider_than_either_alone(rng):
    generator = np.random.default_rng(10)
    ability, ease = generator.normal(size=(6, 1)), generator.normal(size=(1, 80))
    arm = ability + ease + generator.normal(size=(6, 80)) > 0
    baseline = np.zeros_like(arm)
    _, low, high = crossed_bootstrap(arm, baseline, rng)
    for axis in (0, 1):
        alone = bootstrap(arm.mean(axis=axis), rng)
        assert high - low > alone.percentile_high - alone.percentile_low


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


def test_tasks_count_alike_however_many_questions_they_have(rng):
    """One task of ten questions answered better, one of ninety alike: half of the seeds' gain."""
    arm, baseline = np.zeros((4, 100), dtype=bool), np.zeros((4, 100), dtype=bool)
    arm[:, :10] = True
    tasks = ["few"] * 10 + ["many"] * 90
    assert crossed_bootstrap(arm, baseline, rng, tasks=tasks) == (0.5, 0.5, 0.5)
    value, low, high = crossed_bootstrap(arm, baseline, rng)
    assert value == pytest.approx(0.1)
    assert low < 0.1 < high


def test_the_suite_is_contrasted_over_its_questions(rng):
    """Two seeds, one task, four questions; `layernorm` answers one more of them."""
    items = pd.DataFrame(
        [
            {"arm": arm, "seed": seed, "task": "a", "shots": 0, "item": i, "correct": i < right}
            for arm, right in (("none", 2), ("layernorm", 3))
            for seed in (0, 1)
            for i in range(4)
        ]
    )
    runs = pd.DataFrame({"arm": ["none", "layernorm"], "baseline": "none"})
    (row,) = suite_contrasts(runs, items, rng).to_dict("records")
    assert (row["arm"], row["shots"], row["seeds"]) == ("layernorm", "zero", 2)
    assert row["value"] == 0.25
    assert row["low"] < 0.25 < row["high"]
    assert suite_contrasts(runs, pd.DataFrame(), rng).empty
    others = items[(items["arm"] == "none") | (items["item"] < 2)]  # both right in both arms
    assert suite_contrasts(runs, others, rng)["value"].tolist() == [0.0]
    texts = runs.assign(**{"corpus.source": ["a", "b"]})
    assert suite_contrasts(texts, items, rng).empty
