"""Paired inference over seeds: from per-seed results to a table with one row per contrast.

A contrast is arm - baseline in one measure, seed by seed. The t interval and t test are primary:
of the intervals, only theirs keeps its coverage with few seeds, provided that deltas are normal.
Bootstrap intervals stand beside them with the coverage that they have at this n, and the
sign-flip test, which assumes nothing but symmetry, with the smallest p that it could have given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import special, stats

from lib.analysis.power import minimum_detectable_effect, seeds_needed
from lib.analysis.resampling import (
    Floats,
    bootstrap_interval,
    finite_deltas,
    interval_coverage,
    sign_flip_test,
    t_interval,
)
from lib.study.errors import unknown
from lib.study.measures import MEASURES


@dataclass(frozen=True)
class Contrast:
    """All that is said of one arm against its baseline in one measure, over n paired seeds.

    Means, sds (n - 1), intervals and the minimum detectable effect are in the measure's units.
    Undefined answers are NaN: all but the counts when n = 0, all that needs a spread when n = 1.
    When all deltas are equal the spread is 0 and tells nothing of the error: the t interval, t_p,
    d_z, g_z, tost_p, minimum_detectable_effect and seeds_needed are NaN; the bootstrap intervals
    shrink to the delta, and sign-flip and Wilcoxon test stay as they are.
    """

    n: int
    """Seeds that completed in both arms."""
    n_dropped: int
    """Seeds left out, from both arms, because either run diverged (its value is not finite)."""
    mean_baseline: float
    sd_baseline: float
    mean_arm: float
    sd_arm: float
    mean_delta: float
    sd_delta: float
    t_low: float
    t_high: float
    t_coverage: float
    t_p: float
    percentile_low: float
    percentile_high: float
    percentile_coverage: float
    bca_low: float
    bca_high: float
    bca_coverage: float
    sign_flip_p: float
    sign_flip_smallest_p: float
    wilcoxon_p: float
    d_z: float
    g_z: float
    probability_of_improvement: float
    tost_p: float
    minimum_detectable_effect: float
    """With this n and sd_delta."""
    seeds_needed: float
    """To detect the equivalence margin, the planned minimum detectable effect, at this sd_delta."""


def paired_contrast(
    baseline: ArrayLike,
    arm: ArrayLike,
    rng: Generator,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    equivalence_margin: float | None = None,
    lower_is_better: bool | None = None,
) -> Contrast:
    """Compare an arm with its baseline: values (seeds,) of one measure, the same seeds in the
    same order, NaN where the run diverged.

    `equivalence_margin` is the planned minimum detectable effect, in the measure's units; without
    it tost_p and seeds_needed are NaN. Without a direction, probability_of_improvement is NaN.

    Raises ValueError when the shapes differ or are not 1-D.
    """
    before, after = np.asarray(baseline, dtype=float), np.asarray(arm, dtype=float)
    if before.shape != after.shape or before.ndim != 1:
        raise ValueError(
            f"baseline {before.shape} and arm {after.shape} must both hold one value per seed, "
            "NaN where a run diverged"
        )
    completed = np.isfinite(before) & np.isfinite(after)
    before, after = before[completed], after[completed]
    deltas = _deltas(before, after)
    n, sd_delta = len(deltas), _sd(deltas)

    smallest = needed = equivalence = np.nan
    if sd_delta > 0:
        smallest = minimum_detectable_effect(sd_delta, n, alpha, power)
    if equivalence_margin is not None:
        equivalence = tost(deltas, equivalence_margin)
        needed = (
            seeds_needed(equivalence_margin, sd_delta, alpha, power) if sd_delta > 0 else needed
        )
    t_low, t_high = t_interval(deltas, alpha)
    percentile_low, percentile_high = bootstrap_interval(deltas, rng, "percentile", alpha)
    bca_low, bca_high = bootstrap_interval(deltas, rng, "BCa", alpha)
    sign_flip_p, sign_flip_smallest_p = sign_flip_test(deltas, rng)
    return Contrast(
        n=n,
        n_dropped=len(completed) - n,
        mean_baseline=_mean(before),
        sd_baseline=_sd(before),
        mean_arm=_mean(after),
        sd_arm=_sd(after),
        mean_delta=_mean(deltas),
        sd_delta=sd_delta,
        t_low=t_low,
        t_high=t_high,
        t_coverage=interval_coverage("t", n, alpha),
        t_p=t_test(deltas),
        percentile_low=percentile_low,
        percentile_high=percentile_high,
        percentile_coverage=interval_coverage("percentile", n, alpha),
        bca_low=bca_low,
        bca_high=bca_high,
        bca_coverage=interval_coverage("BCa", n, alpha),
        sign_flip_p=sign_flip_p,
        sign_flip_smallest_p=sign_flip_smallest_p,
        wilcoxon_p=wilcoxon_test(deltas),
        d_z=cohens_dz(deltas),
        g_z=hedges_gz(deltas),
        probability_of_improvement=paired_probability_of_improvement(deltas, lower_is_better),
        tost_p=equivalence,
        minimum_detectable_effect=smallest,
        seeds_needed=needed,
    )


def contrast_table(
    runs: pd.DataFrame,
    measures: list[str],
    rng: Generator,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    equivalence_margins: Mapping[str, float] | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> pd.DataFrame:
    """One row per measure and pair of arms: arm, baseline, measure, then the fields of `Contrast`.
    `runs` is the table of `lib.analysis.runs.tidy`; arms are paired by seed. Without `pairs`, every
    arm that is not its own baseline stands against it. `equivalence_margins` maps measure to
    margin.

    For a family of tests, adjust the p of its rows: `holm(table["t_p"])`.

    Raises ValueError when a measure is not in MEASURES or an arm not among the runs.
    """
    margins = equivalence_margins or {}
    if pairs is None:
        baselines = runs.drop_duplicates("arm").set_index("arm")["baseline"]
        pairs = [(arm, base) for arm, base in baselines.items() if arm != base]  # type: ignore[misc]
    rows = []
    for measure in measures:
        if measure not in MEASURES:
            raise ValueError(f"measure: {unknown(measure, list(MEASURES))} in lib.study.measures")
        values = runs.pivot(index="arm", columns="seed", values=measure).astype(float)
        for arm, baseline in pairs:
            if baseline not in values.index:
                raise ValueError(f"arm '{arm}' needs the runs of its baseline '{baseline}'")
            contrast = paired_contrast(
                values.loc[baseline],
                values.loc[arm],
                rng,
                alpha=alpha,
                power=power,
                equivalence_margin=margins.get(measure),
                lower_is_better=MEASURES[measure].lower_is_better,
            )
            rows.append({"arm": arm, "baseline": baseline, "measure": measure} | asdict(contrast))
    columns = ["arm", "baseline", "measure", *(field.name for field in fields(Contrast))]
    return pd.DataFrame(rows, columns=columns)


def t_test(deltas: ArrayLike) -> float:
    """Two-sided p of the paired t test on deltas (n,); NaN when n < 2 or all are equal."""
    values = finite_deltas(deltas)
    return float(stats.ttest_1samp(values, 0).pvalue) if _sd(values) > 0 else np.nan


def wilcoxon_test(deltas: ArrayLike) -> float:
    """Two-sided p of Wilcoxon's signed-rank test on deltas (n,), zeros left out.

    Exact up to n = 50 without ties or zeros, up to n = 13 with them; beyond, the normal
    approximation (scipy.stats.wilcoxon). NaN when n = 0; 1 when all deltas are zero.
    """
    values = finite_deltas(deltas)
    if not values.any():
        return 1.0 if len(values) else np.nan
    return float(stats.wilcoxon(values).pvalue)


def cohens_dz(deltas: ArrayLike) -> float:
    """Mean over standard deviation of the deltas (n,) (Lakens 2013); NaN without spread."""
    values = finite_deltas(deltas)
    sd = _sd(values)
    return _mean(values) / sd if sd > 0 else np.nan


def hedges_gz(deltas: ArrayLike) -> float:
    """d_z without its small-sample bias: times Γ(m/2) / (√(m/2) Γ((m-1)/2)) with m = n - 1
    (Hedges 1981, p. 111). NaN without spread, and when n < 3, where d_z has no expectation.
    """
    values = finite_deltas(deltas)
    m = len(values) - 1
    if m < 2:
        return np.nan
    correction = np.exp(special.gammaln(m / 2) - special.gammaln((m - 1) / 2)) / np.sqrt(m / 2)
    return float(correction) * cohens_dz(values)


def paired_probability_of_improvement(deltas: ArrayLike, lower_is_better: bool | None) -> float:
    """Share of seeds in which the arm is better, ties counting half: Agarwal et al. 2021's
    probability of improvement, within pairs. NaN when n = 0 or the measure has no direction."""
    values = finite_deltas(deltas)
    if lower_is_better is None or len(values) == 0:
        return np.nan
    better = -values if lower_is_better else values
    return float(np.mean((1 + np.sign(better)) / 2))


def tost(deltas: ArrayLike, margin: float) -> float:
    """p of equivalence: the larger of two one-sided t tests, mean > -margin and mean < margin
    (Schuirmann 1987), deltas (n,). p ≤ alpha: the arms differ by less than the margin.

    NaN when n < 2 or all deltas are equal. ValueError unless margin > 0.
    """
    if not margin > 0:
        raise ValueError(f"margin is {margin}; give the largest difference that does not matter")
    values = finite_deltas(deltas)
    if not _sd(values) > 0:
        return np.nan
    above = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(values, margin, alternative="less").pvalue
    return float(max(above, below))


def holm(p: ArrayLike) -> Floats:
    """Adjust the p of a family (m,) so that p ≤ alpha keeps the family-wise error (Holm 1979).

    The k-th smallest becomes the largest of (m - i + 1) p_(i) over i ≤ k, at most 1. A NaN stays
    NaN and counts in m: a test that was planned is not taken back because it could not be made.
    """
    values = np.asarray(p, dtype=float)
    order = np.argsort(values)  # NaN last
    steps = values[order] * np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(steps))
    return adjusted


def _deltas(before: Floats, after: Floats) -> Floats:
    """Sorted arm - baseline, rounded to 12 significant digits of the largest value, so that
    differences that are equal on paper (0.3 - 0.2 and 0.2 - 0.1) are ties here too."""
    largest = max(np.abs(before).max(initial=0), np.abs(after).max(initial=0))
    digits = 12 - int(np.ceil(np.log10(largest))) if largest > 0 else 0
    return np.sort(np.round(after - before, digits))


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else np.nan


def _sd(values: Floats) -> float:
    """Standard deviation (n - 1), exactly 0 for equal values, whose mean may be off by rounding."""
    if len(values) < 2:
        return np.nan
    return float(values.std(ddof=1)) if np.ptp(values) > 0 else 0.0
