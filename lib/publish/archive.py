"""The record of a study: executed notebooks, raw files, parameters, plan and results, with hashes.

`papers/<paper>/record/<study>/` is laid out like `runs/<study>/`, with raw files in `raw.zip`; its
MANIFEST.sha256 can also be checked by `sha256sum -c` from that folder. `record/index.json` says
what the record of a paper holds, so that no study or run can vanish from it. `lib.publish.verify`
checks all of it.
"""

import argparse
import os
import shutil
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import nbformat
import yaml
from filelock import FileLock

from lib.analysis.runs import collect
from lib.publish import raw_zip
from lib.study.attempts import keep
from lib.study.config import Study, load_study
from lib.study.errors import ConfigError, UsageError, UserError, exit_status, read_yaml, unknown
from lib.study.fields import digest
from lib.study.paths import (
    PAPER,
    PAPERS,
    PARAMS,
    PLANS,
    RUNS,
    executed_notebook,
    result_file,
    run_folder,
    study_folder,
)
from lib.study.raw import RAW, raw_file
from lib.study.record import read_json, sha256, status_of, write_json

MANIFEST = "MANIFEST.sha256"
SHARED = {
    "01_data": "What the models read, and the task suite.",
    "03_analysis": "All runs in one table, statistics, verdict.",
    "04_figures": "The study in pictures.",
}
"""Notebooks that are executed once per study, and what each of them shows."""


def paper_of(study: str) -> Path:
    """The folder of a study's paper: the one that its parameter file names; where that cannot be
    read, the one that holds its record."""
    file = PARAMS / f"{study}.yaml"
    named = _paper(file, file.stat().st_mtime_ns) if file.is_file() else None
    return PAPERS / (named or PAPER.name)


@lru_cache(maxsize=256)
def _paper(file: Path, _: int) -> str | None:
    """What a parameter file, as it was last written, names, if anything."""
    try:
        named = read_yaml(file).get("paper")
    except ConfigError:
        named = False
    if named is None or isinstance(named, str):
        return named
    return next((path.parents[1].name for path in PAPERS.glob(f"*/record/{file.stem}")), None)


def papers() -> list[Path]:
    """Every folder of a paper, also those that studies in `runs/` will make."""
    here = [path for path in PAPERS.glob("[!.]*") if path.is_dir()]
    return sorted({PAPER, *here, *(paper_of(path.name) for path in RUNS.glob("[!.]*/"))})


def papers_named(names: list[str]) -> list[Path]:
    """The folders of the papers named, or of all; ConfigError for one that is not there."""
    there = {paper.name: paper for paper in papers()}
    for name in names:
        if name not in there:
            raise ConfigError(f"paper: {unknown(name, list(there))} in papers/")
    return [there[name] for name in names or there]


def recorded_studies() -> list[str]:
    """Every study that an index names, or that left anything in a record."""
    indexed = [study for paper in papers() for study in read_index(paper)]
    folders = [path.name for path in PAPERS.glob("*/record/[!.]*") if path.is_dir()]
    results = [path.name.partition(".")[0] for path in PAPERS.glob("*/results/*.json")]
    return sorted({*indexed, *folders, *results})


def require_recorded(names: list[str]) -> list[str]:
    """Return the names of studies, given by name or path; UsageError for one without a record."""
    studies, known = [Path(name).stem for name in names], recorded_studies()
    for study in studies:
        if study not in known:
            raise UsageError(f"study: {unknown(study, known)} in papers/")
    return studies


def record_folder(study: str) -> Path:
    """Where the executed notebooks of a study are kept."""
    return paper_of(study) / "record" / study


def results_file(study: str) -> Path:
    """Where the numbers of a study are kept."""
    return paper_of(study) / "results" / f"{study}.json"


def read_runs(study: str) -> list[dict[str, Any]]:
    """The runs in a study's results, each a `RunResult` as JSON."""
    runs: list[dict[str, Any]] = read_json(results_file(study))["runs"]
    return runs


def verdict_file(study: str) -> Path:
    """Where the contrasts and decisions of a study are kept."""
    return paper_of(study) / "results" / f"{study}.verdict.json"


def figures_folder(study: str) -> Path:
    """Where the figures of a study are kept."""
    return paper_of(study) / "figures" / study


def index_file(paper: Path) -> Path:
    """Where it stands what the record of a paper holds."""
    return paper / "record" / "index.json"


def archive(study: Study) -> Path:
    """Copy a finished study from `runs/` into the record, replacing its former record at once.

    Raises ResultError for missing or mixed runs and UserError for a notebook that did not
    complete, naming it.
    """
    runs, source = collect(study), study_folder(study.name)
    notebooks = [executed_notebook(name, study.name) for name in SHARED]
    notebooks += [executed_notebook("02_train", study.name, run.arm, run.seed) for run in runs]
    for notebook in notebooks:
        status = status_of(notebook)
        if status["status"] != "completed":
            name = notebook.relative_to(source).as_posix()
            raise UserError(f"{name} is {status['status']}: {status.get('reason')}")

    final = record_folder(study.name)
    partial, former = final.with_name(f".{study.name}.new"), final.with_name(f".{study.name}.old")
    for leftover in (partial, former):
        shutil.rmtree(leftover, ignore_errors=True)
    for path in [*notebooks, result_file("04_figures", study.name)]:
        content = without_warnings(read_json(path))
        write_json(partial / path.relative_to(source), content, indent=None)
    folders = [run_folder(study.name, run.arm, run.seed) for run in runs]
    raw = [raw_file(folder, name) for folder in folders for name in RAW]
    raw += [path for path in (source / "suite").glob("*/*.*") if path.is_file()]
    raw_zip.pack(raw, source, partial)
    parameters = yaml.safe_dump(study.model_dump(), sort_keys=False, allow_unicode=True)
    (partial / "parameters.yaml").write_text(parameters, "utf-8")
    if study.plan:
        shutil.copyfile(PLANS / study.plan, partial / "plan.yaml")
    keep(study, partial)
    if final.exists():
        final.rename(former)
    partial.rename(final)
    shutil.rmtree(former, ignore_errors=True)

    figures = figures_folder(study.name)
    shutil.rmtree(figures, ignore_errors=True)
    shutil.copytree(source / "figures", figures)
    analysed = {
        results_file(study.name): result_file("03_analysis", study.name),
        verdict_file(study.name): source / "verdict.json",
    }
    for kept, written in analysed.items():
        write_json(kept, read_json(written), indent=None)
    write_manifest(study.name)
    write_index_entry(study.name)
    return final


def without_warnings(notebook: dict[str, Any]) -> dict[str, Any]:
    """Take out of an executed notebook its warnings and progress bars: they differ wherever it is
    executed, so nothing could be held against them."""
    for cell in notebook.get("cells", []):
        if "outputs" in cell:
            cell["outputs"] = [o for o in cell["outputs"] if o.get("name") != "stderr"]
    return notebook


def files_of(study: str) -> dict[str, Path]:
    """Every file that the manifest of a study lists, by the name it has there: the record, the
    figures and the results."""
    folder = record_folder(study)
    found = [p for top in (folder, figures_folder(study)) for p in top.rglob("*")]
    files = sorted(p for p in [*found, results_file(study), verdict_file(study)] if p.is_file())
    listed = {Path(os.path.relpath(path, folder)).as_posix(): path for path in files}
    listed.pop(MANIFEST, None)
    return listed


def write_manifest(study: str) -> None:
    """Write the hash of every file of a study."""
    lines = [f"{sha256(path)}  {name}\n" for name, path in files_of(study).items()]
    (record_folder(study) / MANIFEST).write_text("".join(lines), "utf-8")


def read_manifest(study: str) -> dict[str, str]:
    """Read the hash of every file from the manifest of a study; empty where there is none."""
    path = record_folder(study) / MANIFEST
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return {name: stated for stated, _, name in (line.partition("  ") for line in lines)}


def index_entry(study: str) -> dict[str, Any]:
    """What the record of a study holds: the hash of its manifest, the seeds of every arm, and the
    hashes of the code that each of its notebooks executed (of 02, of all runs together)."""
    folder = record_folder(study)
    runs = sorted(folder.glob("*/seed-*/02_train.ipynb"), key=lambda p: int(p.parent.name[5:]))
    seeds: dict[str, list[int]] = {}
    for path in runs:
        seeds.setdefault(path.parent.parent.name, []).append(int(path.parent.name[5:]))
    shared = [path for name in SHARED if (path := folder / f"{name}.ipynb").is_file()]
    code = {path.stem: [code_hash(path)] for path in shared}
    code["02_train"] = sorted(set(map(code_hash, runs)))
    return {"manifest": sha256(folder / MANIFEST), "seeds": dict(sorted(seeds.items()))} | {
        "code": dict(sorted(code.items()))
    }


def read_index(paper: Path) -> dict[str, Any]:
    """Read what the record of a paper should hold; empty where nothing has been archived."""
    if not index_file(paper).is_file():
        return {}
    content: dict[str, Any] = read_json(index_file(paper))
    return content


def write_index_entry(study: str) -> None:
    """Bring the index up to date for a study."""
    paper = paper_of(study)
    with FileLock(index_file(paper).with_name(".index.lock")):
        content = read_index(paper) | {study: index_entry(study)}
        write_json(index_file(paper), dict(sorted(content.items())))


def code_cells(notebook: Path) -> list[str]:
    """The code of a notebook, without the cell in which Papermill writes parameters."""
    return [
        cell.source
        for cell in nbformat.read(notebook, as_version=4).cells
        if cell.cell_type == "code" and "injected-parameters" not in cell.metadata.get("tags", [])
    ]


def code_hash(notebook: Path) -> str:
    """SHA-256 of a notebook's code."""
    return digest(code_cells(notebook))


def root_hash(paper: Path) -> str:
    """SHA-256 over the plans and a paper's index, which holds the hash of each record and its
    results."""
    hashes = {path.name: sha256(path) for path in sorted(PLANS.glob("[!.]*.yaml"))}
    return digest([read_index(paper), hashes])


def shown_result(notebook: Path) -> dict[str, Any] | None:
    """Read what an executed training notebook shows of its result; None when it shows nothing."""
    if not notebook.is_file():
        return None
    for cell in nbformat.read(notebook, as_version=4).cells:
        for output in cell.get("outputs", []):
            if "application/json" in output.get("data", {}):
                found: dict[str, Any] = output["data"]["application/json"]
                return found
    return None


@exit_status
def main(arguments: list[str] | None = None) -> None:
    """Command line: archive studies."""
    parser = argparse.ArgumentParser(prog="python -m lib.publish.archive", description=main.__doc__)
    parser.add_argument("studies", nargs="+", help="names of studies")
    for name in parser.parse_args(arguments).studies:
        archive(load_study(name))


if __name__ == "__main__":
    sys.exit(main())
