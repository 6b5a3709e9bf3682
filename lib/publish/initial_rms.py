"""A slider over the root mean square (RMS) that the residual stream starts with, which moves the
curves of the loss and of how much the blocks increase the RMS.

A paper names the studies of the page and the titles of its panels in `initial-rms.yaml` beside it.
All is drawn here, as points of lines; the script of the page only says which RMS is shown.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, MaxNLocator
from pydantic import ValidationError

from lib.analysis.paired import t_test
from lib.publish.catalogue import NotebookEntry, StudyEntry
from lib.record.archive import raw_folder
from lib.results import raw_file, read_raw_file
from lib.study.io import nan_to_none, relative
from lib.study.schema import Section
from lib.study.yaml import ConfigError, explain, read_yaml

FILE = "initial-rms.yaml"
SIZE = WIDTH, HEIGHT, LEFT, RIGHT = 420, 240, 46, 16
"""Of a panel, and its margins; the others are below."""
_TOP, _BOTTOM = 10, 26
_DASHES = ("", "7 3", "2 3", "8 3 2 3", "4 4")
_APART = 1.2
"""RMS of a larger ratio is another place of the slider: no layer starts at exactly 0.0283."""


class Page(Section):
    """What `initial-rms.yaml` says."""

    studies: list[str]
    panels: dict[Literal["dev_loss", "difference", "growth"], str]
    """Curve → what it shows."""


@dataclass(frozen=True)
class Arm:
    """The runs of an arm. `curves`: dev loss, difference and growth, by step and seed."""

    name: str
    rms: float
    """Initial RMS of the stream, over the multiplier of its branches: only their ratio counts."""
    curves: pd.DataFrame
    place: int = 0
    """Its place on the slider."""
    dashes: str = ""

    def end(self, panel: str) -> float:
        """Return the mean over seeds at the last step."""
        return float(self.curves[panel].iloc[-1].mean())

    @property
    def difference(self) -> dict[str, float | None]:
        """The mean paired difference from the baseline at the last step, with its t interval."""
        test = t_test(self.curves["difference"].iloc[-1].dropna())
        return {name: nan_to_none(value) for name, value in test._asdict().items()}


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
    """By initial RMS."""
    panels: list[Axes]

    @property
    def places(self) -> list[float]:
        """The places of the slider: the mean initial RMS of the arms of each."""
        groups = itertools.groupby(self.arms, lambda arm: arm.place)
        return [float(np.mean([arm.rms for arm in of])) for _, of in groups]

    @property
    def colours(self) -> list[str]:
        """A colour for each place, from blue to red."""
        last = max(len(self.places) - 1, 1)
        return [f"hsl({220 - 215 * index / last:.0f} 65% 45%)" for index in range(last + 1)]


def figures(studies: Iterable[StudyEntry], paper: Path) -> list[Figure]:
    """Draw those studies of a paper's page that are recorded, with whatever completed runs they
    have; none for a paper without a page."""
    if not (paper / FILE).is_file():
        return []
    try:
        page = Page.model_validate(read_yaml(paper / FILE))
    except ValidationError as error:
        raise ConfigError(f"{relative(paper / FILE)}: {explain(error, Page)}") from None
    entries = {study.name: study for study in studies if study.recorded}
    arms = {name: _arms(entries[name].runs) for name in page.studies if name in entries}
    return [
        Figure(entries[study], of, [_panel(name, title, of) for name, title in page.panels.items()])
        for study, of in arms.items()
        if of
    ]


def _arms(runs: list[NotebookEntry]) -> list[Arm]:
    """Read the arms of a study, lowest initial RMS first, each at its place on the slider."""
    curves: dict[str, dict[int, pd.DataFrame]] = {}
    models: dict[str, dict[str, Any]] = {}
    for run in runs:
        folder = raw_folder(run.path)
        if run.result and run.status == "completed" and raw_file(folder, "curve").is_file():
            models[run.arm] = run.result["config"]["model"]
            curves.setdefault(run.arm, {})[run.seed] = read_raw_file(folder, "curve")
    arms = []
    for name, by_seed in curves.items():
        table = pd.concat(by_seed, names=["seed"]).reset_index("seed")
        model, end = models[name], f"residual_norm_{models[name]['n_layer']}"
        if end in table:
            growth = table[end] / table["residual_norm_0"]
            table = table.assign(growth=growth)
            columns = table.pivot_table(["dev_loss", "growth"], "step", "seed")
            start = table.loc[table["step"] == 0, "residual_norm_0"].mean()
            rms = float(start) / math.sqrt(model["n_embd"]) / model["branch_multiplier"]
            arms.append(Arm(name, rms, columns))
    arms.sort(key=lambda arm: arm.rms)
    baselines = {run.result["baseline"] for run in runs if run.result}
    baseline = next((arm.curves["dev_loss"] for arm in arms if arm.name in baselines), 0)
    rms = pd.Series([arm.rms for arm in arms])
    places = (rms > _APART * rms.shift()).cumsum()
    numbers = places.groupby(places).cumcount()  # at one place, lines differ in their dashes
    placed = []
    for arm, place, number in zip(arms, places, numbers, strict=True):
        deltas = pd.concat({"difference": arm.curves["dev_loss"] - baseline}, axis="columns")
        columns, dashes = arm.curves.join(deltas), _DASHES[number % len(_DASHES)]
        placed.append(replace(arm, curves=columns, place=int(place), dashes=dashes))
    return placed


def _panel(name: str, title: str, arms: list[Arm]) -> Axes:
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
        finite = line.dropna()
        positions = zip(x(finite.index), y(finite.to_numpy()), strict=True)
        return " ".join(f"{across:.1f},{down:.1f}" for across, down in positions)

    def ticks(values: Iterable[float], least: float, most: float, scale: Any) -> dict[str, float]:
        return {
            f"{t + 0.0:g}".replace("-", "−"): round(float(scale(t)), 1)
            for t in values
            if least <= t <= most
        }

    lines = []
    for arm in arms:
        seeds = pd.DataFrame(arm.curves[name])
        mean = seeds.mean(axis="columns")
        lines.append((arm, [points(line) for line in [*(seeds[seed] for seed in seeds), mean]]))
    steps = ticks(MaxNLocator(4).tick_values(0, last), 0, last, x)
    return Axes(title, steps, ticks(locator.tick_values(low, high), low, high, y), lines)
