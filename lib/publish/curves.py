"""The curves of a study's runs, as its page needs them: every seed, at about 200 steps."""

import json
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from lib.config.yaml import Json
from lib.figures.style import in_order, table_looks
from lib.figures.training import label, thinned
from lib.record.archive import Run
from lib.results import STEPS_FILE, read_raw_file

NOT_DRAWN = ["tokens", "seconds"]
"""Columns that only count."""


def curves_of(runs: dict[str, Run], root: Path) -> Json:
    """Return the training curves of a study's runs, given by their place in `root`, the study's
    baseline first: those of runs that have a result, and what the others have written so far. The
    steps of a long training are averaged in blocks.

    `steps` and `measures` (name → label, the loss first) are by table; `arms` has each arm's
    variant, setting, baseline, and by seed the values of its measures, at their table's steps.
    `training` lists the arm's seeds that have no result yet.
    """
    curves: Json = {"steps": {}, "measures": {}, "arms": {}, "looks": _looks(runs)}
    tables: Json = {"curve": {}, "trace": {}}
    for place, run in runs.items():
        about = {name: run[name] for name in ("variant", "setting", "baseline")}
        arm = curves["arms"].setdefault(run["arm"], about | {"seeds": {}, "training": []})
        seed = str(run["seed"])
        if "steps" in run:
            found = _finished(root / place, str(run.get("files")))
        elif found := so_far(root / place):
            arm["training"].append(seed)
        for name, table in found.items():
            arm["seeds"][seed] = {}
            tables[name][place] = table
    for name, of in tables.items():
        if not of:
            continue
        table = pd.concat(of, names=["run", None]).drop(columns=NOT_DRAWN, errors="ignore")
        means = table.groupby(["run", thinned(table.pop("step"))], sort=False).mean()
        curves["steps"][name] = steps = sorted(set(means.index.get_level_values("step")))
        curves["measures"][name] = {column: label(str(column)) for column in means}
        for place, part in means.groupby("run", sort=False):
            run = runs[str(place)]
            values = part.droplevel("run").reindex(steps)
            seeds = curves["arms"][run["arm"]]["seeds"]
            seeds[str(run["seed"])] |= {column: _short(values[column]) for column in values}
    return curves


@lru_cache(maxsize=200)
def _finished(folder: Path, hashes: str) -> dict[str, pd.DataFrame]:
    """Read the curves of a run that has a result. They are kept, for the site that is served while
    others train, as long as the `hashes` of its files stay."""
    return {name: read_raw_file(folder, name) for name in ("curve", "trace")}


def so_far(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the curves of a run that trains; {} if it has written none. A killed run repeats steps:
    the last row of each counts. An incomplete line is left out."""
    file, lines = folder / STEPS_FILE, []
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        with suppress(ValueError):
            lines.append(json.loads(line))
    rows = {"curve": [point for _, point in lines if point], "trace": [row for row, _ in lines]}
    return {
        name: pd.DataFrame(of).drop_duplicates("step", keep="last")
        for name, of in rows.items()
        if of
    }


def _short(values: "pd.Series[float]") -> list[float | None]:
    """Round values to five digits, which is more than a screen shows; None for what is no finite
    number."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def _looks(runs: dict[str, Run]) -> Json:
    """Return each variant's label, colour and dashes, in the order of figures."""
    levels = {run["variant"]: [*run["levels"].values(), ""][0] for run in runs.values()}
    table = in_order(pd.DataFrame({"variant": [*levels]}), levels)
    return {
        name: {"label": look.label, "colour": look.colour, "dashes": look.dashes or (1, 0)}
        for name, look in table_looks(table).items()
    }
