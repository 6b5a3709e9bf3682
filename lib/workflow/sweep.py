"""Run studies: one Snakemake call, one progress line, one summary.

A plain rerun continues whatever was stopped, however it was. What takes seconds to import is
imported where it is used, after the command line was read.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from lib.record.archive import is_replaceable, mark_replaceable
from lib.record.record import Record, paper_of
from lib.results import status_of
from lib.run import processes
from lib.study.io import (
    NOTEBOOKS,
    PAPERS,
    ROOT,
    RUNS,
    relative,
    result_file,
    study_folder,
    write_json,
)
from lib.study.preregistration import claim_status, load_plan
from lib.study.study import Study, load_study, write_commits
from lib.study.yaml import TIME_UP, UserError
from lib.workflow.gpus import GPUS, gpu_slots
from lib.workflow.progress import PROGRESS_FILE, SWEEP_FILE, follow, read_progress
from lib.workflow.slurm import Cluster, explanation

DEFAULT, EMBEDDED = "final", "final-embedded"
"""The study that is run when none is named, and the one in its place where its text is missing."""
LOCK_TIMEOUT = 5.0
"""Seconds to wait for an earlier sweep that is ending."""
CANCEL_TIMEOUT = 60.0
"""Seconds that an ended sweep is given to cancel its jobs on a cluster."""
FULL = 10**6
"""Bytes: a disk with less is full."""


@dataclass(frozen=True)
class Sweep:
    """What a command line asks for."""

    studies: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    """For Snakemake."""
    forced: list[str] = field(default_factory=list)
    """Rules and files that --forcerun names."""
    is_ordered: bool = False
    """Whether the flags say which jobs run, or which come first."""
    jobs: int | None = None
    """How many at once, where the flags say it."""
    is_dry_run: bool = False
    """Whether Snakemake is only asked to tell or tidy something."""
    lists_runs: bool = False
    """Whether it is `-n` alone: which runs would be made, and why, is then printed as a table."""
    is_local: bool = True
    replaces: bool = False
    """Whether records that came from elsewhere are replaced."""
    forks_kernels: bool = sys.platform == "linux"
    """On macOS, a fork that does not start another program may not use the system's libraries."""
    stop_after: float | None = None
    """Hours."""
    runs_per_gpu: int | None = None
    cluster: Cluster | None = None
    """The Slurm cluster that runs the jobs, if one does."""


def run_sweep(sweep: Sweep) -> int:
    """Run studies; return the exit status. Raises UserError for all that would stop them later."""
    from lib.workflow.commits import TREES, moved
    from lib.workflow.dry_run import due_runs
    from lib.workflow.execution import kernel_environment
    from lib.workflow.forked import SOCKETS, warm_process
    from lib.workflow.preflight import load_and_check
    from lib.workflow.staleness import analysis_key, data_key, stale

    studies = load_and_check(sweep.studies or [default_study()], sweep.is_local)
    if sweep.cluster and not sweep.is_dry_run:
        sweep.cluster.require_ready()
    with only_sweep() as log, contextlib.ExitStack() as stack:
        temporary = Path(tempfile.gettempdir())
        for leftover in (*temporary.glob(f"{SOCKETS}*"), *temporary.glob(f"{TREES}*")):
            shutil.rmtree(leftover, ignore_errors=True)
        for study in studies:
            if not sweep.is_dry_run:
                write_commits(study.commits, study_folder(study.name))
            for line in moved(study):
                print(line)
            plan = load_plan(study)
            claim = claim_status(study, plan)
            if plan and study.name in plan.confirmatory and claim.reasons:
                print(f"{claim}: what runs now will not be confirmatory")
        stale_results = {path: reason for study in studies for path, reason in stale(study)}
        for path, reason in stale_results.items():
            if not (sweep.lists_runs and path.name == "result.json"):  # the table says why
                print(f"Stale: {relative(path)}: {reason}")
        if not sweep.is_dry_run:
            due = [study for study in studies if any(due_runs(due_study(study), stale_results))]
            if due and sweep.is_local and sweep.forks_kernels:
                stack.enter_context(warm_process(kernel_environment(due[0]), log))
            rehearse(due)
        cluster_settings: dict[str, Any] = {"needs": {}, "longest": None}
        if not (sweep.is_local or sweep.is_dry_run):
            from lib.workflow.dry_run import job_resources

            cluster_settings["needs"] = {
                study.name: job_resources(study, stale_results) for study in due
            }
            cluster_settings["longest"] = sweep.cluster and sweep.cluster.longest_job()
        keys = {s.name: {"data": data_key(s), "analysis": analysis_key(s)} for s in studies}
        patience = 0 if sweep.is_local else CANCEL_TIMEOUT
        began = time.monotonic()
        for record in (Record(study.name) for study in studies):
            if sweep.is_dry_run or is_replaceable(record):
                continue
            if sweep.replaces:
                mark_replaceable(record.study)
                stale_results[result_file("archive", record.study)] = "replaced, as asked"
            else:
                print(f"{record.study}: its record came from elsewhere and stays as it is")
        while True:
            due_seeds = {study.name: seeds_due(study) for study in studies}
            settings = {"keys": keys, "seeds": due_seeds, "patience": patience}
            write_json(SWEEP_FILE, settings | cluster_settings)
            status, failed = run_snakemake(studies, sweep, stale_results, log, began)
            undecided = [s for s in studies if seeds_due(s) > due_seeds[s.name]]
            if status or sweep.is_dry_run or not undecided:
                break
            for study in undecided:
                print(f"{study.name}: undecided after {due_seeds[study.name]} seeds, so it goes on")
            sweep, stale_results = replace(sweep, forced=[]), {}
    if not status and not sweep.is_dry_run:
        print_summaries(studies)
    _update_pages(failed)  # another sweep may begin meanwhile
    return status


def seeds_due(study: Study) -> int:
    """Return how many seeds of a study are asked for."""
    return len(study.seeds)


def due_study(study: Study) -> Study:
    """Return a study with the seeds that are asked for now."""
    return study.model_copy(update={"seeds": study.seeds[: seeds_due(study)]})


def rehearse(studies: list[Study]) -> None:
    """Analyse made-up results of some studies, in a process of its own. Raises UserError where the
    analysis of one would fail."""
    command = [sys.executable, "-m", "lib.workflow.rehearsal", *(study.name for study in studies)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True) if studies else None
    if process and process.returncode:
        message = process.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
        raise UserError(message or f"the rehearsal of the analysis ended with {process.returncode}")


def default_study() -> str:
    """Name the study to run when none is named: `final`, or its counterpart on the synthetic text
    where its own is neither here nor to be downloaded."""
    from lib.data.text import CorpusError, MissingCorpusError, load_corpus

    try:
        load_corpus(load_study(DEFAULT).corpus)
    except MissingCorpusError as error:
        print(error, file=sys.stderr)
        print(f"Running {EMBEDDED} instead, the same study of the synthetic text.", file=sys.stderr)
        return EMBEDDED
    except CorpusError:
        pass  # said with all else that is wrong
    return DEFAULT


@contextlib.contextmanager
def only_sweep() -> Iterator[IO[bytes]]:
    """Open the log of this sweep, and be the only one that has. All its processes inherit it, so
    that the lock holds until the last of them has ended, also when the sweep itself was killed.

    Raises UserError naming the other sweep.
    """
    RUNS.mkdir(parents=True, exist_ok=True)
    log, until = RUNS / "sweep.log", time.monotonic() + LOCK_TIMEOUT
    with log.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    other = log.read_text("utf-8", "replace").partition("\n")[0]
                    raise UserError(
                        f"another sweep, or what is left of one, is running in this folder "
                        f"({other}); wait for it to end"
                    ) from None
                time.sleep(0.1)
        file.truncate(0)
        file.write(f"process {os.getpid()}, since {time.strftime('%H:%M:%S')}\n".encode())
        file.flush()
        yield file


def run_snakemake(
    studies: list[Study], sweep: Sweep, stale: dict[Path, str], log: IO[bytes], began: float
) -> tuple[int, list[Path]]:
    """Call Snakemake over all studies, and have it make these stale results (→ why) anew; return
    the status, and the notebooks and logs of what failed. Time is counted since the sweep `began`.
    """
    slots = gpu_slots(studies, sweep.runs_per_gpu) if sweep.is_local else []
    command = [sys.executable, "-m", "snakemake", "-s", str(NOTEBOOKS / "Snakefile")]
    # Snakemake's own lock outlives a kill; that of `only_sweep` does not.
    command += ["--directory", str(RUNS.parent), "--nolock", "--rerun-incomplete", "--keep-going"]
    command += ["--rerun-triggers", "mtime", "params", "input"]
    jobs = sweep.jobs or len(slots) or os.cpu_count() or 1
    if not sweep.jobs:
        command += ["--jobs", str(jobs)]
    command += sweep.flags
    if not (sweep.is_dry_run or sweep.is_ordered):
        from lib.workflow.dry_run import longest_runs

        if first := longest_runs(list(map(due_study, studies)), stale, jobs):
            command += ["--prioritize", *map(str, first)]
    if forced := [*sweep.forced, *map(str, stale)]:
        command += ["--forcerun", *forced]
    environment = os.environ | {GPUS: ",".join(slots), "PYTHONPATH": str(ROOT)}
    PROGRESS_FILE.unlink(missing_ok=True)
    if sweep.lists_runs:
        command += ["--quiet", "all"]  # it ends as soon as it has counted its jobs
        status = subprocess.run(command, env=environment, stdout=log, stderr=log).returncode
        if status:
            return status, _report({}, Path(log.name))
        from lib.workflow.dry_run import print_dry_run

        print_dry_run(list(map(due_study, studies)), stale, read_progress(PROGRESS_FILE).jobs, jobs)
        return 0, []
    if sweep.is_dry_run:  # in its own words, to the terminal
        return subprocess.run(command, env=environment).returncode, []

    for paper in {study.paper for study in studies}:
        if not (PAPERS / paper / "site" / "index.html").is_file():
            (RUNS / f"record-{paper}.txt").unlink(missing_ok=True)  # what has Snakemake build it
    with processes.start(command, environment, log) as snakemake:
        hours = sweep.stop_after and sweep.stop_after - (time.monotonic() - began) / 3600
        failed, stopped = follow(snakemake, PROGRESS_FILE, hours, studies)
    if not RUNS.is_dir() or not Path(log.name).is_file():
        raise UserError(f"{relative(RUNS)}/ was deleted while its studies ran; a rerun begins anew")
    if not stopped and not snakemake.returncode:
        return 0, []
    failed_files = _report(failed, Path(log.name)) if not stopped or failed else []
    if stopped:
        print(f"stopped after {sweep.stop_after:g} hours, as asked; a plain rerun continues")
    return (TIME_UP if stopped else snakemake.returncode), failed_files


def print_summaries(studies: list[Study]) -> None:
    """Print the results of studies, and what was built of their papers."""
    from lib.workflow.summary import summarise

    for study in studies:
        summarise(study)
    for paper in sorted({study.paper for study in studies}):
        for name in ("paper", "record"):
            if (output := RUNS / f"{name}-{paper}.txt").is_file():
                print(output.read_text("utf-8"), end="")
        if not (PAPERS / paper / "paper.md").is_file():
            print(f"To begin a paper    ./run_all.sh paper {paper}")


def _report(failed: dict[str, str], log: Path) -> list[Path]:
    """Say what failed; return the notebooks and logs of it."""
    if shutil.disk_usage(RUNS).free < FULL:
        raise UserError(f"the disk that holds {relative(RUNS)}/ is full; free some space and rerun")
    logs = {Path(name): message for name, message in failed.items() if Path(name).is_file()}
    for path, message in logs.items():
        print(f"FAILED {path.relative_to(RUNS)}: {reason(path, message)}", file=sys.stderr)
    if not logs:
        print(f"error: Snakemake stopped with {reason(log)}", file=sys.stderr)
    print(
        f"Not everything ran; a rerun tries again. Log: {relative(log)}",
        file=sys.stderr,
        flush=True,
    )
    return list(logs)


def _update_pages(failed: list[Path]) -> None:
    """Bring the lab record's pages of the notebooks that failed up to date."""
    from lib.publish.site import DamagedError, build_site

    notebooks = [path for path in failed if path.suffix == ".ipynb"]
    studies = {path.relative_to(RUNS).parts[0] for path in notebooks}
    for paper in sorted(set(map(paper_of, studies))):
        with contextlib.suppress(DamagedError):  # the pages say it, and the sweep has failed
            build_site(paper, notebooks)
        for page in sorted(paper / "site" / study / "index.html" for study in studies):
            if page.is_file():
                print(f"Lab record          {relative(page)}")


def reason(log: Path, cluster_log: str = "") -> str:
    """Say why a job failed: a notebook is stamped with it, other jobs end their log with it; of one
    that was ended from outside, or not begun, the cluster tells."""
    status = status_of(log) if log.suffix == ".ipynb" else {}
    if status.get("status") != "failed" and (message := explanation(cluster_log)):
        return f"Slurm: {message}"
    if "reason" in status:
        return f"{status['reason']} (kept: {relative(log)})"
    if status:
        return "it ended before its notebook began"
    lines = log.read_text("utf-8", "replace").strip().splitlines() or ["an empty log"]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return "; ".join(errors) or lines[-1]
