"""How far a sweep is: Snakemake's own events, kept in a file and shown as one line, and above it a
line for every notebook in execution.

Snakemake runs in a process of its own, where the Snakefile attaches a `Recorder` to its log.
"""

import contextlib
import json
import logging
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from lib.study.config import Study
from lib.workflow.watch import Board, clock

START: dict[str, Any] = {"done": 0, "total": 0, "failed": {}, "running": {}}
"""Jobs that are done; all jobs, 0 while unknown; the log of each that failed → what was said of it
by the cluster that ran it; and, by number, the logs of those in execution."""


class Recorder(logging.Handler):
    """Keeps a file up to date with what Snakemake's events say of its jobs."""

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
            case "job_info":
                self._running(event["jobid"], event["log"][:1])
            case "job_finished":
                self._running(event["job_id"], [])
            case "job_error":
                self._running(event["jobid"], [])
                self._failed(*event["log"], of_job=event.get("rule_msg") or "")
            case _:
                return
        self._write()

    def _running(self, job: int, logs: list[str]) -> None:
        others = {key: log for key, log in self.progress["running"].items() if key != str(job)}
        self.progress |= {"running": others | {str(job): log for log in logs}}

    def _failed(self, log: str = "", *of_cluster: str, of_job: str) -> None:
        there = [Path(name) for name in of_cluster if name and Path(name).is_file()]
        texts = [path.read_text("utf-8", "replace") for path in there]
        said = "\n".join([of_job, *texts])  # more the first time than at Snakemake's end
        self.progress |= {"failed": {log: said} | self.progress["failed"]}

    def _write(self) -> None:
        partial = self.file.with_suffix(".partial")
        with contextlib.suppress(OSError):  # only a line on a terminal depends on it
            partial.write_text(json.dumps(self.progress), "utf-8")
            partial.replace(self.file)


REDRAWN, LOGGED = 2.0, 60.0
"""Seconds after which a terminal shows the runs anew, and a log repeats them."""
LAST = 0.05
"""The last part of a sweep's time, in which no more jobs start and those that run may end."""


def follow(
    sweep: "subprocess.Popen[bytes]",
    file: Path,
    hours: float | None = None,
    studies: Iterable[Study] = (),
    watch: Callable[[], None] = lambda: None,
) -> tuple[dict[str, str], bool]:
    """Show how far a sweep of some studies is, until it or its time ends; return the log of each
    job that failed (→ what its cluster said), and whether it was stopped. What then still runs
    continues from its last checkpoint.

    `watch` is called all the while; what it raises ends the sweep.
    """
    start, told, progress, board = time.monotonic(), "", START, Board(studies)
    limit, closing, looked, logged = (hours or math.inf) * 3600, False, -math.inf, -math.inf
    # Asked of the output itself: with FORCE_COLOR, as kernels set it, rich would redraw in a pipe.
    console = Console(highlight=False, force_terminal=sys.stdout.isatty())
    live = Live(console=console, auto_refresh=False, transient=True)
    with live if console.is_terminal else contextlib.nullcontext():
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
            if look := elapsed > looked + REDRAWN:
                looked = elapsed
                for warning in board.update(progress["running"].values()):
                    console.print(warning, style="bold yellow", markup=False, soft_wrap=True)
            line = f"{steps}, no estimate yet" if total else "looking for what is not done"
            if done:
                line = f"{steps}, about {clock(elapsed / done * (total - done))} left"
            line += f", {clock(elapsed)} elapsed"
            if console.is_terminal and look:
                live.update(Group(board.table(), line), refresh=True)
            elif not console.is_terminal and (steps != told or elapsed > logged + LOGGED):
                print(line, *board.lines(), sep="\n", flush=True)
                told, logged = steps, elapsed
            watch()
            time.sleep(0.5)
    line = f"{steps} in {clock(elapsed)}"
    if not total and not sweep.returncode:
        line = "Nothing to do: everything is up to date."
    print(line, flush=True)  # before what stopped it, which goes to stderr
    return progress["failed"], closing and bool(sweep.returncode or not ended)
