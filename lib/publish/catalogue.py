"""What the site shows: every study's executed notebooks, recorded or in progress."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from filelock import FileLock, Timeout

from lib.publish.plans import standing_shown
from lib.record.archive import (
    MANIFEST,
    SHARED,
    Record,
    index_file,
    paper_of,
    read_index,
    superseded,
)
from lib.results import status_of, trained_with
from lib.study.io import PARAMS, RUNS, read_json, relative, study_folder
from lib.study.metrics import MAIN
from lib.study.study import STUDY_NAME, arm_id, load_study
from lib.study.yaml import ConfigError, UserError, explain_os, read_yaml


@dataclass(frozen=True, eq=False)
class NotebookEntry:
    """An executed notebook. That of a run has an arm, a seed, levels and, if the run left one, a
    result; that of a whole study has none of these."""

    study: str
    path: Path
    status: str
    """completed, diverged, failed, running or unfinished."""
    reason: str
    seconds: float | None
    arm: str = ""
    seed: int = 0
    levels: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] | None = None

    @property
    def title(self) -> str:
        return f"{self.arm}, seed {self.seed}" if self.arm else self.path.stem

    @property
    def page(self) -> str:
        """Where its page lies in the site."""
        run = f"{self.arm}/seed-{self.seed}" if self.arm else self.path.stem
        return f"{self.study}/{run}.html"

    @property
    def id(self) -> str:
        """What an address calls a run."""
        return f"{self.study}/{self.arm}/{self.seed}"

    @property
    def place(self) -> str:
        """Where it lies in the repository, or within the file of a sealed record."""
        record = Record(self.study)
        if record.is_sealed and self.path.is_relative_to(record.folder):
            name = record.name(self.path)
            if not (record.place / name).is_file():
                return f"{name} in {relative(record.sealed_file)}"
            return relative(record.place / name)
        return relative(self.path)

    @property
    def variant(self) -> str:
        """What is compared: as the result says, or the level of the first factor."""
        first = dict(itertools.islice(self.levels.items(), 1))
        return str((self.result or {}).get("variant") or arm_id(first))

    @property
    def setting(self) -> str:
        """The levels of all other factors; "" where there are none."""
        rest = dict(itertools.islice(self.levels.items(), 1, None))
        setting = (self.result or {}).get("setting")
        return str(setting if setting is not None else arm_id(rest) if rest else "")

    @property
    def measures(self) -> dict[str, float | None]:
        return self.result["measures"] if self.result else {}

    @property
    def coordinates(self) -> dict[str, Any]:
        """The run's place in the grid of its study: a level of every factor, and the seed."""
        return self.levels | {"seed": self.seed}


Lines = dict[tuple[str, frozenset[tuple[str, Any]]], list[NotebookEntry]]
"""What differs, and all that does not → the runs, in order."""


@dataclass(frozen=True)
class StudyEntry:
    """A study, from its record or, while it has none, from `runs/`."""

    name: str
    recorded: bool = False
    shared: list[NotebookEntry] = field(default_factory=list)
    runs: list[NotebookEntry] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    """Number, mean and sd per arm and measure; empty until recorded."""
    verdict: dict[str, Any] | None = None
    parameters: str = ""
    """The parameter file, every default filled in; empty until recorded."""
    trouble: str = ""
    """What is wrong with its files, in a line."""

    @property
    def standing(self) -> str:
        """CONFIRMATORY or EXPLORATORY, and which studies of its plan are missing beside it; empty
        until there is a verdict."""
        return standing_shown(self.name, self.verdict) if self.verdict else ""

    @property
    def confirmatory(self) -> bool:
        return bool(self.verdict and self.verdict["standing"] == "CONFIRMATORY")

    @property
    def looked_at_early(self) -> bool:
        """Whether a hypothesis was decided at a look, by fewer seeds than there are now."""
        tests = (self.verdict or {}).get("hypothesis_tests", [])
        return any(test["n"] < len(self.grid.get(test["arm"], {})) for test in tests)

    @property
    def started(self) -> str:
        """When its first run began; empty where no result says so."""
        results = [run.result for run in self.runs if run.result]
        dates = (str(trained_with(result["provenance"]).get("started", "")) for result in results)
        return min(dates, default="")

    def cell(self, notebook: str, name: str) -> str:
        """Return the address of a cell on the page of a notebook of the whole study; empty where
        that has not been executed. `lib.publish.pages.CELLS` names the cells."""
        pages = [shared.page for shared in self.shared if shared.title == notebook]
        return f"{quote(pages[0])}#{name}" if pages else ""

    @property
    def status(self) -> str:
        """recorded, damaged (a file of it is), failed (one of its notebooks did) or in progress."""
        if self.trouble:
            return "damaged"
        failed = any(notebook.status == "failed" for notebook in [*self.shared, *self.runs])
        return "failed" if failed else "recorded" if self.recorded else "in progress"

    @cached_property
    def lines(self) -> Lines:
        return lines_of(self.runs)

    @cached_property
    def grid(self) -> dict[str, dict[int, NotebookEntry]]:
        """The runs by arm and seed."""
        grid: dict[str, dict[int, NotebookEntry]] = {}
        for run in self.runs:
            grid.setdefault(run.arm, {})[run.seed] = run
        return grid

    @property
    def description(self) -> str:
        """The comment at the top of the study's parameter file."""
        file = PARAMS / f"{self.name}.yaml"
        lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
        comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
        return " ".join(line.lstrip("# ") for line in comment).replace("`", "")

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """A row per arm of a confirmatory study: its decision (None where no rule reaches one), its
        hypotheses, and its contrasts with its baseline. Rules judge no other study, whatever an
        older verdict holds."""
        if not self.verdict or not self.confirmatory:
            return []
        decided = {decision["arm"]: decision for decision in self.verdict["decisions"]}
        baselines = {run.arm: run.result["baseline"] for run in self.runs if run.result}
        contrasts = {
            (row["arm"], row["measure"]): row
            for row in self.verdict["contrasts"]
            if row["baseline"] == baselines.get(row["arm"])
        }
        rows = []
        for evidence in self.verdict["evidence"]:
            primary = evidence.get("primary", evidence.get("accuracy"))  # its older name
            arm, measures = evidence["arm"], dict.fromkeys([*primary, MAIN])
            row = {"arm": arm, "decision": decided.get(arm)}
            row["contrasts"] = [contrasts[arm, m] for m in measures if (arm, m) in contrasts]
            row["hypotheses"] = self.verdict.get("hypotheses", {}).get(arm, {})
            rows.append(row)
        return rows


def catalogue(paper: Path) -> list[StudyEntry]:
    """List a paper's studies that have a record or executed notebooks in `runs/`: confirmatory ones
    first, and of these the newest. One whose files are damaged says so."""
    names = {path.parent.name for path in RUNS.glob("[!.]*/*.ipynb")}
    names |= {path.parents[2].name for path in RUNS.glob("[!.]*/*/seed-*/02_train.ipynb")}
    names = {name for name in names if STUDY_NAME.fullmatch(name) and paper_of(name) == paper}
    record_names = {path.parent.name for path in paper.glob(f"record/[!.]*/{MANIFEST}")}
    record_names |= {path.stem for path in paper.glob("record/[!.]*.zip")}
    index, _ = index_of(paper)
    record_names |= {*index} - {*superseded(index)}
    # Of what else lies there, `verify` tells.
    record_names = {*filter(STUDY_NAME.fullmatch, record_names)}
    entries = [_read(name, name in record_names) for name in sorted(names | record_names)]
    entries.sort(key=lambda pair: pair[0], reverse=True)
    return [study for _, study in entries if study.runs or study.shared or study.trouble]


def _read(name: str, is_kept: bool) -> tuple[tuple[bool, str], StudyEntry]:
    """Read a study, of which a record is kept or not; return by what it is sorted, and it."""
    fault = changed(name) if is_kept else ""
    try:
        if (file := PARAMS / f"{name}.yaml").is_file():
            read_yaml(file)
        study = recorded(name) or in_progress(name)
        lacks = "its record lacks a file; restore it, or record the study again"
        study = replace(study, trouble=fault or (lacks if is_kept and not study.recorded else ""))
        return (study.confirmatory, study.started if study.confirmatory else ""), study
    except Exception as error:  # a file can be broken in any way
        return (False, ""), StudyEntry(name, trouble=fault or why(error))


def recorded(name: str) -> StudyEntry | None:
    """Read a study from its record; None when a file of the record is missing."""
    record = Record(name)
    folder, parameters = record.folder, record.folder / "parameters.yaml"
    needed = [folder / MANIFEST, parameters, record.results_file, record.verdict_file]
    if not all(path.is_file() for path in needed):
        return None
    results, shared = record.results, list(_shared(name, folder))
    runs = [_run(name, folder, r["arm"], r["seed"], r["levels"], r) for r in record.runs]
    if len(shared) < len(SHARED) or not all(run.path.is_file() for run in runs):
        return None
    text = parameters.read_text("utf-8")
    return StudyEntry(name, True, shared, runs, results["summary"], record.verdict, text)


def in_progress(name: str) -> StudyEntry:
    """Read what a study has left in `runs/` so far, in the order of its design where that loads."""
    folder = study_folder(name)
    try:
        design = {arm.id: arm.levels for arm in load_study(name).arms()}
    except ConfigError:
        design = {}
    runs = []
    for path in folder.glob("*/seed-*/02_train.ipynb"):
        arm, seed = path.parents[1].name, path.parent.name.removeprefix("seed-")
        if not seed.isdecimal():  # a copy that somebody set aside
            continue
        result = path.with_name("result.json")
        content = read_json(result) if result.is_file() else None
        runs.append(_run(name, folder, arm, int(seed), design.get(arm, {"arm": arm}), content))
    order = {arm: number for number, arm in enumerate(design)}
    runs.sort(key=lambda run: (order.get(run.arm, len(order)), run.arm, run.seed))
    verdict = folder / "verdict.json"
    content = read_json(verdict) if verdict.is_file() else None
    return StudyEntry(name, False, list(_shared(name, folder)), runs, {}, content, "")


def lines_of(runs: list[NotebookEntry]) -> Lines:
    """Group runs that differ in one thing only, a factor or the seed."""
    lines: Lines = {}
    for run in runs:
        for axis in run.coordinates:
            lines.setdefault(_line(run, axis), []).append(run)
    return lines


def neighbours(
    run: NotebookEntry, lines: Lines
) -> dict[str, tuple[NotebookEntry | None, NotebookEntry | None]]:
    """Find the previous and the next run that differ from this one only in the seed, or in one
    factor; None at an end. An axis with no other run on it is left out."""
    pairs = {}
    for axis in run.coordinates:
        line = lines[_line(run, axis)]
        position = next(i for i, other in enumerate(line) if other is run)
        if len(line) > 1:
            ends = [None, *line, None]
            pairs[axis] = (ends[position], ends[position + 2])
    return pairs


def _line(run: NotebookEntry, axis: str) -> tuple[str, frozenset[tuple[str, Any]]]:
    return axis, frozenset((n, level) for n, level in run.coordinates.items() if n != axis)


def _shared(study: str, folder: Path) -> Iterator[NotebookEntry]:
    for path in (folder / f"{name}.ipynb" for name in SHARED):
        if path.is_file():
            yield NotebookEntry(study, path, *_stamp(path))


def _run(
    study: str, folder: Path, arm: str, seed: int, levels: dict[str, Any], result: Any
) -> NotebookEntry:
    path = folder / arm / f"seed-{seed}" / "02_train.ipynb"
    status, reason, seconds = _stamp(path)
    if status == "unfinished" and _is_held(path.with_suffix(".lock")):
        status, reason = "running", ""
    elif status == "completed" and result is None:
        status, reason = "unfinished", "it has left no result"
    elif status == "completed" and result["status"] == "diverged":
        status, reason = "diverged", f"at step {result['diverged_at']}"
    if result is not None:  # the stamp also times notebooks that only evaluated a trained model
        seconds = sum(result["seconds"].values())
    return NotebookEntry(study, path, status, reason, seconds, arm, seed, levels, result)


def _is_held(lock: Path) -> bool:
    """Tell whether a process holds a lock: whoever executes a notebook holds that beside it."""
    if not lock.is_file():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True


def _stamp(path: Path) -> tuple[str, str, float | None]:
    stamp = status_of(path)
    return str(stamp["status"]), str(stamp.get("reason", "")), stamp.get("seconds")


def index_of(paper: Path) -> tuple[dict[str, dict[str, Any]], str]:
    """Return what the index of a paper's record names, and what is wrong with it; "" where nothing
    is."""
    try:
        index = read_index(paper)
    except (UserError, OSError) as error:
        return {}, why(error)
    entries = {
        n: entry
        for n, entry in index.items()
        if isinstance(entry, dict) and STUDY_NAME.fullmatch(n)
    }
    if others := [name for name in index if name not in entries]:
        fault = f"{relative(index_file(paper))} names {others[0]!r}, which is no study; restore it"
        return entries, fault
    return entries, ""


def changed(name: str) -> str:
    """Say which files of a record are not as its manifest says; empty where all are."""
    try:
        faults = [fault.removeprefix("../../") for fault in Record(name).check_files()]
    except (OSError, ValueError):
        faults = [f"its {MANIFEST}, or a file that it lists, cannot be read"]
    more = f" (and {len(faults) - 1} more)" if faults[1:] else ""
    return f"{faults[0]}{more}; restore it, or record the study again" if faults else ""


def why(error: Exception) -> str:
    """Say in a line why a file could not be read or shown."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return explain_os(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"a file cannot be read as what it is ({text[:200]}); restore it, or delete it"
