"""How far a sweep is: Snakemake's own events, kept in a file and shown as one line, and above it a
line for every notebook in execution, with a warning as soon as a run goes wrong.

Snakemake runs in a process of its own, where the Snakefile attaches a `Recorder` to its log.
"""

import contextlib
import json
import logging
import math
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from lib.analysis.stability import rule_of
from lib.study.claim import load_plan
from lib.study.config import Study
from lib.study.files import write_json
from lib.study.result import live_file

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
        with contextlib.suppress(OSError):  # only a line on a terminal depends on it
            write_json(self.file, self.progress)


EXPLODES = 10
"""Times the median of those before it, from which on a gradient norm is warned of."""
RECENT = 50
"""Steps over which speed and that median are taken."""


class WatchedRun:
    """One run in training, from its live file: only what is new in it is read."""

    def __init__(self, file: Path, total: int, rise: float) -> None:
        self.file, self.total, self.rise = file, total, rise
        self.read_to, self.step = 0, 0
        self.loss, self.norm, self.lowest = math.nan, math.nan, math.inf
        self.norms: deque[float] = deque(maxlen=RECENT)
        self.times: deque[tuple[int, int, float]] = deque(maxlen=RECENT)
        """Step, tokens and seconds."""
        self.told: set[str] = set()

    def read(self) -> list[str]:
        """Take in the steps since the last call; return what is to be warned of, each kind once."""
        try:
            with self.file.open("rb") as file:
                file.seek(self.read_to)
                new = file.read()
        except FileNotFoundError:  # it has not begun
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self.read_to += len(whole)
        warnings: dict[str, str] = {}
        for line in whole.decode("utf-8", "replace").splitlines():
            warnings = self._take(line) | warnings
        fresh = {kind: text for kind, text in warnings.items() if kind not in self.told}
        self.told |= set(fresh)
        return list(fresh.values())

    def _take(self, line: str) -> dict[str, str]:
        """Take in one step; return what is wrong with it, by kind."""
        try:
            step, loss, norm, tokens, elapsed = line.split(",")
            self.step, self.loss = int(step), float(loss)
            self.norm = float(norm or "nan")
            now = self.step, int(tokens), float(elapsed)
        except ValueError:  # cut off when its process was killed
            return {}
        if self.times and (now[0] <= self.times[-1][0] or now[2] < self.times[-1][2]):
            self.times.clear()  # taken up again from a checkpoint
        self.times.append(now)
        found = {}
        if not math.isfinite(self.loss) or (norm and not math.isfinite(self.norm)):
            found["finite"] = "its loss or gradient is not finite"
        elif self.loss > self.lowest + self.rise:
            above = self.loss - self.lowest
            found["rise"] = f"its loss is {self.loss:.2f}, {above:.2f} nats above its lowest so far"
        if len(self.norms) == RECENT and self.norm > EXPLODES * statistics.median(self.norms):
            times = self.norm / statistics.median(self.norms)
            found["norm"] = f"its gradient norm is {self.norm:.3g}, {times:.0f} times the usual"
        self.lowest = min(self.lowest, self.loss) if math.isfinite(self.loss) else self.lowest
        if math.isfinite(self.norm):
            self.norms.append(self.norm)
        return {kind: f"{text} at step {self.step}" for kind, text in found.items()}

    @property
    def speed(self) -> float:
        """Tokens per second, evaluations and checkpoints included; NaN while unknown."""
        (_, first, began), (_, last, ended) = self.times[0], self.times[-1]
        return (last - first) / (ended - began) if ended > began else math.nan

    @property
    def left(self) -> float:
        """Seconds until the last step; NaN while unknown."""
        (first, _, began), (last, _, ended) = self.times[0], self.times[-1]
        return (self.total - last) * (ended - began) / (last - first) if last > first else math.nan

    def cells(self) -> list[str]:
        """Step, loss, gradient norm, speed and time left, as text."""
        if not self.times:
            return ["starts"]
        left = "measures" if self.step == self.total else clock(self.left)
        numbers = [f"{self.loss:.3f}", f"{self.norm:.3g}", f"{self.speed:,.0f}", left]
        return [f"{self.step}/{self.total}", *(text.replace("nan", "–") for text in numbers)]


class Board:
    """The notebooks that a sweep executes at this moment."""

    def __init__(self, studies: Iterable[Study]) -> None:
        self.studies = {study.name: study for study in studies}
        self.rises = {
            name: rule_of(load_plan(study)).rise or math.inf for name, study in self.studies.items()
        }
        self.runs: dict[str, WatchedRun | None] = {}
        """By what each is called; None: a notebook that trains nothing."""

    def update(self, notebooks: Iterable[str]) -> list[str]:
        """Take in what is new of the notebooks in execution (their files); return warnings."""
        running = dict(filter(None, map(self._named, notebooks)))
        self.runs = {name: self.runs.get(name, run) for name, run in running.items()}
        return [
            f"Warning: {name}: {text}"
            for name, run in self.runs.items()
            if run is not None
            for text in run.read()
        ]

    def _named(self, notebook: str) -> tuple[str, WatchedRun | None] | None:
        path = Path(notebook)
        if path.suffix != ".ipynb":
            return None
        if path.stem != "02_train":
            return f"{path.parent.name} · {path.stem}", None
        study, arm, seed = path.parts[-4:-1]
        name = f"{study} · {arm} · {seed.replace('-', ' ')}"
        if name in self.runs:
            return name, None  # it is there already
        training = self.studies[study].arm(arm).config.training
        file = live_file(path.parent)
        return name, WatchedRun(file, training.iterations, self.rises[study])

    def rows(self) -> list[list[str]]:
        """A row of text per notebook: its name, then what `WatchedRun.cells` says."""
        return [[name, *(run.cells() if run else ["runs"])] for name, run in self.runs.items()]

    def table(self) -> Table:
        """The rows, for a terminal."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("", overflow="ellipsis", no_wrap=True, ratio=1)
        for heading in ("step", "loss", "gradient", "tokens/s", "left"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows():
            table.add_row(*row)
        return table

    def lines(self) -> list[str]:
        """The rows, for a log."""
        words = ("step", "loss", "gradient norm", "tokens/s", "left")
        return [
            f"{name}: {cells[0]}"
            if len(cells) == 1
            else f"{name}: " + ", ".join(map(" ".join, zip(words, cells, strict=True)))
            for name, *cells in self.rows()
        ]


def clock(seconds: float) -> str:
    """Write seconds as 4:05 or 1:04:05; an unknown number as –."""
    if math.isnan(seconds):
        return "–"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


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
