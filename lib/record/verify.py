"""Verify records: recompute, by today's code, every value that they publish, and compare.

Each study is gone through from the ground up: the sums of its files; the parameters, plan and seeds
that its runs name; how each run begins, by the hashes of its initial weights and batches; the
measures from the raw tables, which its notebook and its result both say; contrasts, tests and
answers from the measures. What rests on something faulty is not looked at. What raw tables do not
tell, and what today's code no longer computes, is listed once, as not checked. What this machine
refuses (space, memory, a right) is no fault of a record: it could not be verified here.
"""

import errno
import math
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from stat import S_ISREG
from typing import Any

from lib.config.claim import claim_status, load_plan
from lib.config.environment import cores
from lib.config.errors import UserError
from lib.config.files import machine_fault, nan_to_none, read_json, sha256
from lib.config.paths import PARAMS, PLANS
from lib.config.schema import RunConfig, recorded_config
from lib.config.study import load_study
from lib.config.yaml import Json, read_yaml
from lib.record.archive import MANIFEST, Record, Run
from lib.results import RunResult, attested, measures_of, read_raw
from lib.stats.runs import check, study_results, tidy
from lib.stats.verdict import analyse

TOLERANCE = 1e-9
"""Relative: in the digits beyond, machines may differ."""
NOT_HERE = 5
"""The exit status if this machine could not verify something, and found no fault."""
Begin = Callable[[RunConfig, int, int], tuple[str, str] | None]
"""Configuration, seed and number of steps → hashes of initial weights and batches; None where the
text is not in reach."""
NAMING = (
    "family",
    "hypothesis",
    "effect",
    "arm",
    "baseline",
    "measure",
    "seed",
    "task",
    "shots",
    "text",
    "reference",
)
"""What a row of a verdict's table is about."""
NUMBERS = ("contrasts", "tests", "hypothesis_tests", "answers")
"""Tables of a verdict that are published."""
WORDS = ("reason", "sentence")
"""What verdicts say in words, which today's code may say in others."""


@dataclass
class Report:
    """What came of verifying a study."""

    study: str
    faults: list[str] = field(default_factory=list)
    recomputed: Counter[str] = field(default_factory=Counter)
    """How many values of a kind are as they were published."""
    unchecked: Counter[str] = field(default_factory=Counter)
    """How many values of a name were not recomputed."""
    unverified: str = ""
    """Why git cannot tell whether its plan came before its runs."""
    refused: str = ""
    """What this machine refused before all was compared, with the remedy."""

    @property
    def status(self) -> int:
        """The exit status for it: 0 if it is as published, 1 for a fault, else `NOT_HERE`."""
        return 1 if self.faults else NOT_HERE if self.refused else 0


def verify(studies: list[str], begin: Begin) -> int:
    """Verify the records of some studies, print what comes of each, and return the exit status.
    `begin` must be a function of a module, as other processes call it."""
    statuses = []
    unverified = dict[str, list[str]]()
    unchecked = Counter[str]()
    for report in _reports(studies, begin):
        for fault in report.faults:
            print(f"error: {report.study}: {fault}", flush=True)
        done = ", ".join(f"{n:,} {kind}" for kind, n in report.recomputed.items() if n)
        if report.status == NOT_HERE:
            print(f"{report.study}: could not be verified here: {report.refused}", flush=True)
        else:
            print(f"{report.study}: {'FAULTY' if report.faults else 'as published'}: {done}")
        unchecked += report.unchecked
        statuses.append(report.status)
        if report.unverified:
            unverified.setdefault(report.unverified, []).append(report.study)
    for reason, names in unverified.items():
        print(f"UNVERIFIED: whether plans came before runs ({', '.join(names)}); {reason}")
    if unchecked:
        print(f"not checked: {', '.join(f'{n:,} {name}' for name, n in sorted(unchecked.items()))}")
    return min(filter(None, statuses), default=0)


def _reports(studies: list[str], begin: Begin) -> Iterator[Report]:
    """Verify records side by side, and yield what comes of each in their order."""
    rest = [*studies]
    # Without semaphores, as where /dev/shm cannot be written, there is no pool; and a process that
    # is killed takes all of its pool with it.
    with suppress(OSError, BrokenProcessPool), ProcessPoolExecutor(cores()) as pool:
        for report in pool.map(verify_record, map(Record, studies), repeat(begin)):
            del rest[0]
            yield report
    for study in rest:
        yield _alone(Record(study), begin)


def _alone(record: Record, begin: Begin) -> Report:
    """Verify a record in a process of its own, or in this one where there can be no other."""
    with suppress(OSError), ProcessPoolExecutor(1) as pool:
        try:
            return pool.submit(verify_record, record, begin).result()
        except BrokenProcessPool:
            return Report(record.study, refused="its process was killed; end other programs")
    return verify_record(record, begin)


def verify_record(record: Record, begin: Begin) -> Report:
    """Verify a record, whatever state its files are in."""
    report = Report(record.study)
    try:
        for faults in (
            wrong_files(record, report),
            wrong_parameters(record, report),
            wrong_beginnings(record, report, begin),
            wrong_measures(record, report),
            wrong_verdict(record, report),
        ):
            report.faults += faults
            if report.faults:
                break
    except Exception as error:  # a file can be broken in any way
        if reason := machine_fault(error):
            report.refused = reason
        else:
            is_told = isinstance(error, UserError)
            report.faults.append(str(error) if is_told else f"it cannot be read: {error!r}")
    return report


def wrong_files(record: Record, report: Report) -> Iterator[str]:
    """Yield files that are not as the manifest says."""
    files = record.files
    for name, stated in record.manifest.items():
        if name not in files:
            with suppress(FileNotFoundError, NotADirectoryError):
                # This raises where a folder cannot be entered; one that cannot be read looks empty.
                if S_ISREG((record.folder / name).stat().st_mode):
                    raise PermissionError(errno.EACCES, "it is not listed", name)
            yield f"{name} is missing"
        elif (found := sha256(files[name])) != stated:
            yield f"{name} has the SHA-256 {found[:12]}, {MANIFEST} says {stated[:12]}"
    yield from (f"{name} is not in {MANIFEST}" for name in files.keys() - record.manifest.keys())
    report.recomputed["files"] += len(files)


def wrong_parameters(record: Record, report: Report) -> Iterator[str]:
    """Yield what the record says otherwise of its parameters, plan and seeds than `params/`, and
    what a run says otherwise of its own than the record."""
    study = record.parameters
    if (PARAMS / f"{study.name}.yaml").is_file():
        asked = load_study(study.name).model_dump(mode="json", exclude={"machine"})
        kept = study.model_dump(mode="json", exclude={"machine"})
        for name, stated, value in differences(kept, asked):
            yield f"parameters: {name} is {stated}, params/{study.name}.yaml says {value}"
    if study.plan:
        kept = read_yaml(record.folder / "plan.yaml")
        asked = read_yaml(PLANS / study.plan)
        asked["deviations"] = kept["deviations"] = None  # which may be written down at any time
        for name, stated, value in differences(kept, asked):
            yield f"plan: {name} is {stated}, params/plans/{study.plan} says {value}"
    check(study, [RunResult.model_validate(run) for run in record.runs])
    report.recomputed["runs"] += len(record.runs)


def wrong_beginnings(record: Record, report: Report, begin: Begin) -> Iterator[str]:
    """Yield runs whose initial weights or batches are not those of their seed and parameters."""
    for run in record.runs:
        hashes = begin(recorded_config(run["config"]), run["seed"], run["steps"])
        if hashes is None:
            report.unchecked["beginnings, whose text is not in reach"] += 1
            continue
        for name, value in zip(("initial_weights", "batches"), hashes, strict=True):
            if run[name] != value:
                yield f"{run_name(run)}: {name} are {run[name][:12]}, its seed's {value[:12]}"
        report.recomputed["beginnings"] += 1


def wrong_measures(record: Record, report: Report) -> Iterator[str]:
    """Yield what is wrong with each run by itself."""
    for run in record.runs:
        name = run["arm"], run["seed"]
        yield from verify_run(run, record.raw_folder(*name), record.run_notebook(*name), report)


def verify_run(run: Run, folder: Path, notebook: Path, report: Report) -> Iterator[str]:
    """Yield raw tables that a run's result was not written with, what its notebook prints otherwise
    than the result, and measures that do not follow from the raw tables."""
    for name, stated in run["files"].items():
        if not (folder / name).is_file() or sha256(folder / name) != stated:
            yield f"{run_name(run)}: {name} is not the file that its result was written with"
    for name, stated, value in differences(shown_result(read_json(notebook)), attested(run)):
        yield f"{run_name(run)}: its notebook prints {name} {stated}, result.json says {value}"
    computed = nan_to_none(measures_of(read_raw(folder)))
    for name, stated, value in differences(run["measures"], computed, report):
        yield f"{run_name(run)}: {name} is {stated}, and {value} by its raw tables"
    report.recomputed["measures"] += len(computed)


def shown_result(notebook: Json) -> Any:
    """Return what a training notebook keeps as JSON of its result; None where it shows none."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if kept := output.get("data", {}).get("application/json"):
                return kept
    return None


def wrong_verdict(record: Record, report: Report) -> Iterator[str]:
    """Yield what results and verdict say otherwise than today's analysis of the runs."""
    study = record.parameters
    runs = [RunResult.model_validate(run) for run in record.runs]
    plan, stated = load_plan(study), record.verdict
    claim = claim_status(study, plan, record.runs)
    report.unverified = "; ".join(claim.reasons) if claim.name == "UNVERIFIED" else ""
    if "UNVERIFIED" in (claim.name, stated["standing"]):  # what git cannot tell is neither
        because = list(stated["exploratory_because"])
        claim = replace(claim, name=stated["standing"], reasons=because)
        report.unchecked["standing"] += 1
    raw = (record.joined(name) for name in ("trace", "items", "stock_items"))
    verdict = analyse(study, plan, claim, tidy(runs), *raw).as_json()
    summary = study_results(study, runs)["summary"]
    yield from differing(record, summary, verdict, report)


def differing(record: Record, summary: Json, verdict: Json, report: Report) -> Iterator[str]:
    """Yield what a record says otherwise than the summary and the verdict that were made again of
    its runs. These may say more; of what they leave out all but NUMBERS is only counted."""
    for name in NUMBERS:
        if name in record.verdict and name not in verdict:
            yield f"{record.verdict_file.name}: its {name} are missing by its runs"
        report.recomputed[name.replace("_", " ")] += len(record.verdict.get(name, ()))
    report.recomputed["summaries"] += sum(map(len, record.results["summary"].values()))
    for file, published, computed in (
        (record.results_file, record.results["summary"], summary),
        (record.verdict_file, record.verdict, verdict),
    ):
        for name, one, other in differences(published, nan_to_none(computed), report):
            yield f"{file.name}: {name} is {one}, and {other} by its runs"


def differences(
    stated: Any, computed: Any, report: Report | None = None, name: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield where two values as JSON differ: the name of the place, and both values. With a report,
    what only `stated` has and what it says in words is counted there, and `computed` may be more.
    """
    if isinstance(stated, dict) and isinstance(computed, dict):
        for key in stated if report else stated | computed:
            inner = f"{name}.{key}".removeprefix(".")
            if report and (key not in computed or key in WORDS):
                report.unchecked[key] += 1
            else:
                yield from differences(stated.get(key), computed.get(key), report, inner)
    elif report and (found := _by_name(computed)) and (rows := _by_name(stated)):
        for row, values in rows.items():
            yield from differences(values, found.get(row), report, f"{name}[{row.strip()}]")
    elif isinstance(stated, list) and isinstance(computed, list) and len(stated) == len(computed):
        for one, other in zip(stated, computed, strict=True):
            yield from differences(one, other, report, name)
    elif stated != computed:
        are_numbers = isinstance(stated, int | float) and isinstance(computed, int | float)
        if not (are_numbers and math.isclose(stated, computed, rel_tol=TOLERANCE, abs_tol=1e-12)):
            yield name, str(stated)[:80], str(computed)[:80]


def _by_name(table: Any) -> Json:
    """Name the rows of a table by what they are about; none where two have one name."""
    if not isinstance(table, list) or not all(isinstance(row, dict) for row in table):
        return {}
    rows = {" ".join(str(row[name]) for name in NAMING if name in row): row for row in table}
    return rows if len(rows) == len(table) else {}


def run_name(run: Run) -> str:
    """Name a run for a message."""
    return f"{run['arm']} seed {run['seed']}"
