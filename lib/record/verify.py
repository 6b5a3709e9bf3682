"""Verify records: compute every published value again with today's code, and compare.

The steps for each study: the hashes of its files; parameters, plan and seeds; the hashes of each
run's initial weights and batches; the measures in `result.json` and in the notebook, from the raw
tables; contrasts, tests and answers, from the measures. The first step with a fault is the last
one. Values that the raw tables do not give, or that today's code no longer computes, are counted as
not checked. If this machine refuses something (space, memory, a right), that is not a fault of the
record: it could not be verified here.
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
from lib.config.schema import CODE, RunConfig, recorded_config
from lib.config.study import load_study
from lib.config.yaml import Json, read_yaml
from lib.record.archive import MANIFEST, Record, Run
from lib.results import RunResult, attested, measures_of, read_raw
from lib.stats.runs import check, study_results, tidy
from lib.stats.verdict import analyse

TOLERANCE = 1e-9
"""Relative tolerance; further digits may differ between machines."""
NOT_HERE = 5
"""The exit status if there is no fault, but this machine could not verify everything."""
Begin = Callable[[RunConfig, int, int], tuple[str, str] | None]
"""Configuration, seed and number of steps → hashes of initial weights and batches; None if the text
is not on this machine."""
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
"""Columns that identify a row in a table of a verdict."""
NUMBERS = ("contrasts", "tests", "hypothesis_tests", "answers")
"""Tables of a verdict that are published."""
WORDS = ("reason", "sentence")
"""Sentences in a verdict: today's code may word them differently."""


@dataclass
class Report:
    """The outcome of verifying a study."""

    study: str
    faults: list[str] = field(default_factory=list)
    recomputed: Counter[str] = field(default_factory=Counter)
    """Kind → number of values that were recomputed."""
    unchecked: Counter[str] = field(default_factory=Counter)
    """Name → number of values that were not recomputed."""
    unverified: str = ""
    """Why git cannot tell whether the plan was committed before the runs."""
    refused: str = ""
    """What this machine refused, with the remedy; then not everything was compared."""

    @property
    def status(self) -> int:
        """The exit status: 0 if all is as published, 1 for a fault, else `NOT_HERE`."""
        return 1 if self.faults else NOT_HERE if self.refused else 0


def verify(studies: list[str], begin: Begin) -> int:
    """Verify the records of some studies, print the outcome of each, and return the exit status.
    `begin` must be a function at the top of a module, because other processes call it."""
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
        print(f"UNVERIFIED: were plans committed before runs? ({', '.join(names)}): {reason}")
    if unchecked:
        print(f"not checked: {', '.join(f'{n:,} {name}' for name, n in sorted(unchecked.items()))}")
    return min(filter(None, statuses), default=0)


def _reports(studies: list[str], begin: Begin) -> Iterator[Report]:
    """Verify records in several processes, and yield their reports in order."""
    rest = [*studies]
    # A pool needs semaphores (a writable /dev/shm), and ends if one of its processes is killed.
    # Then the rest is verified one by one.
    with suppress(OSError, BrokenProcessPool), ProcessPoolExecutor(cores()) as pool:
        for report in pool.map(verify_record, map(Record, studies), repeat(begin)):
            del rest[0]
            yield report
    for study in rest:
        yield _alone(Record(study), begin)


def _alone(record: Record, begin: Begin) -> Report:
    """Verify a record in a process of its own, or in this one if none can be started."""
    with suppress(OSError), ProcessPoolExecutor(1) as pool:
        try:
            return pool.submit(verify_record, record, begin).result()
        except BrokenProcessPool:
            return Report(record.study, refused="the process was killed; end other programs")
    return verify_record(record, begin)


def verify_record(record: Record, begin: Begin) -> Report:
    """Verify a record. A damaged file is a fault, never an exception."""
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
    except Exception as error:  # a damaged file may raise anything
        if reason := machine_fault(error):
            report.refused = reason
        else:
            is_clear = isinstance(error, UserError)
            report.faults.append(str(error) if is_clear else f"it cannot be read: {error!r}")
    return report


def wrong_files(record: Record, report: Report) -> Iterator[str]:
    """Yield each file that differs from the manifest."""
    files = record.files
    for name, stated in record.manifest.items():
        if name not in files:
            with suppress(FileNotFoundError, NotADirectoryError):
                # `stat` raises if a folder cannot be entered; one that cannot be read looks empty.
                if S_ISREG((record.folder / name).stat().st_mode):
                    raise PermissionError(errno.EACCES, "it is not listed", name)
            yield f"{name} is missing"
        elif (found := sha256(files[name])) != stated:
            yield f"{name} has the SHA-256 {found[:12]}, {MANIFEST} says {stated[:12]}"
    yield from (f"{name} is not in {MANIFEST}" for name in files.keys() - record.manifest.keys())
    report.recomputed["files"] += len(files)


def wrong_parameters(record: Record, report: Report) -> Iterator[str]:
    """Yield each difference between the record's parameters, plan and seeds and those in `params/`.
    Raises UserError if a run was made with others than the record's."""
    study = record.parameters
    if (PARAMS / f"{study.name}.yaml").is_file():
        left_out = {"machine", "commits"}  # branches move; each run names its commit
        current = load_study(study.name).model_dump(mode="json", exclude=left_out)
        kept = study.model_dump(mode="json", exclude=left_out)
        for name, stated, value in differences(kept, current):
            yield f"parameters: {name} is {stated}, params/{study.name}.yaml says {value}"
    if study.plan:
        kept = read_yaml(record.folder / "plan.yaml")
        current = read_yaml(PLANS / study.plan)
        current["deviations"] = kept["deviations"] = None  # deviations may be added at any time
        for name, stated, value in differences(kept, current):
            yield f"plan: {name} is {stated}, params/plans/{study.plan} says {value}"
    check(study, [RunResult.model_validate(run) for run in record.runs])
    report.recomputed["runs"] += len(record.runs)


def wrong_beginnings(record: Record, report: Report, begin: Begin) -> Iterator[str]:
    """Yield each run with other initial weights or batches than its seed and parameters give."""
    for run in record.runs:
        if CODE in run["levels"]:
            report.unchecked["initial weights and batches (of another commit)"] += 1
            continue
        hashes = begin(recorded_config(run["config"]), run["seed"], run["steps"])
        if hashes is None:
            report.unchecked["initial weights and batches (text not on this machine)"] += 1
            continue
        for name, value in zip(("initial_weights", "batches"), hashes, strict=True):
            if run[name] != value:
                stated = f"{name} are {run[name][:12]}"
                yield f"{run_name(run)}: {stated}, but its seed gives {value[:12]}"
        report.recomputed["initial weights and batches"] += 1


def wrong_measures(record: Record, report: Report) -> Iterator[str]:
    """Yield the faults that `verify_run` finds in each run."""
    for run in record.runs:
        name = run["arm"], run["seed"]
        yield from verify_run(run, record.raw_folder(*name), record.run_notebook(*name), report)


def verify_run(run: Run, folder: Path, notebook: Path, report: Report) -> Iterator[str]:
    """Yield raw tables that are not those of a run's result, values that its notebook prints
    differently, and measures that do not follow from the raw tables."""
    for name, stated in run["files"].items():
        if not (folder / name).is_file() or sha256(folder / name) != stated:
            yield f"{run_name(run)}: {name} is not the file that belongs to its result"
    for name, stated, value in differences(shown_result(read_json(notebook)), attested(run)):
        yield f"{run_name(run)}: its notebook prints {name} {stated}, result.json says {value}"
    computed = nan_to_none(measures_of(read_raw(folder)))  # as JSON has it
    for name, stated, value in differences(run["measures"], computed, report):
        yield f"{run_name(run)}: {name} is {stated}, but its raw tables give {value}"
    report.recomputed["measures"] += len(computed)


def shown_result(notebook: Json) -> Any:
    """Return the result that a training notebook printed as JSON; None if it has none."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if kept := output.get("data", {}).get("application/json"):
                return kept
    return None


def wrong_verdict(record: Record, report: Report) -> Iterator[str]:
    """Yield each difference of results and verdict from today's analysis of the runs."""
    study = record.parameters
    runs = [RunResult.model_validate(run) for run in record.runs]
    plan, stated = load_plan(study), record.verdict
    claim = claim_status(study, plan, record.runs)
    report.unverified = "; ".join(claim.reasons) if claim.name == "UNVERIFIED" else ""
    if "UNVERIFIED" in (claim.name, stated["standing"]):  # git could not tell, then or now
        because = list(stated["exploratory_because"])
        claim = replace(claim, name=stated["standing"], reasons=because)
        report.unchecked["standing"] += 1
    raw = (record.joined(name) for name in ("trace", "items", "stock_items"))
    verdict = analyse(study, plan, claim, tidy(runs), *raw).as_json()
    summary = study_results(study, runs)["summary"]
    yield from differing(record, summary, verdict, report)


def differing(record: Record, summary: Json, verdict: Json, report: Report) -> Iterator[str]:
    """Yield each difference of a record from a summary and a verdict that were computed again.
    Values that only the new ones have are ignored. Values that they lack are only counted, unless a
    table of NUMBERS is missing."""
    for name in NUMBERS:
        if name in record.verdict and name not in verdict:
            yield f"{record.verdict_file.name}: today's analysis lacks its {name}"
        report.recomputed[name.replace("_", " ")] += len(record.verdict.get(name, ()))
    report.recomputed["summaries"] += sum(map(len, record.results["summary"].values()))
    for file, published, computed in (
        (record.results_file, record.results["summary"], summary),
        (record.verdict_file, record.verdict, verdict),
    ):
        for name, one, other in differences(published, nan_to_none(computed), report):
            yield f"{file.name}: {name} is {one}, but its runs give {other}"


def differences(
    stated: Any, computed: Any, report: Report | None = None, name: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences of two JSON values: the name of the place, and both values. With a
    report, ignore values that only `computed` has, and count values that only `stated` has, and
    texts, instead of yielding them."""
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
    """Return the rows of a table by their columns of NAMING; {} if two rows have equal ones."""
    if not isinstance(table, list) or not all(isinstance(row, dict) for row in table):
        return {}
    rows = {" ".join(str(row[name]) for name in NAMING if name in row): row for row in table}
    return rows if len(rows) == len(table) else {}


def run_name(run: Run) -> str:
    """Return the name of a run for a message."""
    return f"{run['arm']} seed {run['seed']}"
