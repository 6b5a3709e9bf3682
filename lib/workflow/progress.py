"""How far a sweep is: Snakemake's own events, kept in a file and shown as one line, and above it a
line for every job in execution, with a warning as soon as a run goes wrong. A job that ended leaves
its last line. A run has steps, a sweep has jobs, some of which are runs.

Snakemake runs in a process of its own, where the Snakefile attaches a `Recorder` to its log.
"""

import contextlib
import itertools
import json
import logging
import math
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from lib.analysis.stability import rule_of, training_warnings
from lib.results import RunResult, read_live
from lib.study.io import RUNS
from lib.study.plan import Instability
from lib.study.preregistration import load_plan
from lib.study.study import Study
from lib.workflow.time_left import (
    RUN,
    Job,
    JobKey,
    TimeLeft,
    clock,
    durations,
    finished_results,
    seconds_per_step,
    workloads,
)

SWEEP_FILE, PROGRESS_FILE = RUNS / ".sweep.json", RUNS / ".progress.json"
"""What a sweep tells the Snakefile, and what that tells the sweep."""


class Progress(NamedTuple):
    """How far a sweep is."""

    jobs: dict[str, int]
    """How many there are, by rule; empty while that is unknown."""
    running: dict[int, Job]
    """By Snakemake's number."""
    ended: list[Job]
    failed: dict[str, str]
    """The log of each job that failed → what was said of it by the cluster that ran it."""

    def __str__(self) -> str:
        counts = self._done()
        text = f"{counts.total()}/{sum(self.jobs.values())} jobs done"
        return f"{counts[RUN]}/{self.jobs[RUN]} runs, {text}" if RUN in self.jobs else text

    def is_complete(self) -> bool:
        """Tell whether no job is left to do."""
        return self._done().total() >= sum(self.jobs.values())

    def _done(self) -> Counter[str]:
        return Counter(job.rule for job in self.ended if not job.has_failed)


def read_progress(file: Path) -> Progress:
    """Read what a `Recorder` wrote; of a sweep that begins, nothing."""
    progress = Progress({}, {}, [], {})
    with contextlib.suppress(FileNotFoundError), file.open(encoding="utf-8") as lines:
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):  # it is being written, or was cut off
                _change(progress, *json.loads(line))
    return progress


def _change(progress: Progress, event: str, what: Any, *about: Any) -> None:
    jobs, running, ended, failed = progress
    match event:
        case "run_info":  # "all" is what asks for the others
            jobs |= {r: n for r, n in what.items() if r not in ("all", "total")}
        case "job_info":
            running[what] = Job(*about)
            failed.pop(running[what].log, None)  # it is tried again
        case _ if job := running.pop(what, None):
            now, has_failed = about[0], event == "job_error"
            ended.append(job._replace(seconds=now - job.since, has_failed=has_failed))
    if event == "job_error":
        failed.setdefault(*about[1:])  # later, Snakemake says less


class Recorder(logging.Handler):
    """Appends to a file what Snakemake's events say of its jobs, a line each: of thousands that a
    dry run names, to write all anew each time would take minutes."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def emit(self, record: logging.LogRecord) -> None:
        event, now = vars(record), record.created
        what: tuple[Any, ...]
        match kind := event.get("event"):
            case "run_info":
                what = (event["stats"],)
            case "job_info" if event["log"]:
                what = (event["jobid"], event["rule_name"], event["log"][0], now)
            case "job_finished":
                what = (event["job_id"], now)
            case "job_error":
                log, *cluster_logs = event["log"] or [""]
                log_files = [Path(name) for name in cluster_logs if name and Path(name).is_file()]
                texts = [path.read_text("utf-8", "replace") for path in log_files]
                message = "\n".join([event.get("rule_msg") or "", *texts])
                what = (event["jobid"], now, log, message)
            case _:
                return
        # Only a line on a terminal depends on it.
        with contextlib.suppress(OSError), self.file.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps([kind, *what]))  # below a line that a full disk cut off


def cells(steps: pd.DataFrame, total: int) -> list[str]:
    """Write step, loss, gradient norm, tokens per second and the time left of a run in training,
    the latter two by its last steps, evaluations and checkpoints included."""
    if steps.empty:
        return ["starts"]
    last, seconds_each = steps.iloc[-1], seconds_per_step(steps)
    remaining = clock((total - last["step"]) * seconds_each)
    numbers = [f"{last['loss']:.3f}", f"{last['grad_norm']:.3g}"]
    numbers += [f"{last['tokens'] / last['step'] / seconds_each:,.0f}"]
    numbers += ["measures" if last["step"] == total else remaining]
    return [f"{last['step']:.0f}/{total}", *(text.replace("nan", "–") for text in numbers)]


LIVE = ("", "seed", "step", "loss", "gradient", "tokens/s", "left")
ENDED = ("ended", "seed", "steps", "val. loss", "gradient", "tokens/s", "time")
"""Headings of the rows of jobs in execution, and of those that ended."""
MIN_WIDTH = 16
"""Characters for names, so that those of jobs that are no runs fit."""
Row = list[str]
"""Of a run its arm, its seed, then what `cells` says; of another job its name, "" and a word."""


class JobTable:
    """The jobs that a sweep executes at this moment, and the last line of each that ended."""

    def __init__(self, studies: Iterable[Study]) -> None:
        self.totals: dict[tuple[str, str], int] = {}
        self.rules: dict[str, Instability] = {}
        for study in studies:
            self.rules[study.name] = rule_of(load_plan(study))
            for arm in study.arms():
                self.totals[study.name, arm.id] = arm.config.training.iterations
        digits = len(str(max(self.totals.values(), default=0)))
        self.widths = (4, max(2 * digits + 1, 6), 9, 8, 8, 8)
        """Of the columns after the first, so that rows of both kinds stand below each other."""
        names = max((len(self._name(*key)[0]) for key in self.totals), default=0)
        self.width = max(names, MIN_WIDTH) + sum(self.widths) + len(self.widths) + 1
        self.rows: list[Row] = []
        self.ahead: dict[JobKey, tuple[float, float]] = {}
        """Seconds that each run in training needs, at its pace, for the steps left and for all."""
        self.warned: set[tuple[str, str]] = set()
        self.n_ended = 0

    def update(self, jobs: Iterable[Job]) -> list[str]:
        """Read how far the jobs in execution are; return warnings, each kind once for a run."""
        self.rows, self.ahead, warnings = [], {}, []
        for job in jobs:
            row = self._name(*job.key)
            if job.rule != RUN:
                self.rows.append([*row, "runs"])
                continue
            study, arm, _ = job.key
            steps, total = read_live(job.folder), self.totals[study, arm]
            self.rows.append([*row, *cells(steps, total)])
            if len(steps) > 1 and not math.isnan(seconds_each := seconds_per_step(steps)):
                steps_left = total - steps.iloc[-1]["step"]
                self.ahead[job.key] = steps_left * seconds_each, total * seconds_each
            name = " · seed ".join(row)
            for kind, text in training_warnings(steps, self.rules[study]).items():
                if (name, kind) not in self.warned:
                    self.warned.add((name, kind))
                    warnings.append(f"Warning: {name}: {text}")
        return warnings

    def end(self, jobs: Sequence[Job]) -> list[Row]:
        """Write the last line of each job that ended since the last call; of a run, with its
        validation loss and final gradient norm."""
        rows, new_jobs, self.n_ended = [], jobs[self.n_ended :], len(jobs)
        for job in new_jobs:
            columns = ["failed" if job.has_failed else "done", "", "", ""]
            with contextlib.suppress(OSError):  # of a run that was deleted meanwhile
                if job.rule == RUN and not job.has_failed:
                    columns = self._outcome(job)
            rows.append([*self._name(*job.key), *columns, clock(job.seconds or 0.0)])
        return rows

    def _outcome(self, run: Job) -> list[str]:
        result = RunResult.model_validate_json((run.folder / "result.json").read_bytes())
        steps = f"{result.diverged_at or result.steps}/{self.totals[result.study, result.arm]}"
        if result.status == "diverged":
            return [steps, "diverged", "", ""]
        values = result.measures | result.throughput
        names = {"loss": ".3f", "grad_norm": ".3g", "training_tokens_per_second": ",.0f"}
        return [steps, *(f"{values[name]:{form}}" for name, form in names.items())]

    def _name(self, study: str, name: str, seed: str = "") -> Row:
        several = len(self.rules) > 1 and study in self.rules
        return [f"{study} · {name}" if several else name, seed]

    def table(self, rows: Sequence[Row], headings: Sequence[str], width: int) -> Table:
        """Lay rows out for a terminal of a width, with headings if these are not empty."""
        room = min(width, self.width)
        table = Table(box=None, padding=(0, 1, 0, 0), width=room)
        table.show_header, table.header_style = any(headings), "dim"
        table.add_column(headings[0], overflow="ellipsis", no_wrap=True, ratio=1)
        for heading, width in zip(headings[1:], self.widths, strict=True):
            table.add_column(heading, justify="right", no_wrap=True, min_width=width)
        columns = itertools.zip_longest(headings[1:], *(row[1:] for row in rows), fillvalue="")
        for least, cells in zip(self.widths, columns, strict=True):
            room -= max(least, *map(len, cells)) + 1
        names = fitting([row[0] for row in rows], room - 1)
        for name, row in zip(names, rows, strict=True):
            table.add_row(name, *row[1:], style="red" if "failed" in row else "")
        return table


def fitting(arms: list[str], room: int) -> list[str]:
    """Shorten the names of factors in those of arms, as little as need be, so that all fit into
    `room` characters with their levels whole: by these arms are told apart."""
    for kept in range(room, -1, -1):
        if max(map(len, arms), default=0) <= room:
            break
        arms = [re.sub(rf"\b(\w{{{kept}}})\w[\w…]+=", r"\1…=", arm) for arm in arms]
    return arms


def in_words(row: Row, headings: Sequence[str]) -> str:
    """Write a row for a log, where no heading stands above it."""
    pairs = [pair for pair in zip(headings[2:], row[2:], strict=False) if pair[1]]
    texts = (f"{h} {cell}" if cell[0].isdigit() or cell == "–" else cell for h, cell in pairs)
    return f"{' · seed '.join(filter(None, row[:2]))}: {', '.join(texts)}"


REDRAW_INTERVAL, LOG_INTERVAL = 2.0, 60.0
"""Seconds after which a terminal shows the runs anew, and a log repeats them."""
SHARE = 0.05
"""The most of a core that looking at the runs may take."""
CLOSING = 0.05
"""The last part of a sweep's time, in which no more jobs start and those that run may end."""


def terminal() -> Console:
    """Return where a sweep prints: in colour on a terminal, else plain."""
    # Asked of the output itself: with FORCE_COLOR, as kernels set it, rich would redraw in a pipe.
    is_terminal = sys.stdout.isatty()
    return Console(force_terminal=is_terminal, highlight=False, markup=False, emoji=False)


def plain_table(*headings: str) -> Table:
    """Return an empty table as a sweep prints it: no lines but below the headings, and what is too
    long for its column goes on in the next line."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


class ProgressDisplay:
    """Shows a sweep: on a terminal a table that is redrawn below the last lines of jobs that ended;
    in a log these lines, and now and then all."""

    def __init__(self, studies: Sequence[Study]) -> None:
        self.board, self.console = JobTable(studies), terminal()
        earlier = finished_results(all_runs := workloads(studies))
        self.left = TimeLeft(all_runs, durations(earlier), earlier)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.logged = -math.inf

    def show(self, progress: Progress, elapsed: float) -> None:
        """Show a sweep so far."""
        running, is_live = [*progress.running.values()], self.console.is_terminal
        for warning in self.board.update(running):
            self.console.print(warning, style="bold yellow", soft_wrap=True)
        is_first = not self.board.n_ended
        ended = self.board.end(progress.ended)
        line = "looking for what is not done"
        if progress.jobs:
            now, ahead = time.time(), self.board.ahead
            left = self.left.update(progress.jobs, running, progress.ended, ahead, now)
            line = f"{progress}, {left}"
        line += f", {clock(elapsed)} elapsed"
        if is_live:
            if ended:
                headings = ENDED if is_first else [""] * len(ENDED)
                self.console.print(self.board.table(ended, headings, self.console.width))
            rows = self.board.rows
            fitting = rows[: max(self.console.height - 4, 1)]
            hidden = [f"and {len(rows) - len(fitting)} more"] if len(fitting) < len(rows) else []
            table = self.board.table(fitting, LIVE, self.console.width)
            self.live.update(Group(table, *hidden, line), refresh=True)
            return
        lines = [in_words(row, ENDED) for row in ended] + [line] * bool(ended and running)
        if elapsed >= self.logged + LOG_INTERVAL:
            lines += [line] * (not ended) + [in_words(row, LIVE) for row in self.board.rows]
            self.logged = elapsed
        if lines:
            print(*lines, sep="\n", flush=True)

    def stop(self, progress: Progress, elapsed: float) -> None:
        """Say what is done of a sweep that is interrupted, and how far the rest is."""
        self.board.update(progress.running.values())
        print(f"\n{progress} in {clock(elapsed)}")
        for row in self.board.rows:
            print("In the middle:", in_words(row[:3], LIVE))
        sys.stdout.flush()  # before what follows to stderr


def follow(
    sweep: "subprocess.Popen[bytes]",
    file: Path,
    hours: float | None = None,
    studies: Sequence[Study] = (),
) -> tuple[dict[str, str], bool]:
    """Show how far a sweep of some studies is, until it or its time ends; return the log of each
    job that failed (→ what its cluster said), and whether it was stopped. What then still runs
    continues from its last checkpoint.
    """
    start, view, progress = time.monotonic(), ProgressDisplay(studies), read_progress(file)
    limit, is_closing, next_draw = (hours or math.inf) * 3600, False, 0.0
    try:
        with view.live if view.console.is_terminal else contextlib.nullcontext():
            while True:
                ended = sweep.poll() is not None  # asked first: what is read then is the last word
                progress, elapsed = read_progress(file), time.monotonic() - start
                if ended or elapsed > limit:
                    view.show(progress, elapsed)
                    break
                if elapsed > (1 - CLOSING) * limit and not is_closing:
                    is_closing = True
                    sweep.terminate()  # on which Snakemake starts nothing more
                if elapsed >= next_draw:
                    view.show(progress, elapsed)
                    draw_seconds = time.monotonic() - start - elapsed
                    next_draw = elapsed + max(REDRAW_INTERVAL, draw_seconds / SHARE)
                time.sleep(0.5)
    except KeyboardInterrupt:
        view.stop(progress, time.monotonic() - start)
        raise
    line = f"{progress} in {clock(elapsed)}"
    if ended and not progress.jobs and not sweep.returncode:
        line = "Nothing to do: everything is up to date."
    print(line, flush=True)  # before what stopped it, which goes to stderr
    # A Snakemake that is asked to end before its first job begins does so with status 0.
    is_complete = not sweep.returncode and progress.is_complete()
    return progress.failed, not ended or (is_closing and not is_complete)
