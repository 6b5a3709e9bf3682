"""How far a sweep is: Snakemake's own events, kept in a file and shown as one line, and above it a
line for every notebook in execution, with a warning as soon as a run goes wrong.

Snakemake runs in a process of its own, where the Snakefile attaches a `Recorder` to its log.
"""

import contextlib
import logging
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from lib.analysis.stability import rule_of
from lib.study.claim import load_plan
from lib.study.config import Study
from lib.study.files import read_json, write_json
from lib.study.paths import RUNS
from lib.study.result import read_live

SWEEP_FILE, PROGRESS_FILE = RUNS / ".sweep.json", RUNS / ".progress.json"
"""What a sweep tells the Snakefile, and what that tells the sweep."""


def start() -> dict[str, Any]:
    """Return the progress of a sweep that begins: jobs that are done; all jobs, 0 while unknown;
    the log of each that failed → what was said of it by the cluster that ran it; and, by number,
    the logs of those in execution."""
    return {"done": 0, "total": 0, "failed": {}, "running": {}}


class Recorder(logging.Handler):
    """Keeps a file up to date with what Snakemake's events say of its jobs."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file, self.progress = file, start()

    def emit(self, record: logging.LogRecord) -> None:
        event, running = vars(record), self.progress["running"]
        match event.get("event"):
            case "run_info":
                self.progress["total"] = event["stats"]["total"]
            case "progress":
                self.progress |= {"done": event["done"], "total": event["total"]}
            case "job_info" if event["log"]:
                running[event["jobid"]] = event["log"][0]
            case "job_finished":
                running.pop(event["job_id"], None)
            case "job_error":
                running.pop(event["jobid"], None)
                log, *of_cluster = event["log"] or [""]
                there = [Path(name) for name in of_cluster if name and Path(name).is_file()]
                texts = [path.read_text("utf-8", "replace") for path in there]
                said = "\n".join([event.get("rule_msg") or "", *texts])
                self.progress["failed"].setdefault(log, said)  # later, Snakemake says less
            case _:
                return
        with contextlib.suppress(OSError):  # only a line on a terminal depends on it
            write_json(self.file, self.progress)


EXPLODES = 10
"""Times the median of those before it, from which on a gradient norm is warned of."""
RECENT = 50
"""Steps over which speed and that median are taken."""


def trouble(steps: pd.DataFrame, rise: float) -> dict[str, str]:
    """Find what goes wrong in the steps of a run (see `read_live`): by kind, the first step where
    its loss or gradient is not finite, where its loss is more than `rise` above its lowest so far,
    and where its gradient norm is `EXPLODES` times the usual."""
    loss, norm = steps["loss"], steps["grad_norm"]  # a step that fp16 skipped has no norm
    finite = np.isfinite(loss) & ~np.isinf(norm)
    above = loss - loss.cummin()
    norms = norm[np.isfinite(norm)]
    times = (norms / norms.rolling(RECENT).median().shift()).reindex(steps.index)
    found = {}
    for kind, where, text in (
        ("finite", ~finite, "its loss or gradient is not finite"),
        (
            "rise",
            finite & (above > rise),
            "its loss is {loss:.2f}, {above:.2f} nats above its lowest so far",
        ),
        (
            "norm",
            times > EXPLODES,
            "its gradient norm is {grad_norm:.3g}, {times:.0f} times the usual",
        ),
    ):
        if where.any():
            first = steps.assign(above=above, times=times)[where].iloc[0]
            found[kind] = f"{text.format(**first)} at step {first['step']:.0f}"
    return found


def cells(steps: pd.DataFrame, total: int) -> list[str]:
    """Write step, loss, gradient norm, tokens per second and the time left of a run in training,
    the latter two by its last steps, evaluations and checkpoints included."""
    if steps.empty:
        return ["starts"]
    last, begun = steps.iloc[-1], (steps["elapsed"].diff() < 0).cumsum()
    recent = steps[begun == begun.iloc[-1]].tail(RECENT)  # since it was taken up again
    span = (recent.iloc[-1] - recent.iloc[0]).replace(0, math.nan)
    left = clock((total - last["step"]) * span["elapsed"] / span["step"])
    numbers = [f"{last['loss']:.3f}", f"{last['grad_norm']:.3g}"]
    numbers += [f"{span['tokens'] / span['elapsed']:,.0f}"]
    numbers += ["measures" if last["step"] == total else left]
    return [f"{last['step']:.0f}/{total}", *(text.replace("nan", "–") for text in numbers)]


class Board:
    """The notebooks that a sweep executes at this moment."""

    def __init__(self, studies: Iterable[Study]) -> None:
        self.totals: dict[tuple[str, str], int] = {}
        self.rises: dict[str, float] = {}
        for study in studies:
            self.rises[study.name] = rule_of(load_plan(study)).rise or math.inf
            for arm in study.arms():
                self.totals[study.name, arm.id] = arm.config.training.iterations
        self.rows: list[list[str]] = []
        """Of each its name, then what `cells` says."""
        self.told: set[tuple[str, str]] = set()

    def update(self, notebooks: Iterable[str]) -> list[str]:
        """Take in what is new of the notebooks in execution (their files); return warnings, each
        kind once for a run."""
        self.rows, warnings = [], []
        for path in map(Path, notebooks):
            if path.suffix != ".ipynb":
                continue
            if path.stem != "02_train":
                self.rows.append([f"{path.parent.name} · {path.stem}", "runs"])
                continue
            study, arm, seed = path.parts[-4:-1]
            name, steps = f"{study} · {arm} · {seed.replace('-', ' ')}", read_live(path.parent)
            self.rows.append([name, *cells(steps, self.totals[study, arm])])
            for kind, text in trouble(steps, self.rises[study]).items():
                if (name, kind) not in self.told:
                    self.told.add((name, kind))
                    warnings.append(f"Warning: {name}: {text}")
        return warnings

    def table(self) -> Table:
        """The rows, for a terminal."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("", overflow="ellipsis", no_wrap=True, ratio=1)
        for heading in ("step", "loss", "gradient", "tokens/s", "left"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table

    def lines(self) -> list[str]:
        """The rows, for a log."""
        text = "{}: step {}, loss {}, gradient norm {}, tokens/s {}, left {}"
        return [": ".join(row) if len(row) == 2 else text.format(*row) for row in self.rows]


def clock(seconds: float) -> str:
    """Write seconds as 4:05 or 1:04:05; an unknown number as –."""
    if math.isnan(seconds):
        return "–"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


REDRAWN, LOGGED = 2.0, 60.0
"""Seconds after which a terminal shows the runs anew, and a log repeats them."""
SHARE = 0.05
"""The most of a core that looking at the runs may take."""
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
    begun, told, progress, board = time.monotonic(), "", start(), Board(studies)
    limit, closing, look_at, log_at = (hours or math.inf) * 3600, False, 0.0, 0.0
    # Asked of the output itself: with FORCE_COLOR, as kernels set it, rich would redraw in a pipe.
    console = Console(highlight=False, force_terminal=sys.stdout.isatty())
    live = Live(console=console, auto_refresh=False, transient=True)
    with live if console.is_terminal else contextlib.nullcontext():
        while True:
            ended = sweep.poll() is not None  # asked first: what is read then is the last word
            with contextlib.suppress(FileNotFoundError):
                progress = read_json(file)
            done, total, elapsed = progress["done"], progress["total"], time.monotonic() - begun
            steps = f"{done}/{total} steps done"
            if ended or elapsed > limit:
                break
            if elapsed > (1 - LAST) * limit and not closing:
                closing = True
                sweep.terminate()  # on which Snakemake starts nothing more
            line = f"{steps}, no estimate yet" if total else "looking for what is not done"
            if done:
                line = f"{steps}, about {clock(elapsed / done * (total - done))} left"
            line += f", {clock(elapsed)} elapsed"
            if elapsed >= look_at:
                for warning in board.update(progress["running"].values()):
                    console.print(warning, style="bold yellow", markup=False, soft_wrap=True)
                if console.is_terminal:
                    live.update(Group(board.table(), line), refresh=True)
                took = time.monotonic() - begun - elapsed
                look_at = elapsed + max(REDRAWN, took / SHARE)
            if not console.is_terminal and (steps != told or elapsed >= log_at):
                print(line, *board.lines(), sep="\n", flush=True)
                told, log_at = steps, elapsed + LOGGED
            watch()
            time.sleep(0.5)
    line = f"{steps} in {clock(elapsed)}"
    if not total and not sweep.returncode:
        line = "Nothing to do: everything is up to date."
    print(line, flush=True)  # before what stopped it, which goes to stderr
    return progress["failed"], closing and bool(sweep.returncode or not ended)
