"""Run studies: one Snakemake call, one progress line, one summary.

    ./run_all.sh [params/NAME.yaml …] [--jobs N] [any Snakemake flag]

Without a study, `final` is run. A plain rerun continues whatever was stopped, however it was.
What takes seconds to import is imported where it is used, after the command line was read.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lib.run import lifeline
from lib.study.config import Study, load_study
from lib.study.errors import TIME_UP, UserError, exit_status
from lib.study.paths import NOTEBOOKS, PAPERS, ROOT, RUNS, result_file, shown
from lib.study.record import RunResult, status_of, write_json
from lib.study.standing import load_plan, standing
from lib.workflow import sockets
from lib.workflow.command import Command, parse
from lib.workflow.gpus import GPUS, gpu_names, runs_per_gpu
from lib.workflow.progress import follow
from lib.workflow.slurm import ClusterError, Watch, explanation

DEFAULT, EMBEDDED = "final", "final-embedded"
"""The study that is run when none is named, and the one in its place where its text is missing."""
STOPPED = 130
"""The status of a sweep that was interrupted, as shells say it."""
PATIENCE = 5.0
"""Seconds to wait for an earlier sweep that is ending."""
CANCELLING = 60.0
"""Seconds that an ended sweep is given to cancel its jobs on a cluster."""
_CORPORA = ".corpora.json"
"""The texts' hashes, so that Snakemake, and each of its jobs on a cluster, need not read them."""
FULL = 10**6
"""Bytes: a disk with less is full."""


@exit_status
def main(words: list[str]) -> int:
    """Run the studies named in `words`; the rest goes to Snakemake. Return the status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # SIGINT is off in a script's background
    try:
        if "--snakemake-help" in words:
            return subprocess.run([sys.executable, "-m", "snakemake", "--help"]).returncode
        return _sweep(parse(words))
    except ClusterError as error:
        raise UserError(f"Slurm: {error}") from None
    except KeyboardInterrupt:
        print("\nstopped; a plain rerun continues", file=sys.stderr)
        return STOPPED


def _sweep(command: Command) -> int:
    from lib.workflow.preflight import ready
    from lib.workflow.staleness import corpus_hashes, stale

    studies = ready(command.studies or [default_study()], command.executor == "local")
    if command.cluster and not command.tells:
        command.cluster.require_ready()
    with only_sweep() as log:
        sockets.remove_dead()
        corpora = corpus_hashes(studies)
        for study in studies:
            plan = load_plan(study)
            claim = standing(study, plan)
            if plan and study.name in plan.confirmatory and claim.reasons:
                print(f"{claim}: what runs now will not be confirmatory")
        for result, why in [found for study in studies for found in stale(study, corpora)]:
            print(f"Stale: {shown(result)}: {why}")
            if not command.tells:
                result.unlink()
        write_json(RUNS / _CORPORA, corpora)
        if not command.tells:
            rehearse([study for study in studies if not complete(study)])
        status, failed = run(studies, command, log)
    _show(failed)  # another sweep may begin meanwhile
    return status


def complete(study: Study) -> bool:
    """Tell whether all runs of a study are done, so that nothing of it will be trained."""
    places = [(arm.id, seed) for arm in study.arms() for seed in study.seeds]
    return all(result_file("02_train", study.name, *place).is_file() for place in places)


def rehearse(studies: list[Study]) -> None:
    """Analyse made-up results of some studies, in a process of its own. Raises UserError where the
    analysis of one would fail."""
    if studies:
        call = [sys.executable, "-m", "lib.workflow.rehearsal", *(study.name for study in studies)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(call, env=environment, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            said = done.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
            raise UserError(said or f"the rehearsal of the analysis ended with {done.returncode}")


def default_study() -> str:
    """Name the study to run when none is named: `final`, or its counterpart on the synthetic text
    where its own is neither here nor to be downloaded."""
    from lib.data.corpus import CorpusError, MissingCorpusError, load_corpus

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
    log, until = RUNS / "sweep.log", time.monotonic() + PATIENCE
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


def places(studies: list[Study], command: Command) -> list[str]:
    """The GPUs that runs of some studies take turns on, each as often as it takes runs at once;
    none for studies of the CPU, and on a cluster, which gives its jobs their own."""
    studies = [study for study in studies if study.machine.device != "cpu"]
    gpus = gpu_names() if studies and command.executor == "local" else []
    if not gpus:
        return []
    from lib.workflow.estimate import gpu_memory

    # Each once, then each once more.
    return gpus * (command.runs_per_gpu or runs_per_gpu(len(gpus), gpu_memory(studies)))


def run(studies: list[Study], command: Command, log: IO[bytes]) -> tuple[int, list[Path]]:
    """Call Snakemake over all studies, then print what came of each; return the status, and the
    notebooks and logs of what failed."""
    progress_file, flags = RUNS / ".progress.json", command.flags
    gpus = places(studies, command)
    # How many at once: what the user or a cluster's profile says, else as many as the GPUs take.
    if not {"jobs", "cores", "profile"} & command.options:
        flags = ["--jobs", str(len(gpus) or os.cpu_count() or 1), *flags]
    call = [sys.executable, "-m", "snakemake", "-s", str(NOTEBOOKS / "Snakefile")]
    call += ["--directory", str(RUNS.parent), "--config"]
    # Snakemake reads values as YAML: a study called 2024 and a path with " #" stay text like this.
    call += ["studies=" + "".join(f"{study.name}," for study in studies)]
    call += [f"progress={json.dumps(str(progress_file))}"]
    call += [f"corpora={json.dumps(str(RUNS / _CORPORA))}"]
    call += [f"patience={0 if command.executor == 'local' else CANCELLING}"]
    # Snakemake's own lock would outlive a kill; ours does not, and each run has one of its own.
    call += ["--nolock", "--rerun-incomplete", "--keep-going"]
    call += ["--rerun-triggers", "mtime", "params", "input", *flags]
    environment = os.environ | {GPUS: ",".join(gpus), "PYTHONPATH": str(ROOT)}
    if command.tells:  # in its own words, to the terminal
        return subprocess.run(call, env=environment).returncode, []

    progress_file.unlink(missing_ok=True)
    for paper in {study.paper for study in studies}:
        if not (PAPERS / paper / "site" / "index.html").is_file():
            (RUNS / f"record-{paper}.txt").unlink(missing_ok=True)  # what has Snakemake build it
    with lifeline.start(call, environment, log) as snakemake:
        watch = [Watch(command.cluster)] if command.cluster else []
        failed, stopped = follow(snakemake, progress_file, command.stop_after, studies, *watch)
    if not RUNS.is_dir() or not Path(log.name).is_file():
        raise UserError(f"{shown(RUNS)}/ was deleted while its studies ran; a rerun begins anew")
    if not stopped and not snakemake.returncode:
        for study in studies:
            summarise(study)
        for paper in sorted({study.paper for study in studies}):
            _tell_published(paper)
        return 0, []
    kept = _report(failed, Path(log.name)) if not stopped or failed else []
    if stopped:
        print(f"stopped after {command.stop_after:g} hours, as asked; a plain rerun continues")
    return (TIME_UP if stopped else snakemake.returncode), kept


def _tell_published(paper: str) -> None:
    for name in ("paper", "record"):
        if (said := RUNS / f"{name}-{paper}.txt").is_file():
            print(said.read_text("utf-8"), end="")
    if not (PAPERS / paper / "paper.md").is_file():
        print(f"To begin a paper    ./run_all.sh paper {paper}")


def _report(failed: dict[str, str], log: Path) -> list[Path]:
    """Say what failed; return the notebooks and logs of it."""
    if shutil.disk_usage(RUNS).free < FULL:
        raise UserError(f"the disk that holds {shown(RUNS)}/ is full; free some space and rerun")
    kept = {Path(name): said for name, said in failed.items() if Path(name).is_file()}
    for place, said in kept.items():
        print(f"FAILED {place.relative_to(RUNS)}: {reason(place, said)}", file=sys.stderr)
    if not kept:
        print(f"error: Snakemake stopped with {reason(log)}", file=sys.stderr)
    print(
        f"Not everything ran; a rerun tries again. Log: {shown(log)}", file=sys.stderr, flush=True
    )
    return list(kept)


def _show(failed: list[Path]) -> None:
    """Bring the lab record's pages of the notebooks that failed up to date."""
    from lib.publish.archive import paper_of
    from lib.publish.site import DamagedError, build_site

    notebooks = [path for path in failed if path.suffix == ".ipynb"]
    studies = {path.relative_to(RUNS).parts[0] for path in notebooks}
    for paper in sorted(set(map(paper_of, studies))):
        with contextlib.suppress(DamagedError):  # the pages say it, and the sweep has failed
            build_site(paper, notebooks)
        for page in sorted(paper / "site" / study / "index.html" for study in studies):
            if page.is_file():
                print(f"Lab record          {shown(page)}")


def summarise(study: Study) -> None:
    """Print a finished study's table and where to read more."""
    from lib.analysis.runs import tidy
    from lib.analysis.tables import summary_table, takeaway
    from lib.publish.archive import read_runs, record_folder, results_file

    if not results_file(study.name).is_file():  # --until and the like end before it is archived
        print(f"{study.name}: not archived, as the flags ask for a part only")
        return
    runs = tidy(map(RunResult.model_validate, read_runs(study.name)))
    print(f"\n{study.name}: {len(runs)} runs\n{summary_table(runs).T.to_string()}\n")
    print(takeaway(runs))
    print(f"\nExecuted notebooks  {shown(record_folder(study.name))}/")
    print(f"Numbers             {shown(results_file(study.name))}")
    print(f"To check the record ./run_all.sh verify {study.name}")


def reason(log: Path, of_cluster: str = "") -> str:
    """Say why a job failed: a notebook is stamped with it, other jobs end their log with it; of one
    that was ended from outside, or not begun, the cluster tells."""
    status = status_of(log) if log.suffix == ".ipynb" else {}
    if status.get("status") != "failed" and (why := explanation(of_cluster)):
        return f"Slurm: {why}"
    if "reason" in status:
        return f"{status['reason']} (kept: {shown(log)})"
    if status:
        return "it ended before its notebook began"
    lines = log.read_text("utf-8", "replace").strip().splitlines() or ["an empty log"]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return "; ".join(errors) or lines[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
