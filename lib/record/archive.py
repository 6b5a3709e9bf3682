"""Read the record of a finished study, and make one.

A record is a folder, `papers/<paper>/record/<study>/`, laid out like `runs/<study>/`: parameters,
plan and every executed notebook. `raw.tar.xz` holds the results and raw tables of all runs.
`MANIFEST.sha256` also lists the study's figures and results, which are in other folders of the
paper. Run `sha256sum -c MANIFEST.sha256` in the record's folder to check everything.
"""

import hashlib
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, cached_property
from itertools import product
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lib.config import files, paths
from lib.config.errors import ConfigError, UsageError, UserError, exit_status, suggest
from lib.config.files import atomic_write, read_json, sha256
from lib.config.paths import PAPER, PAPERS, PARAMS, listed, result_file
from lib.config.provenance import git
from lib.config.schema import digest
from lib.config.study import Study, load_study
from lib.config.yaml import Json, read_yaml
from lib.results import commit_of, status_of
from lib.stats.runs import collect, read_parquet

Run = dict[str, Any]
"""A `RunResult` as JSON."""
MANIFEST, RAW, README = "MANIFEST.sha256", "raw.tar.xz", "README.md"
SHARED = {
    "01_data": ("01_data.json", "suite/**/*"),
    "03_analysis": ("03_analysis.json", "verdict.json"),
    "04_figures": ("04_figures.json", "figures/*"),
}
"""Notebooks that are executed once per study → patterns of the files that each writes."""


class Record:
    """The record of a study. Files are read when they are first needed."""

    def __init__(self, study: str, paper: Path | None = None) -> None:
        self.study = study
        self.paper = paper or paper_of(study)
        self.folder = self.paper / "record" / study
        self.results_file = self.paper / "results" / f"{study}.json"
        self.verdict_file = self.paper / "results" / f"{study}.verdict.json"
        self.figures = self.paper / "figures" / study

    @property
    def files(self) -> dict[str, Path]:
        """Every file that the manifest should list, by its name in the manifest."""
        paths = [*listed(self.folder, "**/*"), *listed(self.figures, "**/*")]
        paths += [self.results_file, self.verdict_file]
        files = {Path(os.path.relpath(path, self.folder)).as_posix(): path for path in paths}
        files.pop(MANIFEST, None)
        return {name: path for name, path in sorted(files.items()) if path.is_file()}

    @cached_property
    def manifest(self) -> dict[str, str]:
        """File → its SHA-256 when the study was archived."""
        lines = (self.folder / MANIFEST).read_text("utf-8").splitlines()
        return {name: hexdigest for hexdigest, _, name in (line.partition("  ") for line in lines)}

    def run_notebook(self, arm: str, seed: int) -> Path:
        """Return the path of a run's notebook."""
        return self.folder / arm / f"seed-{seed}" / "02_train.ipynb"

    @property
    def raw(self) -> Path:
        """The folder from which results and raw tables are read."""
        return _unpacked(self.folder / RAW)

    def raw_folder(self, arm: str, seed: int) -> Path:
        """Return the folder from which the result and raw tables of a run are read."""
        return self.raw / arm / f"seed-{seed}"

    def joined(self, name: str) -> pd.DataFrame:
        """Join one of the raw tables (see `lib.results`) of all runs, with arm, variant, setting
        and seed."""
        return read_parquet(self.parameters, name, self.raw_folder)

    @cached_property
    def runs(self) -> list[Run]:
        """Every run of the parameters, in order. Raises UserError if one is missing."""
        runs = []
        for arm, seed in product(self.parameters.arms(), self.parameters.seeds):
            path = self.raw_folder(arm.id, seed) / "result.json"
            if not path.is_file():
                raise UserError(
                    f"{arm.id} seed {seed}: its result.json is missing in {RAW}; restore it"
                )
            runs.append(json.loads(path.read_bytes()))
        return runs

    @cached_property
    def results(self) -> dict[str, Any]:
        """The parameters, and n, mean and sd of every measure for each arm."""
        return dict(read_json(self.results_file))

    @cached_property
    def verdict(self) -> dict[str, Any]:
        """Contrasts, tests, answers and decisions, each table as rows."""
        return dict(read_json(self.verdict_file))

    @cached_property
    def parameters(self) -> Study:
        """The study as it was archived."""
        # Ignore fields that were removed later.
        return Study.model_validate(read_yaml(self.folder / "parameters.yaml"), extra="ignore")


@cache
def _unpacked(file: Path) -> Path:
    """Unpack the raw tables of a record into a folder that is removed when this process ends. Not
    with `atexit`, because the processes of a pool do not run it."""
    folder = Path(tempfile.mkdtemp(prefix="record-"))
    remove = Finalize(None, shutil.rmtree, [folder], {"ignore_errors": True}, exitpriority=0)
    try:
        with tarfile.open(file, "r:xz") as packed:
            packed.extractall(folder, filter="data")  # refuses paths that lead out of the folder
    except BaseException:
        remove()  # now, so that a smaller record still fits on the disk
        raise
    return folder


def files_of(notebook: str, study: str) -> dict[str, str]:
    """Hash the files that a notebook of `SHARED` wrote, by their paths in the study's folder."""
    folder = paths.study_folder(study)
    found = sorted(path for pattern in SHARED[notebook] for path in folder.glob(pattern))
    files = [path for path in found if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def results_read(notebook: str, study: Study) -> dict[str, str | None]:
    """Hash the results that a notebook of `SHARED` reads; None if one is missing."""
    if notebook == "01_data":
        return {}
    folder = paths.study_folder(study.name)
    pairs = product(study.arms(), study.seeds)
    read = [paths.run_folder(study.name, arm.id, seed) / "result.json" for arm, seed in pairs]
    if notebook == "04_figures":
        read.append(folder / "verdict.json")
    sums = [sha256(path) if path.is_file() else None for path in read]
    return {p.relative_to(folder).as_posix(): of for p, of in zip(read, sums, strict=True)}


def cells_digest(notebook: dict[str, Any]) -> str:
    """Hash the cells of an executed notebook, with their outputs."""
    return digest(files.nan_to_none(notebook["cells"]))


def why_changed(notebook: str, study: Study, *, suite: bool = True) -> str:
    """Return which file of a completed notebook of `SHARED` was changed after its execution (the
    notebook itself, or a file that it wrote); "" if none was. Without `suite`, ignore the files of
    the suite. Old notebooks without such hashes pass."""
    path = paths.executed_notebook(notebook, study.name)
    stamp = status_of(path)
    if "files" not in stamp:
        return ""
    if cells_digest(read_json(path)) != stamp["cells"]:
        return f"{path.name} was changed"
    changed = files_of(notebook, study.name).items() ^ stamp["files"].items()
    names = {name for name, _ in changed if suite or not name.startswith("suite/")}
    return f"{min(names)} is missing or was changed" if names else ""


def archive(study: Study, *, replace: bool = False, suite: bool = True) -> None:
    """Copy a finished study from `runs/` into its record.

    A record that was not made from `runs/` here is kept, unless `replace` is true. After a kill
    there is the old record, or one without a manifest; call this again to finish it. If `suite` is
    false, the files of the suite may be missing.

    Raises ResultError for missing or mixed runs. Raises UserError for a notebook that did not
    complete, was made from other results, or has files that were changed later.
    """
    record = Record(study.name)
    source = paths.study_folder(study.name)
    # Check everything before anything of the old record is touched.
    notebooks = [source / f"{name}.ipynb" for name in SHARED]
    raw = [path for path in listed(source / "suite", "**/*") if path.is_file()]
    for run in (runs := collect(study)):
        folder = paths.run_folder(study.name, run.arm, run.seed)
        notebooks.append(folder / "02_train.ipynb")
        raw += [folder / name for name in ("result.json", *run.files)]
    for notebook in notebooks:
        if (status := status_of(notebook))["status"] != "completed":
            name = notebook.relative_to(source).as_posix()
            raise UserError(f"{name} is {status['status']}: {status.get('reason')}")
    for name in SHARED:
        stamp = status_of(paths.executed_notebook(name, study.name))
        read = stamp.get("made_from", {}).get("results")
        why = why_changed(name, study, suite=suite)
        if read and read != digest(results_read(name, study)):
            why = f"{name}.ipynb was made from other results than runs/{study.name} has"
        if why:
            raise UserError(f"{why}; ./run_all.sh {study.name} makes it again")
    if not (replace or is_replaceable(study.name)):
        print(f"{study.name}: the published record is kept (--replace: replace it)")
        return

    with atomic_write(record.folder, only_writer=True) as partial:
        for path in [*notebooks, result_file("04_figures", study.name)]:
            content = files.slim(read_json(path))
            files.write_json(partial / path.relative_to(source), content, indent=None)
        pack(raw, source, partial / RAW)
        origin = executed_at(run.provenance["executed"] for run in runs)
        text = f"Each 02_train.ipynb is kept as it was. {origin}\n"
        (partial / README).write_text(text, "utf-8")
        parameters = yaml.safe_dump(study.model_dump(), sort_keys=False, allow_unicode=True)
        (partial / "parameters.yaml").write_text(parameters, "utf-8")
        if study.plan:
            shutil.copyfile(paths.PLANS / study.plan, partial / "plan.yaml")
        done = result_file("archive", study.name)
        if not (done.is_file() and is_replaceable(study.name)):
            files.write_json(done, {"manifest": None})  # after a kill, the record is still ours
        # From here on the record is incomplete, until the manifest is written.
        (record.folder / MANIFEST).unlink(missing_ok=True)
        for folder in (record.folder, record.figures):
            shutil.rmtree(folder, ignore_errors=True)
    hidden = shutil.ignore_patterns(".*")
    shutil.copytree(source / "figures", record.figures, ignore=hidden)
    results = read_json(result_file("03_analysis", study.name))
    results.pop("runs")  # raw.tar.xz has them
    files.write_json(record.results_file, results, indent=None)
    files.write_json(record.verdict_file, read_json(source / "verdict.json"), indent=None)
    sums = sums_of(record)
    files.write_json(done, {"manifest": hashlib.sha256(sums.encode()).hexdigest()})
    files.write_text(record.folder / MANIFEST, sums)
    if record.verdict["standing"] == "CONFIRMATORY":
        tag_commits(study.name, [run.origin["commit"] for run in runs])


def sums_of(record: Record) -> str:
    """Return the text of a manifest of the files that a record has now."""
    return "".join(f"{sha256(path)}  {name}\n" for name, path in record.files.items())


def tag_commits(study: str, commits: Iterable[str | None]) -> None:
    """Tag the commit of a study's runs, which holds its plan, as `record/STUDY`. So git keeps it if
    history is rewritten, and clones get it. If there are several commits, tag those that are not in
    another's history; the second tag is `record/STUDY.2`. If git fails, tag nothing."""
    with suppress(OSError):
        heads = git("merge-base", "--independent", *sorted(filter(None, {*commits}))) or ""
        for i, commit in enumerate(heads.split()):
            name = f"refs/tags/record/{study}" + (f".{i + 1}" if i else "")
            git("update-ref", name, commit)  # not `git tag`, which may ask to sign


def is_replaceable(study: str) -> bool:
    """Return whether a sweep may replace a study's record: there is none, it was archived from
    `runs/` here, or archiving was interrupted (then it has no manifest)."""
    record, done = Record(study), result_file("archive", study)
    if not any(record.folder.glob("*")):
        return True
    if not done.is_file():
        return False
    manifest = record.folder / MANIFEST
    return not manifest.is_file() or sha256(manifest) in done.read_text("utf-8")


def is_whole(study: str) -> bool:
    """Return whether a study's record has exactly the files of its manifest, unchanged."""
    record = Record(study)
    with suppress(OSError):
        return {name: sha256(path) for name, path in record.files.items()} == record.manifest
    return False


def pack(files: Iterable[Path], source: Path, target: Path) -> None:
    """Write files of the folder `source` to one compressed tar. Runs have much in common, so one
    tar is smaller than a file for each. The same files give the same bytes."""
    with tarfile.open(target, "w:xz") as packed:
        for path in sorted(files):
            member = tarfile.TarInfo(path.relative_to(source).as_posix())  # no owner, no time
            member.size = path.stat().st_size
            with path.open("rb") as file:
                packed.addfile(member, file)


def executed_at(stamps: Iterable[Json]) -> str:
    """Return a sentence with the commits at which notebooks were executed, by their provenance."""
    commits = sorted({*map(commit_of, stamps)})
    return f"Executed at {', '.join(commits)}; imports are of that commit."


def paper_of(study: str) -> Path:
    """Return the folder of a study's paper: the one that its parameter file names, or if that file
    cannot be read, the one with its record."""
    with suppress(OSError, ConfigError):
        return PAPERS / (read_yaml(PARAMS / f"{study}.yaml").get("paper") or PAPER.name)
    holding = listed(PAPERS, f"*/record/{study}")
    return holding[0].parents[1] if holding else PAPER


def papers_named(names: list[str]) -> list[Path]:
    """List the folders of the papers named, or of all; UsageError for an unknown name."""
    known = {paper.name: paper for paper in sorted({PAPER, *listed(PAPERS, "*/")})}
    for name in names:
        if name not in known:
            raise UsageError(f"paper: {suggest(name, list(known))} in papers/")
    return [known[name] for name in names or known]


def recorded_studies(paper: Path | None = None) -> list[str]:
    """List the studies with a record or results, in one paper or in all."""
    top = paper.name if paper else "*"
    found = [*listed(PAPERS, f"{top}/record/*"), *listed(PAPERS, f"{top}/results/*.json")]
    return sorted({path.name.partition(".")[0] for path in found})


def require_recorded(names: list[str]) -> list[str]:
    """Return the names of studies, given by name or path; UsageError if one has no record."""
    studies = [Path(name).stem for name in names]
    known = recorded_studies()
    for study in studies:
        if study not in known:
            raise UsageError(f"study: {suggest(study, known)} among the recorded studies")
    return studies


@exit_status
def main(study: str, *flags: str) -> None:
    """Archive a study: `python -m lib.record.archive STUDY [--replace]`."""
    archive(load_study(study), replace="--replace" in flags)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
