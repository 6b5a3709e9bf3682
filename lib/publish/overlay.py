"""Studies and runs side by side: one contrast in every study that has it, runs' curves, and the
columns of the table of all runs."""

import itertools
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lib.figures.style import variant
from lib.publish.catalogue import NotebookEntry, StudyEntry
from lib.record.archive import raw_folder, sample
from lib.results import raw_file, read_live, read_raw_file
from lib.study.io import sha256
from lib.study.metrics import MAIN, MEASURES, measures_in
from lib.study.schema import CODE, FIELDS
from lib.study.study import arm_id

POINTS = 50
"""Pairs of points that a curve keeps: of each stretch of steps the lowest and the highest."""
CURVES = {
    "loss": "training loss (nats)",
    "dev_loss": "dev loss (nats)",
    "grad_norm": "gradient norm",
}
"""Curves that are drawn in the page, each with the name of its axis."""


@dataclass(frozen=True)
class Difference:
    """A contrast of a study in one measure."""

    study: StudyEntry
    row: dict[str, Any]
    variant: str
    reference: str
    setting: str
    """The levels of all factors but the compared one; "" where there are none."""
    own: bool
    """Whether the reference is the arm's own baseline."""

    @property
    def name(self) -> str:
        return f"{variant(self.variant).label} − {variant(self.reference).label}"


def differences(study: StudyEntry) -> list[Difference]:
    """List every contrast of a study in a headline measure, in the order of its verdict."""
    arms = {run.arm: run for run in study.runs if run.result}
    contrasts = []
    for row in study.verdict["contrasts"] if study.verdict else []:
        if row["measure"] in measures_in("headline") and {row["arm"], row["baseline"]} <= set(arms):
            arm, reference = arms[row["arm"]], arms[row["baseline"]]
            is_own = (arm.result or {})["baseline"] == reference.arm
            names = arm.variant, reference.variant, arm.setting
            contrasts.append(Difference(study, row, *names, is_own))
    return contrasts


def by_measure(studies: Iterable[StudyEntry]) -> dict[str, dict[str, list[Difference]]]:
    """Group every contrast of several studies: measure → name of the contrast → in each study and
    setting; the main measure first."""
    groups: dict[str, dict[str, list[Difference]]] = {}
    for study in studies:
        for one in differences(study):
            groups.setdefault(one.row["measure"], {}).setdefault(one.name, []).append(one)
    return {m: groups[m] for m in dict.fromkeys([MAIN, *MEASURES, *groups]) if m in groups}


def pooled(studies: Iterable[StudyEntry]) -> list[dict[str, Any]]:
    """Test every contrast in a headline measure that several recorded studies hold, over their
    seeds together. Settings of a study are told apart: a row names those that it is of."""
    recorded: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
    for study in studies:
        for run in study.runs if study.recorded else []:
            if run.result:
                baseline = study.grid.get(run.result["baseline"], {}).get(run.seed)
                name = f"{study.name} ({run.setting})" if run.setting else study.name
                of = recorded.setdefault(name, {})
                pair = (each for each in (run, baseline) if each and each.result)
                of.update({(each.arm, each.seed): each.result or {} for each in pair})
    return []


def reach(rows: Iterable[Difference]) -> float:
    """Return how far an axis for these differences reaches to each side of zero: over all of them,
    unless few are far larger than the rest."""
    ends = []
    for each in rows:
        values = [each.row[key] for key in ("t_low", "t_high", "mean_delta")]
        ends.append(max((abs(value) for value in values if value is not None), default=0.0))
    return min(max(ends), 4 * statistics.median(ends)) or max(ends) or 1.0


def place(value: float, reach: float) -> float:
    """Return where a value stands on such an axis, in percent of its width."""
    return round(50 + 48 * max(-1.0, min(1.0, value / reach)), 2)


@cache
def curves(run: NotebookEntry) -> dict[str, Any]:
    """Read a run's curves, thinned: name → steps and values, beside the look of its line. Empty
    where it has left none; of a run in training, what there is so far."""
    folder, names = raw_folder(run.path), ("trace", "curve")
    if all(raw_file(folder, name).is_file() for name in names):
        tables = [read_raw_file(folder, name) for name in names]
    else:
        tables = [read_live(run.path.parent)]
    look = variant(run.variant)
    lines = {
        name: _thinned(table.loc[np.isfinite(table[name]), ["step", name]].to_numpy(), digits)
        for name, digits in zip(CURVES, (4, 6, 4), strict=True)  # dev losses are subtracted
        for table in tables
        if name in table and np.isfinite(table[name]).any()
    }
    if not lines:
        return {}
    dashes = " ".join(map(str, look.dashes))
    return {"variant": look.label, "colour": look.colour, "dashes": dashes, "lines": lines}


@dataclass(frozen=True)
class Column:
    """A factor that some study varies, or a measure."""

    name: str
    label: str
    studies: frozenset[str] = frozenset()
    """Those that vary it."""
    words: tuple[str, ...] = ()
    """Its values, where some of them are no numbers."""

    @property
    def common(self) -> bool:
        """Whether it is always shown, not only when a study that varies it is chosen."""
        return len(self.studies) != 1

    @property
    def is_measure(self) -> bool:
        return not self.studies

    def value(self, run: NotebookEntry) -> Any:
        """Return what a run has here: a measure, a level or, of what its study leaves alone, the
        field of its configuration; None where it has left none."""
        if self.is_measure:
            return run.measures.get(self.name)
        section, _, name = self.name.partition(".")
        fixed = (run.result or {}).get("config", {}).get(section, {})
        return run.levels.get(self.name, fixed.get(name) if isinstance(fixed, dict) else None)

    def text(self, run: NotebookEntry) -> str:
        """Write a factor as names of arms do: `0.003`, `true`, `none`."""
        value = self.value(run)
        return "" if value is None else arm_id({self.name: value}).rpartition("=")[2]

    def plain(self, run: NotebookEntry) -> float | str:
        """Return what filters and sorting compare: a number or, of words, the text."""
        value = self.value(run)
        return self.text(run) if self.words else "" if value is None else value


def columns(studies: Iterable[StudyEntry]) -> list[Column]:
    """List the measures, then the factors of some studies, those that most of them vary first."""
    runs = [run for study in studies for run in study.runs]
    varied: dict[str, set[str]] = {}
    for run in runs:
        for name in run.levels:
            if name in FIELDS or name == CODE:
                varied.setdefault(name, set()).add(run.study)
    all_columns = [Column(name, MEASURES[name].label) for name in measures_in("headline")]
    for name, studies_varying in sorted(varied.items(), key=lambda pair: -len(pair[1])):
        column = Column(name, name.rpartition(".")[2].replace("_", " "), frozenset(studies_varying))
        values = [column.value(run) for run in runs]
        if not all(value is None or type(value) in (int, float) for value in values):
            words = dict.fromkeys(text for run in runs if (text := column.text(run)))
            column = Column(name, column.label, column.studies, tuple(words))
        all_columns.append(column)
    return all_columns


def about(run: NotebookEntry, columns: Iterable[Column]) -> dict[str, Any]:
    """Return a run's curves with what it is filtered, grouped and paired by, and what it wrote."""
    result = run.result or {}
    words = [run.arm, f"seed {run.seed}", run.study, run.status]
    words += [result.get("final_weights", ""), sha256(run.path)]
    return curves(run) | {
        "study": run.study,
        "arm": run.arm,
        "seed": run.seed,
        "status": run.status,
        "baseline": result.get("baseline", ""),
        "words": " ".join(words).lower(),
        "values": [column.plain(run) for column in columns],
        "sample": sample(run.path),
    }


def quantiles(studies: Iterable[StudyEntry]) -> list[float]:
    """Return the 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom, as many as any
    pairs of runs can have."""
    most = sum(len({run.seed for run in study.runs}) for study in studies)
    return [round(float(stats.t.ppf(0.975, freedom)), 4) for freedom in range(1, most)]


def _thinned(points: NDArray[np.float64], digits: int) -> list[list[float]]:
    """Keep of points (n, 2) the lowest and the highest of each of `POINTS` stretches, so that no
    spike is lost, and both ends; return steps and values."""
    if len(points) > 2 * POINTS:
        edges = np.linspace(0, len(points), POINTS + 1).astype(int)
        stretches = [(start, points[start:end, 1]) for start, end in itertools.pairwise(edges)]
        indices = {start + offset for start, y in stretches for offset in (y.argmin(), y.argmax())}
        points = points[sorted(indices | {0, len(points) - 1})]
    values = [float(f"{value:.{digits}g}") for value in points[:, 1]]
    return [points[:, 0].astype(int).tolist(), values]
