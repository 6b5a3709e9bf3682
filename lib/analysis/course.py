"""The course of training: how far arms are from their baseline at each evaluation, and how many
tokens they need for the same loss."""

import numpy as np
import pandas as pd

from lib.analysis.paired import t_test, t_tests
from lib.analysis.runs import own_baselines

PER_STEP = ["training.batch_size", "model.block_size"]
"""Whose product is the tokens of a step."""


def course_table(
    baselines: dict[str, str], curve: pd.DataFrame, column: str, alpha: float
) -> pd.DataFrame:
    """Return one row per arm beside its baseline and step at which both were evaluated: steps, n,
    mean paired difference in `column` of the joined curves, with its t interval and p."""
    if column not in curve:
        return pd.DataFrame()
    values = curve.dropna(subset=column).pivot(index=["arm", "step"], columns="seed", values=column)
    table = t_tests(values, baselines, alpha).rename(columns={"step": "steps"})
    return table[table["n"] > 0].reset_index(drop=True)  # a seed reached the step in both


def first_reached(loss: pd.Series, target: float) -> float:
    """Find where a loss (nats, indexed by steps or tokens, in order) first is `target`,
    interpolated linearly between evaluations; NaN when it never is."""
    values, positions = loss.to_numpy(float), loss.index.to_numpy(float)
    if not (values <= target).any():
        return np.nan
    i = int((values <= target).argmax())
    before = max(i - 1, 0)
    return float(np.interp(target, values[[i, before]], positions[[i, before]]))


def token_ratios(runs: pd.DataFrame, curve: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """Return one row per arm beside its baseline: the tokens that it needs, relative to the
    baseline, for the loss that both reach in a seed. That is the worse of their two final ones.
    Below 1: the arm saves tokens. Geometric mean over seeds with its t interval (on logarithms) and
    p; and in how many seeds the arm reached the baseline's final loss at all. Pairs with a diverged
    run drop out, and those in which the untrained model has that loss already."""
    losses = curve.set_index(["arm", "seed", "step"])["dev_loss"].sort_index()
    per_step = runs.drop_duplicates("arm").set_index("arm")[PER_STEP].prod(axis=1)
    completed = set(
        runs.loc[runs["status"] == "completed", ["arm", "seed"]].itertuples(index=False)
    )
    rows = []
    for arm, baseline in own_baselines(runs).items():
        logs, reached = [], 0
        for seed in runs.loc[runs["arm"] == arm, "seed"]:
            if not {(arm, seed), (baseline, seed)} <= completed:
                continue
            arm_loss, baseline_loss = losses[arm, seed], losses[baseline, seed]
            common = max(arm_loss.iloc[-1], baseline_loss.iloc[-1])
            needed = first_reached(arm_loss, common), first_reached(baseline_loss, common)
            if min(needed) == 0:  # training that only made it worse has no ratio
                continue
            logs.append(np.log(needed[0] * per_step[arm] / (needed[1] * per_step[baseline])))
            reached += int(arm_loss.min() <= baseline_loss.iloc[-1])
        test = t_test(logs, alpha)
        rows.append(
            {"arm": arm, "baseline": baseline, "n": test.n}
            | {"token_ratio": np.exp(test.mean_delta), "t_low": np.exp(test.t_low)}
            | {"t_high": np.exp(test.t_high), "t_p": test.t_p, "reached": reached}
        )
    return pd.DataFrame(rows)
