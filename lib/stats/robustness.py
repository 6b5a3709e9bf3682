"""Does a result hold without one seed, or one task? And each task by itself."""

from typing import Any

import numpy as np
import pandas as pd

from lib.config.plan import ALPHA
from lib.stats.factorial import FEW_SHOT, ZERO_SHOT
from lib.stats.paired import TTest, holm, t_test
from lib.stats.runs import own_baselines, seed_differences


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
