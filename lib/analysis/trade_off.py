"""Stability against accuracy: what an arm that is calmer, or less calm, costs or gains."""

from typing import Any

import pandas as pd

from lib.analysis.finding import Finding, numbers, outcome
from lib.analysis.runs import own_baselines, taken
from lib.analysis.stability import in_share
from lib.study.measures import ACCURACIES, MAIN, MEASURES


def trade_off_table(runs: pd.DataFrame, stability: pd.DataFrame) -> pd.DataFrame:
    """One row per arm: share of unstable runs with its exact interval and median severity, from the
    table of `lib.analysis.stability.stability_map`, then the means of perplexity and accuracies
    over completed runs."""
    columns = ["arm", "variant", "setting", "n", "judged", "unstable", "share", "low", "high"]
    means = runs.groupby("arm", sort=False)[taken([MAIN, *ACCURACIES], runs)].mean()
    return stability[[*columns, "median_severity"]].join(means, on="arm")


def trade_off(runs: pd.DataFrame, stability: pd.DataFrame, contrasts: pd.DataFrame) -> Finding:
    """The table, and for each arm beside its baseline both shares and the change in accuracy."""
    table = trade_off_table(runs, stability)
    of = table.set_index("arm", drop=False)
    found = {
        (row["arm"], row["baseline"], row["measure"]): row for row in contrasts.to_dict("records")
    }
    shown = [name for name in taken(ACCURACIES, runs) if name != "accuracy"] or [MAIN]
    words = []
    for arm, baseline in own_baselines(runs).items():
        changes = [
            _change(found[arm, baseline, name]) for name in shown if (arm, baseline, name) in found
        ]
        words.append(
            f"{arm}: {in_share(of.loc[arm])}, against {in_share(of.loc[baseline])} of {baseline}"
            + "".join(f"; {change}" for change in changes)
            + "."
        )
    return Finding("trade_off", "Stability against accuracy", table, words)


def _change(row: dict[Any, Any]) -> str:
    measure, low, high = MEASURES[row["measure"]], row["t_low"], row["t_high"]
    said = numbers(row["mean_delta"], low, high, f"+.{measure.digits}f")
    return f"{measure.label} {said} (n = {row['n']}: {outcome(row['measure'], low, high)})"
