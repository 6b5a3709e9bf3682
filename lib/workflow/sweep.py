"""Run studies: one Snakemake call, one progress line, one summary.

    ./run_all.sh [params/NAME.yaml …] [--jobs N] [any Snakemake flag]

Without a study, `final` is run. A plain rerun continues whatever was stopped, however it was.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock, Timeout

from lib.analysis.runs import tidy
from lib.analysis.tables import summary_table, takeaway
from lib.data.corpus import CorpusError
from lib.publish.archive import record_folder, results_file
from lib.publish.site import main as build_record
from lib.study.config import Study, load_study
from lib.study.errors import ConfigError
from lib.study.paths import NOTEBOOKS, ROOT, RUNS, shown
from lib.study.record import RunResult, status_of
from lib.workflow.execution import GPUS
from lib.workflow.progress import follow
from lib.workflow.staleness import corpora_of, stale

# Flags with which Snakemake tells something instead of running; its words then go to the terminal.
_TELLING = {"-n", "--dry-run", "--dryrun", "--summary", "-D", "--dag", "--rulegraph", "--lint"}
STOPPED = 130
"""The status of a sweep that was interrupted, as shells say it."""


def main(arguments: list[str]) -> int:
    """Run the studies named first in `arguments`; the rest goes to Snakemake. Return its status."""
    split = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    names, flags = arguments[:split] or ["final"], arguments[split:]
    try:
        studies = [load_study(name) for name in names]
        corpora = corpora_of(studies)  # once and in sight, should one have to be downloaded
        outdated = [found for study in studies for found in stale(study, corpora)]
    except (ConfigError, CorpusError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    RUNS.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(RUNS / ".sweep.lock", timeout=0):
            for result, why in outdated:
                print(f"Stale: {shown(result)}: {why}")
                if not _TELLING & set(flags):
                    result.unlink()
            return run(studies, flags)
    except Timeout:
        print("error: another sweep is running in this folder; wait for it", file=sys.stderr)
        return 1


def run(studies: list[Study], flags: list[str]) -> int:
    """Call Snakemake over all studies, then print what came of each."""
    gpus = gpu_names()
    # How many at once: what the user or a cluster's profile says, else one per GPU or core.
    if not any(flag.startswith(("-j", "-c", "--jobs", "--cores", "--profile")) for flag in flags):
        flags = ["--jobs", str(len(gpus) or os.cpu_count() or 1), *flags]
    log, progress_file = RUNS / "sweep.log", RUNS / ".progress.json"
    command = [sys.executable, "-m", "snakemake", "-s", str(NOTEBOOKS / "Snakefile")]
    command += ["--directory", str(RUNS.parent), "--config"]
    command += ["studies=" + ",".join(study.name for study in studies), f"progress={progress_file}"]
    # Snakemake's own lock would outlive a kill; ours does not, and each run has one of its own.
    command += ["--nolock", "--rerun-incomplete", "--keep-going"]
    command += ["--rerun-triggers", "mtime", "params", "input", *flags]
    environment = os.environ | {GPUS: ",".join(gpus), "PYTHONPATH": str(ROOT)}
    if _TELLING & set(flags):
        return subprocess.run(command, cwd=ROOT, env=environment).returncode

    progress_file.unlink(missing_ok=True)
    with log.open("w", encoding="utf-8") as file:
        sweep = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            failed = follow(sweep, progress_file)
        except KeyboardInterrupt:
            sweep.wait()
            print("\nstopped; a plain rerun continues", file=sys.stderr)
            return STOPPED
    if not sweep.returncode:
        for study in studies:
            summarise(study)
        for name in ("paper", "record"):
            if (said := RUNS / f"{name}.txt").is_file():
                print(said.read_text("utf-8"), end="")
        return 0
    failed = [place for place in failed if place.is_file()]
    for place in failed:
        print(f"FAILED {place.relative_to(RUNS)}: {reason(place)}", file=sys.stderr)
    if not failed:
        print(log.read_text("utf-8")[-2000:], file=sys.stderr)
    print(f"Not everything ran; a rerun tries again. Log: {shown(log)}", file=sys.stderr)
    build_record([])  # it shows what failed
    return sweep.returncode


def gpu_names() -> list[str]:
    """Name the GPUs that jobs may use, one each: those visible, or all that the driver lists."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return [str(i) for i in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]


def summarise(study: Study) -> None:
    """Print a finished study's table and where to read more."""
    content = json.loads(results_file(study.name).read_text("utf-8"))
    runs = tidy(RunResult.model_validate(run) for run in content["runs"])
    print(f"\n{study.name}: {len(runs)} runs\n{summary_table(runs).T.to_string()}\n")
    print(takeaway(runs))
    print(f"\nExecuted notebooks  {shown(record_folder(study.name))}/")
    print(f"Numbers             {shown(results_file(study.name))}")
    print(f"To check the record ./run_all.sh verify {study.name}")


def reason(log: Path) -> str:
    """Say why a job failed: a notebook is stamped with it, other jobs end their log with it."""
    if log.suffix == ".ipynb":
        return f"{status_of(log)['reason']} (kept: {shown(log)})"
    return log.read_text("utf-8").strip().rpartition("\n")[2].removeprefix("error: ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
