"""Which ingredient of the layer accounts for how much of its effect.

LayerNorm is reached from the bare embeddings in three steps, each of which a variant takes: a fixed
scale (`scale`), normalization to that scale with a gain (`rmsnorm`), and centring with a bias
(`layernorm`). Their differences add up to the whole.
"""

from typing import Any

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike

from lib.analysis.finding import Finding, numbers, where
from lib.study.measures import MEASURES
from lib.study.plan import ALPHA

STEPS = {
    "fixed scale": ("scale", "none"),
    "normalization and gain": ("rmsnorm", "scale"),
    "centring and bias": ("layernorm", "rmsnorm"),
}
"""Ingredient → (variant that has it, variant that lacks only it)."""
WHOLE = ("layernorm", "none")


def ratio_interval(part: ArrayLike, whole: ArrayLike, alpha: float = ALPHA) -> tuple[float, float]:
    """1 - alpha interval for mean(part) / mean(whole), paired values (n,) (Fieller 1954): the
    ratios r for which a t test of part - r · whole against zero is not significant.

    NaN when n < 2, or when the whole itself does not differ significantly from zero: the interval
    is then unbounded.
    """
    x, y = np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
    n = len(x)
    if n < 2:
        return np.nan, np.nan
    t = scipy.stats.t.ppf(1 - alpha / 2, n - 1)
    covariance = np.cov(x, y) / n
    # (mean x - r mean y)² ≤ t² var(x - r y) / n is a quadratic in r: a r² - 2 b r + c ≤ 0.
    a = y.mean() ** 2 - t**2 * covariance[1, 1]
    b = x.mean() * y.mean() - t**2 * covariance[0, 1]
    c = x.mean() ** 2 - t**2 * covariance[0, 0]
    if a <= 0:
        return np.nan, np.nan
    half = np.sqrt(max(b * b - a * c, 0.0))
    return float((b - half) / a), float((b + half) / a)


def mechanism_table(runs: pd.DataFrame, measures: list[str], alpha: float) -> pd.DataFrame:
    """One row per setting, measure and ingredient: its mean paired effect over seeds, and the share
    of the whole effect (layernorm - none) with its interval. Empty unless the study has all the
    variants; seeds in which one of them diverged are left out."""
    needed = list(dict.fromkeys(variant for pair in [WHOLE, *STEPS.values()] for variant in pair))
    rows: list[dict[str, Any]] = []
    if not set(needed) <= set(runs["variant"]):
        return pd.DataFrame(rows)
    for setting, part in runs.groupby("setting", sort=False):
        for measure in measures:
            values = part.pivot(index="seed", columns="variant", values=measure)[needed].dropna()
            whole = values[WHOLE[0]] - values[WHOLE[1]]
            for ingredient, (with_it, without) in STEPS.items():
                effect = values[with_it] - values[without]
                low, high = ratio_interval(effect, whole, alpha)
                rows.append(
                    {"ingredient": ingredient, "contrast": f"{with_it} - {without}"}
                    | {"setting": setting, "measure": measure, "n": len(values)}
                    | {"effect": effect.mean(), "whole": whole.mean()}
                    | {"share": effect.mean() / whole.mean(), "low": low, "high": high}
                    | {"label": MEASURES[measure].label}
                )
    return pd.DataFrame(rows)


def mechanism_finding(table: pd.DataFrame) -> Finding:
    """The table, and what each ingredient accounts for."""
    words = [
        f"{row.label}: {row.ingredient} ({row.contrast}) accounts for "
        f"{numbers(row.share, row.low, row.high, '.0%')} of the whole effect{where(row.setting)}."
        for row in table.itertuples()
    ]
    return Finding("mechanism", "Which ingredient accounts for how much", table, words)
