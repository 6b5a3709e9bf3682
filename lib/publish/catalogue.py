"""What there is to show of all studies: their runs, recorded or in progress, and how each ended."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.publish.archive import MANIFEST, record_folder, results_file, verdict_file
from lib.study.config import load_study
from lib.study.errors import ConfigError
from lib.study.paths import PARAMS, RUNS, study_folder
from lib.study.record import status_of

SHARED = ("01_data", "03_analysis", "04_figures")
"""Notebooks that are executed once per study."""


@dataclass(frozen=True)
class NotebookEntry:
    """An executed notebook and what came of it."""

    path: Path
    status: str
    """completed, diverged, failed or unfinished."""
    reason: str
    seconds: float | None


@dataclass(frozen=True)
class RunEntry:
    """One run of a study; `result` is None where none was written."""

    study: str
    arm: str
    seed: int
    levels: dict[str, Any]
    notebook: NotebookEntry
    result: dict[str, Any] | None

    @property
    def coordinates(self) -> dict[str, Any]:
        """Its place in the grid of its study: a level of every factor, and the seed."""
        return self.levels | {"seed": self.seed}


@dataclass(frozen=True)
class StudyEntry:
    """A study, from its record or, while it has none, from `runs/`."""

    name: str
    recorded: bool
    description: str
    shared: dict[str, NotebookEntry]
    runs: list[RunEntry]
    summary: dict[str, Any]
    """Number, mean and sd per arm and measure; empty until recorded."""
    verdict: dict[str, Any] | None

    @property
    def confirmatory(self) -> bool:
        """Whether the plan lets its numbers decide."""
        return bool(self.verdict and self.verdict["standing"] == "CONFIRMATORY")

    @property
    def status(self) -> str:
        """recorded, failed (a notebook did) or in progress."""
        notebooks = [*self.shared.values(), *(run.notebook for run in self.runs)]
        failed = any(notebook.status == "failed" for notebook in notebooks)
        return "failed" if failed else "recorded" if self.recorded else "in progress"


def catalogue() -> list[StudyEntry]:
    """List every study that has a complete record or executed notebooks in `runs/`; the
    confirmatory one first, then by name."""
    names = {path.parent.name for path in record_folder("").glob(f"*/{MANIFEST}")}
    names |= {path.parent.name for path in RUNS.glob("*/*.ipynb")}
    names |= {path.parents[2].name for path in RUNS.glob("*/*/seed-*/02_train.ipynb")}
    studies = [recorded(name) or in_progress(name) for name in names]
    return sorted(
        (study for study in studies if study.runs or study.shared),
        key=lambda study: (not study.confirmatory, study.name),
    )


def recorded(name: str) -> StudyEntry | None:
    """Read a study from its record; None when that lacks a file that it needs."""
    folder = record_folder(name)
    needed = [folder / MANIFEST, results_file(name), verdict_file(name)]
    if not all(path.is_file() for path in needed):
        return None
    results = _read(results_file(name))
    runs = [
        _run(folder, name, result["arm"], result["seed"], result["levels"], result)
        for result in results["runs"]
    ]
    shared = {notebook: folder / f"{notebook}.ipynb" for notebook in SHARED}
    if not all(path.is_file() for path in [*shared.values(), *(r.notebook.path for r in runs)]):
        return None
    return StudyEntry(
        name=name,
        recorded=True,
        description=_description(name),
        shared={notebook: _entry(path) for notebook, path in shared.items()},
        runs=runs,
        summary=results["summary"],
        verdict=_read(verdict_file(name)),
    )


def in_progress(name: str) -> StudyEntry:
    """Read what a study has left in `runs/` so far, in the order of its design where that loads."""
    folder = study_folder(name)
    try:
        design = {arm.id: arm.levels for arm in load_study(name).arms()}
    except ConfigError:
        design = {}
    order = list(design)
    found = [
        (path.parents[1].name, int(path.parent.name.removeprefix("seed-")))
        for path in folder.glob("*/seed-*/02_train.ipynb")
    ]
    found.sort(key=lambda run: (order.index(run[0]) if run[0] in order else len(order), run))
    runs = []
    for arm, seed in found:
        result = folder / arm / f"seed-{seed}" / "result.json"
        content = _read(result) if result.is_file() else None
        runs.append(_run(folder, name, arm, seed, design.get(arm, {"arm": arm}), content))
    shared = {notebook: folder / f"{notebook}.ipynb" for notebook in SHARED}
    verdict = folder / "verdict.json"
    return StudyEntry(
        name=name,
        recorded=False,
        description=_description(name),
        shared={notebook: _entry(path) for notebook, path in shared.items() if path.is_file()},
        runs=runs,
        summary={},
        verdict=_read(verdict) if verdict.is_file() else None,
    )


def neighbours(run: RunEntry, runs: list[RunEntry]) -> dict[str, list[RunEntry | None]]:
    """For the seed and each factor, find the previous and the next run that differ from this one in
    nothing else; None at an end. Axes along which nothing else lies are left out."""
    found: dict[str, list[RunEntry | None]] = {}
    for axis in run.coordinates:
        line = [other for other in runs if _across(other, axis) == _across(run, axis)]
        ends: list[RunEntry | None] = [None, *line, None]
        if len(line) > 1:
            found[axis] = next(
                [before, after]
                for before, here, after in zip(ends, line, ends[2:], strict=False)
                if here is run
            )
    return found


def _across(run: RunEntry, axis: str) -> dict[str, Any]:
    return {name: level for name, level in run.coordinates.items() if name != axis}


def _run(
    folder: Path, study: str, arm: str, seed: int, levels: dict[str, Any], result: Any
) -> RunEntry:
    entry = _entry(folder / arm / f"seed-{seed}" / "02_train.ipynb")
    status, reason, seconds = entry.status, entry.reason, entry.seconds
    if status == "completed":
        if result is None:
            status, reason = "unfinished", "it has left no result"
        elif result["status"] == "diverged":
            status, reason = "diverged", f"at step {result['diverged_at']}"
    if result is not None:  # an evaluation made anew is no measure of how long the run took
        seconds = sum(result["seconds"].values())
    notebook = NotebookEntry(entry.path, status, reason, seconds)
    return RunEntry(study, arm, seed, levels, notebook, result)


def _entry(path: Path) -> NotebookEntry:
    stamp = status_of(path)
    return NotebookEntry(path, stamp["status"], stamp.get("reason", ""), stamp.get("seconds"))


def _description(name: str) -> str:
    """What the parameter file says of its study: the comment that it begins with."""
    file = PARAMS / f"{name}.yaml"
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.lstrip("# ") for line in comment)


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))
