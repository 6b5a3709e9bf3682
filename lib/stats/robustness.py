"""Robustness of a result: with one seed left out, with one task left out, and for each task
alone."""

from collections.abc import Hashable, Mapping

import numpy as np
import pandas as pd

from lib.config.plan import ALPHA
from lib.stats.factorial import Row
from lib.stats.paired import TTest, holm, t_test
from lib.stats.runs import by_seed, own_baselines, sides

ZERO_SHOT = "macro_accuracy_zero_shot"
FEW_SHOT = "macro_accuracy_few_shot"


def leave_one_out(runs: pd.DataFrame, contrasts: pd.DataFrame) -> pd.DataFrame:
    """Repeat contrasts (rows with arm, baseline and measure) with each seed left out in turn.

    Return a row per contrast, if at least three seeds have completed runs in both arms: arm,
    baseline, measure, n, mean_delta, the `lowest` and `highest` mean with one seed left out,
    `sign_changes` (whether the sign of any of these means differs from that of mean_delta), and
    `largest_p`, the largest t_p with one seed left out. If the contrasts are a family of tests, p
    is adjusted by Holm's method over the family; the same seed is left out of all its tests.
    """
    values = {measure: by_seed(runs, measure) for measure in contrasts["measure"].unique()}
    rows = []
    p_rows = []  # a row per contrast, a column per seed that is left out
    for row in contrasts.to_dict("records"):
        both = sides(values[row["measure"]], {row["arm"]: 1.0, row["baseline"]: -1.0})
        deltas = both["arm"] - both["baseline"]
        if deltas.count() > 2:
            without = {seed: t_test(deltas.drop(seed).dropna()) for seed in deltas.index}
            rows.append(_range_of_means(row, deltas.dropna(), without))
            p_rows.append({seed: test.t_p for seed, test in without.items()})
    p = pd.DataFrame(p_rows)
    if rows and "family" in contrasts and contrasts["family"].all():
        p = p.apply(holm)
    return pd.DataFrame(rows).assign(largest_p=p.max(axis=1).to_numpy())


def _range_of_means(contrast: Row, deltas: pd.Series, without: Mapping[Hashable, TTest]) -> Row:
    """Return the range of a contrast's mean over the tests in `without`, and whether its sign
    changes. Each of these tests leaves out one seed or one task; `deltas` are from all of them."""
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
    """Repeat contrasts (rows with arm, baseline and measure) in a macro accuracy with each task
    left out in turn. `items` are the answers of all runs, with columns arm and seed.

    Return a row per contrast, if both arms were evaluated on at least two tasks: arm, baseline,
    measure, n, mean_delta, lowest, highest and sign_changes as in `leave_one_out`; `tasks`, the
    number of tasks; `task`, the task that moves the mean most if it is left out; and `without`, the
    mean without that task, with its t interval and p.
    """
    rows: list[Row] = []
    if items.empty:
        return pd.DataFrame(rows)
    is_few_shot = items["shots"] > 0
    accuracy = {
        measure: answers.groupby(["arm", "seed", "task"])["correct"].mean().unstack("task")
        for measure, answers in ((ZERO_SHOT, items[~is_few_shot]), (FEW_SHOT, items[is_few_shot]))
    }
    arms = {measure: set(table.index.unique("arm")) for measure, table in accuracy.items()}
    macro = contrasts[contrasts["measure"].isin([ZERO_SHOT, FEW_SHOT])]
    for row in macro.to_dict("records"):
        if not {row["arm"], row["baseline"]} <= arms[row["measure"]]:
            continue
        of_measure = accuracy[row["measure"]]
        deltas = of_measure.loc[row["arm"]] - of_measure.loc[row["baseline"]]  # (seeds, tasks)
        # Leave out seeds without a completed run in one of the arms. Then leave out tasks that one
        # of the arms was not evaluated on.
        deltas = deltas.dropna(how="all").dropna(axis=1)
        if deltas.size and deltas.shape[1] > 1:
            without = {t: t_test(deltas.drop(columns=t).mean(axis=1), alpha) for t in deltas}
            means = _range_of_means(row, deltas.mean(axis=1), without)
            task = max(without, key=lambda t: abs(without[t].mean_delta - means["mean_delta"]))
            rows.append(
                {
                    **means,
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
    """Contrast each arm with its baseline in the accuracy of each task. `items` are the answers of
    all runs, to the suite or to stock tasks, with columns arm and seed.

    Return a row per arm, task and number of shots: arm, baseline, task, shots, the paired `TTest`,
    and `p_holm`, its p adjusted by Holm's method over all tasks and shots of the arm. The table is
    empty if there are no items.
    """
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
