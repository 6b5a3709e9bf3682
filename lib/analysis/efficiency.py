"""How many tokens an arm needs for the same loss, and how arms differ at shorter budgets.

At a constant learning rate the first k steps of a run are those of a run of k steps, so every
point of its dev curve is the end of a shorter budget.
"""

import numpy as np
import pandas as pd

from lib.analysis.course import course_table
from lib.analysis.finding import Finding, numbers
from lib.analysis.paired import t_test
from lib.analysis.runs import own_baselines

BUDGETS = (100, 150, 300, 600, 1000, 2000)
"""Steps at which arms are compared, as far as the runs go."""
PER_STEP = ["training.batch_size", "model.block_size"]
"""Whose product is the tokens of a step."""


def first_reached(loss: pd.Series, target: float) -> float:
    """Where a loss (nats, indexed by steps or tokens, in order) first is `target`, interpolated
    linearly between evaluations; NaN when it never is."""
    place, values = loss.index.to_numpy(float), loss.to_numpy(float)
    reached = np.flatnonzero(values <= target)
    if len(reached) == 0:
        return np.nan
    i = int(reached[0])
    if i == 0:
        return float(place[0])
    return float(np.interp(target, [values[i], values[i - 1]], [place[i], place[i - 1]]))


def efficiency_table(runs: pd.DataFrame, curve: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """One row per arm beside its baseline: tokens needed relative to the baseline's, for the loss
    that both reach in a seed: the worse of their two final ones. Below 1: the arm saves
    tokens. Geometric mean over seeds with its t interval (on logarithms) and p; and in how many
    seeds the arm reached the baseline's final loss at all. Pairs with a diverged run drop out, and
    those in which the untrained model has that loss already."""
    losses = {
        key: part.set_index("step")["dev_loss"].sort_index()
        for key, part in curve.groupby(["arm", "seed"])
    }
    per_step = runs.drop_duplicates("arm").set_index("arm")[PER_STEP].prod(axis=1)
    done = runs[runs["status"] == "completed"]
    completed = set(zip(done["arm"], done["seed"], strict=True))
    rows = []
    for arm, baseline in own_baselines(runs).items():
        logs, reached = [], 0
        for seed in runs.loc[runs["arm"] == arm, "seed"]:
            if not {(arm, seed), (baseline, seed)} <= completed:
                continue
            own, other = losses[arm, seed], losses[baseline, seed]
            common = max(own.iloc[-1], other.iloc[-1])
            needed = first_reached(own, common), first_reached(other, common)
            if min(needed) == 0:  # training that only made it worse has no ratio
                continue
            logs.append(np.log(needed[0] * per_step[arm] / (needed[1] * per_step[baseline])))
            reached += int(own.min() <= other.iloc[-1])
        test = t_test(logs, alpha)
        rows.append(
            {"arm": arm, "baseline": baseline, "n": test.n}
            | {"token_ratio": np.exp(test.mean_delta), "t_low": np.exp(test.t_low)}
            | {"t_high": np.exp(test.t_high), "t_p": test.t_p, "reached": reached}
        )
    return pd.DataFrame(rows)


def budget_table(runs: pd.DataFrame, curve: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """The course of the difference in dev loss (nats) at the budgets of `BUDGETS`, as
    `lib.analysis.course.course_table` has it. For runs at a constant rate; see the module."""
    at = curve[curve["step"].isin(BUDGETS)]
    return course_table(own_baselines(runs), at, "dev_loss", alpha)


def efficiency_findings(runs: pd.DataFrame, curve: pd.DataFrame, alpha: float) -> list[Finding]:
    """Both tables, the first with its sentences. For runs at a constant rate; see the module."""
    table = efficiency_table(runs, curve, alpha)
    words = [
        f"{row.arm} needs {numbers(row.token_ratio, row.t_low, row.t_high, '.2f')} times the "
        f"tokens of {row.baseline} for the same dev loss; it reached the baseline's final loss in "
        f"{row.reached} of {row.n} seeds."
        for row in table.itertuples()
    ]
    budgets = budget_table(runs, curve, alpha)
    return [
        Finding("efficiency", "Tokens for the same loss", table, words),
        Finding("budgets", "Difference in dev loss at shorter budgets", budgets),
    ]
