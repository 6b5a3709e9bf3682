"""Paired inference over seeds: from one value per run to a table with one row per contrast.

A contrast is arm - baseline in one measure, seed by seed. The primary test is the paired t test: if
there are few seeds and the deltas are normal, only the t interval has its nominal coverage. The
bootstrap and the sign-flip test are also computed. The sign-flip test only assumes that the deltas
are symmetric. We report it with the smallest p that this number of seeds can give.

Functions that draw random numbers take a `numpy.random.Generator`. The same state gives the same
answer. The order of the seeds never matters.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from lib.config.metrics import JUDGED
from lib.config.plan import ALPHA, POWER, Plan
from lib.stats.power import minimum_detectable_effect, t_sides
from lib.stats.runs import (
    budget_factors,
    budgets,
    by_seed,
    column_by_arm,
    is_comparable,
    own_baselines,
    sides,
)

RESAMPLES = 9_999
"""Resamples of the bootstrap, and of the sign-flip test if there are too many patterns to list."""

Floats = NDArray[np.float64]


class TTest(NamedTuple):
    """A paired t test; mean and interval are in the measure's units."""

    n: int
    """Number of seeds with completed runs in both arms."""
    mean_delta: float
    t_low: float
    t_high: float
    t_p: float


NO_T_TEST = {"t_low": np.nan, "t_high": np.nan, "t_p": np.nan}
"""For shares of runs (`JUDGED`): their deltas are -1, 0 or 1, which is far from normal."""


def contrast_table(
    runs: pd.DataFrame,
    measures: Sequence[str],
    rng: Generator,
    plan: Plan | None = None,
    pairs: Iterable[tuple[str, str]] | None = None,
) -> pd.DataFrame:
    """Return one row per measure and pair of arms (arm, baseline), paired by seed.

    `runs` is the table of `lib.stats.runs.tidy`. `pairs` defaults to every arm with its baseline.
    A plan gives alpha and power. Its smallest effects of interest are the margins of equivalence.

    Columns: arm, baseline, measure, `budget` (see `budget_factors`; usually ""), and the columns of
    `paired_contrast`. Shares of runs have no t test. If a measure is per token, pairs with
    different vocabularies are left out.

    For a family of tests, adjust the p of its rows: `holm(table["t_p"])`.
    """
    pairs = list(own_baselines(runs).items() if pairs is None else pairs)
    alpha = plan.alpha if plan else ALPHA
    power = plan.power if plan else POWER
    margins = plan.smallest_effect_of_interest if plan else {}
    vocabularies = column_by_arm(runs, "vocabulary")
    budget = budgets(runs)
    rows = []
    for measure in measures:
        values = by_seed(runs, measure)
        for arm, baseline in pairs:
            if not is_comparable(vocabularies, measure, (arm, baseline)):
                continue
            weights = {arm: 1.0, baseline: -1.0}
            both = sides(values, weights)
            contrast = paired_contrast(
                both["baseline"],
                both["arm"],
                rng,
                alpha=alpha,
                power=power,
                margin=margins.get(measure),
            )
            if measure in JUDGED:  # tested by sign flips: for shares, that is McNemar's test
                contrast |= NO_T_TEST
            differing = budget_factors(budget, weights)
            key = {"arm": arm, "baseline": baseline, "measure": measure, "budget": differing}
            rows.append(key | contrast)
    columns = ["arm", "baseline", "measure", "budget", *paired_contrast([], [], rng)]
    return pd.DataFrame(rows, columns=columns)


def paired_contrast(
    baseline: ArrayLike,
    arm: ArrayLike,
    rng: Generator,
    *,
    alpha: float = ALPHA,
    power: float = POWER,
    margin: float | None = None,
) -> dict[str, float]:
    """Compare an arm with its baseline by every statistic of this module.

    `baseline` and `arm` are values (seeds,) of one measure, for the same seeds in the same order;
    NaN if the run diverged. Only seeds with completed runs in both arms are used. `n` counts them,
    and `n_dropped` counts the others.

    Means, sds (n - 1), intervals and the minimum detectable effect are in the measure's units.
    `d_z` is the mean of the deltas divided by their sd (Lakens 2013). `margin` is the largest
    difference that does not matter. A small `tost_p` shows that the true difference is smaller
    than the margin; without a margin it is NaN.

    Values that cannot be computed are NaN:

    - with n = 0, all except the counts;
    - with n = 1, all intervals, sds and p, except those of the sign-flip test;
    - if all deltas are equal, the t test, `tost_p`, `d_z` and the minimum detectable effect. The sd
      is then 0 and says nothing about the error. The bootstrap interval is that one delta, and the
      sign-flip test works as usual.
    """
    of_baseline = np.asarray(baseline, dtype=float)
    of_arm = np.asarray(arm, dtype=float)
    completed = np.isfinite(of_baseline) & np.isfinite(of_arm)
    of_baseline, of_arm = of_baseline[completed], of_arm[completed]
    deltas = paired_deltas(of_baseline, of_arm)
    n = len(deltas)
    sd = sd_of(deltas)
    test = t_test(deltas, alpha)
    low, high, bootstrap_p = bootstrap(deltas, rng, alpha)
    flip_p, smallest_p = sign_flip_test(deltas, rng)
    tost_p = np.nan
    if margin is not None:  # two one-sided tests (Schuirmann 1987)
        p_above, p_below = t_sides(test.mean_delta, sd, n)
        tost_p = float(np.maximum(p_above(-margin), p_below(margin)))
    return {
        "n_dropped": len(completed) - n,
        "mean_baseline": _mean(of_baseline),
        "sd_baseline": sd_of(of_baseline),
        "mean_arm": _mean(of_arm),
        "sd_arm": sd_of(of_arm),
        "sd_delta": sd,
        **test._asdict(),
        "percentile_low": low,
        "percentile_high": high,
        "bootstrap_p": bootstrap_p,
        "sign_flip_p": flip_p,
        "sign_flip_smallest_p": smallest_p,
        "d_z": test.mean_delta / sd if sd > 0 else np.nan,
        "tost_p": tost_p,
        "minimum_detectable_effect": minimum_detectable_effect(sd, n, alpha, power),
    }


def weighted_deltas(values: pd.DataFrame, weights: Mapping[str, float]) -> Floats:
    """Return the sorted differences (seeds,) between the two `sides` of a weighted sum of arms. Use
    only seeds with completed runs in all of these arms. `values` is a table of `by_seed`."""
    complete = sides(values, weights).dropna()
    return paired_deltas(complete["baseline"].to_numpy(), complete["arm"].to_numpy())


def paired_deltas(baseline: Floats, arm: Floats) -> Floats:
    """Return arm - baseline (seeds,), sorted, and rounded to 12 significant digits of the largest
    value. So 0.3 - 0.2 and 0.2 - 0.1 are equal, although they differ as floats."""
    largest = max(np.abs(baseline).max(initial=0), np.abs(arm).max(initial=0))
    digits = 12 - int(np.ceil(np.log10(largest))) if largest > 0 else 0
    return np.sort(np.round(arm - baseline, digits))


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else np.nan


def sd_of(values: Floats) -> float:
    """Return the standard deviation (n - 1); NaN if n < 2. For equal values it is exactly 0. `std`
    may return a little more than 0, because it rounds their mean."""
    if len(values) < 2:
        return np.nan
    return float(values.std(ddof=1)) if np.ptp(values) > 0 else 0.0


def t_test(deltas: ArrayLike, alpha: float = ALPHA) -> TTest:
    """Make a two-sided test of whether the mean of finite deltas (n,) is 0. The mean's interval at
    1 - alpha is mean ± t · sd / √n (Student 1908). If n < 2 or all deltas are equal, interval and p
    are NaN."""
    values = np.sort(np.asarray(deltas, dtype=float))
    if not sd_of(values) > 0:  # 0 or NaN
        return TTest(len(values), _mean(values), np.nan, np.nan, np.nan)
    test = scipy.stats.ttest_1samp(values, 0)
    low, high = test.confidence_interval(1 - alpha)
    return TTest(len(values), _mean(values), float(low), float(high), float(test.pvalue))


def paired_rows(
    pairs: pd.DataFrame, runs: pd.DataFrame, measure: str, alpha: float = ALPHA
) -> pd.DataFrame:
    """Add to each row of `pairs` (columns arm and baseline) the `TTest` of their paired difference
    in a measure, over the seeds with completed runs in both arms."""
    values = by_seed(runs, measure)
    tests = []
    for arm, baseline in zip(pairs["arm"], pairs["baseline"], strict=True):
        both = sides(values, {arm: 1.0, baseline: -1.0}).dropna()
        tests.append(t_test(both["arm"] - both["baseline"], alpha)._asdict())
    return pairs.join(pd.DataFrame(tests, index=pairs.index))


def bootstrap(deltas: Floats, rng: Generator, alpha: float = ALPHA) -> tuple[float, float, float]:
    """Return the two ends of the 1 - alpha percentile interval for the mean of sorted deltas (n,),
    and its p, from `RESAMPLES` resamples (Efron & Tibshirani 1993, section 13.3 and chapter 16).

    p is twice the share of resampled means that are at most 0, or twice the share that are at least
    0, whichever is smaller. The sample itself is counted in that share. So p agrees with the
    interval.

    With few seeds, the interval is too narrow and p is too small: for five normal deltas, 95 %
    intervals contain the mean 84 % of the time. If n < 2, all three are NaN. If all deltas are
    equal, both ends are that delta and p is NaN.
    """
    if len(deltas) < 2:
        return np.nan, np.nan, np.nan
    if np.ptp(deltas) == 0:
        return float(deltas[0]), float(deltas[0]), np.nan
    result = scipy.stats.bootstrap(
        (deltas,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=1 - alpha,
        method="percentile",
        rng=rng,
    )
    low, high = result.confidence_interval
    means = result.bootstrap_distribution
    beyond_zero = 1 + min(np.count_nonzero(means <= 0), np.count_nonzero(means >= 0))
    return float(low), float(high), float(min(1.0, 2 * beyond_zero / (1 + RESAMPLES)))


def sign_flip_test(deltas: Floats, rng: Generator) -> tuple[float, float]:
    """Make a two-sided test of whether the mean of sorted deltas (n,) is 0, by flipping their signs
    (Fisher 1935, § 21). Return p, and the smallest p that this number of seeds can give.

    p is the share of sign patterns with a mean at least as far from 0 as the observed mean. Up to
    n = 13, all 2^n patterns are enumerated; so the smallest p is 2 / 2^m if m deltas are not zero.
    For larger n, `RESAMPLES` patterns are drawn, and the observed one counts as one of them
    (Phipson & Smyth 2010). Both are NaN if n = 0, and 1 if n = 1 or all deltas are zero.
    """
    total = np.abs(deltas).sum()
    if len(deltas) < 2 or total == 0:
        p = 1.0 if len(deltas) else np.nan
        return p, p

    def statistic(flipped: Floats, axis: int) -> Floats:
        """Return the sum as a share of the largest possible sum. It is rounded, so that sums that
        would be equal without rounding errors are equal here. (A sum that equals the observed sum
        counts as at least as far from 0.)"""
        return np.asarray(np.round(flipped.sum(axis=axis) / total, 9))

    test = scipy.stats.permutation_test(
        (deltas,),
        statistic,
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=rng,
    )
    is_exact = 2 ** len(deltas) <= RESAMPLES
    smallest_p = 2 / 2 ** np.count_nonzero(deltas) if is_exact else 2 / (1 + RESAMPLES)
    return float(test.pvalue), float(smallest_p)


def holm(p: ArrayLike) -> Floats:
    """Return the p of a family of tests (m,), adjusted by Holm's method (1979). If tests with an
    adjusted p of at most alpha are rejected, the probability of any false rejection in the family
    is at most alpha.

    A NaN stays NaN but counts in m, because that test was planned, although it could not be
    computed. (statsmodels' version takes half a second to import, and collects garbage at every
    call.)
    """
    values = np.asarray(p, dtype=float)
    order = np.argsort(values)  # NaN is last
    scaled = np.nan_to_num(values[order], nan=1.0) * np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return np.where(np.isnan(values), np.nan, adjusted)
