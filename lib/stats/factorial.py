"""The effects in a grid: the effect of every factor, on average and in each setting of the other
factors, and the interaction of every pair of factors."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from lib.config.contrasts import effects_of
from lib.config.metrics import JUDGED
from lib.config.plan import ALPHA
from lib.stats.paired import NO_T_TEST, t_test, weighted_deltas
from lib.stats.runs import budget_factors, budgets, by_seed, column_by_arm, is_comparable

Row = dict[Any, Any]
CHANGES = "changes sign"
"""Shown in place of an effect's mean if the effect changes sign: see `changes_sign`."""
ENDS = {"mean_delta": float, "t_low": float, "t_high": float}
"""Dtypes of an estimate and of the ends of its interval. With these, null in JSON becomes NaN."""


def factor_effects(runs: pd.DataFrame, measures: list[str], alpha: float = ALPHA) -> pd.DataFrame:
    """Return one row per effect of a grid and measure.

    Columns: `effect` (its name), `kind`, measure, `budget` (see `budget_factors`), and the paired t
    test of the effect: n, mean_delta, t_low, t_high, t_p. Empty if fewer than two factors vary.

    A main effect is the difference between a level and the first level of its factor, averaged over
    all settings of the other factors. An interaction is the difference of two such differences
    (Montgomery, Design and Analysis of Experiments, ch. 5). A simple effect is a main effect or an
    interaction in a single setting. Each is computed per seed, so anything that the runs of a seed
    have in common cancels. A seed counts only if every run that the effect needs was completed
    with this seed.
    """
    vocabularies = column_by_arm(runs, "vocabulary")
    budget = budgets(runs)
    values = {measure: by_seed(runs, measure) for measure in measures}
    rows = []
    for effect, kind, _, weights in effects_of(column_by_arm(runs, "levels")):
        differing = budget_factors(budget, weights)
        for measure in measures:
            if is_comparable(vocabularies, measure, weights):
                test = t_test(weighted_deltas(values[measure], weights), alpha)._asdict()
                if measure in JUDGED:
                    test |= NO_T_TEST
                row = {"effect": effect, "kind": kind, "measure": measure, "budget": differing}
                rows.append(row | test)
    return pd.DataFrame(rows)


def changes_sign(estimates: Iterable[float | None]) -> bool:
    """Return whether an effect changes sign: its estimates in the settings of the other factors lie
    on both sides of zero. Settings without an estimate are ignored.

    Only the estimates count, not their intervals. So if the estimates disagree, a mean over
    settings is never read as a finding, even if the disagreement may be chance. The intervals in
    the settings show whether chance can explain the disagreement.
    """
    values = np.array([*estimates], dtype=float)
    return bool((values < 0).any() and (values > 0).any())


def with_signs(effects: Iterable[Row]) -> list[Row]:
    """Return the rows of `factor_effects`, or of a verdict's `effects`, with more columns.

    All rows get `changes_sign`: whether the simple effects of this effect change sign in this
    measure. Rows of simple effects also get `of`, the name of the effect that they belong to, and
    `setting`, such as `at tied=true`.
    """
    rows = [dict(row) for row in effects]
    estimates = defaultdict(list)
    effect = ""
    for row in rows:
        if row["kind"] != "simple":
            effect = row["effect"]
        elif row["effect"].startswith(f"{effect} at "):  # an effect's simple effects follow it
            row["of"] = effect
            row["setting"] = row["effect"].removeprefix(f"{effect} ")
            estimates[effect, row["measure"]].append(row["mean_delta"])
    for row in rows:
        row["changes_sign"] = changes_sign(estimates[row["effect"], row["measure"]])
    return rows


def by_setting(effects: Iterable[Row]) -> list[Row]:
    """Return the effects to show, with the columns of `with_signs`. These are all main effects and
    interactions. If one of them changes sign in any measure, its simple effects are also shown."""
    rows = with_signs(effects)
    changing = {row["effect"] for row in rows if row["changes_sign"]}
    return [row for row in rows if row["kind"] != "simple" or row.get("of") in changing]
