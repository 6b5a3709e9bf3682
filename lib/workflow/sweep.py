"""Run studies: what is stale and why, one Snakemake call, one line of progress.

A plain rerun continues whatever was stopped, however it was. A result counts only where it was made
by this code, from this corpus, under these parameters and this plan: it says itself what it was
made with. No file's time of change decides anything.
"""

import contextlib
import fcntl
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from lib.data.text import CorpusError, MissingCorpusError, load_corpus
from lib.record.archive import SHARED, Record, is_replaceable, slim
from lib.results import RunResult, identity_fields, status_of
from lib.run.lm_eval import has_harness
from lib.study.code import measure_key, train_key
from lib.study.io import (
    NOTEBOOKS,
    OUTPUT,
    PAPERS,
    PARAMS,
    ROOT,
    RUNS,
    executed_notebook,
    output_root,
    read_json,
    relative,
    result_file,
    run_folder,
    sha256,
    study_folder,
    write_text,
)
from lib.study.preregistration import claim_status, load_plan
from lib.study.schema import CODE, RunConfig, digest
from lib.study.study import Arm, Study, load_study
from lib.study.yaml import TIME_UP, UserError
from lib.workflow import check
from lib.workflow.code_arms import commit_of, write_commits
from lib.workflow.execute import GPUS, made_from
from lib.workflow.live import STEP_FILE

DEFAULT, EMBEDDED = "final", "final-embedded"
"""The study that is run when none is named, and the one in its place where its text is missing."""
LONG = 600.0
"""Seconds: a sweep that takes longer is checked by one of five steps first."""
LOCK_TIMEOUT = 5.0
"""Seconds to wait for an earlier sweep that is ending."""
CANCEL_TIMEOUT = 60.0
"""Seconds that an ended sweep is given to cancel its jobs on a cluster."""
_MEASURED = "measured anew from its weights"
_MEASURING = (
    *("study", "arm", "baseline", "levels", "variant", "setting", "tasks_hash", "study_hash"),
    *("measuring code", "corpus.source", "evaluation.items_per_task", "evaluation.tasks"),
    *("evaluation.shots", "evaluation.include_path"),
)
"""What leaves weights as they are: a difference in anything else trains a run anew."""


@dataclass(frozen=True)
class Sweep:
    """What a command line asks for."""

    studies: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    """For Snakemake."""
    jobs: int | None = None
    """Runs at once; None: one per GPU, or per core."""
    stop_after: float | None = None
    """Hours."""
    dry_run: bool = False
    replace: bool = False
    """Whether records that came from elsewhere are replaced."""
    on_cluster: bool = False


def run_sweep(sweep: Sweep) -> int:
    """Run studies; return the exit status. Raises UserError for all that would stop them later."""
    studies = check.load_and_check(sweep.studies or [default_study()], not sweep.on_cluster)
    if sweep.dry_run:
        stale = find_stale(studies)
        print_reasons(studies, stale)
        return subprocess.run(snakemake_command(studies, sweep, stale) + ["--dry-run"]).returncode
    with only_sweep() as log:
        studies = [write_commits(study) for study in studies]
        stale = find_stale(studies)
        print_reasons(studies, stale)
        _set_clocks_back(studies)
        due = due_runs(studies, stale)
        gpus = [] if sweep.on_cluster else check.gpus(studies)
        seconds = check.seconds_of(due) / (sweep.jobs or len(gpus) or os.cpu_count() or 1)
        if seconds > LONG and not sweep.on_cluster:
            check_by_five_steps({study.name: study for study, *_ in due}, sweep)
        for study in studies:
            if sweep.replace:
                stale[result_file("archive", study.name)] = "replaced, as asked"
        environment = os.environ | {GPUS: ",".join(gpus), "PYTHONPATH": str(ROOT)}
        command = snakemake_command(studies, sweep, stale, len(gpus))
        snakemake = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            is_stopped = not follow(snakemake, due, sweep.stop_after)
        finally:  # its jobs end with it
            if sweep.on_cluster:
                snakemake.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    snakemake.wait(CANCEL_TIMEOUT)
            snakemake.kill()
            status = snakemake.wait()
        if is_stopped:
            print(f"stopped after {sweep.stop_after:g} hours, as asked; a plain rerun continues")
            return TIME_UP
        if status:
            print_failures(studies, Path(log.name))
            return status
        if not set(sweep.flags) & {"--until", "--omit-from"}:
            for paper in {study.paper for study in studies}:
                write_text(RUNS / f"paper-{paper}.key", paper_key(paper))
    from lib.workflow.summary import summarise

    for study in studies:
        summarise(study)
    for said in sorted({f"{what}-{s.paper}.txt" for s in studies for what in ("paper", "record")}):
        with contextlib.suppress(FileNotFoundError):
            print((RUNS / said).read_text("utf-8"), end="")
    return 0


def default_study() -> str:
    """Name the study to run when none is named: `final`, or its counterpart on the synthetic text
    where its own is neither here nor to be downloaded."""
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


def snakemake_command(
    studies: list[Study], sweep: Sweep, stale: Mapping[Path, str], n_gpus: int = 0
) -> list[str]:
    """Write the call of Snakemake that makes what is missing and these stale results."""
    command = [sys.executable, "-m", "snakemake", "-s", str(NOTEBOOKS / "Snakefile")]
    # Snakemake's own lock outlives a kill; that of `only_sweep` does not.
    command += ["--directory", str(RUNS.parent), "--nolock", "--rerun-incomplete", "--keep-going"]
    # It reruns what is missing, or forced; `find_stale` knows the rest, and files' times do not.
    command += ["--rerun-triggers", "input"]
    if sweep.jobs or not sweep.on_cluster:
        command += ["--jobs", str(sweep.jobs or n_gpus or os.cpu_count() or 1)]
    command += ["--config", f"studies={','.join(study.name for study in studies)}"]
    command += [f"replace={'--replace' if sweep.replace else ''}", *sweep.flags]
    return command + (["--forcerun", *map(str, stale)] if stale else [])


def check_by_five_steps(due: Mapping[str, Study], sweep: Sweep) -> None:
    """Sweep through 02, 03 and 04 with two arms, two seeds and five steps, in a temporary folder,
    before hours are spent. Raises UserError where that fails."""
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        (Path(folder) / "params").mkdir()
        (Path(folder) / "data").symlink_to(output_root() / "data")
        for study in due.values():
            text = check.shortened(study).model_dump_json(exclude={"commits"})
            (Path(folder) / "params" / f"{study.name}.yaml").write_text(text, "utf-8")
        print(f"checked first, by five steps: {', '.join(due)}", flush=True)
        command = [sys.executable, "-m", "lib.workflow.cli", *due, "--until", "figures"]
        command += ["--jobs", str(sweep.jobs)] if sweep.jobs else []
        environment = os.environ | {OUTPUT: folder}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"a sweep of five steps failed: {done.stderr.strip() or done.stdout}")


def due_runs(studies: list[Study], stale: Mapping[Path, str]) -> list[tuple[Study, Arm, int]]:
    """List the runs that are missing or stale."""
    runs = [(study, a, seed) for study in studies for a in study.arms() for seed in study.seeds]
    files = (result_file("02_train", study.name, arm.id, seed) for study, arm, seed in runs)
    return [run for run, file in zip(runs, files, strict=True) if file in stale or not file.is_file()]


def find_stale(studies: list[Study]) -> dict[Path, str]:
    """Find each result that is there and does not count, with the reason and with what will be
    done about it. Raises CorpusError."""
    stale: dict[Path, str] = {}
    for study in studies:
        plan = load_plan(study)
        for arm in study.arms():
            for seed in study.seeds:
                path = result_file("02_train", study.name, arm.id, seed)
                if path.is_file() and (why := why_stale(study, arm, seed, plan and plan.hash)):
                    stale[path] = why
        for name in SHARED:
            if (path := result_file(name, study.name)).is_file():
                stamp, now = status_of(executed_notebook(name, study.name)), made_from(name, study)
                was = stamp.get("made_from", {})
                changed = [of for of, value in now.items() if value != was.get(of)]
                if stamp["status"] != "completed":
                    stale[path] = f"its notebook is {stamp['status']}: executed again"
                elif changed:
                    stale[path] = f"{' and '.join(changed)} changed: executed again"
        if why := _why_archive_stale(study):
            stale[result_file("archive", study.name)] = why
    for paper in {study.paper for study in studies}:
        said, key = RUNS / f"paper-{paper}.txt", RUNS / f"paper-{paper}.key"
        if said.is_file() and not (key.is_file() and key.read_text("utf-8") == paper_key(paper)):
            stale[said] = "what the paper is made from changed: built again"
    return stale


def why_stale(study: Study, arm: Arm, seed: int, plan: str | None) -> str:
    """Say why the result of a run does not count, naming the field with its new and its old value,
    and what will be done about it; "" for one that counts. `plan` is its hash."""
    file = result_file("02_train", study.name, arm.id, seed)
    wanted = identity_fields(study, arm, seed)
    corpus = load_corpus(arm.config.corpus)
    commit = commit_of(study, arm)
    wanted |= {"corpus": corpus.sha256, "tokenizer": corpus.tokenizer.sha256, "plan": plan}
    wanted |= {"code": commit} if commit else {}
    wanted |= {} if commit else {"training code": train_key(), "measuring code": measure_key()}
    try:
        result = RunResult.model_validate_json(file.read_bytes())
        trained, executed = result.provenance["trained"], result.provenance["executed"]
        was = result.model_dump(include=set(wanted))
        was |= {"corpus": trained["corpus_sha256"], "tokenizer": trained.get("tokenizer_sha256")}
        was |= {"plan": trained["plan"], "seed": trained["seed"], "code": trained.get("code")}
        was["training code"] = trained["training_digest"]
        was["measuring code"] = executed["measuring_digest"]
    except (ValidationError, LookupError, TypeError):
        return f"result.json cannot be read, or is of another version: {_MEASURED}"
    # A field that came later is one that an arm's own code may lack.
    defaults, was = _flat(RunConfig().model_dump()), _flat(was.pop("config")) | was
    for name, value in (_flat(wanted.pop("config")) | wanted).items():
        if was.get(name, defaults.get(name)) != value:
            remedy = _MEASURED if name in _MEASURING else "trained anew"
            return f"{name} is {_short(value)} and was {_short(was.get(name))}: {remedy}"
    has_suite = result.status == "completed" and arm.config.evaluation.items_per_task != 0
    if has_suite and result.suite_hash is None and has_harness():
        return f"the suite was not asked for want of lm_eval: {_MEASURED}"
    for name, sum_ in result.files.items():
        if not (raw := file.with_name(name)).is_file() or sha256(raw) != sum_:
            return f"{name} is missing or not as it was written: {_MEASURED}"
    status = status_of(file.with_name("02_train.ipynb"))
    if status["status"] != "completed":
        return f"02_train.ipynb is {status['status']} ({status.get('reason')}): {_MEASURED}"
    return ""


def _flat(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{s}.{name}": value for s, fields in config.items() for name, value in fields.items()}


def _short(value: Any) -> str:
    """Write a value for a message; of a hash its beginning will do."""
    return value[:12] if isinstance(value, str) and len(value) >= 40 else repr(value)


def _why_archive_stale(study: Study) -> str:
    """Say why a study is to be archived again, if it was archived from here."""
    if not result_file("archive", study.name).is_file() or not is_replaceable(study.name):
        return ""
    record = Record(study.name)
    if lost := sorted(record.manifest.keys() - record.files.keys()):
        return f"{lost[0]} is missing in the record: archived again"
    pairs = {name: executed_notebook(name, study.name) for name in SHARED}
    for name, notebook in pairs.items():
        if notebook.is_file() and slim(read_json(notebook)) != read_json(record.notebook(name)):
            return f"{name} was executed since: archived again"
    return ""


def paper_key(paper: str) -> str:
    """Return a digest of what a paper and its record's pages are made from."""
    folder = PAPERS / paper
    files = [path for kind in ("md", "bib", "yaml", "py") for path in folder.glob(f"*.{kind}")]
    files += [*folder.glob("results/*.json"), *folder.glob("record/*/MANIFEST.sha256")]
    files += [*folder.glob("templates/**/*.*"), *PARAMS.glob("**/*.yaml")]
    files += [path for room in ("publish", "record", "figures") for path in ROOT.glob(f"lib/{room}/*.py")]
    return digest({str(path): sha256(path) for path in sorted(files)})


def print_reasons(studies: list[Study], stale: Mapping[Path, str]) -> None:
    """Say what a plan that names a study does not cover, and what is stale and why."""
    for study in studies:
        plan, claim = load_plan(study), claim_status(study, load_plan(study))
        if plan and study.name in plan.confirmatory and claim.reasons:
            print(f"{claim}: what runs now will not be confirmatory")
        if not is_replaceable(study.name):
            print(f"{study.name}: its record came from elsewhere and stays as it is (--replace)")
    for path, reason in stale.items():
        print(f"Stale: {relative(path)}: {reason}", flush=True)


def _set_clocks_back(studies: list[Study]) -> None:
    """Give files whose clock was ahead the present time: Snakemake fails a job whose output is
    older than its input."""
    now = time.time()
    for path in (path for study in studies for path in study_folder(study.name).rglob("*.json")):
        if path.stat().st_mtime > now:
            os.utime(path)


def follow(
    snakemake: "subprocess.Popen[bytes]", due: list[tuple[Study, Arm, int]], hours: float | None
) -> bool:
    """Show how far a sweep is until it ends; False where its time ends first.

    The time left is what one done step took, times the steps that are left.
    """
    console = Console(force_terminal=sys.stdout.isatty(), highlight=False)
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("runs{task.fields[said]}")
    start, last, progress = time.monotonic(), "", Progress(*columns, console=console)
    places = {run_folder(s.name, a.id, seed): (a, seed) for s, a, seed in due}
    steps = {folder: arm.config.training.iterations for folder, (arm, _) in places.items()}
    before = {folder: _inode(folder) for folder in places}
    begun = _steps_of(places)
    with progress if console.is_terminal else contextlib.nullcontext():
        task = progress.add_task("", total=len(due), said="")
        while snakemake.poll() is None:
            elapsed = time.monotonic() - start
            if hours and elapsed > hours * 3600:
                return False
            done = [f for f in places if _inode(f) not in (None, before[f])]
            running = _steps_of(set(places) - set(done))
            n = sum(steps[f] for f in done) + sum(running.values()) - sum(begun.values())
            left = sum(steps.values()) - n
            said = f", {clock(elapsed / n * left)} left" if n > 0 and left > 0 else ""
            names = [f"{places[f][0].id} seed {places[f][1]} {n}/{steps[f]}" for f, n in running.items()]
            progress.update(task, completed=len(done), said=f"{said}  {' · '.join(names)}")
            line = f"{len(done)}/{len(due)} runs"
            if line != last and not console.is_terminal and due:
                print(f"{line}{said}, {clock(elapsed)} elapsed", flush=True)
                last = line
            time.sleep(0.5)
        progress.update(task, completed=sum(_inode(f) not in (None, before[f]) for f in places))
    return True


def _inode(folder: Path) -> int | None:
    """Return what tells a new result from the one before: it is written under another name."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / "result.json").stat().st_ino
    return None


def _steps_of(folders: Any) -> dict[Path, int]:
    """Read how many steps each run in training has made."""
    steps = {}
    for folder in folders:
        with contextlib.suppress(FileNotFoundError, ValueError):
            steps[folder] = int((folder / STEP_FILE).read_text("utf-8"))
    return steps


def clock(seconds: float) -> str:
    """Write a time: seconds below a minute, else 1:05 or 2:07:30."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"


def print_failures(studies: list[Study], log: Path) -> None:
    """Say what failed and why: a notebook is stamped with it, other jobs end their log with it."""
    if shutil.disk_usage(RUNS).free < 10**6:
        raise UserError(f"the disk that holds {relative(RUNS)}/ is full; free some space and rerun")
    said = []
    for study in studies:
        for notebook in sorted(study_folder(study.name).rglob("0*.ipynb")):
            stamp = status_of(notebook)
            if stamp["status"] == "failed":
                said.append(f"{notebook.relative_to(RUNS)}: {stamp['reason']}")
    logs = [study_folder(study.name) / "archive.log" for study in studies]
    logs += [RUNS / f"{what}-{s.paper}.log" for s in studies for what in ("paper", "record")]
    for file in dict.fromkeys(filter(Path.is_file, logs)):
        lines = file.read_text("utf-8", "replace").splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        said += [f"{file.relative_to(RUNS)}: {error}" for error in errors]
    if not said:
        said = [(log.read_text("utf-8", "replace").strip().splitlines() or ["Snakemake failed"])[-1]]
    for line in said:
        print(f"FAILED {line}", file=sys.stderr)
    print(f"Not everything ran; a rerun tries again. Log: {relative(log)}", file=sys.stderr)
