from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from lib.stats import paired
from lib.stats.power import minimum_detectable_effect
from lib.stats.runs import BUDGET
from tests.stats.samples import plan_of, runs_of, two_arms

NAN = float("nan")


def rng(seed=0):
    return np.random.default_rng(seed)


def contrast(baseline, arm, seed=0, **options):
    return paired.paired_contrast(baseline, arm, rng(seed), **options)


def undefined(result):
    return {name for name, value in result.items() if np.isnan(value)}


@pytest.fixture
def pairs():
    baseline = rng(1).normal(20.0, 0.8, size=7)
    return baseline, baseline + rng(2).normal(-0.5, 0.4, size=7)


# One contrast


def test_contrast_equals_scipy_and_statsmodels(pairs):
    baseline, arm = pairs
    result = contrast(baseline, arm, margin=0.3)
    test = stats.ttest_rel(arm, baseline)
    interval = test.confidence_interval(0.95)
    assert (result["n"], result["n_dropped"]) == (7, 0)
    assert (result["t_low"], result["t_high"]) == pytest.approx((interval.low, interval.high))
    assert result["t_p"] == pytest.approx(test.pvalue)
    assert result["tost_p"] == pytest.approx(ttost_paired(arm, baseline, -0.3, 0.3)[0])
    assert result["mean_baseline"] == pytest.approx(baseline.mean())
    assert result["sd_arm"] == pytest.approx(arm.std(ddof=1))
    assert result["mean_delta"] == pytest.approx(result["mean_arm"] - result["mean_baseline"])
    assert result["sd_delta"] == pytest.approx((arm - baseline).std(ddof=1))
    assert result["d_z"] == pytest.approx(test.statistic / 7**0.5)
    assert result["sign_flip_smallest_p"] == 2 / 2**7
    assert result["percentile_low"] < result["mean_delta"] < result["percentile_high"]
    assert result["minimum_detectable_effect"] == minimum_detectable_effect(result["sd_delta"], 7)


def test_alpha_and_power_reach_every_answer(pairs):
    strict, usual = contrast(*pairs, alpha=0.01, power=0.9), contrast(*pairs)
    for name in ("t", "percentile"):
        assert strict[f"{name}_low"] < usual[f"{name}_low"]
        assert strict[f"{name}_high"] > usual[f"{name}_high"]
    detectable = minimum_detectable_effect(usual["sd_delta"], 7, 0.01, 0.9)
    assert strict["minimum_detectable_effect"] == detectable


def test_diverged_runs_are_dropped_in_pairs_and_counted(pairs):
    baseline, arm = pairs
    expected = contrast(baseline[2:6], arm[2:6], margin=1.0)
    baseline[0], arm[0], arm[1], baseline[6] = NAN, NAN, np.inf, NAN
    assert contrast(baseline, arm, margin=1.0) == expected | {"n_dropped": 3}


NEEDS_SPREAD = {"t_low", "t_high", "t_p", "bootstrap_p", "d_z", "tost_p"}
NEEDS_SPREAD |= {"minimum_detectable_effect"}
ENDS = {"percentile_low", "percentile_high"}
SDS = {"sd_baseline", "sd_arm", "sd_delta"}
MEANS = {"mean_baseline", "mean_arm", "mean_delta"}
FLIPS = {"sign_flip_p", "sign_flip_smallest_p"}


@pytest.mark.parametrize(
    ("baseline", "arm", "missing", "known"),
    [
        ([NAN, 1.0], [1.0, NAN], NEEDS_SPREAD | ENDS | SDS | MEANS | FLIPS, {"n_dropped": 2}),
        ([2.0], [1.5], NEEDS_SPREAD | ENDS | SDS, {"mean_delta": -0.5, "sign_flip_p": 1.0}),
        # In floats 0.3 - 0.2 < 0.2 - 0.1 < 0.9 - 0.8, so that there would be a spread.
        ([0.2, 0.1, 0.8], [0.3, 0.2, 0.9], NEEDS_SPREAD,
         {"sd_delta": 0, "percentile_low": 0.1, "percentile_high": 0.1, "sign_flip_p": 2 / 2**3}),
        ([0.3, 0.2, 0.5], [0.1 + 0.2, 0.2, 0.5], NEEDS_SPREAD, {"mean_delta": 0, "sign_flip_p": 1}),
    ],
)  # fmt: skip
def test_statistics_are_nan_with_too_few_or_equal_seeds(baseline, arm, missing, known):
    result = contrast(baseline, arm, margin=1.0)
    assert undefined(result) == missing
    assert {name: result[name] for name in known} == known


# A property, over eighths: their sums are exact, so equal means equal

EIGHTHS = st.integers(-400, 400).map(lambda i: i / 8)
PAIRS = st.lists(st.tuples(EIGHTHS, EIGHTHS), min_size=0, max_size=6)


@pytest.mark.usefixtures("few_resamples")
@settings(max_examples=40, deadline=None, database=None, derandomize=True)
@given(PAIRS, st.randoms(use_true_random=False))
def test_the_order_of_seeds_never_matters_and_mirroring_turns_signs(pairs, random):
    def said(of, flip=False):
        sides = [[b for b, _ in of], [a for _, a in of]]
        return contrast(*(sides[::-1] if flip else sides), margin=1.0)

    mixed = random.sample(pairs, len(pairs))
    once, again, mirrored = said(pairs), said(mixed), said(pairs, flip=True)
    for name in set(once) - MEANS - SDS:
        assert again[name] == pytest.approx(once[name], nan_ok=True)
    assert mirrored["mean_delta"] == pytest.approx(-once["mean_delta"], nan_ok=True)
    assert mirrored["t_low"] == pytest.approx(-once["t_high"], nan_ok=True)
    for name in ("t_p", "sign_flip_p", "tost_p"):
        assert mirrored[name] == pytest.approx(once[name], nan_ok=True)


# Tests


@pytest.mark.parametrize("n", [3, 5, 8])
def test_the_t_interval_covers_what_it_says_at_few_seeds(n):
    """For 500 samples of normal deltas around 1, 95 % of the intervals include 1."""
    samples = rng(n).normal(1.0, 1.0, size=(500, n))
    ends = np.array([paired.t_test(deltas)[2:4] for deltas in samples])
    assert np.mean((ends[:, 0] <= 1) & (ends[:, 1] >= 1)) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("p", [[0.01, 0.04, 0.03], [0.2], [0.5, 0.9, 0.001, 0.02]])
def test_holm_equals_statsmodels(p):
    assert paired.holm(p) == pytest.approx(multipletests(p, method="holm")[1])


def test_nan_p_stays_nan_and_counts_in_holms_family():
    adjusted = paired.holm([0.01, NAN, 0.3])
    assert adjusted[[0, 2]] == pytest.approx([0.03, 0.6])
    assert np.isnan(adjusted[1])
    assert len(paired.holm([])) == 0


# Bootstrap


def all_resamples(deltas):
    """Return the means of all n^n resamples."""
    return np.array(list(product(deltas, repeat=len(deltas)))).mean(axis=1)


@pytest.mark.parametrize("deltas", [[0.01, 0.01, 0.04, 0.04, 0.04], *rng(7).normal(size=(4, 5))])
def test_the_percentile_interval_is_that_of_all_resamples(deltas):
    exact = np.quantile(all_resamples(deltas), [0.025, 0.975])
    assert paired.bootstrap(np.sort(deltas), rng())[:2] == pytest.approx(exact, abs=0.04)


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.6, 1.5])
def test_the_bootstraps_p_is_twice_the_resamples_beyond_zero(shift):
    deltas = np.sort(rng(12).normal(size=5) + shift)
    means = all_resamples(deltas)
    exact = min(1.0, 2 * min(np.mean(means <= 0), np.mean(means >= 0)))
    low, high, p = paired.bootstrap(deltas, rng())
    assert p == pytest.approx(exact, abs=0.015)
    if abs(p - 0.05) > 0.01:
        assert (p < 0.05) == (not low <= 0 <= high)


@pytest.mark.slow
def test_of_five_seeds_the_bootstraps_interval_is_too_narrow():
    samples = np.sort(rng(0).normal(size=(600, 5)))
    ends = np.array([paired.bootstrap(deltas, rng(1))[:2] for deltas in samples])
    assert np.mean((ends[:, 0] <= 0) & (ends[:, 1] >= 0)) == pytest.approx(0.838, abs=0.035)


# Sign flips


@pytest.mark.parametrize("n", [2, 5, 8, 13])
@pytest.mark.parametrize("decimals", [0, 8])  # with ties and zeros, and without
def test_the_sign_flip_p_is_that_of_all_sign_patterns(n, decimals):
    deltas = np.sort(rng(n).normal(0.5, 1.0, size=n).round(decimals))
    sums = np.abs(np.array(list(product((1, -1), repeat=n))) @ deltas)
    expected = np.mean(sums >= abs(deltas.sum()) - 1e-9)
    assert paired.sign_flip_test(deltas, rng())[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("deltas", "p"),
    [
        *[(np.arange(1.0, n + 1), 2 / 2**n) for n in (1, 2, 5, 7, 13)],
        ([0.0, 0.0, 1.0, 2.0, 3.0], 0.25),  # zeros raise the floor
        ([0.0, 0.0], 1.0),
    ],
)
def test_the_sign_flip_p_cannot_go_below_its_floor(deltas, p):
    assert paired.sign_flip_test(np.asarray(deltas), rng()) == (p, p)


def test_sums_equal_but_for_rounding_are_ties():
    tenths = np.array([-5.0, -3.0, 1.0, 3.0])
    assert paired.sign_flip_test(tenths / 10, rng())[0] == paired.sign_flip_test(tenths, rng())[0]


def test_beyond_enumeration_random_signs_come_near():
    deltas = np.sort(rng(6).normal(0.4, 1.0, size=21))
    sums = np.zeros(1)
    for delta in deltas:
        sums = np.concatenate([sums + delta, sums - delta])
    exact = np.mean(np.abs(sums) >= abs(deltas.sum()) * (1 - 1e-9))
    p, smallest = paired.sign_flip_test(deltas, rng())
    assert p == pytest.approx(exact, abs=0.015)
    assert smallest == 2 / (paired.RESAMPLES + 1)
    assert paired.sign_flip_test(np.ones(30), rng())[0] == smallest


# The table


@pytest.fixture
def runs():
    generator = rng(4)
    rows = [
        {"arm": f"{norm},{std}", "baseline": f"none,{std}", "seed": seed}
        | {"perplexity": generator.normal(20), "grad_norm": generator.normal(1)}
        for norm in ("none", "layernorm", "rmsnorm")
        for std in ("a", "b")
        for seed in range(4)
    ]
    return pd.DataFrame(rows).assign(vocabulary="characters", **dict.fromkeys(BUDGET, 1))


def test_the_table_pairs_each_arm_with_its_baseline_by_seed(runs):
    plan = plan_of(smallest_effect_of_interest={"perplexity": 0.5}, alpha=0.1, power=0.9)
    shuffled = runs.sample(frac=1, random_state=0)
    table = paired.contrast_table(shuffled, ["perplexity", "grad_norm"], rng(), plan)
    assert sorted(table["arm"].unique()) == ["layernorm,a", "layernorm,b", "rmsnorm,a", "rmsnorm,b"]
    assert len(table) == 8
    values = runs.set_index(["arm", "seed"])["perplexity"]
    row = table.query("arm == 'rmsnorm,b' and measure == 'perplexity'").iloc[0]
    options = {"margin": 0.5, "alpha": 0.1, "power": 0.9}
    expected = contrast(values["none,b"], values["rmsnorm,b"], **options)
    assert row["baseline"] == "none,b"
    for name in ("mean_delta", "t_low", "tost_p", "minimum_detectable_effect"):
        assert row[name] == pytest.approx(expected[name]), name
    assert table[table["measure"] == "grad_norm"]["tost_p"].isna().all()  # it has no margin


def test_table_depends_on_the_generator_and_leaves_numpys_global_state(runs):
    before = np.random.get_state()
    tables = [paired.contrast_table(runs, ["perplexity"], rng(seed)) for seed in (5, 5, 6)]
    paired.paired_contrast(rng().normal(size=22), rng(1).normal(size=22), rng())
    pd.testing.assert_frame_equal(*tables[:2])
    assert (tables[0]["bootstrap_p"] != tables[2]["bootstrap_p"]).any()
    assert all(np.array_equal(a, b) for a, b in zip(before, np.random.get_state(), strict=True))


def test_a_row_gets_the_paired_t_test_of_its_two_arms():
    deltas = [0.1, 0.2, 0.4, 0.9]
    runs = runs_of(two_arms(4), lambda arm, seed: 2.0 + (arm.id == "layernorm") * deltas[seed])
    runs.loc[(runs["arm"] == "none") & (runs["seed"] == 3), "loss"] = NAN  # it diverged
    named = pd.DataFrame([{"arm": "none", "baseline": "layernorm", "rms": 0.1}], index=[7])
    (row,) = paired.paired_rows(named, runs, "loss").to_dict("records")
    peer = stats.ttest_1samp([-0.1, -0.2, -0.4], 0)
    assert (row["rms"], row["n"]) == (0.1, 3)
    assert (row["mean_delta"], row["t_p"]) == pytest.approx((-0.7 / 3, peer.pvalue))
    assert (row["t_low"], row["t_high"]) == pytest.approx(tuple(peer.confidence_interval()))
