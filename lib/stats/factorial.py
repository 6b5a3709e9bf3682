"""Every factor's effects: over all settings of the others, in each, and their interactions."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from lib.config.contrasts import effects_of
from lib.config.metrics import JUDGED
from lib.config.plan import ALPHA
from lib.stats.paired import t_test, weighed_deltas
from lib.stats.runs import budget_factors, is_comparable, of_arms

Row = dict[Any, Any]
CHANGES = "changes sign"
"""What is said in place of the mean of an effect that does."""
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


def changes_sign(estimates: Iterable[float | None]) -> bool:
    """Return whether an effect changes sign: its estimates in the settings of the other factors lie
    on both sides of zero. A setting without a number does not count.

    That is said of the estimates, whatever their intervals, so that no mean over them is read as a
    finding. Whether chance explains it is for the intervals of the settings to say.
    """
    values = np.array([*estimates], dtype=float)
    return bool((values < 0).any() and (values > 0).any())


def with_signs(effects: Iterable[Row]) -> list[Row]:
    """Add to the rows of `factor_effects`, or to those that a verdict keeps, `changes_sign`:
    whether the effect does in that measure (see `changes_sign`); and to a simple effect which
    effect it is `of`, and its `setting`, such as `at tied=true`."""
    rows = [dict(row) for row in effects]
    for name in {row["effect"] for row in rows if row["kind"] != "simple"}:
        for row in rows:
            if row["effect"].startswith(f"{name} at "):
                row["of"] = name
                row["setting"] = row["effect"].removeprefix(f"{name} ")
    for row in rows:
        row["changes_sign"] = changes_sign(
            each["mean_delta"]
            for each in rows
            if (each.get("of"), each["measure"]) == (row["effect"], row["measure"])
        )
    return rows


def by_setting(effects: Iterable[Row]) -> list[Row]:
    """Return the effects to show: every main effect and interaction, and after each that changes
    sign in any of the measures the simple effects, which then count in place of their mean. See
    `with_signs`."""
    rows = with_signs(effects)
    changing = {row["effect"] for row in rows if row["changes_sign"]}
    return [row for row in rows if row["kind"] != "simple" or row.get("of") in changing]
