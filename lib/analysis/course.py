"""The course of a difference: how far arms are from their baseline at each evaluation."""

from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from lib.analysis.finding import Finding, listed
from lib.analysis.paired import t_test
from lib.analysis.runs import own_baselines
from lib.study.measures import MEASURES

COSINE = "gradient_cosine"


def course_table(
    baselines: dict[str, str], curve: pd.DataFrame, column: str, alpha: float
) -> pd.DataFrame:
    """One row per arm beside its baseline and step at which both were evaluated: steps, n, mean
    paired difference in `column` of the joined curves, with its t interval and p."""
    if column not in curve:
        return pd.DataFrame()
    values = {
        key: part.set_index("seed")[column]
        for key, part in curve.dropna(subset=column).groupby(["arm", "step"])
    }
    rows = []
    for arm, baseline in baselines.items():
        for of, step in values:
            if of == arm and (baseline, step) in values:
                test = t_test((values[arm, step] - values[baseline, step]).dropna(), alpha)
                if test.n:  # a seed that reached the step in both
                    rows.append({"arm": arm, "baseline": baseline, "steps": step} | test._asdict())
    return pd.DataFrame(rows)


def phases(rows: list[dict[Any, Any]]) -> list[dict[str, Any]]:
    """Join neighbouring rows of one arm's course whose mean difference has one sign: higher, lower
    or equal; first and last step; how many checkpoints, and at how many of them the interval is on
    that side of zero."""

    def sign(row: dict[Any, Any]) -> str:
        return ("equal", "higher", "lower")[int(np.sign(row["mean_delta"]))]

    found = []
    for name, group in groupby(rows, sign):
        part = list(group)
        ends = {"higher": "t_low", "lower": "t_high", "equal": "t_low"}[name]
        clear = [row for row in part if row[ends] is not None and row[ends] * row["mean_delta"] > 0]
        found.append(
            {"sign": name, "first": part[0]["steps"], "last": part[-1]["steps"]}
            | {"checkpoints": len(part), "clear": len(clear)}
        )
    return found


def in_words(rows: list[dict[Any, Any]], than: str) -> str:
    """Say on which side the mean difference is, and when, and how clearly: lower than that of none
    at step 0 (its interval excludes zero at 1 of 1 checkpoints) and higher from step 25 to 75 (0 of
    3)."""
    spans: list[str] = []
    for phase in phases(rows):
        first, last = phase["first"], phase["last"]
        span = f"at step {first:,}" if first == last else f"from step {first:,} to {last:,}"
        clear = f"{phase['clear']} of {phase['checkpoints']}"
        if not spans:  # the rest is read alike
            span = f"{'to' if phase['sign'] == 'equal' else 'than'} {than} {span}"
            clear = f"its interval excludes zero at {clear} checkpoints"
        spans.append(f"{phase['sign']} {span} ({clear})")
    return listed(spans)


def cosine_finding(runs: pd.DataFrame, curve: pd.DataFrame, alpha: float) -> Finding:
    """The course of the cosine between gradients; empty where it was not measured."""
    table = course_table(own_baselines(runs), curve, COSINE, alpha)
    words = [
        f"{arm}: its {MEASURES[COSINE].label} is "
        + in_words(part.to_dict("records"), f"that of {part['baseline'].iloc[0]}")
        + "."
        for arm, part in (table.groupby("arm", sort=False) if len(table) else [])
    ]
    return Finding("cosine_course", "The cosine between gradients in the course", table, words)
