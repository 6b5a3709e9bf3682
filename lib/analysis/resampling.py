"""Inference by resampling: bootstrap intervals and what they cover, the sign-flip test, and
bootstraps that keep seeds whole or cross them with items.

Every function that draws takes a `numpy.random.Generator`; the same state gives the same answer,
and the order of the seeds never matters.
"""

from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from scipy import stats

RESAMPLES = 9_999
LARGEST_EXACT_N = 20
"""Up to here the sign-flip test enumerates all 2^n sign patterns, about a million."""

Floats = NDArray[np.float64]
BootstrapMethod = Literal["percentile", "BCa"]


class Interval(NamedTuple):
    low: float
    high: float


class Estimate(NamedTuple):
    value: float
    low: float
    high: float


class SignFlip(NamedTuple):
    p: float
    smallest_p: float


def finite_deltas(deltas: ArrayLike) -> Floats:
    """Return per-seed deltas as a sorted array (n,); ValueError unless 1-D and finite."""
    values = np.asarray(deltas, dtype=float)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(
            f"deltas of shape {values.shape} must be one finite number per seed; leave diverged "
            "pairs out, as lib.analysis.paired.paired_contrast does"
        )
    return np.sort(values)


def t_interval(deltas: ArrayLike, alpha: float = 0.05) -> Interval:
    """1 - alpha interval for the mean of normal deltas (n,): mean ± t · sd / √n (Student 1908).

    NaN when n < 2 or all deltas are equal: there is no spread to tell the error from.
    """
    values = finite_deltas(deltas)
    if len(values) < 2 or np.ptp(values) == 0:
        return Interval(np.nan, np.nan)
    low, high = _t_bounds(values, alpha)
    return Interval(float(low), float(high))


def bootstrap_interval(
    deltas: ArrayLike,
    rng: Generator,
    method: BootstrapMethod = "percentile",
    alpha: float = 0.05,
) -> Interval:
    """1 - alpha bootstrap interval for the mean of deltas (n,), from `RESAMPLES` resamples.

    `percentile`: Efron & Tibshirani 1993, section 13.3. `BCa`: bias-corrected and accelerated,
    Efron 1987. With few seeds both are too narrow; print `interval_coverage` beside them.
    NaN when n < 2. When all deltas are equal every resample has their mean, and so have both ends
    of either interval.
    """
    values = finite_deltas(deltas)
    if len(values) < 2:
        return Interval(np.nan, np.nan)
    if np.ptp(values) == 0:
        return Interval(float(values[0]), float(values[0]))
    low, high = _bootstrap_bounds(values, rng, method, alpha, RESAMPLES)
    return Interval(float(low), float(high))


@cache
def interval_coverage(method: Literal["t"] | BootstrapMethod, n: int, alpha: float = 0.05) -> float:
    """Share of nominal 1 - alpha intervals that hold the true mean, for n normal deltas.

    Simulated from 4000 samples (standard error below 0.01) by a generator of its own, so the
    answer is always the same; computed once per n. NaN when n < 2.
    """
    if n < 2:
        return float("nan")
    rng = np.random.default_rng(n)
    hits = []
    # In blocks: scipy draws one set of resamples for all the samples that it is given at once,
    # and a single set would make their errors common.
    for _ in range(40):
        samples = rng.standard_normal((100, n))
        if method == "t":
            low, high = _t_bounds(samples, alpha)
        else:
            low, high = _bootstrap_bounds(samples, rng, method, alpha, resamples=999)
        hits.append(np.mean((low <= 0) & (high >= 0)))
    return float(np.mean(hits))


def _t_bounds(samples: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Bounds (...) of the mean of samples (..., n)."""
    interval = stats.ttest_1samp(samples, 0, axis=-1).confidence_interval(1 - alpha)
    return np.asarray(interval.low), np.asarray(interval.high)


def _bootstrap_bounds(
    samples: Floats, rng: Generator, method: BootstrapMethod, alpha: float, resamples: int
) -> tuple[Floats, Floats]:
    """Bounds (...) of the mean of samples (..., n)."""
    interval = stats.bootstrap(
        (samples,),
        np.mean,
        n_resamples=resamples,
        confidence_level=1 - alpha,
        method=method,
        axis=-1,
        rng=rng,
    ).confidence_interval
    return np.asarray(interval.low), np.asarray(interval.high)


def sign_flip_test(deltas: ArrayLike, rng: Generator) -> SignFlip:
    """Two-sided p of the mean of deltas (n,) when each sign is a fair coin (Fisher 1935, § 21),
    and the smallest p that these seeds could have given.

    Exact up to n = 20, by enumeration: the smallest p is 2 / 2^m with m deltas that are not zero,
    2 / 2^n without ties. Beyond it from `RESAMPLES` random sign patterns, the observed one counted
    in (Phipson & Smyth 2010). NaN when n = 0; p is 1 when n = 1 or all deltas are zero.
    """
    values = finite_deltas(deltas)
    n = len(values)
    if n == 0:
        return SignFlip(np.nan, np.nan)
    # Sums that are equal but for rounding are ties, and a tie counts as extreme.
    threshold = abs(values.sum()) - 1e-9 * np.abs(values).sum()
    if n > LARGEST_EXACT_N:
        signs = rng.choice([-1.0, 1.0], size=(RESAMPLES, n))
        hits = np.count_nonzero(np.abs(signs @ values) >= threshold)
        return SignFlip((1 + hits) / (1 + RESAMPLES), 1 / (1 + RESAMPLES))
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    smallest = min(1.0, 2.0 / 2 ** int(np.count_nonzero(values)))
    return SignFlip(float(np.mean(np.abs(sums) >= threshold)), smallest)


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all scores, of any shape (Agarwal et al. 2021, section 4.3).

    The lowest and highest ⌊N/4⌋ of N are left out. ValueError unless all are finite.
    """
    values = np.asarray(scores, dtype=float)
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"scores of shape {values.shape} must be finite, and one at least")
    return float(stats.trim_mean(values, 0.25, axis=None))


def iqm_interval(deltas: ArrayLike, rng: Generator, alpha: float = 0.05) -> Estimate:
    """Interquartile mean of deltas (seeds, tasks) and its 1 - alpha percentile interval.

    Seeds are resampled whole, all tasks of a seed together, because a run's tasks share its
    weights; the tasks are fixed. Seeds with a value that is not finite (diverged runs) are left
    out. Without a seed all is NaN; with one, the interval is.
    """
    values = _rows_in_order(np.asarray(deltas, dtype=float))
    values = values[np.isfinite(values).all(axis=1)]
    n = len(values)
    if n < 2:
        return Estimate(interquartile_mean(values) if n else np.nan, np.nan, np.nan)
    drawn = values[rng.integers(n, size=(RESAMPLES, n))]  # (RESAMPLES, seeds, tasks)
    means = stats.trim_mean(drawn.reshape(RESAMPLES, -1), 0.25, axis=1)
    low, high = np.quantile(means, [alpha / 2, 1 - alpha / 2])
    return Estimate(interquartile_mean(values), float(low), float(high))


def crossed_bootstrap(
    correct_arm: ArrayLike, correct_baseline: ArrayLike, rng: Generator, alpha: float = 0.05
) -> Estimate:
    """Difference in accuracy arm - baseline and its 1 - alpha percentile interval over seeds and
    items, from whether each was answered correctly, booleans (seeds, items) paired in both.

    Every resample draws seeds and, independently, items: the pigeonhole bootstrap (Owen 2007),
    mildly conservative in its variance. So the interval speaks of new seeds and new items; it
    shares the percentile interval's low coverage with few seeds. Leave out seeds that diverged in
    either arm. NaN interval with one seed or one item. ValueError when the shapes differ, are not
    2-D, or are empty.
    """
    arm, baseline = np.asarray(correct_arm, dtype=bool), np.asarray(correct_baseline, dtype=bool)
    if arm.shape != baseline.shape or arm.ndim != 2 or arm.size == 0:
        raise ValueError(
            f"correct_arm {arm.shape} and correct_baseline {baseline.shape} must both be "
            "(seeds, items): the same seeds and items in the same order"
        )
    deltas = _rows_in_order(arm.astype(float) - baseline)
    seeds, items = deltas.shape
    if min(seeds, items) < 2:
        return Estimate(float(deltas.mean()), np.nan, np.nan)
    means = [
        deltas[np.ix_(rng.integers(seeds, size=seeds), rng.integers(items, size=items))].mean()
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(means, [alpha / 2, 1 - alpha / 2])
    return Estimate(float(deltas.mean()), float(low), float(high))


def _rows_in_order(values: Floats) -> Floats:
    """Sort the rows, one per seed, so that their order cannot decide which is drawn."""
    return values[np.lexsort(values.T)]
