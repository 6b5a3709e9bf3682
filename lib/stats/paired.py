"""Paired inference over seeds: from per-seed results to a table with one row per contrast.

A contrast is arm - baseline in one measure, seed by seed. The t interval and t test are primary:
of the intervals, only theirs keeps its coverage with few seeds, provided that deltas are normal.
The bootstrap stands beside them, and the sign-flip test, which assumes nothing but symmetry, with
the smallest p that it could have given.

Every function that draws takes a `numpy.random.Generator`; the same state gives the same answer,
and the order of the seeds never matters.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from lib.config.metrics import JUDGED
from lib.config.plan import ALPHA, POWER, Plan
from lib.stats.power import minimum_detectable_effect, t_sides
from lib.stats.runs import budget_factors, is_comparable, own_baselines, seed_differences, sides

RESAMPLES = 9_999

Floats = NDArray[np.float64]


class TTest(NamedTuple):
    n: int
    mean_delta: float
    t_low: float
    t_high: float
    t_p: float


def contrast_table(
    runs: pd.DataFrame,
    measures: Sequence[str],
    rng: Generator,
    plan: Plan | None = None,
    pairs: Iterable[tuple[str, str]] | None = None,
) -> pd.DataFrame:
    """Return one row per measure and pair of arms: arm, baseline, measure, `budget` (the factors by
    which the two sides were trained for another budget; usually ""), then what `paired_contrast`
    says. `runs` is the table of `lib.stats.runs.tidy`; arms are paired by seed. Of shares of
    runs there is no t test and no t interval; in a measure per token, no pair of two vocabularies.
    Without `pairs`, every arm that is not its own baseline stands against it. A plan gives level,
    power, and margins of equivalence: its smallest effects of interest.

    For a family of tests, adjust the p of its rows: `holm(table["t_p"])`.
    """
    pairs = list(own_baselines(runs).items() if pairs is None else pairs)
    alpha = plan.alpha if plan else ALPHA
    power = plan.power if plan else POWER
    margins = plan.smallest_effect_of_interest if plan else {}
    rows = []
    for measure, (arm, baseline) in product(measures, pairs):
        if not is_comparable(runs, measure, (arm, baseline)):
            continue
        weights = {arm: 1.0, baseline: -1.0}
        both = sides(runs, measure, weights)
        contrast = paired_contrast(
            both["baseline"],
            both["arm"],
            rng,
            alpha=alpha,
            power=power,
            margin=margins.get(measure),
        )
        if measure in JUDGED:  # of a share of runs, t says nothing; McNemar's test does
            contrast |= {"t_low": np.nan, "t_high": np.nan, "t_p": np.nan}
        budget = budget_factors(runs, weights)
        key = {"arm": arm, "baseline": baseline, "measure": measure, "budget": budget}
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
    """Compare an arm with its baseline by every statistic here: values (seeds,) of one measure, the
    same seeds in the same order, NaN where the run diverged. A seed counts, in `n`, when it
    completed in both arms, else in `n_dropped`.

    Means, sds (n - 1), intervals and the minimum detectable effect are in the measure's units.
    `d_z` is the mean over the standard deviation of the deltas (Lakens 2013). `margin` is the
    largest difference that does not matter, of which `tost_p` is: NaN without it.

    Undefined answers are NaN: all but the counts when n = 0, and what needs a spread when n = 1.
    When all deltas are equal the spread is 0 and says nothing about the error: what rests on it is
    NaN, the bootstrap interval shrinks to the delta, and the sign-flip test is not affected.
    """
    before = np.asarray(baseline, dtype=float)
    after = np.asarray(arm, dtype=float)
    completed = np.isfinite(before) & np.isfinite(after)
    before, after = before[completed], after[completed]
    deltas = paired_deltas(before, after)
    n = len(deltas)
    sd = sd_of(deltas)
    test = t_test(deltas, alpha)
    low, high, bootstrap_p = bootstrap(deltas, rng, alpha)
    flip_p, smallest_p = sign_flip_test(deltas, rng)
    above, below = t_sides(test.mean_delta, sd, n)  # two one-sided tests (Schuirmann 1987)
    tost_p = np.nan if margin is None else float(np.maximum(above(-margin), below(margin)))
    return {
        "n_dropped": len(completed) - n,
        "mean_baseline": _mean(before),
        "sd_baseline": sd_of(before),
        "mean_arm": _mean(after),
        "sd_arm": sd_of(after),
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


def weighed_deltas(runs: pd.DataFrame, measure: str, weights: Mapping[str, float]) -> Floats:
    """Return the `paired_deltas` of the two sides that weights make of arms, of those seeds that
    completed in all of them."""
    complete = sides(runs, measure, weights).dropna()
    return paired_deltas(complete["baseline"].to_numpy(), complete["arm"].to_numpy())


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


def t_test(deltas: ArrayLike, alpha: float = ALPHA) -> TTest:
    """Compute the two-sided paired t test on finite deltas (n,), and the 1 - alpha interval for
    their mean: mean ± t · sd / √n (Student 1908). NaN but for the mean when n < 2 or all deltas are
    equal."""
    values = np.sort(np.asarray(deltas, dtype=float))
    if not sd_of(values) > 0:
        return TTest(len(values), _mean(values), np.nan, np.nan, np.nan)
    test = scipy.stats.ttest_1samp(values, 0)
    low, high = test.confidence_interval(1 - alpha)
    return TTest(len(values), _mean(values), float(low), float(high), float(test.pvalue))


def paired_rows(
    pairs: pd.DataFrame, runs: pd.DataFrame, measure: str, alpha: float = ALPHA
) -> pd.DataFrame:
    """Join to each row, which names an `arm` and a `baseline`, their paired difference in a measure
    over the seeds that both completed: n, mean_delta, t interval and p."""
    tests = [
        t_test(seed_differences(runs, measure, arm, baseline).dropna(), alpha)._asdict()
        for arm, baseline in zip(pairs["arm"], pairs["baseline"], strict=True)
    ]
    return pairs.join(pd.DataFrame(tests, index=pairs.index))


def bootstrap(deltas: Floats, rng: Generator, alpha: float = ALPHA) -> tuple[float, float, float]:
    """Return the ends of the 1 - alpha percentile interval for the mean of sorted deltas (n,) from
    `RESAMPLES` resamples (Efron & Tibshirani 1993, section 13.3), and the two-sided achieved
    significance level (ibid., ch. 16) that inverts it: twice the share of resampled means on the
    other side of zero, the sample itself counted in.

    With few seeds the interval is too narrow and p too small: of five normal deltas, 95 % intervals
    hold the mean 84 % of the time. NaN when n < 2. When all deltas are equal, both ends are their
    mean and p is NaN.
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
    beyond = 1 + min(np.count_nonzero(means <= 0), np.count_nonzero(means >= 0))
    return float(low), float(high), float(min(1.0, 2 * beyond / (1 + RESAMPLES)))


def sign_flip_test(deltas: Floats, rng: Generator) -> tuple[float, float]:
    """Return the two-sided p of the mean of sorted deltas (n,) when each sign is a fair coin
    (Fisher 1935, § 21), and the smallest p that these seeds could have given.

    Exact up to n = 13, by enumeration: the smallest p is 2 / 2^m with m deltas that are not zero.
    Beyond it from `RESAMPLES` random sign patterns, the observed one counted in (Phipson & Smyth
    2010). NaN when n = 0; p is 1 when n = 1 or all deltas are zero.
    """
    scale = np.abs(deltas).sum()
    if len(deltas) < 2 or scale == 0:
        p = 1.0 if len(deltas) else np.nan
        return p, p

    def mean(flipped: Floats, axis: int) -> Floats:
        """Round the mean, so that sums that are equal on paper are ties; a tie counts as
        extreme."""
        return np.asarray(np.round(flipped.sum(axis=axis) / scale, 9))

    test = scipy.stats.permutation_test(
        (deltas,), mean, permutation_type="samples", vectorized=True, n_resamples=RESAMPLES, rng=rng
    )
    exact = 2 ** len(deltas) <= RESAMPLES
    smallest = 2 / 2 ** np.count_nonzero(deltas) if exact else 2 / (1 + RESAMPLES)
    return float(test.pvalue), float(smallest)


def holm(p: ArrayLike) -> Floats:
    """Adjust the p of a family (m,) so that p ≤ alpha keeps the family-wise error (Holm 1979).

    A NaN stays NaN but counts in m: the test was planned, though it could not be computed. Not by
    statsmodels, which takes half a second to import and collects all garbage at every call.
    """
    values = np.asarray(p, dtype=float)
    order = np.argsort(values)  # NaN is last
    steps = np.nan_to_num(values[order], nan=1.0) * np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return np.where(np.isnan(values), np.nan, adjusted)
