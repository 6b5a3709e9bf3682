"""The idea of the paper to be felt: a slider over the length that the stream starts with, which
moves the curves of the loss and of how far the branches lengthen the stream.

All is drawn here, as points of lines; the script of the page only says which length is shown.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, MaxNLocator
from scipy import stats

from lib.publish.catalogue import NotebookEntry, StudyEntry
from lib.record.record import raw_folder
from lib.study.raw import raw_file, read_raw_file

SHOWN = ("dose", "start-or-speed")
"""Studies of the page: their arms start the stream at several lengths."""
PANELS = {
    "dev_loss": "dev loss (nats), by step",
    "difference": "dev loss minus that without a layer, of the same seed (nats), by step",
    "growth": "length of the stream after the last block, over that at its start, by step",
}
SIZE = WIDTH, HEIGHT, LEFT, RIGHT = 420, 240, 46, 16
"""Of a panel, and its margins; the others are below."""
_TOP, _BOTTOM = 10, 26
_DASHES = ("", "7 3", "2 3", "8 3 2 3", "4 4")
_APART = 1.2
"""Lengths of a larger ratio are another place of the slider: no layer starts at exactly 0.0283."""


@dataclass(frozen=True)
class Arm:
    """The runs of an arm. `curves`: columns of `PANELS` by step and seed."""

    name: str
    rms: float
    """Initial RMS of the stream, over the multiplier of its branches: only their ratio counts."""
    curves: pd.DataFrame
    length: int = 0
    """Its place on the slider."""
    dashes: str = ""

    def end(self, panel: str) -> float:
        """Return the mean over seeds at the last step."""
        return float(self.curves[panel].iloc[-1].mean())

    @property
    def difference(self) -> dict[str, float | None]:
        """The mean paired difference from no layer at the last step, with its t interval."""
        last = self.curves["difference"].iloc[-1].dropna()
        reach = stats.t.ppf(0.975, len(last) - 1) * last.sem() if len(last) > 1 else np.nan
        ends = (last.mean(), last.mean() - reach, last.mean() + reach)
        found = (None if np.isnan(end) else float(end) for end in ends)
        return dict(zip(("mean_delta", "t_low", "t_high"), found, strict=True))


@dataclass(frozen=True)
class Axes:
    """One panel of a study, in the coordinates of its picture."""

    title: str
    x_ticks: dict[str, float]
    y_ticks: dict[str, float]
    lines: list[tuple[Arm, list[str]]]
    """The points of an arm's seeds, and last those of their mean."""


@dataclass(frozen=True)
class Figure:
    """What a study shows."""

    study: StudyEntry
    arms: list[Arm]
    """By length."""
    panels: list[Axes]

    @property
    def lengths(self) -> list[float]:
        """The places of the slider: the mean RMS of the arms of each."""
        groups = itertools.groupby(self.arms, lambda arm: arm.length)
        return [float(np.mean([arm.rms for arm in of])) for _, of in groups]

    @property
    def colours(self) -> list[str]:
        """A colour for each length, from blue to red."""
        last = max(len(self.lengths) - 1, 1)
        return [f"hsl({220 - 215 * place / last:.0f} 65% 45%)" for place in range(last + 1)]


def figures(studies: Iterable[StudyEntry]) -> list[Figure]:
    """Draw those studies of the page that are recorded, with whatever completed runs they have."""
    named = {study.name: study for study in studies if study.recorded}
    arms = {name: _arms(named[name].runs) for name in SHOWN if name in named}
    return [
        Figure(named[name], of, [_panel(panel, of) for panel in PANELS])
        for name, of in arms.items()
        if of
    ]


def _arms(runs: list[NotebookEntry]) -> list[Arm]:
    """Read the arms of a study, shortest start first, each at its place on the slider."""
    found: dict[str, dict[int, pd.DataFrame]] = {}
    models: dict[str, dict[str, Any]] = {}
    for run in runs:
        folder = raw_folder(run.path)
        if run.result and run.status == "completed" and raw_file(folder, "curve").is_file():
            models[run.arm] = run.result["config"]["model"]
            found.setdefault(run.arm, {})[run.seed] = read_raw_file(folder, "curve")
    arms = []
    baselines = {run.result["baseline"] for run in runs if run.result}
    for name, seeds in found.items():
        table = pd.concat(seeds, names=["seed"]).reset_index("seed")
        model, end = models[name], f"residual_norm_{models[name]['n_layer']}"
        if end in table:
            growth = table[end] / table["residual_norm_0"]
            curves = table.assign(growth=growth).pivot_table(["dev_loss", "growth"], "step", "seed")
            start = table.loc[table["step"] == 0, "residual_norm_0"].mean()
            rms = float(start) / math.sqrt(model["n_embd"]) / model["branch_multiplier"]
            arms.append(Arm(name, rms, curves))
    bare = next((arm.curves["dev_loss"] for arm in arms if arm.name in baselines), 0)
    compared = []
    for arm in arms:
        gaps = pd.concat({"difference": arm.curves["dev_loss"] - bare}, axis="columns")
        compared.append(replace(arm, curves=arm.curves.join(gaps)))
    return _placed(sorted(compared, key=lambda arm: arm.rms))


def _placed(arms: list[Arm]) -> list[Arm]:
    """Give arms their places on the slider, and lines that differ within a place."""
    placed: list[Arm] = []
    length = number = 0
    for arm in arms:
        if placed:
            apart = arm.rms > _APART * placed[-1].rms
            length, number = (length + 1, 0) if apart else (length, number + 1)
        dashes = _DASHES[number % len(_DASHES)]
        placed.append(Arm(arm.name, arm.rms, arm.curves, length, dashes))
    return placed


def _panel(name: str, arms: list[Arm]) -> Axes:
    """Draw a panel: the loss on a linear axis, what is a ratio on a logarithmic one."""
    turn = np.log if name == "growth" else np.asarray
    locator = LogLocator(subs=(1, 2, 5)) if name == "growth" else MaxNLocator(5)
    values = np.concatenate([arm.curves[name].to_numpy().ravel() for arm in arms])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    last = max(int(arm.curves.index[-1]) for arm in arms)

    def x(step: Any) -> Any:
        return LEFT + np.asarray(step) / last * (WIDTH - LEFT - RIGHT)

    def y(value: Any) -> Any:
        share = (turn(value) - turn(low)) / (turn(high) - turn(low))
        return HEIGHT - _BOTTOM - share * (HEIGHT - _BOTTOM - _TOP)

    def points(line: pd.Series) -> str:
        kept = line.dropna()
        places = zip(x(kept.index), y(kept.to_numpy()), strict=True)
        return " ".join(f"{across:.1f},{down:.1f}" for across, down in places)

    def ticks(found: Iterable[float], least: float, most: float, place: Any) -> dict[str, float]:
        return {
            f"{t + 0.0:g}".replace("-", "−"): round(float(place(t)), 1)
            for t in found
            if least <= t <= most
        }

    lines = []
    for arm in arms:
        seeds = pd.DataFrame(arm.curves[name])
        mean = seeds.mean(axis="columns")
        lines.append((arm, [points(line) for line in [*(seeds[seed] for seed in seeds), mean]]))
    steps = ticks(MaxNLocator(4).tick_values(0, last), 0, last, x)
    return Axes(PANELS[name], steps, ticks(locator.tick_values(low, high), low, high, y), lines)
