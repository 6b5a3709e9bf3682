"""How results depend on a study's factors: the tables behind the figures.

`runs` is the table of `lib.analysis.runs.tidy`, one row per run.
"""

import json
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from lib.analysis.learning_rate import final_losses
from lib.analysis.runs import ResultError
from lib.study.config import Study
from lib.study.fields import Level
from lib.study.paths import shown, study_folder


@dataclass(frozen=True)
class Scale:
    """Where the levels of a factor stand on an axis."""

    factor: str
    kind: Literal["log", "linear", "categorical"]
    positions: dict[Level, float]
    """Level → place; for numbers, the number."""

    def place(self, levels: pd.Series) -> pd.Series:
        """Return the place of each row's level; pandas writes a level of None as NaN."""
        return levels.map(lambda level: self.positions[None if pd.isna(level) else level])


def scale_of(factor: str, levels: list[Level]) -> Scale:
    """Choose an axis for a factor's levels: categorical unless all are numbers; logarithmic when
    their ratios are more even than their differences (of two levels: when they differ tenfold)."""
    numbers = [x for x in levels if isinstance(x, int | float) and not isinstance(x, bool)]
    if len(numbers) < len(levels):
        return Scale(factor, "categorical", {level: float(i) for i, level in enumerate(levels)})
    ordered = np.sort(np.array(numbers, dtype=float))
    logarithmic = bool(ordered[0] > 0) and ordered[-1] >= 10 * ordered[0]
    if ordered[0] > 0 and len(ordered) > 2:
        gaps, ratios = np.diff(ordered), np.diff(np.log(ordered))
        logarithmic = ratios.max() / ratios.min() < gaps.max() / gaps.min()
    kind: Literal["log", "linear"] = "log" if logarithmic else "linear"
    return Scale(factor, kind, {level: float(level) for level in numbers})


def capped_losses(runs: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    """Add to each run its `initial_loss` on dev and its `final_loss`, which counts as the initial
    one when it is above it or the run diverged (Wortsman et al. 2023)."""
    table = final_losses(runs, curve)
    final = table["final_loss"].fillna(np.inf)
    return table.assign(final_loss=np.minimum(final, table["initial_loss"]))


def forest_table(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Read the contrasts that the analysis wrote, and add each one's variant, setting and label
    ("layernorm - none"). ResultError when the study has not been analysed."""
    path = study_folder(study.name) / "verdict.json"
    if not path.is_file():
        raise ResultError(f"there is no {shown(path)}; execute 03_analysis first, which writes it")
    table = pd.DataFrame(json.loads(path.read_text("utf-8"))["contrasts"])
    arms = runs.drop_duplicates("arm").set_index("arm")
    variant = table["arm"].map(arms["variant"])
    label = variant + " - " + table["baseline"].map(arms["variant"])
    numbers = table[["mean_delta", "t_low", "t_high"]].astype(float)  # None becomes NaN
    return table.assign(
        variant=variant, setting=table["arm"].map(arms["setting"]), label=label, **numbers
    )


def baseline_contrasts(study: Study, runs: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Of the table of `forest_table`, each arm against its own baseline in one measure, with the
    arm's level of every factor."""
    table = forest_table(study, runs)
    arms = runs.drop_duplicates("arm")[["arm", "baseline", *study.factors]]
    return table[table["measure"] == measure].merge(arms, on=["arm", "baseline"])
