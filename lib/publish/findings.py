"""A paper's own notebook: `findings.ipynb` beside it asks the recorded studies what only it asks.

It writes `findings.json`, which the paper quotes, and `figures/findings/` into the folder in which
it is executed. It is committed with its outputs: `check_findings` executes it again and compares.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
from nbclient import NotebookClient

from lib.analysis.runs import tidy
from lib.publish.paper import same
from lib.record.archive import Record, papers_named
from lib.record.build import same_json
from lib.record.notebook import differing_cells, slim, without_warnings
from lib.record.warm import over_sockets, prefer_forks
from lib.results import RunResult
from lib.study.io import ROOT, read_json, relative
from lib.study.plan import ALPHA, Plan
from lib.study.preregistration import load_plan
from lib.study.study import Study, load_study

NOTEBOOK, TABLES, FIGURES = "findings.ipynb", "findings.json", "figures/findings"


@dataclass(frozen=True)
class RecordedStudy:
    """A recorded study, as tables."""

    record: Record
    design: Study
    plan: Plan | None
    runs: pd.DataFrame
    """The tidy table, see `lib.analysis.runs.tidy`."""
    verdict: dict[str, Any]

    @property
    def alpha(self) -> float:
        return self.plan.alpha if self.plan else ALPHA


def recorded(study: str) -> RecordedStudy:
    """Read a study's runs and verdict from the record."""
    design, record = load_study(study), Record(study)
    runs = tidy(RunResult.model_validate(run) for run in record.runs)
    return RecordedStudy(record, design, load_plan(design), runs, record.verdict)


def execute(paper: Path, folder: Path) -> None:
    """Execute a paper's notebook in a folder, which gets the notebook and what it writes."""
    notebook = nbformat.read(paper / NOTEBOOK, as_version=4)
    where: dict[str, Any] = {"metadata": {"path": folder}}
    prefer_forks()
    with tempfile.TemporaryDirectory(prefix="kernel-") as sockets:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            record_timing=False,
            resources=where,
            config=over_sockets(sockets),
        )
        client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})
    slim(without_warnings(notebook))
    for picture in (folder / FIGURES).glob("*.png"):  # the notebook shows it; the paper takes PDF
        picture.unlink()
    notebook.metadata.pop("language_info", None)
    nbformat.write(notebook, folder / NOTEBOOK)


def check_findings(paper: Path) -> Iterator[str]:
    """Execute a paper's notebook again; yield what it says or draws otherwise than is committed.
    Yield also what is there of it without it."""
    if not (paper / NOTEBOOK).is_file():
        for name in (TABLES, FIGURES):
            if (paper / name).exists():
                yield f"{name} is there without {NOTEBOOK}; restore that from git, or delete both"
        return
    remedy = "run ./run_all.sh paper"
    with tempfile.TemporaryDirectory(prefix="findings-") as temporary:
        folder = Path(temporary)
        execute(paper, folder)
        notebooks = [read_json(root / NOTEBOOK) for root in (paper, folder)]
        if _around_outputs(notebooks[0]) != _around_outputs(notebooks[1]):
            yield f"{NOTEBOOK} holds what executing it does not write; {remedy}"
        for number in differing_cells(*notebooks):
            yield f"code cell {number} of {NOTEBOOK} shows what executing it does not; {remedy}"
        tables = paper / TABLES
        if not tables.is_file() or not same_json(read_json(tables), read_json(folder / TABLES)):
            yield f"{TABLES} is not what {NOTEBOOK} finds; {remedy}"
        old, new = (
            {path.name: path.read_bytes() for path in (root / FIGURES).glob("*")}
            for root in (paper, folder)
        )
        for name in sorted({*old, *new}):
            if name not in old or name not in new or not same(old[name], new[name]):
                yield f"figure findings/{name} is not what {NOTEBOOK} draws; {remedy}"


def _around_outputs(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return all of a notebook but what outputs show, which is compared cell by cell, and how large
    pictures are, which differs between machines."""

    def around(output: dict[str, Any]) -> dict[str, Any]:
        metadata = {kind: [*about] for kind, about in output.get("metadata", {}).items()}
        return output | {"metadata": metadata, "data": None, "text": None}

    cells = [
        cell | {"outputs": [around(output) for output in cell.get("outputs", [])]}
        for cell in notebook["cells"]
    ]
    return notebook | {"cells": cells}


def main(names: list[str]) -> None:
    """Execute the notebooks of the papers named, or of all that have one."""
    for paper in papers_named(names):
        if (paper / NOTEBOOK).is_file():
            shutil.rmtree(paper / FIGURES, ignore_errors=True)
            execute(paper, paper)
            print(f"Findings            {relative(paper / NOTEBOOK)}, {relative(paper / TABLES)}")
