"""Effects beyond contrasts of two arms: of every factor of a grid and of each pair of them; task by
task; and attempts to explain a result away by leaving a seed or a task out."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lib.config.metrics import JUDGED
from lib.config.plan import ALPHA, arm_weights
from lib.config.study import effects_of
from lib.stats.paired import TTest, holm, t_test, weighed_deltas
from lib.stats.runs import budget_factors, is_comparable, of_arms, own_baselines, seed_differences

Row = dict[Any, Any]
ENDS = dict.fromkeys(("mean_delta", "t_low", "t_high"), float)
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
    cells = of_arms(runs, "cell")
    rows = []
    for effect, kind, pairs in effects_of(cells.values()):
        weights = arm_weights(pairs, {}, cells)
        if not weights:  # no arms differ in that alone
            continue
        budget = budget_factors(runs, weights)
        for measure in measures:
            if is_comparable(runs, measure, weights):
                test = t_test(weighed_deltas(runs, measure, weights), alpha)._asdict()
                if measure in JUDGED:  # t says nothing of shares
                    test |= dict.fromkeys(("t_low", "t_high", "t_p"), np.nan)
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
    return any((signs[is_clear] == sign).any() and (signs == -sign).any() for sign in (1, -1))


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


ZERO_SHOT, FEW_SHOT = "macro_accuracy_zero_shot", "macro_accuracy_few_shot"


def leave_one_out(runs: pd.DataFrame, contrasts: pd.DataFrame) -> pd.DataFrame:
    """Return one row per contrast given (arm, baseline, measure): n, mean difference, lowest and
    highest mean when one seed is left out, whether the sign of the mean ever changes, and the
    largest p then. Where the contrasts are a family of tests, p is adjusted by Holm's method over
    the family without that seed. Contrasts of fewer than three pairs are left out."""
    rows, p = [], []
    for row in contrasts.to_dict("records"):
        deltas = seed_differences(runs, row["measure"], row["arm"], row["baseline"])
        if deltas.count() > 2:
            without = {seed: t_test(deltas.drop(seed).dropna()) for seed in deltas.index}
            rows.append(_moved(row, deltas.dropna(), without))
            p.append({seed: test.t_p for seed, test in without.items()})
    without_seed = pd.DataFrame(p)
    if rows and "family" in contrasts and contrasts["family"].all():
        without_seed = without_seed.apply(holm)
    return pd.DataFrame(rows).assign(largest_p=without_seed.max(axis=1).to_numpy())


def _moved(contrast: Any, deltas: pd.Series, without: dict[Any, TTest]) -> dict[str, Any]:
    """Say how far the mean of a contrast moves with a part left out, and whether past zero."""
    mean = deltas.mean()
    means = [test.mean_delta for test in without.values()]
    row = {key: contrast[key] for key in ("arm", "baseline", "measure")}
    row |= {"n": len(deltas), "mean_delta": mean, "lowest": min(means), "highest": max(means)}
    return row | {"sign_changes": bool((np.sign(means) != np.sign(mean)).any())}


def leave_one_task_out(
    items: pd.DataFrame, contrasts: pd.DataFrame, alpha: float = ALPHA
) -> pd.DataFrame:
    """Return one row per contrast given (arm, baseline, measure) in a macro accuracy: n, mean
    difference, lowest and highest mean when one task is left out, whether the sign of the mean ever
    changes; then `task`, without which the mean moves most, and the t interval and p of what is
    left. Only tasks that both were asked count. `items` are the joined answers of all runs."""
    rows = []
    for row in contrasts.to_dict("records") if len(items) else []:
        answers = items[(items["shots"] > 0) == (row["measure"] == FEW_SHOT)]
        has_both = {row["arm"], row["baseline"]} <= set(answers["arm"])
        if row["measure"] not in (ZERO_SHOT, FEW_SHOT) or not has_both:
            continue
        accuracy = answers.groupby(["arm", "seed", "task"])["correct"].mean().unstack("task")
        deltas = accuracy.loc[row["arm"]] - accuracy.loc[row["baseline"]]
        deltas = deltas.dropna(how="all").dropna(axis=1)
        if deltas.size and deltas.shape[1] > 1:
            without = {t: t_test(deltas.drop(columns=t).mean(axis=1), alpha) for t in deltas}
            moved = _moved(row, deltas.mean(axis=1), without)
            task = max(without, key=lambda t: abs(without[t].mean_delta - moved["mean_delta"]))
            left = without[task]
            moved |= {"tasks": deltas.shape[1], "task": task, "without": left.mean_delta}
            rows.append(moved | {"t_low": left.t_low, "t_high": left.t_high, "t_p": left.t_p})
    return pd.DataFrame(rows)


def task_contrasts(runs: pd.DataFrame, items: pd.DataFrame, alpha: float = ALPHA) -> pd.DataFrame:
    """Return one row per arm beside its baseline, task and number of shots: mean paired difference
    in accuracy with its t interval and p, and that p adjusted by Holm's method over all tasks and
    shots of the contrast. `items` are the joined answers of all runs, to the suite or to stock
    tasks; empty without any."""
    if items.empty:
        return pd.DataFrame()
    accuracy = items.groupby(["task", "shots", "seed", "arm"])["correct"].mean().unstack("arm")
    rows = []
    for arm, baseline in own_baselines(runs).items():
        if {arm, baseline} <= set(accuracy):
            deltas = accuracy[arm] - accuracy[baseline]
            for (task, shots), part in deltas.groupby(["task", "shots"]):
                key = {"arm": arm, "baseline": baseline, "task": task, "shots": shots}
                rows.append(key | t_test(part.dropna(), alpha)._asdict())
    table = pd.DataFrame(rows, columns=["arm", "baseline", "task", "shots", *TTest._fields])
    return table.assign(p_holm=table.groupby(["arm", "baseline"])["t_p"].transform(holm))
