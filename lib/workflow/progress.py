"""How far a sweep is: Snakemake's own events, kept in a file and shown as one line.

Snakemake runs in a process of its own, where the Snakefile attaches a `Recorder` to its log.
"""

import contextlib
import json
import logging
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

START: dict[str, Any] = {"done": 0, "total": 0, "failed": []}
"""Jobs that are done; all jobs, 0 while unknown; the logs of those that failed."""


class Recorder(logging.Handler):
    """Keeps a file at what Snakemake's events tell of its jobs."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file, self.progress = file, dict(START)

    def emit(self, record: logging.LogRecord) -> None:
        event = vars(record)
        match event.get("event"):
            case "run_info":
                self.progress |= {"total": event["stats"]["total"]}
            case "progress":
                self.progress |= {"done": event["done"], "total": event["total"]}
            case "job_error":
                self.progress |= {"failed": [*self.progress["failed"], *event["log"][:1]]}
            case _:
                return
        partial = self.file.with_suffix(".partial")
        with contextlib.suppress(OSError):  # only a line on a terminal depends on it
            partial.write_text(json.dumps(self.progress), "utf-8")
            partial.replace(self.file)


LAST = 0.05
"""The last part of a sweep's time, in which no more jobs start and those that run may end."""


def follow(
    sweep: "subprocess.Popen[bytes]", file: Path, hours: float | None = None
) -> tuple[list[Path], bool]:
    """Show on one line how far a sweep is, until it or its time ends; return the logs of jobs that
    failed, and whether it was stopped. What then still runs continues from its last checkpoint."""
    start, told, progress = time.monotonic(), "", START
    limit, closing = (hours or math.inf) * 3600, False
    while True:
        ended = sweep.poll() is not None  # asked first: what is read then is the last word
        with contextlib.suppress(FileNotFoundError):
            progress = json.loads(file.read_text("utf-8"))
        done, total, elapsed = progress["done"], progress["total"], time.monotonic() - start
        steps = f"{done}/{total} steps done"
        if ended or elapsed > limit:
            break
        if elapsed > (1 - LAST) * limit and not closing:
            closing = True
            sweep.terminate()  # on which Snakemake starts nothing more
        line = f"{steps}, no estimate yet" if total else "looking for what is not done"
        if done:
            line = f"{steps}, about {_clock(elapsed / done * (total - done))} left"
        line += f", {_clock(elapsed)} elapsed"
        if sys.stdout.isatty():
            print(f"\r{line}\033[K", end="", flush=True)
        elif steps != told:
            print(line, flush=True)
        told = steps
        time.sleep(0.5)
    line = f"{steps} in {_clock(elapsed)}"
    if not total and not sweep.returncode:
        line = "Nothing to do: everything is up to date."
    print(f"\r{line}\033[K" if sys.stdout.isatty() else line)
    return [Path(log) for log in dict.fromkeys(progress["failed"])], closing and bool(
        sweep.returncode or not ended
    )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
