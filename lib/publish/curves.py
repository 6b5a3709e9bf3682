"""The curves of a study's runs, as its page needs them: every seed, at some 200 steps."""

from pathlib import Path

import numpy as np
import pandas as pd

from lib.config.yaml import Json
from lib.figures.style import in_order, table_looks
from lib.figures.training import label, thinned
from lib.record.archive import Run
from lib.results import read_raw_file

NOT_DRAWN = ["tokens", "seconds"]
"""Columns that only count."""


def curves_of(ended: dict[str, Run], root: Path) -> Json:
    """Return what the runs that have ended wrote down while they trained, given the runs by their
    place in `root`, the study's baseline first. Steps of a long training are averaged in blocks.

    `steps` and `measures` (name → label, the loss first) are by table; `arms` has each arm's
    variant, setting, baseline, and by seed the values of its measures, at their table's steps.
    """
    looks = _looks(ended)
    curves: Json = {"steps": {}, "measures": {}, "arms": {}, "looks": looks}
    for run in ended.values():
        about = {name: run[name] for name in ("variant", "setting", "baseline")}
        curves["arms"].setdefault(run["arm"], about | {"seeds": {}})["seeds"][str(run["seed"])] = {}
    for name in ("curve", "trace"):
        tables = {place: read_raw_file(root / place, name) for place in ended}
        table = pd.concat(tables, names=["run", None]).drop(columns=NOT_DRAWN, errors="ignore")
        means = table.groupby(["run", thinned(table.pop("step"))], sort=False).mean()
        curves["steps"][name] = steps = sorted(set(means.index.get_level_values("step")))
        curves["measures"][name] = {column: label(str(column)) for column in means}
        for place, part in means.groupby("run", sort=False):
            run = ended[str(place)]
            values = part.droplevel("run").reindex(steps)
            seeds = curves["arms"][run["arm"]]["seeds"]
            seeds[str(run["seed"])] |= {column: _short(values[column]) for column in values}
    return curves


def _short(values: "pd.Series[float]") -> list[float | None]:
    """Return values with five digits, which is more than a screen shows; None for no number."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def _looks(runs: dict[str, Run]) -> Json:
    """Return label, colour and dashes of each variant, in the order of figures."""
    levels = {run["variant"]: [*run["levels"].values(), ""][0] for run in runs.values()}
    table = in_order(pd.DataFrame({"variant": [*levels]}), levels)
    return {
        name: {"label": look.label, "colour": look.colour, "dashes": look.dashes or (1, 0)}
        for name, look in table_looks(table).items()
    }
