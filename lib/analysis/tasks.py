"""The suite task by task, each arm beside its baseline."""

import numpy as np
import pandas as pd

from lib.analysis.finding import Finding
from lib.analysis.paired import holm, t_test
from lib.analysis.runs import own_baselines


def task_contrasts(runs: pd.DataFrame, items: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """One row per arm beside its baseline, task and number of shots: mean paired difference in
    accuracy with its t interval and p, and that p adjusted by Holm's method over all tasks and
    shots of the contrast. `items` are the joined answers of all runs; empty without the suite."""
    if items.empty:
        return pd.DataFrame()
    keys = ["arm", "task", "shots", "seed"]
    accuracy = items.groupby(keys)["correct"].mean().unstack("seed")
    tables = []
    for arm, baseline in own_baselines(runs).items():
        if not {arm, baseline} <= set(items["arm"]):
            continue
        deltas = (accuracy.loc[arm] - accuracy.loc[baseline]).reset_index()
        rows = [
            {"arm": arm, "baseline": baseline, "task": row.pop("task"), "shots": row.pop("shots")}
            | t_test([d for d in row.values() if np.isfinite(d)], alpha)._asdict()
            for row in deltas.to_dict("records")
        ]
        table = pd.DataFrame(rows)
        tables.append(table.assign(p_holm=holm(table["t_p"])))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def task_finding(table: pd.DataFrame, alpha: float) -> Finding:
    """The table, and in how many tasks each arm differs after adjustment."""
    words = ["The adjusted p rests on t alone: with so many tests no exact test could survive."]
    for (arm, baseline), part in (
        table.groupby(["arm", "baseline"], sort=False) if len(table) else []
    ):
        differ = part[part["p_holm"] < alpha]
        lower = int((differ["mean_delta"] < 0).sum())
        tested = int(np.isfinite(part["p_holm"]).sum())
        words.append(
            f"{arm} - {baseline}: lower in {lower}, higher in {len(differ) - lower} of "
            f"{len(part)} tasks × shots; {tested - len(differ)} undecided, "
            f"{len(part) - tested} without a test."
        )
    return Finding("task_contrasts", "Task by task, adjusted over tasks", table, words)
