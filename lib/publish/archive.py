"""The record of a study: executed notebooks, parameters and results, with hashes, verifiable.

`papers/embedding-norm/record/<study>/` is laid out like `runs/<study>/`; its MANIFEST.sha256 can
also be checked by `sha256sum -c` from that folder.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import yaml

from lib.analysis.runs import collect, summarise
from lib.study.config import Study, load_study
from lib.study.paths import PAPER, executed_notebook, result_file, run_folder, study_folder
from lib.study.record import sha256, status_of, write_json

MANIFEST = "MANIFEST.sha256"


class ArchiveError(ValueError):
    """A study that cannot be archived, or a record that is not what its manifest says."""


def record_folder(study: str) -> Path:
    """Where the executed notebooks of a study are kept."""
    return PAPER / "record" / study


def results_file(study: str) -> Path:
    """Where the numbers of a study are kept."""
    return PAPER / "results" / f"{study}.json"


def verdict_file(study: str) -> Path:
    """Where the contrasts and decisions of a study are kept."""
    return PAPER / "results" / f"{study}.verdict.json"


def archive(study: Study) -> Path:
    """Copy a finished study from `runs/` into the record, replacing its former record at once.

    Raises ResultError for missing or mixed runs and ArchiveError for a notebook that did not
    complete, naming it.
    """
    runs = collect(study)
    shared = [executed_notebook(n, study.name) for n in ("01_data", "03_analysis", "04_figures")]
    trained = [executed_notebook("02_train", study.name, run.arm, run.seed) for run in runs]
    for notebook in [*shared, *trained]:
        status = status_of(notebook)
        if status["status"] != "completed":
            name = notebook.relative_to(study_folder(study.name)).as_posix()
            raise ArchiveError(f"{name} is {status['status']}: {status.get('reason')}")

    final = record_folder(study.name)
    partial, former = final.with_name(f".{study.name}.new"), final.with_name(f".{study.name}.old")
    for leftover in (partial, former):
        shutil.rmtree(leftover, ignore_errors=True)
    traces = [
        run_folder(study.name, run.arm, run.seed) / name
        for run in runs
        for name in ("trace.parquet", "curve.parquet", "items.parquet")
    ]
    suites = (p for p in (study_folder(study.name) / "suite").glob("*/*.*") if p.is_file())
    for source in [*shared, *trained, *traces, *suites]:
        target = partial / source.relative_to(study_folder(study.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    parameters = yaml.safe_dump(study.model_dump(), sort_keys=False, allow_unicode=True)
    (partial / "parameters.yaml").write_text(parameters, "utf-8")
    if final.exists():
        final.rename(former)
    partial.rename(final)
    shutil.rmtree(former, ignore_errors=True)

    figures = PAPER / "figures" / study.name
    shutil.rmtree(figures, ignore_errors=True)
    shutil.copytree(study_folder(study.name) / "figures", figures)
    results = result_file("03_analysis", study.name).read_text("utf-8")
    write_json(results_file(study.name), json.loads(results))
    verdict = (study_folder(study.name) / "verdict.json").read_text("utf-8")
    write_json(verdict_file(study.name), json.loads(verdict))
    _write_manifest(study.name)
    return final


def _files(study: str) -> list[Path]:
    """Every file that the manifest lists: the record, the figures and the results."""
    folders = (record_folder(study), PAPER / "figures" / study)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    files += [results_file(study), verdict_file(study)]
    return sorted(path for path in files if path.name != MANIFEST)


def _listed_as(path: Path, study: str) -> str:
    return Path(os.path.relpath(path, record_folder(study))).as_posix()


def _write_manifest(study: str) -> None:
    lines = [f"{sha256(path)}  {_listed_as(path, study)}\n" for path in _files(study)]
    (record_folder(study) / MANIFEST).write_text("".join(lines), "utf-8")


def verify(study: str) -> int:
    """Check a record against its manifest, its notebooks for failures, and its results against
    those that the executed notebooks hold; return how many files were checked.

    Raises ArchiveError naming every file that is missing, changed, unlisted or not as it should be.
    """
    folder = record_folder(study)
    if not (folder / MANIFEST).is_file():
        raise ArchiveError(f"study '{study}' has no record; run ./run_all.sh params/{study}.yaml")
    lines = (folder / MANIFEST).read_text("utf-8").splitlines()
    listed = {name: stated for stated, _, name in (line.partition("  ") for line in lines)}
    present = {_listed_as(path, study): path for path in _files(study) if path.is_file()}
    faults = [f"{name} is missing" for name in listed if name not in present]
    for name, path in present.items():
        if name not in listed:
            faults.append(f"{name} is not in the manifest")
        elif sha256(path) != listed[name]:
            faults.append(f"{name} has changed")
        if path.suffix == ".ipynb" and status_of(path)["status"] != "completed":
            faults.append(f"{name} did not complete")
    if not faults:
        faults += unfounded(study)
    if faults:
        raise ArchiveError(f"record of '{study}': {'; '.join(faults)}")
    return len(present)


def unfounded(study: str) -> list[str]:
    """Name what in a study's results does not follow from its executed notebooks: a run that its
    notebook does not show, a notebook without a run, or a summary that is not that of the runs."""
    results = json.loads(results_file(study).read_text("utf-8"))
    runs, folder = results["runs"], record_folder(study)
    places = [folder / run["arm"] / f"seed-{run['seed']}" / "02_train.ipynb" for run in runs]
    faults = [
        f"run {run['arm']} seed {run['seed']} in results/{study}.json is not its notebook's"
        for run, place in zip(runs, places, strict=True)
        if shown_result(place) != run
    ]
    strays = set(folder.rglob("02_train.ipynb")) - set(places)
    faults += [f"{_listed_as(path, study)} is of no run in the results" for path in sorted(strays)]
    measures = list(next(iter(results["summary"].values()), {}))
    if summarise(runs, measures) != results["summary"]:
        faults.append(f"the summary in results/{study}.json does not follow from its runs")
    return faults


def shown_result(notebook: Path) -> dict[str, Any] | None:
    """Read the result that an executed training notebook shows; None when it shows none."""
    if not notebook.is_file():
        return None
    for cell in nbformat.read(notebook, as_version=4).cells:
        for output in cell.get("outputs", []):
            if "application/json" in output.get("data", {}):
                found: dict[str, Any] = output["data"]["application/json"]
                return found
    return None


def main(arguments: list[str] | None = None) -> int:
    """Command line: archive a study, or `--verify` the record of some or (none named) all."""
    parser = argparse.ArgumentParser(prog="python -m lib.publish.archive", description=main.__doc__)
    parser.add_argument("studies", nargs="*", help="names of studies")
    parser.add_argument("--verify", action="store_true")
    options = parser.parse_args(arguments)
    recorded = [path.parent.name for path in sorted(record_folder("").glob(f"*/{MANIFEST}"))]
    try:
        for name in options.studies or recorded:
            study = Path(name).stem
            if options.verify:
                print(f"{study}: {verify(study)} files as recorded, results follow from notebooks")
            else:
                archive(load_study(study))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
