"""The record of a study, and where everything of it lies.

`papers/<paper>/record/<study>/` is laid out like `runs/<study>/`, with results and raw files of the
runs in `raw.zip`; its MANIFEST.sha256 can also be checked by `sha256sum -c` from that folder. A
sealed record is in `record/<study>.zip`; of some the notebooks of the whole study stay outside.
`record/index.json` says what the record of a paper holds, so that no study or run can vanish.
"""

import atexit
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache, cached_property, lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from lib.results import Folder, read_raw, read_raw_file
from lib.study.inputs import ZipError, unpack
from lib.study.io import PAPER, PAPERS, PARAMS, PLANS, RUNS, read_json, relative, run_folder, sha256
from lib.study.plan import Plan
from lib.study.schema import digest
from lib.study.study import Study
from lib.study.yaml import ConfigError, UsageError, UserError, read_yaml, suggest

Run = dict[str, Any]
"""A `RunResult` as JSON."""
MANIFEST = "MANIFEST.sha256"
RAW_ZIP = "raw.zip"
SHARED = {
    "01_data": "What the models read, and the task suite.",
    "03_analysis": "All runs in one table, statistics, verdict.",
    "04_figures": "The study in pictures.",
}
"""Notebooks that are executed once per study, and what each of them shows."""
WHOLE_ZIP = "record.zip"


class Record:
    """What is kept of a study. A file is read when it is first asked for, and then no more."""

    def __init__(self, study: str, paper: Path | None = None) -> None:
        self.study, self.paper = study, paper or paper_of(study)
        self.place = self.paper / "record" / study
        self.sealed_file = self.place.with_name(f"{study}.zip")
        self.is_sealed = self.sealed_file.is_file() and not (self.place / MANIFEST).is_file()
        self.folder = self.place
        if self.is_sealed:
            beside = sorted(p for p in self.place.rglob("*") if p.is_file())
            files = (path.resolve() for path in (self.sealed_file, *beside))  # however reached
            self.folder = _unsealed(*((path, path.stat().st_mtime_ns) for path in files))
        """Where its files are read: a sealed record is unpacked in a temporary folder."""
        self.results_file = self.paper / "results" / f"{study}.json"
        self.verdict_file = self.paper / "results" / f"{study}.verdict.json"
        self.figures = self.paper / "figures" / study
        self._read: dict[Path, dict[str, Any]] = {}
        self.answers: dict[Any, dict[str, Any]] = {}
        """What the code of each environment says of it, and what went wrong, by question."""
        self.is_whole = True
        """Whether nothing of it was left out that could not be made again here."""

    def notebook(self, name: str) -> Path:
        """Return where a notebook of the whole study is kept."""
        return self.folder / f"{name}.ipynb"

    def run_notebook(self, run: Run) -> Path:
        """Return where the notebook of a run, told by arm and seed, is kept."""
        return self.folder / str(run["arm"]) / f"seed-{run['seed']}" / "02_train.ipynb"

    def name(self, path: Path) -> str:
        """Name a file by its path in the record."""
        return path.relative_to(self.folder).as_posix()

    def read(self, path: Path) -> dict[str, Any]:
        """Read a JSON file or a notebook as JSON."""
        if path not in self._read:
            self._read[path] = read_json(path)
        return self._read[path]

    def raw(self, run: Run) -> dict[str, pd.DataFrame]:
        """Read the raw files of a run."""
        path = self.run_notebook(run).parent
        if path not in self._read:
            self._read[path] = read_raw(raw_folder(path / "02_train.ipynb"))
        return self._read[path]

    def joined(self, name: str) -> pd.DataFrame:
        """Join one of the raw files of all runs (see `lib.results`), with arm and seed."""
        parts = [
            read_raw_file(raw_folder(self.run_notebook(run)), name).assign(
                arm=run["arm"], seed=run["seed"]
            )
            for run in self.runs
        ]
        return pd.concat(parts, ignore_index=True)

    @property
    def results(self) -> dict[str, Any]:
        """What is quoted of a study: its parameters, and number, mean and sd of every measure by
        arm."""
        return self.read(self.results_file)

    @cached_property
    def runs(self) -> list[Run]:
        """Every run, a `RunResult` as JSON, in the order of the design. Older records hold them
        among the results."""
        if "runs" in self.results:
            return list(self.results["runs"])

        arms, seeds = self.parameters.arms(), self.parameters.seeds
        return [self._result({"arm": arm.id, "seed": seed}) for arm, seed in product(arms, seeds)]

    def _result(self, run: Run) -> Run:
        """Read what a run, told by arm and seed, has left. UserError where that is missing."""
        path = raw_folder(self.run_notebook(run)) / "result.json"
        if not path.is_file():
            raise UserError(f"{run_name(run)}: its result.json is missing")
        result: Run = json.loads(path.read_bytes())
        return result

    @cached_property
    def verdict(self) -> dict[str, Any]:
        """Contrasts and decisions, each table a list of rows. UserError for a broken table."""
        content = self.read(self.verdict_file)
        try:
            return {name: as_rows(each) for name, each in content.items()}
        except (TypeError, ValueError):
            why = "holds a table whose rows do not fit its columns; restore it from git"
            raise UserError(f"{relative(self.verdict_file)} {why}") from None

    @property
    def entry(self) -> dict[str, Any]:
        """What the index says of the study; empty where it does not name it."""
        return dict(read_index(self.paper).get(self.study, {}))

    @cached_property
    def parameters(self) -> Study:
        """The study as it was recorded."""
        return Study.model_validate(read_yaml(self.folder / "parameters.yaml"))

    @cached_property
    def plan(self) -> Plan | None:
        """The plan as it was recorded; None where the study has none."""
        path = self.folder / "plan.yaml"
        return Plan.model_validate(read_yaml(path)) if path.is_file() else None

    @cached_property
    def manifest(self) -> dict[str, str]:
        """The hash of every file by its name, as the manifest says; empty where there is none."""
        path = self.folder / MANIFEST
        lines = path.read_text("utf-8").splitlines() if path.is_file() else []
        return {name: hexdigest for hexdigest, _, name in (line.partition("  ") for line in lines)}

    @property
    def files(self) -> dict[str, Path]:
        """Every file that a manifest lists, by the name it has there: the record, the figures and
        the results."""
        beside = [*self.figures.rglob("*"), self.results_file, self.verdict_file]
        files = {Path(os.path.relpath(path, self.place)).as_posix(): path for path in beside}
        files |= {self.name(path): path for path in self.folder.rglob("*")}
        files.pop(MANIFEST, None)
        return {
            name: files[name] for name in sorted(files, key=self._path) if files[name].is_file()
        }

    def _path(self, name: str) -> Path:
        return Path(os.path.normpath(self.place / name))

    def manifest_text(self) -> str:
        """Write the hash of every file as it is, a line each: what a manifest holds."""
        return "".join(f"{sha256(path)}  {name}\n" for name, path in self.files.items())

    def check_files(self) -> Iterator[str]:
        """Yield every file that is not as the manifest says. A sealed record keeps few figures."""
        present = self.files
        if not self.manifest:
            yield f"its {MANIFEST} is missing or empty"
        missing = [name for name in self.manifest if name not in present]
        for name in missing:
            if not (self.is_sealed and name.startswith("../../figures/")):
                yield f"{name} is missing"
        for name, path in present.items():
            if name not in self.manifest:
                yield f"{name} is not in the manifest"
            elif sha256(path) != self.manifest[name]:
                yield f"{name} has changed"


def as_table(value: Any) -> Any:
    """Write rows that have the same keys with each key once, as `pd.DataFrame(**table)` reads it
    (pandas: `orient="split"`). Anything else stays as it is."""
    if not isinstance(value, list) or len(value) < 2 or not isinstance(value[0], dict):
        return value
    columns = list(value[0])
    if not all(isinstance(row, dict) and list(row) == columns for row in value):
        return value
    return {"columns": columns, "data": [list(row.values()) for row in value]}


def as_rows(value: Any) -> Any:
    """Undo `as_table`; rows, as older records hold them, stay as they are. ValueError for a row of
    another length, and for a column that is there twice."""
    if not isinstance(value, dict) or value.keys() != {"columns", "data"}:
        return value
    columns, rows = value["columns"], value["data"]
    if len({*columns}) < len(columns):
        raise ValueError(columns)
    return [dict(zip(columns, row, strict=True)) for row in rows]


@cache
def _unsealed(sealed: tuple[Path, int], *beside: tuple[Path, int]) -> Path:
    """Unpack a sealed record, and put beside it what was left open, for as long as this process
    lives. Files are told with when they were written. UserError for a file that is in both."""
    file, _ = sealed
    folder = Path(tempfile.mkdtemp(prefix="sealed-"), "record", file.stem)
    atexit.register(shutil.rmtree, folder.parents[1], ignore_errors=True)
    try:
        unpack(file, folder)
        if (whole := folder / WHOLE_ZIP).is_file():
            unpack(whole.rename(folder.with_name(WHOLE_ZIP)), folder)
    except ZipError as error:
        raise UserError(f"{relative(file)}: {error}; restore it from git") from None
    for path, _ in beside:
        copy = folder / path.relative_to(file.with_suffix(""))
        if copy.exists():
            raise UserError(f"{relative(path)} is in {relative(file)}, too; restore both from git")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return folder


def run_name(run: Run) -> str:
    """Name a run for a message."""
    return f"run {run['arm']} seed {run['seed']}"


def raw_folder(notebook: Path) -> Folder:
    """Return where result and raw files of a run are read: in the archive of the record that holds
    its notebook, or, of a run in `runs/`, beside it."""
    archive, folder = notebook.parents[2] / RAW_ZIP, notebook.parent
    if not archive.is_file():
        return folder
    return _opened(archive, archive.stat().st_mtime_ns) / f"{folder.parent.name}/{folder.name}/"


def sample(notebook: Path) -> str:
    """Return the text that an executed notebook of a run printed with its model; empty where it has
    none, or cannot be read."""
    try:
        for cell in json.loads(notebook.read_bytes())["cells"]:
            code = "".join(cell["source"])
            if cell["cell_type"] == "code" and ("continuations(" in code or ".generate(" in code):
                streams = (output.get("text", "") for output in cell["outputs"])
                return "".join("".join(text) for text in streams).rstrip("\n")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # its own page says what is wrong with it
    return ""


@lru_cache(maxsize=8)
def _opened(archive: Path, _: int) -> zipfile.Path:
    """Open an archive as it was last written: that of a thousand runs takes 50 ms."""
    return zipfile.Path(archive)


def paper_of(study: str) -> Path:
    """Return the folder of a study's paper: the one that its parameter file names; where that
    cannot be read, the one that holds its record."""
    file = PARAMS / f"{study}.yaml"
    paper = _paper(file, file.stat().st_mtime_ns) if file.is_file() else None
    return PAPERS / (paper or PAPER.name)


@lru_cache(maxsize=256)
def _paper(file: Path, _: int) -> str | None:
    """Return what a parameter file, as it was last written, names, if anything."""
    try:
        paper = read_yaml(file).get("paper")
    except ConfigError:
        paper = False
    if paper is None or isinstance(paper, str):
        return paper
    return next((path.parents[1].name for path in PAPERS.glob(f"*/record/{file.stem}")), None)


def papers() -> list[Path]:
    """List every folder of a paper, also those that studies in `runs/` will make."""
    folders = [path for path in PAPERS.glob("[!.]*") if path.is_dir()]
    return sorted({PAPER, *folders, *(paper_of(path.name) for path in RUNS.glob("[!.]*/"))})


def papers_named(names: list[str]) -> list[Path]:
    """List the folders of the papers named, or of all; ConfigError for one that is not there."""
    known = {paper.name: paper for paper in papers()}
    for name in names:
        if name not in known:
            raise ConfigError(f"paper: {suggest(name, list(known))} in papers/")
    return [known[name] for name in names or known]


def recorded_studies() -> list[str]:
    """List every study that an index names, or that left anything in a record."""
    indexed = [study for paper in papers() for study in read_index(paper)]
    folders = [path.name for path in PAPERS.glob("*/record/[!.]*") if path.is_dir()]
    results = [path.name.partition(".")[0] for path in PAPERS.glob("*/results/*.json")]
    return sorted({*indexed, *folders, *results})


def finished_run(study: str, arm: str, seed: int) -> Folder | None:
    """Return the folder of what a finished run left, in `runs/` or in the record; None without
    one."""
    recorded = Record(study).run_notebook({"arm": arm, "seed": seed})
    folders = run_folder(study, arm, seed), raw_folder(recorded)
    return next((folder for folder in folders if (folder / "result.json").is_file()), None)


def require_recorded(names: list[str]) -> list[str]:
    """Return the names of studies, given by name or path; UsageError for one without a record."""
    studies, known = [Path(name).stem for name in names], recorded_studies()
    for study in studies:
        if study not in known and (PARAMS / f"{study}.yaml").is_file():
            remedy = f"run it first: ./run_all.sh params/{study}.yaml"
            raise UsageError(f"study: '{study}' has no record yet; {remedy}")
        if study not in known:
            raise UsageError(f"study: {suggest(study, known)} in papers/")
    return studies


def index_file(paper: Path) -> Path:
    """Return where it stands what the record of a paper holds."""
    return paper / "record" / "index.json"


def read_index(paper: Path) -> dict[str, Any]:
    """Read what the record of a paper should hold; empty where nothing has been archived. Raises
    UserError for a damaged index."""
    content: Any = read_json(index_file(paper)) if os.path.lexists(index_file(paper)) else {}
    if not isinstance(content, dict):
        raise UserError(f"{relative(index_file(paper))} must hold an entry per study; restore it")
    return content


def superseded(index: dict[str, Any]) -> list[str]:
    """List the studies of an index of which only results are kept, because a later one asks the
    same."""
    return [study for study, entry in index.items() if "superseded" in entry]


def root_hash(paper: Path) -> str:
    """Return the SHA-256 over the plans and a paper's index, which holds the hash of each record
    and its results."""
    hashes = {path.name: sha256(path) for path in sorted(PLANS.glob("[!.]*.yaml"))}
    return digest([read_index(paper), hashes])
