"""Execute today's 01, 03 and 04 for recorded studies again, from the raw tables.

A record's runs are unpacked to a temporary folder, then analysed and archived there, as in a sweep.
If every published number comes out equal, by its name, the new notebooks, figures and results
replace those of the record. Nothing is trained: the runs' own notebooks, results and raw tables
stay. 01 also stays if today's 01 makes another suite, because it describes the questions that the
runs answered.
"""

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lib.config.environment import cores
from lib.config.errors import UserError
from lib.config.files import sha256, write_json, write_text
from lib.config.paths import ROOT, listed, output_root, result_file
from lib.record.archive import (
    MANIFEST,
    README,
    SHARED,
    Record,
    executed_at,
    is_replaceable,
    sums_of,
)
from lib.record.verify import Report, differing
from lib.results import status_of
from lib.sweep.code import execute_in, run_module


def renew(studies: list[str]) -> int:
    """Renew the records of some studies. Print for each what was compared, and what differs. Return
    the exit status: 1 if a record was kept."""
    faulty = 0
    with ThreadPoolExecutor(cores()) as pool:  # threads, because each only waits for processes
        for report, suites in pool.map(renew_record, map(Record, studies)):
            parts = ["kept as it was" if report.faults else "renewed", *report.faults[:1]]
            if more := len(report.faults[1:]):
                parts[-1] += f" (and {more} more)"
            if compared := ", ".join(f"{n:,} {kind}" for kind, n in report.recomputed.items() if n):
                parts.append(f"compared: {compared}")
            if gone := ", ".join(f"{n:,} {name}" for name, n in sorted(report.unchecked.items())):
                parts.append(f"not compared (reworded or no longer computed): {gone}")
            if suites:
                parts.append(
                    f"01 is kept: the runs answered its suite {', '.join(suites)}, and today's 01 "
                    "makes another"
                )
            print(f"{report.study}: {'; '.join(parts)}", flush=True)
            faulty += bool(report.faults)
    return 1 if faulty else 0


def renew_record(record: Record) -> tuple[Report, list[str]]:
    """Execute a record's notebooks again, and replace them if nothing differs. Also return the
    suites that the runs answered and today's 01 no longer makes: for these, 01 is kept."""
    report, suites = Report(record.study), list[str]()
    with tempfile.TemporaryDirectory(prefix="renew-") as folder:
        try:
            again = made_again(record, Path(folder))
            report.faults += differing(record, again.results["summary"], again.verdict, report)
            report.faults += changed_files(record, again)
            answered = {str(run["suite_hash"])[:12] for run in record.runs if run["suite_hash"]}
            suites = [of for of in sorted(answered) if not listed(again.raw, f"suite/*-{of}")]
            if not report.faults:
                replace(record, again, ["01_data"] if suites else [])
        except UserError as error:
            report.faults.append(str(error))
    return report, suites


def made_again(record: Record, folder: Path) -> Record:
    """Analyse and archive a record's runs in a folder; return the new record."""
    runs = folder / "runs" / record.study
    for name in ("data", "params"):
        (folder / name).symlink_to(output_root() / name)
    shutil.copytree(record.raw, runs)
    for path in listed(record.folder, "*/seed-*/02_train.ipynb"):
        shutil.copyfile(path, runs / path.relative_to(record.folder))
    for notebook in SHARED:
        execute_in(ROOT, str(folder), notebook, record.study)
    run_module(ROOT, str(folder), "lib.record.archive", record.study)
    return Record(record.study, folder / "papers" / record.paper.name)


def changed_files(record: Record, again: Record) -> Iterator[str]:
    """Yield each file of a run that differs, and each figure that is no longer drawn."""
    for path in listed(record.raw, "*/seed-*/*"):
        other = again.raw / path.relative_to(record.raw)
        if not other.is_file() or sha256(other) != sha256(path):
            yield f"{path.relative_to(record.raw)} differs or is missing"
    for name, path in record.files.items():
        if name.endswith("/02_train.ipynb") and sha256(again.files[name]) != sha256(path):
            yield f"{name} differs"
        if path.is_relative_to(record.figures) and name not in again.files:
            yield f"{name} is no longer drawn"


def replace(record: Record, again: Record, kept: list[str]) -> None:
    """Copy the study's notebooks except `kept`, its figures and its results from a new record into
    the old one. Write into its README at which commit the kept ones were executed."""
    done = result_file("archive", record.study)
    is_own = done.is_file() and is_replaceable(record.study)
    (record.folder / MANIFEST).unlink(missing_ok=True)  # written last: then the record is complete
    drawn = result_file("04_figures", record.study).name
    for name, path in record.files.items():
        is_taken = name in (*(f"{of}.ipynb" for of in SHARED if of not in kept), drawn)
        if is_taken or name.startswith("../"):
            shutil.copyfile(again.files[name], path)
    readme = record.folder / README
    of_runs, *_ = readme.read_text("utf-8").splitlines()
    of_kept = [
        f"So is {of}.ipynb. {executed_at([status_of(record.folder / f'{of}.ipynb')])}"
        for of in kept
    ]
    write_text(readme, "\n".join([of_runs, *of_kept, ""]))
    write_text(record.folder / MANIFEST, sums_of(record))
    if is_own:  # as `archive` writes it, so that a sweep may still replace the record
        write_json(done, {"manifest": sha256(record.folder / MANIFEST)})
