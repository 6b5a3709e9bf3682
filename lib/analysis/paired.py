"""Paired inference over seeds: from per-seed results to a table with one row per contrast.

A contrast is arm - baseline in one measure, seed by seed. The t interval and t test are primary:
of the intervals, only theirs keeps its coverage with few seeds, provided that deltas are normal.
The bootstrap stands beside them with the coverage that it has at this n, and the sign-flip test,
which assumes nothing but symmetry, with the smallest p that it could have given.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.random import Generator
from numpy.typing import ArrayLike

from lib.analysis.resampling import (
    Floats,
    bootstrap,
    finite_deltas,
    percentile_coverage,
    sign_flip_test,
)
from lib.analysis.runs import budget_factors, own_baselines
from lib.study.metrics import JUDGED
from lib.study.plan import ALPHA, POWER


def paired_contrast(
    baseline: ArrayLike,
    arm: ArrayLike,
    rng: Generator,
    *,
    alpha: float = ALPHA,
    power: float = POWER,
    equivalence_margin: float | None = None,
) -> dict[str, float]:
    """Compare an arm with its baseline by every statistic here: values (seeds,) of one measure, the
    same seeds in the same order, NaN where the run diverged. A seed counts, in `n`, when it
    completed in both arms, else in `n_dropped`.

    Means, sds (n - 1), intervals and the minimum detectable effect are in the measure's units.
    `equivalence_margin` is the largest difference that does not matter; `seeds_needed` detect it at
    this sd_delta, and without it tost_p and seeds_needed are NaN.

    Undefined answers are NaN: all but the counts when n = 0, and what needs a spread when n = 1.
    When all deltas are equal the spread is 0 and says nothing about the error: what rests on it is
    NaN, the bootstrap interval shrinks to the delta, and the sign-flip test is not affected.
    """
    before, after = np.asarray(baseline, dtype=float), np.asarray(arm, dtype=float)
    completed = np.isfinite(before) & np.isfinite(after)
    before, after = before[completed], after[completed]
    deltas, margin = paired_deltas(before, after), equivalence_margin
    n, sd = len(deltas), sd_of(deltas)
    return {
        "n_dropped": len(completed) - n,
        "mean_baseline": _mean(before),
        "sd_baseline": sd_of(before),
        "mean_arm": _mean(after),
        "sd_arm": sd_of(after),
        "sd_delta": sd,
        **t_test(deltas, alpha)._asdict(),
        **bootstrap(deltas, rng, alpha)._asdict(),
        "percentile_coverage": percentile_coverage(n, alpha),
        **sign_flip_test(deltas, rng)._asdict(),
        "d_z": cohens_dz(deltas),
        "g_z": hedges_gz(deltas),
        "tost_p": np.nan if margin is None else tost(deltas, margin),
        "minimum_detectable_effect": minimum_detectable_effect(sd, n, alpha, power),
        "seeds_needed": np.nan if margin is None else seeds_needed(margin, sd, alpha, power),
    }


def contrast_table(
    runs: pd.DataFrame,
    measures: list[str],
    rng: Generator,
    *,
    alpha: float = ALPHA,
    power: float = POWER,
    equivalence_margins: Mapping[str, float] | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> pd.DataFrame:
    """Return one row per measure and pair of arms: arm, baseline, measure, `budget` (the factors by
    which the two sides were trained for another budget; usually ""), then what `paired_contrast`
    says. `runs` is the table of `lib.analysis.runs.tidy`; arms are paired by seed. Of shares of
    runs there is no t test and no t interval. Without `pairs`, every arm that is not its own
    baseline stands against it. `equivalence_margins` maps measure to margin.

    For a family of tests, adjust the p of its rows: `holm(table["t_p"])`.
    """
    margins = equivalence_margins or {}
    pairs = list(own_baselines(runs).items()) if pairs is None else pairs
    rows, one_of_each = [], runs.drop_duplicates("arm")
    for measure in measures:
        values = runs.pivot(index="arm", columns="seed", values=measure).astype(float)
        for arm, baseline in pairs:
            contrast = paired_contrast(
                values.loc[baseline],
                values.loc[arm],
                rng,
                alpha=alpha,
                power=power,
                equivalence_margin=margins.get(measure),
            )
            if measure in JUDGED:  # of a share of runs, t says nothing; McNemar's test does
                contrast |= dict.fromkeys(("t_low", "t_high", "t_p"), np.nan)
            key: dict[str, Any] = {"arm": arm, "baseline": baseline, "measure": measure}
            key["budget"] = ", ".join(budget_factors(one_of_each, arm, baseline))
            rows.append(key | contrast)
    columns = ["arm", "baseline", "measure", "budget", *paired_contrast([], [], rng)]
    return pd.DataFrame(rows, columns=columns)


class TTest(NamedTuple):
    n: int
    mean_delta: float
    t_low: float
    t_high: float
    t_p: float


def t_test(deltas: ArrayLike, alpha: float = ALPHA) -> TTest:
    """Compute the two-sided paired t test on deltas (n,), and the 1 - alpha interval for their
    mean: mean ± t · sd / √n (Student 1908). NaN but for the mean when n < 2 or all deltas are
    equal."""
    values = finite_deltas(deltas)
    if not sd_of(values) > 0:
        return TTest(len(values), _mean(values), np.nan, np.nan, np.nan)
    test = scipy.stats.ttest_1samp(values, 0)
    low, high = test.confidence_interval(1 - alpha)
    return TTest(len(values), _mean(values), float(low), float(high), float(test.pvalue))


def t_tests(values: pd.DataFrame, pairs: Mapping[str, str], alpha: float = ALPHA) -> pd.DataFrame:
    """Test arm - baseline, for every pair (arm → baseline) that has any, in all rows of a table:
    values by arm and further levels of the index, a column per seed. One row per pair and further
    levels: arm, baseline, those, then what `t_test` says of the seeds that both have."""
    arms, tables = set(values.index.unique("arm")), {}
    for arm, baseline in pairs.items():
        if {arm, baseline} <= arms:
            deltas = pd.DataFrame(values.loc[arm] - values.loc[baseline])
            tests = [t_test(row.dropna(), alpha) for _, row in deltas.iterrows()]
            tables[arm, baseline] = pd.DataFrame(tests, deltas.index)
    if not tables:
        return pd.DataFrame(columns=["arm", "baseline", *TTest._fields])
    return pd.concat(tables, names=["arm", "baseline"]).reset_index()


def cohens_dz(deltas: ArrayLike) -> float:
    """Return mean over standard deviation of the deltas (n,) (Lakens 2013); NaN without spread."""
    values = finite_deltas(deltas)
    sd = sd_of(values)
    return _mean(values) / sd if sd > 0 else np.nan


def hedges_gz(deltas: ArrayLike) -> float:
    """Return d_z without its small-sample bias: times Γ(m/2) / (√(m/2) Γ((m-1)/2)) with m = n - 1
    (Hedges 1981, p. 111). NaN without spread, and when n < 3, where d_z has no expectation."""
    values = finite_deltas(deltas)
    m = len(values) - 1
    if m < 2:
        return np.nan
    gammas = scipy.special.gammaln(m / 2) - scipy.special.gammaln((m - 1) / 2)
    return float(np.exp(gammas) / np.sqrt(m / 2)) * cohens_dz(values)


def tost(deltas: ArrayLike, margin: float) -> float:
    """Return the p of equivalence: the larger of two one-sided t tests, mean > -margin and mean <
    margin (Schuirmann 1987), deltas (n,). p ≤ alpha: the arms differ by less than the margin.

    NaN when n < 2 or all deltas are equal.
    """
    values = finite_deltas(deltas)
    if not sd_of(values) > 0:
        return np.nan
    above = scipy.stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    below = scipy.stats.ttest_1samp(values, margin, alternative="less").pvalue
    return float(max(above, below))


def holm(p: ArrayLike) -> Floats:
    """Adjust the p of a family (m,) so that p ≤ alpha keeps the family-wise error (Holm 1979).

    A NaN stays NaN but counts in m: the test was planned, though it could not be computed.
    """
    # Here, because it takes half a second to import.
    from statsmodels.stats.multitest import multipletests  # type: ignore[import-untyped]

    values = np.asarray(p, dtype=float)
    if not len(values):
        return values
    adjusted = multipletests(np.nan_to_num(values, nan=1.0), method="holm")[1]
    return np.where(np.isnan(values), np.nan, adjusted)


def t_test_power(d_z: float, n: int, alpha: float = ALPHA) -> float:
    """Return the probability that n seeds give a two-sided p ≤ alpha when the true effect is `d_z`,
    mean over standard deviation of the deltas (Cohen 1988, ch. 2).

    Not by statsmodels: for n of 2 to 4 it takes scipy's lower tail of the noncentral t, which is
    NaN there, and then solves for a wrong effect. Turning the sign avoids that tail.
    """
    critical, shift = scipy.stats.t.isf(alpha / 2, n - 1), d_z * n**0.5
    return float(np.sum(scipy.stats.nct.sf(critical, n - 1, [shift, -shift])))


def minimum_detectable_effect(
    sd: float, n: int, alpha: float = ALPHA, power: float = POWER
) -> float:
    """Return the smallest true effect that n seeds detect with probability `power`, in the units of
    `sd`, the standard deviation of the deltas. NaN when n < 2 or there is no spread.

    With the sd of the same sample it says how small an effect the study could detect, not whether
    the observed delta is real. With few seeds it is uncertain itself: with 5, the true sd may be,
    at 95 % confidence, 0.60 to 2.87 times as large.
    """
    if n < 2 or not sd > 0:
        return np.nan
    # A noncentrality of ten critical values leaves no probability below the first of them.
    upper = 10 * (scipy.stats.t.isf(alpha / 2, n - 1) + 3) / n**0.5
    root = scipy.optimize.brentq(lambda d_z: t_test_power(d_z, n, alpha) - power, 0, upper)
    return sd * float(root)


def seeds_needed(effect: float, sd: float, alpha: float = ALPHA, power: float = POWER) -> float:
    """Return the smallest number of seeds, at least 2, that detects `effect` with probability
    `power`; NaN without an effect or without spread."""
    if not (abs(effect) > 0 and sd > 0):
        return np.nan
    d_z = abs(effect) / sd
    # The z test's sample size, doubled, is beyond what the t test needs on top of it.
    z_test = ((scipy.stats.norm.isf(alpha / 2) + scipy.stats.norm.ppf(power)) / d_z) ** 2
    sizes = range(2, 2 * int(z_test) + 100)
    return sizes[bisect_left(sizes, power, key=lambda n: t_test_power(d_z, n, alpha))]


def paired_deltas(before: Floats, after: Floats) -> Floats:
    """Return sorted arm - baseline, rounded to 12 significant digits of the largest value, so that
    differences that are equal on paper (0.3 - 0.2 and 0.2 - 0.1) are ties here too."""
    largest = max(np.abs(before).max(initial=0), np.abs(after).max(initial=0))
    digits = 12 - int(np.ceil(np.log10(largest))) if largest > 0 else 0
    return np.sort(np.round(after - before, digits))


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else np.nan


def sd_of(values: Floats) -> float:
    """Return the standard deviation (n - 1), exactly 0 for equal values, whose mean may be off by
    rounding."""
    if len(values) < 2:
        return np.nan
    return float(values.std(ddof=1)) if np.ptp(values) > 0 else 0.0
