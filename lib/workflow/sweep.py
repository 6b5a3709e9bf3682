"""Run studies: one Snakemake call, one progress line, one summary.

    ./run_all.sh [params/NAME.yaml …] [--jobs N] [any Snakemake flag]

Without a study, `final` is run. A plain rerun continues whatever was stopped, however it was.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from lib.analysis.runs import tidy
from lib.analysis.tables import summary_table, takeaway
from lib.data.corpus import CorpusError, load_corpus
from lib.publish.archive import record_folder, results_file
from lib.publish.paper import main as build_paper
from lib.publish.site import main as build_record
from lib.study.config import Study, load_study
from lib.study.errors import ConfigError
from lib.study.paths import NOTEBOOKS, PAPER, ROOT, RUNS, executed_notebook, shown, study_folder
from lib.study.record import RunResult, status_of
from lib.workflow.execution import GPUS

# Flags with which Snakemake tells something instead of running; its words then go to the terminal.
_TELLING = {"-n", "--dry-run", "--dryrun", "--summary", "-D", "--dag", "--rulegraph", "--lint"}
STOPPED = 130
"""The status of a sweep that was interrupted, as shells say it."""
_STEPS = re.compile(r"(\d+) of (\d+) steps")
_TOTAL = re.compile(r"^total\s+(\d+)", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Run the studies named first in `arguments`; the rest goes to Snakemake. Return its status."""
    split = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    names, flags = arguments[:split] or ["final"], arguments[split:]
    try:
        studies = [load_study(name) for name in names]
        for corpus in {arm.config.corpus for study in studies for arm in study.arms()}:
            load_corpus(corpus)  # once and in sight, should it have to be downloaded
    except (ConfigError, CorpusError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    RUNS.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(RUNS / ".sweep.lock", timeout=0):
            status = run(studies, flags)
            if _TELLING & set(flags) or status == STOPPED:
                return status
            # A copy of the tree without the paper's source trains and analyses all the same.
            if not status and (PAPER / "paper.md").is_file():
                status = build_paper()
            build_record([])  # it links the paper, and shows what failed
            return status
    except Timeout:
        print("error: another sweep is running in this folder; wait for it", file=sys.stderr)
        return 1


def run(studies: list[Study], flags: list[str]) -> int:
    """Call Snakemake over all studies, then print what came of each."""
    gpus = gpu_names()
    # How many at once: what the user or a cluster's profile says, else one per GPU or core.
    if not any(flag.startswith(("-j", "-c", "--jobs", "--cores", "--profile")) for flag in flags):
        flags = ["--jobs", str(len(gpus) or os.cpu_count() or 1), *flags]
    command = [sys.executable, "-m", "snakemake", "-s", str(NOTEBOOKS / "Snakefile")]
    command += ["--directory", str(RUNS.parent), "--config"]
    command += ["studies=" + ",".join(study.name for study in studies)]
    # Snakemake's own lock would outlive a kill; ours does not, and each run has one of its own.
    command += ["--nolock", "--rerun-incomplete", "--keep-going"]
    command += ["--rerun-triggers", "mtime", "params", "input", *flags]
    environment = os.environ | {GPUS: ",".join(gpus), "PYTHONPATH": str(ROOT)}
    if _TELLING & set(flags):
        return subprocess.run(command, cwd=ROOT, env=environment).returncode

    log = RUNS / "sweep.log"
    start = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        sweep = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            follow(sweep, log, start)
        except KeyboardInterrupt:
            sweep.wait()
            print("\nstopped; a plain rerun continues", file=sys.stderr)
            return STOPPED
    if not sweep.returncode:
        for study in studies:
            summarise(study)
    failed = [line for study in studies for line in failures(study)]
    if sweep.returncode and not failed:
        print(log.read_text("utf-8")[-2000:], file=sys.stderr)
    for line in failed:
        print(f"FAILED {line}", file=sys.stderr)
    if sweep.returncode:
        print(f"Not everything ran; a rerun tries again. Log: {shown(log)}", file=sys.stderr)
    return sweep.returncode


def follow(sweep: "subprocess.Popen[bytes]", log: Path, start: float) -> None:
    """Show one line that tells how far the sweep is, until it ends."""
    shown_line = ""
    while True:
        ended = sweep.poll() is not None
        text = log.read_text("utf-8", errors="replace")
        elapsed = time.monotonic() - start
        if steps := _STEPS.findall(text):
            done, total = map(int, steps[-1])
            left = f"about {_clock(elapsed / done * (total - done))} left"
        elif totals := _TOTAL.findall(text):
            done, total, left = 0, int(totals[-1]), "no estimate yet"
        else:
            done, total, left = 0, 0, "looking for what is not done"
        if ended and not total and not sweep.returncode:
            print("Nothing to do: everything is up to date.")
            return
        line = f"{done}/{total} steps done, {left}"
        if sys.stdout.isatty():
            print(f"\r{line}, {_clock(elapsed)} elapsed\033[K", end="", flush=True)
        elif line.partition(",")[0] != shown_line.partition(",")[0]:
            print(f"{line}, {_clock(elapsed)} elapsed", flush=True)
        shown_line = line
        if ended:
            print(f"{done}/{total} steps done in {_clock(elapsed)}" if sys.stdout.isatty() else "")
            return
        time.sleep(0.5)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def gpu_names() -> list[str]:
    """Name the GPUs that jobs may use, one each: those visible, or all that the driver lists."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return [str(i) for i, _ in enumerate(re.findall(r"^GPU ", listed, re.MULTILINE))]


def summarise(study: Study) -> None:
    """Print a finished study's table and where to read more."""
    content = json.loads(results_file(study.name).read_text("utf-8"))
    runs = tidy(RunResult.model_validate(run) for run in content["runs"])
    print(f"\n{study.name}: {len(runs)} runs\n{summary_table(runs).T.to_string()}\n")
    print(takeaway(runs))
    print(f"\nExecuted notebooks  {shown(record_folder(study.name))}/")
    print(f"Numbers             {shown(results_file(study.name))}")
    print(f"To check the record ./run_all.sh verify {study.name}")


def failures(study: Study) -> Iterator[str]:
    """Name every notebook of a study that was begun and did not complete, with the reason."""
    places = [executed_notebook(name, study.name) for name in ("01_data",)]
    places += [
        executed_notebook("02_train", study.name, arm.id, seed)
        for arm in study.arms()
        for seed in study.seeds
    ]
    places += [executed_notebook(name, study.name) for name in ("03_analysis", "04_figures")]
    for place in places:
        status = status_of(place)
        if place.is_file() and status["status"] != "completed":
            name = place.relative_to(study_folder(study.name)).as_posix()
            yield f"{study.name}/{name}: {status.get('reason')} (kept: {shown(place)})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
