"""A finding: a table, and what it shows in words."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import pandas as pd

from lib.study.measures import MEASURES


@dataclass(frozen=True)
class Finding:
    """A table, under a key in the results, with what it shows in words."""

    key: str
    title: str
    table: pd.DataFrame
    words: list[str] = field(default_factory=list)

    def _repr_markdown_(self) -> str:
        return f"### {self.title}\n\n" + "\n".join(f"- {sentence}" for sentence in self.words)


def numbers(mean: Any, low: Any, high: Any, form: str = "+.3f") -> str:
    """Write an estimate with its interval, or that it has none."""
    interval = "(no interval)" if isnan(low) else f"[{low:{form}}, {high:{form}}]"
    return f"{mean:{form}} {interval}"


def outcome(measure: str, low: float, high: float, margin: float | None = None) -> str:
    """Say what the interval of a difference shows: helps, harms (of a measure of which neither way
    is better: rises, falls), no difference beyond the margin, or undecided."""
    if low > 0 or high < 0:
        gain = MEASURES[measure].gain(low + high)
        if isnan(gain):
            return "rises" if low > 0 else "falls"
        return "helps" if gain > 0 else "harms"
    if margin is not None and -margin < low and high < margin:
        return f"no difference beyond ± {margin:g}"
    return "undecided"


def listed(items: Iterable[Any]) -> str:
    """Write a list in prose: 0.02, 0.1 and 1."""
    *first, last = [f"{x:.12g}" if isinstance(x, float) else str(x) for x in items]
    return " and ".join(filter(None, (", ".join(first), last)))
