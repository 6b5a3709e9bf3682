"""Inference by resampling: the percentile bootstrap and its coverage, the sign-flip test, and a
bootstrap over both seeds and items.

Every function that draws takes a `numpy.random.Generator`; the same state gives the same answer,
and the order of the seeds never matters.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from lib.analysis.runs import budget_factors, own_baselines
from lib.study.plan import ALPHA

RESAMPLES = 9_999

Floats = NDArray[np.float64]


class Bootstrap(NamedTuple):
    percentile_low: float
    percentile_high: float
    bootstrap_p: float


class Estimate(NamedTuple):
    value: float
    low: float
    high: float


class SignFlip(NamedTuple):
    sign_flip_p: float
    sign_flip_smallest_p: float


def finite_deltas(deltas: ArrayLike) -> Floats:
    """Return per-seed deltas as a sorted array (n,); ValueError unless 1-D and finite."""
    values = np.asarray(deltas, dtype=float)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(
            f"deltas of shape {values.shape} must be one finite number per seed; leave diverged "
            "pairs out, as lib.analysis.paired.paired_contrast does"
        )
    return np.sort(values)


def bootstrap(deltas: ArrayLike, rng: Generator, alpha: float = ALPHA) -> Bootstrap:
    """Return the 1 - alpha percentile interval for the mean of deltas (n,) from `RESAMPLES`
    resamples (Efron & Tibshirani 1993, section 13.3), and the two-sided achieved significance level
    (ibid., ch. 16) that inverts it: twice the share of resampled means on the other side of zero,
    the sample itself counted in.

    With few seeds the interval is too narrow and p too small; print `percentile_coverage` beside
    them. NaN when n < 2. When all deltas are equal, both ends are their mean and p is NaN.
    """
    values = finite_deltas(deltas)
    if len(values) < 2:
        return Bootstrap(np.nan, np.nan, np.nan)
    if np.ptp(values) == 0:
        return Bootstrap(float(values[0]), float(values[0]), np.nan)
    result = scipy.stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=1 - alpha,
        method="percentile",
        rng=rng,
    )
    low, high = result.confidence_interval
    means = result.bootstrap_distribution
    beyond = 1 + min(np.count_nonzero(means <= 0), np.count_nonzero(means >= 0))
    return Bootstrap(float(low), float(high), float(min(1.0, 2 * beyond / (1 + RESAMPLES))))


@cache
def percentile_coverage(n: int, alpha: float = ALPHA) -> float:
    """Return the share of 1 - alpha percentile intervals that hold the true mean, for n normal
    deltas.

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
        low, high = scipy.stats.bootstrap(
            (rng.standard_normal((100, n)),),
            np.mean,
            n_resamples=999,
            confidence_level=1 - alpha,
            method="percentile",
            axis=-1,
            rng=rng,
        ).confidence_interval
        hits.append(np.mean((low <= 0) & (high >= 0)))
    return float(np.mean(hits))


def sign_flip_test(deltas: ArrayLike, rng: Generator) -> SignFlip:
    """Return the two-sided p of the mean of deltas (n,) when each sign is a fair coin (Fisher 1935,
    § 21), and the smallest p that these seeds could have given.

    Exact up to n = 13, by enumeration: the smallest p is 2 / 2^m with m deltas that are not zero.
    Beyond it from `RESAMPLES` random sign patterns, the observed one counted in (Phipson & Smyth
    2010). NaN when n = 0; p is 1 when n = 1 or all deltas are zero.
    """
    values = finite_deltas(deltas)
    scale = np.abs(values).sum()
    if len(values) < 2 or scale == 0:
        p = 1.0 if len(values) else np.nan
        return SignFlip(p, p)

    def mean(flipped: Floats, axis: int) -> Floats:
        """Round the mean, so that sums that are equal on paper are ties; a tie counts as
        extreme."""
        return np.asarray(np.round(flipped.sum(axis=axis) / scale, 9))

    test = scipy.stats.permutation_test(
        (values,), mean, permutation_type="samples", vectorized=True, n_resamples=RESAMPLES, rng=rng
    )
    exact = 2 ** len(values) <= RESAMPLES
    smallest = 2 / 2 ** np.count_nonzero(values) if exact else 2 / (1 + RESAMPLES)
    return SignFlip(float(test.pvalue), float(smallest))


def crossed_bootstrap(
    correct_arm: ArrayLike,
    correct_baseline: ArrayLike,
    rng: Generator,
    alpha: float = ALPHA,
    tasks: ArrayLike | None = None,
) -> Estimate:
    """Return the difference in macro accuracy arm - baseline and its 1 - alpha percentile interval
    over seeds and items, from whether each was answered correctly, booleans (seeds, items) paired
    in both. `tasks` (items,) are the items' tasks, whose accuracies count alike; one task without
    them.

    Every resample draws seeds and, independently, items of each task: the pigeonhole bootstrap
    (Owen 2007), mildly conservative in its variance. So the interval speaks of new seeds and new
    items; it shares the percentile interval's low coverage with few seeds. Leave out seeds that
    diverged in either arm. NaN interval with one seed or one item.
    """
    deltas = np.asarray(correct_arm, dtype=float) - np.asarray(correct_baseline, dtype=float)
    deltas = deltas[np.lexsort(deltas.T)]  # so that the order of seeds decides nothing
    seeds, items = deltas.shape
    of_task = np.zeros(items) if tasks is None else np.asarray(tasks)
    parts = [np.flatnonzero(of_task == task) for task in np.unique(of_task)]
    value = float(np.mean([deltas[:, part].mean() for part in parts]))
    if min(seeds, items) < 2:
        return Estimate(value, np.nan, np.nan)
    means = []
    for _ in range(RESAMPLES):
        sums = np.bincount(rng.integers(seeds, size=seeds), minlength=seeds) @ deltas
        resampled = [part[rng.integers(len(part), size=len(part))] for part in parts]
        means.append(np.mean([sums[part].sum() / (seeds * len(part)) for part in resampled]))
    low, high = np.quantile(means, [alpha / 2, 1 - alpha / 2])
    return Estimate(value, float(low), float(high))


def _pairs(items: pd.DataFrame, arm: str, baseline: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Lay out whether arm and baseline were right in each question that both were asked (columns),
    in every seed that completed in both (rows)."""
    arm_correct, baseline_correct = (
        items[items["arm"] == name].pivot(index="seed", columns=["task", "item"], values="correct")
        for name in (arm, baseline)
    )
    seeds = arm_correct.index.intersection(baseline_correct.index)
    questions = arm_correct.columns.intersection(baseline_correct.columns)
    return arm_correct.loc[seeds, questions], baseline_correct.loc[seeds, questions]


def suite_contrasts(
    runs: pd.DataFrame, items: pd.DataFrame, rng: Generator, alpha: float = ALPHA
) -> pd.DataFrame:
    """Contrast every arm with its baseline in macro accuracy over the tasks of the suite, with
    seeds and questions resampled: arm, shots (zero or few), seeds, then value, low and high.
    `items` are the joined answers of all runs. Only questions that both were asked count; arms of
    other texts or tokenizers have none in common."""
    rows, one_of_each = [], runs.drop_duplicates("arm")
    for arm, baseline in own_baselines(runs).items():
        if {"corpus.source", "corpus.tokenizer"} & set(budget_factors(one_of_each, arm, baseline)):
            continue
        for shots, few in (("zero", False), ("few", True)) if len(items) else ():
            answers = items[(items["shots"] > 0) == few]
            arm_correct, baseline_correct = _pairs(answers, arm, baseline)
            if arm_correct.size:
                tasks = arm_correct.columns.get_level_values("task")
                row = crossed_bootstrap(arm_correct, baseline_correct, rng, alpha, tasks)._asdict()
                rows.append({"arm": arm, "shots": shots, "seeds": len(arm_correct)} | row)
    return pd.DataFrame(rows)


def with_questions_resampled(
    contrasts: pd.DataFrame, items: pd.DataFrame, rng: Generator, alpha: float = ALPHA
) -> pd.DataFrame:
    """Join to each contrast of an arm with its baseline in a task and number of shots: how many
    questions it has, and its interval with seeds and questions resampled, from the joined answers
    of all runs."""
    rows = []
    for row in contrasts.to_dict("records"):
        answers = items[(items["task"] == row["task"]) & (items["shots"] == row["shots"])]
        arm_correct, baseline_correct = _pairs(answers, row["arm"], row["baseline"])
        low = high = np.nan
        if arm_correct.size:
            _, low, high = crossed_bootstrap(arm_correct, baseline_correct, rng, alpha)
        rows.append({"questions": arm_correct.shape[1], "crossed_low": low, "crossed_high": high})
    return contrasts.join(pd.DataFrame(rows, index=contrasts.index))
