from dataclasses import asdict, astuple, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from lib.analysis.paired import (
    Contrast,
    cohens_dz,
    contrast_table,
    hedges_gz,
    holm,
    paired_contrast,
    paired_probability_of_improvement,
    t_test,
    tost,
    wilcoxon_test,
)
from lib.analysis.power import minimum_detectable_effect, seeds_needed
from lib.analysis.resampling import crossed_bootstrap, interval_coverage, iqm_interval
from lib.analysis.runs import tidy
from lib.study.config import Study
from tests.samples import sample_runs

NAN = float("nan")


def contrast(baseline, arm, seed: int = 0, **options: object) -> Contrast:
    return paired_contrast(baseline, arm, np.random.default_rng(seed), **options)


def undefined(result: Contrast) -> set[str]:
    return {name for name, value in asdict(result).items() if np.isnan(value)}


@pytest.fixture
def pairs() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    baseline = generator.normal(20.0, 0.8, size=7)
    return baseline, baseline + generator.normal(-0.5, 0.4, size=7)


# One contrast


def test_a_contrast_is_what_scipy_says(pairs):
    baseline, arm = pairs
    result = contrast(baseline, arm, equivalence_margin=0.3, lower_is_better=True)
    test = stats.ttest_rel(arm, baseline)
    interval = test.confidence_interval(0.95)
    assert (result.n, result.n_dropped) == (7, 0)
    assert (result.t_low, result.t_high) == pytest.approx((interval.low, interval.high))
    assert result.t_p == pytest.approx(test.pvalue)
    assert result.wilcoxon_p == pytest.approx(stats.wilcoxon(arm, baseline).pvalue)
    assert result.mean_baseline == pytest.approx(baseline.mean())
    assert result.sd_arm == pytest.approx(arm.std(ddof=1))
    assert result.mean_delta == pytest.approx(result.mean_arm - result.mean_baseline)
    assert result.sd_delta == pytest.approx((arm - baseline).std(ddof=1))
    assert result.d_z == pytest.approx(test.statistic / 7**0.5)
    assert result.sign_flip_smallest_p == 2 / 2**7
    assert result.percentile_low < result.mean_delta < result.percentile_high
    assert result.bca_low < result.mean_delta < result.bca_high
    assert result.percentile_coverage == interval_coverage("percentile", 7)
    assert result.bca_coverage == interval_coverage("BCa", 7)
    assert result.probability_of_improvement == np.mean(arm < baseline)
    assert result.minimum_detectable_effect == minimum_detectable_effect(result.sd_delta, 7)
    assert result.seeds_needed == seeds_needed(0.3, result.sd_delta)


def test_alpha_and_power_reach_every_answer(pairs):
    strict = contrast(*pairs, alpha=0.01, power=0.9, equivalence_margin=0.3)
    usual = contrast(*pairs, equivalence_margin=0.3)
    for name in ("t", "percentile", "bca"):
        assert getattr(strict, f"{name}_low") < getattr(usual, f"{name}_low")
        assert getattr(strict, f"{name}_high") > getattr(usual, f"{name}_high")
        assert getattr(strict, f"{name}_coverage") > getattr(usual, f"{name}_coverage")
    sd = usual.sd_delta
    assert strict.minimum_detectable_effect == minimum_detectable_effect(sd, 7, 0.01, 0.9)
    assert strict.seeds_needed == seeds_needed(0.3, sd, 0.01, 0.9)


def test_same_seed_same_answer_and_another_seed_another(pairs):
    assert contrast(*pairs, seed=3) == contrast(*pairs, seed=3)
    assert contrast(*pairs, seed=3).percentile_low != contrast(*pairs, seed=4).percentile_low


def test_without_margin_or_direction_what_needs_them_is_undefined(pairs):
    assert undefined(contrast(*pairs)) == {"tost_p", "seeds_needed", "probability_of_improvement"}
    assert undefined(contrast(*pairs, equivalence_margin=1.0, lower_is_better=False)) == set()


def test_diverged_runs_leave_in_pairs_and_are_counted(pairs):
    baseline, arm = pairs
    expected = contrast(baseline[2:6], arm[2:6])
    baseline[0], arm[0], arm[1], baseline[6] = NAN, NAN, np.inf, NAN
    assert contrast(baseline, arm) == replace(expected, n_dropped=3)


def test_nothing_left_is_all_undefined():
    result = contrast([NAN, 1.0], [1.0, NAN], equivalence_margin=1.0, lower_is_better=True)
    assert (result.n, result.n_dropped) == (0, 2)
    assert undefined(result) == set(asdict(result)) - {"n", "n_dropped"}


def test_one_seed_has_a_delta_and_no_spread():
    result = contrast([2.0], [1.5], equivalence_margin=1.0, lower_is_better=True)
    defined = set(asdict(result)) - undefined(result)
    means = {"mean_baseline", "mean_arm", "mean_delta"}
    tests = {"sign_flip_p", "sign_flip_smallest_p", "wilcoxon_p"}
    assert defined == {"n", "n_dropped", *means, *tests, "probability_of_improvement"}
    assert (result.mean_delta, result.probability_of_improvement) == (-0.5, 1.0)
    assert (result.sign_flip_p, result.sign_flip_smallest_p, result.wilcoxon_p) == (1.0, 1.0, 1.0)


NEEDS_SPREAD = {"t_low", "t_high", "t_p", "d_z", "g_z", "tost_p"}
NEEDS_SPREAD |= {"minimum_detectable_effect", "seeds_needed"}


def test_equal_deltas_shrink_the_bootstrap_and_leave_the_t_test_undefined():
    baseline = np.array([0.1, 0.2, 0.3, 0.7])
    result = contrast(baseline, baseline + 0.1, equivalence_margin=1.0, lower_is_better=False)
    assert undefined(result) == NEEDS_SPREAD
    ends = {result.percentile_low, result.percentile_high, result.bca_low, result.bca_high}
    assert ends == {result.mean_delta} == {0.1}
    assert result.sd_delta == 0
    assert result.sign_flip_p == result.wilcoxon_p == 2 / 2**4
    assert result.probability_of_improvement == 1.0


def test_identical_arms_show_no_difference():
    values = np.array([0.3, 0.2, 0.5])
    result = contrast(values, values, equivalence_margin=1.0, lower_is_better=True)
    assert undefined(result) == NEEDS_SPREAD
    assert (result.mean_delta, result.percentile_low, result.bca_high) == (0.0, 0.0, 0.0)
    assert (result.sign_flip_p, result.wilcoxon_p) == (1.0, 1.0)
    assert result.probability_of_improvement == 0.5


def test_deltas_equal_on_paper_are_ties():
    """In floats 0.3 - 0.2 < 0.2 - 0.1 < 0.9 - 0.8, so that ranks would differ."""
    baseline, arm = [0.2, 0.1, 0.9, 0.5], [0.3, 0.2, 0.8, 1.0]
    tenths = contrast(10 * np.array(baseline), 10 * np.array(arm))
    assert contrast(baseline, arm).wilcoxon_p == tenths.wilcoxon_p
    assert contrast([0.3], [0.1 + 0.2], lower_is_better=True).probability_of_improvement == 0.5


@pytest.mark.parametrize(("baseline", "arm"), [([1.0], [1.0, 2.0]), ([[1.0]], [[1.0]])])
def test_values_must_come_in_pairs(baseline, arm):
    with pytest.raises(ValueError, match="one value per seed"):
        contrast(baseline, arm)


# Properties, over eighths: their sums are exact, so equal means equal

EIGHTHS = st.integers(-400, 400).map(lambda i: i / 8)
PAIRS = st.lists(st.tuples(EIGHTHS, EIGHTHS), min_size=0, max_size=6)
exhaustively = settings(max_examples=40, deadline=None, database=None, derandomize=True)


def answers(pairs, seed: int = 0) -> dict[str, float]:
    baseline, arm = [b for b, _ in pairs], [a for _, a in pairs]
    return asdict(contrast(baseline, arm, seed, equivalence_margin=2.0, lower_is_better=True))


DELTA = [f"{name}_{end}" for name in ("t", "percentile", "bca") for end in ("low", "high")]
DELTA += ["n", "n_dropped", "mean_delta", "sd_delta", "t_p", "sign_flip_p", "wilcoxon_p", "d_z"]
DELTA += ["g_z", "probability_of_improvement", "tost_p", "seeds_needed"]
SYMMETRIC = ["n", "sd_delta", "t_p", "sign_flip_p", "sign_flip_smallest_p", "wilcoxon_p"]
SYMMETRIC += ["tost_p", "minimum_detectable_effect", "seeds_needed"]


@given(PAIRS, st.randoms(use_true_random=False))
@exhaustively
def test_permuting_seeds_changes_nothing(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    assert answers(shuffled) == pytest.approx(answers(pairs), nan_ok=True)


@given(PAIRS, st.integers(-50, 50))
@exhaustively
def test_shifting_both_arms_changes_no_delta(pairs, shift):
    shifted, original = answers([(b + shift, a + shift) for b, a in pairs]), answers(pairs)
    for name in DELTA:
        assert shifted[name] == pytest.approx(original[name], nan_ok=True), name


@given(PAIRS)
@exhaustively
def test_swapping_arms_turns_signs(pairs):
    swapped, original = answers([(a, b) for b, a in pairs]), answers(pairs)
    for name in ("mean_delta", "d_z", "g_z"):
        assert swapped[name] == pytest.approx(-original[name], nan_ok=True)
    assert swapped["t_low"] == pytest.approx(-original["t_high"], nan_ok=True)
    for name in SYMMETRIC:
        assert swapped[name] == pytest.approx(original[name], nan_ok=True), name
    improvement = original["probability_of_improvement"]
    assert swapped["probability_of_improvement"] == pytest.approx(1 - improvement, nan_ok=True)


@given(PAIRS, st.sampled_from([0.25, 2.0, 8.0]))
@exhaustively
def test_scaling_scales(pairs, factor):
    scaled, original = answers([(factor * b, factor * a) for b, a in pairs]), answers(pairs)
    ends = [name for name in DELTA if name.endswith(("_low", "_high"))]
    for name in (*ends, "mean_delta", "sd_delta", "mean_arm", "minimum_detectable_effect"):
        assert scaled[name] == pytest.approx(factor * original[name], nan_ok=True), name
    for name in ("t_p", "sign_flip_p", "wilcoxon_p", "d_z", "g_z"):
        assert scaled[name] == pytest.approx(original[name], nan_ok=True), name


@given(st.lists(st.floats(0, 1), max_size=8))
@exhaustively
def test_holm_is_statsmodels_and_never_lowers_a_p(p):
    adjusted = holm(p)
    if p:
        assert adjusted == pytest.approx(multipletests(p, method="holm")[1])
    assert (adjusted >= np.asarray(p)).all()


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


def test_tost_needs_a_margin_and_a_spread():
    assert np.isnan(tost([0.1], 1.0))
    assert np.isnan(tost([0.1, 0.1], 1.0))
    for margin in (0.0, -1.0, NAN):
        with pytest.raises(ValueError, match="largest difference that does not matter"):
            tost([0.1, 0.2], margin)


def test_cohens_dz_is_over_the_deltas_sd_not_the_arms():
    baseline, arm = np.array([10.0, 20.0, 30.0]), np.array([11.0, 22.0, 33.0])
    assert cohens_dz(arm - baseline) == pytest.approx(2.0)
    assert contrast(baseline, arm).d_z == pytest.approx(2.0)


def test_hedges_gz_is_unbiased_where_dz_is_not():
    samples = np.random.default_rng(2).normal(1.0, 1.0, size=(5000, 5))
    assert np.mean([hedges_gz(sample) for sample in samples]) == pytest.approx(1.0, abs=0.04)
    assert np.mean([cohens_dz(sample) for sample in samples]) > 1.15


def test_hedges_gz_approaches_its_textbook_approximation_and_needs_three_seeds():
    deltas = np.random.default_rng(3).normal(1.0, 1.0, size=30)
    assert hedges_gz(deltas) / cohens_dz(deltas) == pytest.approx(1 - 3 / (4 * 29 - 1), abs=1e-4)
    assert np.isnan(hedges_gz([1.0, 2.0]))


@pytest.mark.parametrize(("lower", "expected"), [(True, 0.625), (False, 0.375)])
def test_ties_count_half_an_improvement(lower, expected):
    assert paired_probability_of_improvement([-1.0, -2.0, 0.0, 3.0], lower) == expected


@pytest.mark.parametrize("n", [4, 9, 30])
@pytest.mark.parametrize("decimals", [1, 8])
def test_tests_are_scipys(n, decimals):
    deltas = np.random.default_rng(n).normal(0.3, 1.0, size=n).round(decimals)
    assert wilcoxon_test(deltas) == pytest.approx(stats.wilcoxon(deltas).pvalue)
    assert t_test(deltas) == pytest.approx(stats.ttest_rel(deltas, np.zeros(n)).pvalue)


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
    expected = contrast(
        values["none,b"], values["rmsnorm,b"], equivalence_margin=0.5, lower_is_better=True
    )
    assert row["baseline"] == "none,b"
    for name in ("mean_delta", "t_low", "tost_p", "probability_of_improvement", "seeds_needed"):
        assert row[name] == pytest.approx(getattr(expected, name)), name
    directionless = table[table["measure"] == "grad_norm"]
    assert directionless["probability_of_improvement"].isna().all()
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


def test_a_diverged_run_is_counted_in_the_table(tiny_study: Study):
    runs = sample_runs(tiny_study)
    ruined = runs[0].model_copy(
        update={"status": "diverged", "measures": dict.fromkeys(runs[0].measures)}
    )
    table = contrast_table(tidy([ruined, *runs[1:]]), ["perplexity"], np.random.default_rng(0))
    assert table.loc[0, ["n", "n_dropped", "mean_delta"]].tolist() == [1, 1, -2.0]


def test_table_of_one_arm_is_empty_with_its_columns(runs):
    table = contrast_table(runs[runs["arm"] == "none,a"], ["perplexity"], np.random.default_rng(0))
    assert table.empty
    assert {"arm", "measure", "t_low"} <= set(table.columns)


def test_table_refuses_by_name(runs):
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"'perplexty' is unknown; did you mean 'perplexity'\?"):
        contrast_table(runs, ["perplexty"], rng)
    with pytest.raises(ValueError, match="'layernorm,a' needs the runs of its baseline 'none,a'"):
        contrast_table(runs[runs["arm"] != "none,a"], ["perplexity"], rng)


def test_same_seed_same_table_and_numpys_global_state_is_left_alone(runs):
    before = np.random.get_state()
    tables = [contrast_table(runs, ["perplexity"], np.random.default_rng(5)) for _ in range(2)]
    rng = np.random.default_rng(0)
    iqm_interval(rng.normal(size=(5, 4)), rng)
    crossed_bootstrap(rng.random((3, 9)) < 0.5, rng.random((3, 9)) < 0.5, rng)
    paired_contrast(rng.normal(size=22), rng.normal(size=22), rng)
    pd.testing.assert_frame_equal(*tables)
    after = np.random.get_state()
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(isinstance(value, (int, float)) for value in astuple(contrast([1.0], [2.0])))
