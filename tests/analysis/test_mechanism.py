import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lib.analysis.mechanism import mechanism_finding, mechanism_table, ratio_interval


@given(st.integers(0, 2**32 - 1), st.integers(3, 12), st.floats(-2, 2))
def test_the_interval_holds_the_ratios_that_a_t_test_does_not_reject(
    seed: int, n: int, ratio: float
) -> None:
    rng = np.random.default_rng(seed)
    whole = rng.normal(5, 0.3, n)
    part = ratio * whole + rng.normal(0, 0.3, n)
    low, high = ratio_interval(part, whole)
    for end in (low, high):
        assert stats.ttest_1samp(part - end * whole, 0).pvalue == pytest.approx(0.05, abs=1e-6)
    assert low < part.mean() / whole.mean() < high


def test_coverage_is_nominal() -> None:
    rng = np.random.default_rng(0)
    hits, n = 0, 2000
    for _ in range(n):
        whole = rng.normal(1.0, 0.2, 6)
        part = 0.7 * whole + rng.normal(0, 0.2, 6)
        low, high = ratio_interval(part, whole)
        hits += low <= 0.7 <= high
    assert hits / n == pytest.approx(0.95, abs=3 * np.sqrt(0.95 * 0.05 / n))


def test_a_whole_that_may_be_zero_gives_no_interval() -> None:
    assert np.isnan(ratio_interval([1.0, 1.1, 0.9], [0.1, -0.1, 0.05])).all()
    assert np.isnan(ratio_interval([1.0], [2.0])).all()


def runs_of(values: dict[str, list[float]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"variant": variant, "setting": "", "seed": seed, "perplexity": value}
            for variant, seeds in values.items()
            for seed, value in enumerate(seeds)
        ]
    )


def test_a_share_without_an_interval_is_said_so() -> None:
    values = {variant: seeds[:1] for variant, seeds in VALUES.items()}
    table = mechanism_table(runs_of(values), ["perplexity"], 0.05)
    assert all("% (no interval) of the whole" in said for said in mechanism_finding(table).words)


VALUES = {
    "none": [10.0, 11.0, 12.0],
    "scale": [10.6, 11.7, 12.5],
    "rmsnorm": [10.8, 11.9, 12.9],
    "layernorm": [11.0, 11.9, 13.1],
}


def test_effects_add_up_to_the_whole_and_shares_to_one() -> None:
    table = mechanism_table(runs_of(VALUES), ["perplexity"], 0.05).set_index("ingredient")
    assert table["effect"].sum() == pytest.approx(1.0)
    assert table["whole"].tolist() == pytest.approx([1.0] * 3)
    assert table["share"].sum() == pytest.approx(1.0)
    assert table.loc["fixed scale", "effect"] == pytest.approx(0.6)
    expected = ratio_interval([0.6, 0.7, 0.5], [1.0, 0.9, 1.1])
    assert table.loc["fixed scale", ["low", "high"]].tolist() == pytest.approx(list(expected))


def test_a_seed_that_diverged_in_one_variant_is_left_out_of_all() -> None:
    values = VALUES | {"scale": [10.6, 11.7, np.nan]}
    assert set(mechanism_table(runs_of(values), ["perplexity"], 0.05)["n"]) == {2}


def test_a_study_without_the_variants_has_no_such_table() -> None:
    some = {name: VALUES[name] for name in ("none", "layernorm")}
    assert mechanism_table(runs_of(some), ["perplexity"], 0.05).empty
