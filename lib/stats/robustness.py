"""Does a result hold without one seed, or one task? And each task by itself."""

from collections.abc import Hashable, Mapping

import numpy as np
import pandas as pd

from lib.config.plan import ALPHA
from lib.stats.factorial import Row
from lib.stats.paired import TTest, holm, t_test
from lib.stats.runs import own_baselines, seed_differences

ZERO_SHOT = "macro_accuracy_zero_shot"
FEW_SHOT = "macro_accuracy_few_shot"


def leave_one_out(runs: pd.DataFrame, contrasts: pd.DataFrame) -> pd.DataFrame:
    """Return one row per contrast given (arm, baseline, measure): n, mean difference, lowest and
    highest mean when one seed is left out, whether the sign of the mean ever changes, and the
    largest p then. Where the contrasts are a family of tests, p is adjusted by Holm's method over
    the family without that seed. Contrasts of fewer than three pairs are left out."""
    rows = []
    p = []
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


def _moved(contrast: Row, deltas: pd.Series, without: Mapping[Hashable, TTest]) -> Row:
    """Return how far the mean of a contrast moves with a part left out, and whether past zero."""
    mean = deltas.mean()
    means = [test.mean_delta for test in without.values()]
    return {
        "arm": contrast["arm"],
        "baseline": contrast["baseline"],
        "measure": contrast["measure"],
        "n": len(deltas),
        "mean_delta": mean,
        "lowest": min(means),
        "highest": max(means),
        "sign_changes": bool((np.sign(means) != np.sign(mean)).any()),
    }


def leave_one_task_out(
    items: pd.DataFrame, contrasts: pd.DataFrame, alpha: float = ALPHA
) -> pd.DataFrame:
    """Return one row per contrast given (arm, baseline, measure) in a macro accuracy: n, mean
    difference, lowest and highest mean when one task is left out, whether the sign of the mean ever
    changes; then `task`, without which the mean moves most, and the t interval and p of what is
    left. Only tasks that both were asked count. `items` are the joined answers of all runs."""
    rows: list[Row] = []
    if items.empty:
        return pd.DataFrame(rows)
    macro = contrasts[contrasts["measure"].isin([ZERO_SHOT, FEW_SHOT])]
    for row in macro.to_dict("records"):
        answers = items[(items["shots"] > 0) == (row["measure"] == FEW_SHOT)]
        if not {row["arm"], row["baseline"]} <= set(answers["arm"]):
            continue
        accuracy = answers.groupby(["arm", "seed", "task"])["correct"].mean().unstack("task")
        deltas = accuracy.loc[row["arm"]] - accuracy.loc[row["baseline"]]
        deltas = deltas.dropna(how="all").dropna(axis=1)
        if deltas.size and deltas.shape[1] > 1:
            without = {t: t_test(deltas.drop(columns=t).mean(axis=1), alpha) for t in deltas}
            moved = _moved(row, deltas.mean(axis=1), without)
            task = max(without, key=lambda t: abs(without[t].mean_delta - moved["mean_delta"]))
            rows.append(
                {
                    **moved,
                    "tasks": deltas.shape[1],
                    "task": task,
                    "without": without[task].mean_delta,
                    "t_low": without[task].t_low,
                    "t_high": without[task].t_high,
                    "t_p": without[task].t_p,
                }
            )
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
