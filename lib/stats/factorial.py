"""Every factor's effects: over all settings of the others, in each, and their interactions."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lib.config.contrasts import effects_of
from lib.config.metrics import JUDGED
from lib.config.plan import ALPHA
from lib.stats.paired import t_test, weighed_deltas
from lib.stats.runs import budget_factors, is_comparable, of_arms

Row = dict[Any, Any]
ENDS = {"mean_delta": float, "t_low": float, "t_high": float}
"""A difference and its interval, which JSON may write as null."""


def factor_effects(runs: pd.DataFrame, measures: list[str], alpha: float = ALPHA) -> pd.DataFrame:
    """Return one row per effect of a grid and measure: `effect` (its name), `kind`, `budget` (as in
    `lib.stats.paired.contrast_table`), measure, n, mean difference over seeds, t interval and p.
    Empty where fewer than two factors have levels to compare.

    A main effect is the mean over the settings of all other factors of a level's difference from
    the factor's first; an interaction is the difference of two differences (Montgomery, Design and
    Analysis of Experiments, ch. 5); a simple effect is either of them in one setting. Each is a
    number for every seed, so that what the arms of a seed share falls out. Seeds with all of its
    runs count.
    """
    rows = []
    for effect, kind, _, weights in effects_of(of_arms(runs, "levels")):
        budget = budget_factors(runs, weights)
        for measure in measures:
            if is_comparable(runs, measure, weights):
                test = t_test(weighed_deltas(runs, measure, weights), alpha)._asdict()
                if measure in JUDGED:  # t says nothing of shares
                    test |= {"t_low": np.nan, "t_high": np.nan, "t_p": np.nan}
                row = {"effect": effect, "kind": kind, "measure": measure, "budget": budget}
                rows.append(row | test)
    return pd.DataFrame(rows)


def changes_sign(settings: Sequence[Row]) -> bool:
    """Return whether an effect changes its sign, from its rows in each setting of the other
    factors: the interval of one setting excludes zero, and the estimate of another is on the other
    side of zero.

    So settings that differ by chance alone, whose intervals all hold zero, keep their mean, and one
    clear setting is enough to doubt it. A setting without an interval, or of fewer than three
    seeds, where an interval says next to nothing, counts by its estimate.
    """
    table = pd.DataFrame(settings, columns=["n", *ENDS]).astype(ENDS)
    by_estimate = (table["n"] < 3) | table["t_low"].isna()
    signs = np.sign(table["mean_delta"])
    is_clear = by_estimate | (table["t_low"] > 0) | (table["t_high"] < 0)
    clear = signs[is_clear]
    rises_clearly = clear.max() == 1 and signs.min() == -1
    falls_clearly = clear.min() == -1 and signs.max() == 1
    return bool(rises_clearly or falls_clearly)


def with_signs(effects: Iterable[Row]) -> list[Row]:
    """Add `changes_sign` to the rows of `factor_effects`, or to those that a verdict keeps: of a
    main effect and an interaction whether it changes its sign in that measure (see
    `changes_sign`); of a simple effect whether the one that it belongs to does in any of the
    measures that the rows have, and its `setting`, such as `at tied=true`."""
    rows = [row | {"changes_sign": False} for row in effects]
    for effect, kind in dict.fromkeys((row["effect"], row["kind"]) for row in rows):
        if kind != "simple":
            own = [row for row in rows if row["effect"] == effect]
            settings = [row for row in rows if row["effect"].startswith(f"{effect} at ")]
            for row in own:
                of_measure = [each for each in settings if each["measure"] == row["measure"]]
                row["changes_sign"] = changes_sign(of_measure)
            for row in settings:
                row["changes_sign"] = any(each["changes_sign"] for each in own)
                row["setting"] = row["effect"].removeprefix(f"{effect} ")
    return rows


def by_setting(effects: Iterable[Row]) -> list[Row]:
    """Return the effects to show: every main effect and interaction, and after each that changes
    its sign the simple effects, which then count in place of their mean. See `with_signs`."""
    return [row for row in with_signs(effects) if row["kind"] != "simple" or row["changes_sign"]]


def is_mean_of_both_signs(row: Row) -> bool:
    """Return whether a row of `with_signs` is a mean over settings that no reader should take for a
    finding."""
    return bool(row.get("changes_sign")) and row.get("kind") != "simple"
