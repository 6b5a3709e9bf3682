"""Run studies: find what is due and why, call Snakemake once, and show one line of progress.

The same command continues a stopped sweep. A result counts only if it says itself that it was made
by today's code, from this corpus, with these parameters. File times decide nothing.
"""

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from filelock import Timeout
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from lib.config import files, paths
from lib.config.claim import claim_status, load_plan
from lib.config.environment import PARENT, environment
from lib.config.errors import TIME_UP, UserError
from lib.config.files import sha256
from lib.config.paths import ROOT, RUNS, executed_notebook, relative, result_file
from lib.config.provenance import git_state, measure_key, train_key
from lib.config.schema import RunConfig
from lib.config.study import Arm, Study
from lib.config.yaml import Json, read_yaml
from lib.data.suite import has_harness
from lib.record.archive import SHARED, is_replaceable, is_whole, why_changed
from lib.results import STEP_FILE, RunResult, identity_fields, status_of
from lib.sweep import estimate, execute
from lib.sweep.code import copy_code, run_module, with_commits, write_commits
from lib.sweep.execute import GPUS, apart, archived_file, made_from, turns
from lib.sweep.preflight import load_and_check, print_texts, require_executable
from lib.sweep.slurm import read_slurm_config, require_end_is_told
from lib.sweep.summary import print_places, summarise

LONG = 600.0
"""Seconds. A longer sweep first checks with a sweep of five steps that everything works."""
LOCK_TRIES = 50
"""How often a sweep tries to get the lock, ten times per second: an earlier one may be ending."""
CANCEL_TIMEOUT = 60.0
"""Seconds that Snakemake has to cancel its jobs on a cluster."""
SHOWN = 3
"""How many results are named of those that are stale for the same reason."""
_BEGUN = re.compile(rb"^    output: (.+)$", re.MULTILINE)
"""The output file of a job, in the lines that Snakemake logs when the job starts."""
_MEASURED = "measured again from its weights"
_EXPLORES = "it will not be confirmatory"
_MEASURING = (
    "study",
    "arm",
    "baseline",
    "levels",
    "variant",
    "setting",
    "tasks_hash",
    "study_hash",
    "measuring code",
    "corpus.source",
    "evaluation.items_per_task",
    "evaluation.tasks",
    "evaluation.shots",
    "evaluation.include_path",
)
"""Fields that do not change weights. If any other field differs, a run is trained again."""
Runs = dict[Path, tuple[Study, Arm, int]]
"""A result's path → its run: study, arm and seed."""


@dataclass(frozen=True)
class Sweep:
    """A command line, parsed."""

    studies: list[str]
    flags: list[str] = field(default_factory=list)
    """Flags for Snakemake."""
    jobs: int | None = None
    """Runs at once; None: as many as GPUs, or cores and memory, have room for."""
    stop_after: float | None = None
    """Hours."""
    dry_run: bool = False
    replace: bool = False
    """Whether published records are replaced."""

    @cached_property
    def cluster(self) -> tuple[str, str | None]:
        """Snakemake's executor ("" on this machine) and its command for the status of jobs, from
        the flags or from the profile that they name."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--profile")
        parser.add_argument("--executor", "-e")
        parser.add_argument("--slurm-status-command")
        given, _ = parser.parse_known_args(self.flags)
        profile = {"executor": ""}
        if given.profile:
            files = paths.listed(Path(given.profile), "config*.yaml")
            profile |= read_yaml(files[-1]) if files else {"executor": "unknown"}
        status_command = given.slurm_status_command or profile.get("slurm-status-command")
        return given.executor or profile["executor"], status_command

    @property
    def is_local(self) -> bool:
        return not self.cluster[0]


def run_sweep(sweep: Sweep) -> int:
    """Run studies; return the exit status. Raises UserError for anything that would stop a run
    later."""
    studies = load_and_check(sweep.studies, replaces=sweep.replace)
    studies = [with_commits(study) for study in studies]
    if sweep.dry_run:
        return make(studies, sweep, None)
    with only_sweep() as log:
        for study in studies:
            write_commits(study)
        if status := make(studies, sweep, log):
            return status
    for study in studies:
        summarise(study)
    papers = sorted({f"paper-{study.paper}.txt" for study in studies})
    site, *rest = (RUNS / name for name in ("site.txt", *papers))
    print(_printed(site), end="")
    for study in studies:
        print_places(study)
    print(*map(_printed, rest), sep="", end="")
    return 0


def _printed(file: Path) -> str:
    """Return the output of a command about the files that it made, as the Snakefile kept it."""
    return file.read_text("utf-8") if file.is_file() else ""


def make(studies: list[Study], sweep: Sweep, log: IO[bytes] | None) -> int:
    """Print what is missing or stale, and let Snakemake make it with a copy of the code; return its
    exit status. Without a log (a dry run), only print what it would make.

    Raises UserError if the sweep of five steps fails, or if the code was edited meanwhile.
    """
    # Nothing here starts Snakemake or imports torch until something is due.
    stale, runs = find_stale(studies), runs_of(studies)
    print_reasons(studies, stale, replaces=sweep.replace)
    due = {path: run for path, run in runs.items() if path in stale or not path.is_file()}
    later = made_later(studies, due, stale)
    if not (due or later or sweep.flags or sweep.replace):
        print("No run is missing or stale.")
        return 0
    print_texts(studies)
    gpus = estimate.gpus(studies, sweep.jobs) if sweep.is_local else []
    jobs = sweep.jobs or (len(gpus) or estimate.side_by_side(studies) if sweep.is_local else None)
    if log is None:
        print_plan(studies, due, later, jobs)
        if not sweep.flags:
            return 0
        sweep = replace(sweep, flags=[flag for flag in sweep.flags if flag != "--verbose"])
        asks = [estimate.asks(study, tries=False) for study in studies]
        command = snakemake_command(ROOT, studies, sweep, stale, jobs, asks)
        return subprocess.run([*command, "--dry-run"], env=environment()).returncode
    executor, status_command = sweep.cluster
    if executor == "slurm":
        require_end_is_told(read_slurm_config(), status_command)
    require_executable(studies, is_local=sweep.is_local)
    trained = {study.name for study, *_ in due.values() if not sweep.is_local}
    if trained:
        print(f"Measuring what runs need on the cluster: {', '.join(trained)}", flush=True)
    asks = [estimate.asks(study, tries=study.name in trained) for study in studies]
    _set_clocks_back(studies)
    copy = copy_code(studies)  # from here on, edits of the code change nothing
    command = snakemake_command(copy, studies, sweep, stale, jobs, asks)
    is_long = sweep.is_local and seconds_of(due) / (jobs or 1) > LONG
    if is_long and paths.OUTPUT not in os.environ:  # OUTPUT is set: this is that short sweep
        sweep_five_steps({study.name: study for study, *_ in due.values()}, sweep)
    return run_snakemake(command, copy, sweep, gpus, due, later, len(runs), log)


def run_snakemake(
    command: list[str],
    copy: Path,
    sweep: Sweep,
    gpus: list[str],
    due: Runs,
    later: Mapping[Path, str],
    total: int,
    log: IO[bytes],
) -> int:
    """Run Snakemake with a copy of the code, and show its progress (see `follow`); return its exit
    status."""
    variables = {GPUS: ";".join(gpus), paths.OUTPUT: str(paths.output_root())}
    if sweep.is_local:
        variables[PARENT] = str(os.getpid())  # so that everything ends if this process is killed
    snakemake = subprocess.Popen(
        command,
        env=environment(PYTHONPATH=str(copy), **variables),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # so that Ctrl-C reaches only this process
    )
    try:
        is_stopped = not follow(snakemake, due, later, total, sweep.stop_after, Path(log.name))
    finally:  # jobs on this machine end with Snakemake (see `end_with_parent`)
        if not sweep.is_local:
            snakemake.send_signal(signal.SIGINT)  # then it cancels its jobs on the cluster
            with contextlib.suppress(subprocess.TimeoutExpired):
                snakemake.wait(CANCEL_TIMEOUT)
        snakemake.kill()
    status = snakemake.wait()
    if status and is_stopped:
        print(f"stopped after {sweep.stop_after:g} hours; the same command continues")
        return TIME_UP
    if status:
        print_failures(Path(log.name))
    return status


@contextlib.contextmanager
def only_sweep() -> Iterator[IO[bytes]]:
    """Lock the sweep's log while the block runs, and yield it.

    All processes of a sweep inherit the open log. So the lock holds until the last of them ends,
    even if the sweep itself was killed. On file systems without flock, the lock is a separate file,
    and ends with the sweep. Raises UserError if another sweep is running, and names its process.
    """
    RUNS.mkdir(parents=True, exist_ok=True)
    with (log := RUNS / "sweep.log").open("ab") as file, contextlib.ExitStack() as held:
        for _ in range(LOCK_TRIES):
            with contextlib.suppress(BlockingIOError, Timeout):
                if files.has_flock(RUNS):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                else:
                    held.enter_context(files.file_lock(log).acquire(timeout=0))
                break
            time.sleep(0.1)
        else:
            other = log.read_text("utf-8", "replace").partition("\n")[0]
            message = f"another sweep, or a part of one, is running here ({other})"
            remedy = "wait until it ends"
            if not files.has_flock(RUNS):
                left = relative(Path(files.file_lock(log).lock_file))
                remedy += f", or delete {left} if that machine is down"
            raise UserError(f"{message}; {remedy}")
        file.truncate(0)
        file.write(f"process {os.getpid()}, since {time.strftime('%H:%M:%S')}\n".encode())
        file.flush()
        yield file


def snakemake_command(
    code: Path,
    studies: list[Study],
    sweep: Sweep,
    stale: Mapping[Path, str],
    jobs: int | None,
    asks: Iterable[str],
    changes: Json | None = None,
) -> list[str]:
    """Return the command with which Snakemake makes what is missing or stale, with the code in the
    folder `code`. `asks` has what runs of each study request from a cluster: see `estimate.asks`.
    With `changes`, it only trains scratch runs.
    """
    command = [sys.executable, "-m", "snakemake", "-s", str(code / "notebooks" / "Snakefile")]
    # --nolock, because Snakemake's own lock stays after a kill; that of `only_sweep` does not.
    command += ["--directory", str(RUNS.parent), "--nolock", "--rerun-incomplete", "--keep-going"]
    # Snakemake makes what is missing or forced; `find_stale` forces what is stale. Times decide
    # nothing.
    command += ["--rerun-triggers", "input", "--workflow-profile", "none"]
    command += ["--jobs", str(jobs)] if jobs else []
    command += ["--config", f"studies={','.join(study.name for study in studies)}"]
    command += [f"asks={','.join(asks)}"]
    command += [f"replace={'--replace' if sweep.replace else ''}"]
    if changes:  # in hexadecimal, because Snakemake parses values in a way of its own
        command += [f"changes={json.dumps(changes).encode().hex()}"]
    for flag in sweep.flags:  # `--until train` means all rules that train
        command += turns(studies) if flag == "train" else [flag]
    forced = [*stale, *(archived_file(study.name) for study in studies if sweep.replace)]
    return command + (["--forcerun", *map(str, forced)] if forced else [])


def sweep_five_steps(studies: Mapping[str, Study], sweep: Sweep) -> None:
    """Run a sweep of two arms, two seeds and five steps in a temporary folder, up to the figures.
    So faults show before hours are spent. Raises UserError if it fails."""
    print(f"First a check of five steps: {', '.join(studies)}", flush=True)
    jobs = ["--jobs", str(sweep.jobs)] if sweep.jobs else []
    with apart(map(estimate.shortened, studies.values())) as folder:
        try:
            run_module(ROOT, folder, "lib.sweep.cli", *studies, "--until", "figures", *jobs)
        except UserError as error:
            raise UserError(f"a sweep of five steps failed: {error}") from None


def runs_of(studies: list[Study]) -> Runs:
    """List all runs of some studies."""
    return {
        result_file("02_train", study.name, arm.id, seed): (study, arm, seed)
        for study in studies
        for arm in study.arms()
        for seed in study.seeds
    }


def made_later(studies: list[Study], due: Runs, stale: Mapping[Path, str]) -> dict[Path, str]:
    """Return what is due after the runs, in order, each with its name for the progress bar: files
    that are missing or stale, and files made from something that is made again."""
    made = dict[Path, str]()
    papers = set[Path]()
    for study in studies:
        again = False  # once it is true, everything later is made again
        has_runs = any(study is of for of, *_ in due.values())
        for path, word in {
            result_file("01_data", study.name): "data",
            result_file("03_analysis", study.name): "analysis",
            result_file("04_figures", study.name): "figures",
            archived_file(study.name): "record",
        }.items():
            again |= path in stale or not path.is_file() or (has_runs and word == "analysis")
            if again:
                made[path] = word
        paper = RUNS / f"paper-{study.paper}.txt"
        if again or not paper.is_file():
            papers.add(paper)
    made |= dict.fromkeys(sorted(papers), "paper")
    site = RUNS / "site.txt"
    return made | ({site: "pages"} if made or not site.is_file() else {})


def find_stale(studies: list[Study]) -> dict[Path, str]:
    """Return each result that does not count, with the reason and what happens now. Raises
    CorpusError."""
    reasons = {path: why_stale(*run) for path, run in runs_of(studies).items() if path.is_file()}
    for study in studies:
        is_settled = not any(reasons.get(path, "missing") for path in runs_of([study]))
        for name in SHARED:
            if (path := result_file(name, study.name)).is_file():
                reasons[path] = _why_notebook_stale(name, study, is_settled)
        archived = archived_file(study.name)
        if archived.is_file() and is_replaceable(study.name) and not is_whole(study.name):
            reasons[archived] = "the record was changed: archived again"
    return {path: reason for path, reason in reasons.items() if reason}


def why_stale(study: Study, arm: Arm, seed: int) -> str:
    """Return why a run's result does not count (the field, its new and its old value) and what
    happens now; "" if it counts."""
    file = result_file("02_train", study.name, arm.id, seed)
    corpus, commit = execute.corpus_of(arm.config.corpus), study.commit_of(arm)
    # What the run should be, and below (`was`) what its result says that it is.
    wanted = {
        **identity_fields(study, arm, seed),
        "corpus": corpus.sha256,
        "tokenizer": corpus.tokenizer.sha256,
        "code": commit,
        "training code": train_key(),
        "measuring code": measure_key(),
    }
    try:
        result = RunResult.model_validate(files.read_json(file))
        trained, executed = result.provenance["trained"], result.provenance["executed"]
        was = {
            **result.model_dump(include={*wanted}),
            "seed": trained.get("seed"),
            "corpus": trained["corpus_sha256"],
            "tokenizer": trained.get("tokenizer_sha256"),
            "code": trained.get("code"),
            # An arm that is a commit has its own code; "code" above compares the commit.
            "training code": wanted["training code"] if commit else trained["training_digest"],
            "measuring code": wanted["measuring code"] if commit else executed["measuring_digest"],
        }
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"result.json cannot be read, or is of another version: {_MEASURED}"
    # Older code does not write newer fields: they have their defaults.
    was = _flat(RunConfig().model_dump()) | _flat(was.pop("config")) | was
    for name, value in (_flat(wanted.pop("config")) | wanted).items():
        if was.get(name) != value:
            remedy = _MEASURED if name in _MEASURING else "trained again"
            return f"{name} is {_short(value)} and was {_short(was.get(name))}: {remedy}"
    has_suite = result.status == "completed" and arm.config.evaluation.items_per_task != 0
    if has_suite and result.suite_hash is None and has_harness():
        return f"the suite was left out because lm_eval was missing: {_MEASURED}"
    for name, hash_ in result.files.items():
        if not (raw := file.with_name(name)).is_file() or sha256(raw) != hash_:
            return f"{name} is missing or was changed: {_MEASURED}"
    status = status_of(file.with_name("02_train.ipynb"))
    if status["status"] != "completed":
        return f"02_train.ipynb is {status['status']} ({status.get('reason')}): {_MEASURED}"
    if status.get("result", sha256(file)) != sha256(file):  # stamped when it was executed
        return f"result.json was changed: {_MEASURED}"
    return ""


def _flat(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{s}.{name}": value for s, fields in config.items() for name, value in fields.items()}


def _short(value: Any) -> str:
    """Write a value for a message; of a hash only the first digits."""
    return value[:12] if isinstance(value, str) and len(value) >= 40 else repr(value)


def _why_notebook_stale(name: str, study: Study, is_settled: bool) -> str:
    """Return why a notebook of the whole study must be executed again, or "". If runs are due
    (not `is_settled`), changed results are no reason: it is executed after the runs anyway."""
    stamp = status_of(executed_notebook(name, study.name))
    if stamp["status"] != "completed":
        return f"its notebook is {stamp['status']}: executed again"
    if why := why_changed(name, study):
        return f"{why}: executed again"
    was, now = stamp.get("made_from", {}), made_from(name, study)
    changed = [what for what in now if now[what] != was.get(what)]
    changed = [what for what in changed if is_settled or what != "results"]
    return f"{' and '.join(changed)} changed: executed again" if changed else ""


def print_reasons(
    studies: Iterable[Study], stale: Mapping[Path, str], *, replaces: bool = False
) -> None:
    """Print which planned studies will not be confirmatory, which records are kept, and what is
    stale and why."""
    for study in studies:
        plan = load_plan(study)
        frozen = plan.frozen.get(study.name) if plan else None
        runs = runs_of([study])
        kept = [files.read_json(path) for path in runs if path.is_file() and path not in stale]
        is_due = len(kept) < len(runs)
        claim = claim_status(study, plan, kept)
        if is_due and not claim.reasons:
            claim = claim_status(study, plan, [])  # the claim of the runs that are due
        if plan and study.name in plan.confirmatory and claim.reasons:
            print(f"{claim}: {_EXPLORES}")
        elif is_due and frozen and frozen.committed_code and git_state()["clean"] is not True:
            print(f"{study.name}: commit code and parameters first, or {_EXPLORES}")
        if not (replaces or is_replaceable(study.name)):
            folder = relative(paths.study_folder(study.name))
            print(
                f"The published record is kept; your runs go to {folder}/ (--replace: replace it)"
            )
    because = defaultdict[str, list[str]](list)
    for path, reason in stale.items():
        because[reason].append(relative(path).removesuffix("/result.json"))
    for reason, names in because.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        print_wrapped(f"Stale: {', '.join(names[:SHOWN])}{more}: {reason}")


def print_plan(
    studies: list[Study], due: Runs, later: Mapping[Path, str], jobs: int | None
) -> None:
    """Print what a sweep would do: how many runs, how long they take, and what follows."""
    for study in studies:
        runs = runs_of([study])
        missing = sum(not path.is_file() for path in runs)
        stale = len(runs.keys() & due.keys()) - missing
        train = missing + stale
        number = f"{train} of {len(runs)} runs to train ({missing} missing, {stale} stale)"
        print_wrapped(f"{study.name}: {number}, {len(runs) - train} done")
    on = " on a GPU" if any(estimate.device_of(study) == "cuda" for study in studies) else ""
    if due and jobs:
        total = estimate.clock(seconds_of(due) / min(jobs, len(due)))
        how = f"roughly; to measure: ./run_all.sh estimate {studies[0].name}"
        print_wrapped(f"About {total}{on}, {jobs} at once ({how})")
    elif due:
        each = estimate.clock(seconds_of(due) / len(due))
        print_wrapped(f"About {each}{on} per run, roughly")
    if later:
        print_wrapped(f"Then: {', '.join(dict.fromkeys(later.values()))}")
    print_wrapped("Nothing was run: leave out -n to start; --verbose adds Snakemake's plan")


def print_wrapped(text: str) -> None:
    """Print a paragraph as wide as the terminal, and break lines only between words."""
    width = shutil.get_terminal_size().columns
    wrapper = textwrap.TextWrapper(width, subsequent_indent="  ", break_long_words=False)
    wrapper.break_on_hyphens = False
    print(wrapper.fill(text), flush=True)


def seconds_of(due: Runs) -> float:
    """Return how many seconds some runs take one after another, from a count of operations."""
    studies = {study.name: study for study, *_ in due.values()}
    each = {name: estimate.seconds_of(study) for name, study in studies.items()}
    return sum(each[study.name][arm.id] for study, arm, _ in due.values())


def _set_clocks_back(studies: Iterable[Study]) -> None:
    """Set file times that are in the future to now: Snakemake fails a job if its output is older
    than its input."""
    files = [path for study in studies for path in paths.study_folder(study.name).rglob("*.json")]
    for path in [*files, *RUNS.glob("*.txt"), *RUNS.glob("*/archived.txt")]:
        if path.stat().st_mtime > time.time():
            os.utime(path)


def follow(
    snakemake: subprocess.Popen[bytes],
    due: Runs,
    later: Mapping[Path, str],
    total: int,
    hours: float | None,
    log: Path,
) -> bool:
    """Show the progress of a sweep until it ends; return False if its time is up first.

    The bar counts everything that is made. The words count runs: `due` of the `total` were not done
    before. The time left is the mean time per step so far, times the steps that are left. Only the
    files of jobs that have started, according to Snakemake's log, are looked at.
    """
    # Set force_terminal, because with FORCE_COLOR (kernels set it) rich would colour a pipe.
    console = Console(force_terminal=sys.stdout.isatty(), highlight=False)
    columns = BarColumn(), TextColumn("{task.description}")
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    bar, start, last = progress.add_task("", total=total + len(later)), time.monotonic(), ""
    steps = {path: arm.config.training.iterations for path, (_, arm, _) in due.items()}
    old = _written([*due, *later])
    # Everything that is not made yet, in order, with the time of its former result.
    pending = {path: old.get(path) for path in [*due, *later]}
    made = _steps_made(due.keys() - old)
    todo = sum(steps.values()) - sum(made.values())
    begun, text = set[Path](), b""
    with progress, log.open("rb") as records:
        while True:
            status, elapsed = snakemake.poll(), time.monotonic() - start
            if status is None and hours and elapsed > hours * 3600:
                return False
            text = text.rpartition(b"\n")[2] + records.read()  # keep a line that was incomplete
            begun |= {Path(os.fsdecode(path)) for path in _BEGUN.findall(text)}
            looked_at = pending.keys() & (begun if status is None else pending)
            written = _written(looked_at)
            pending = {p: was for p, was in pending.items() if written.get(p, was) == was}
            rest = [path for path in pending if path in due]
            line = f"{total - len(rest)}/{total} runs"
            if not rest and pending:
                line += f", now the {later[next(iter(pending))]}"
            said = line
            made |= _steps_made((looked_at & due.keys()) - written.keys())
            left = sum(steps[path] - made.get(path, 0) for path in rest)
            if 0 < left < todo:
                line += f", {estimate.clock(elapsed / (todo - left) * left)} left"
            done = len(steps) + len(later) - len(pending)
            progress.update(bar, completed=total - len(due) + done, description=line)
            if status is not None:
                break
            if not console.is_terminal and said != last and done:
                print(f"{line}, {estimate.clock(elapsed)} elapsed", flush=True)
            last = said
            time.sleep(0.5)
    runs = f"{total - len(rest)}/{total} runs, {estimate.clock(elapsed)}"
    print(runs if due else "No run is missing or stale.")
    return True


def _written(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the time of each result that exists."""
    written = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            written[path] = path.stat().st_mtime_ns
    return written


def _steps_made(paths: Iterable[Path]) -> dict[Path, int]:
    """Return how many steps each run that has started has made, by the path of its result."""
    made = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError, ValueError):
            made[path] = int(path.with_name(STEP_FILE).read_text("utf-8"))
    return made


def print_failures(log: Path) -> None:
    """Print the errors of jobs in the log, or else its last line. Raises UserError if the disk is
    full."""
    disk = os.statvfs(RUNS)
    if disk.f_bavail * disk.f_frsize < 10**6 or disk.f_favail == 0 < disk.f_files:  # inodes
        raise UserError(f"disk: no space left for {relative(RUNS)}/; free some, and run this again")
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    # Several jobs may fail with the same error: print it once.
    for line in dict.fromkeys(line for line in lines if line.startswith("error: ")) or lines[-1:]:
        print(f"FAILED {line.removeprefix('error: ')}", file=sys.stderr)
    print(f"Some jobs failed; the same command tries again. Log: {relative(log)}", file=sys.stderr)
