"""How far a run in training is: a picture that grows below the cell, with the baseline's curve
beside its own; outside a notebook a bar; in a log a line per evaluation, and all steps in a file.

What draws the picture is a process of its own, `lib.workflow.watching`, which is told numbers and
gives pictures. So training waits for no picture, and no code of figures can decide a weight.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from IPython import get_ipython
from IPython.display import DisplayHandle, Image
from tqdm import tqdm

from lib.run.training import Report, Row, Run
from lib.study.config import Arm, Study
from lib.study.paths import HEADLESS, ROOT, run_folder
from lib.study.result import COLUMNS, live_file


class LiveCurve:
    """What a training cell calls for every step. In a notebook that somebody looks at it shows a
    picture, elsewhere what `training_progress` shows. The cell executed again goes on with it."""

    def __init__(self, study: Study, design: Study, arm: Arm, seed: int) -> None:
        self.folder = run_folder(design.name, arm.id, seed)
        self.total = arm.config.training.iterations
        header: dict[str, Any] = {"study": study.name, "arm": arm.id, "variant": arm.variant}
        header |= {"baseline": arm.baseline, "seed": seed, "total": self.total}
        self.lines = [json.dumps(header)]
        """Every line so far, for the next process that draws."""
        self._with = ExitStack()

    def __enter__(self) -> Self:
        if self.is_watched:
            self._write = self._with.enter_context(_drawing())
            for line in self.lines:
                self._write(line)
        else:
            self._report: Report = self._with.enter_context(
                training_progress(self.total, self.folder)
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._with.close()

    @property
    def is_watched(self) -> bool:
        """Whether there is a notebook, and somebody to look at it."""
        return not os.environ.get(HEADLESS) and hasattr(get_ipython(), "kernel")

    def __call__(self, row: Row, point: Row | None) -> None:
        if self.is_watched:
            self._send({"row": row, "point": point})
        else:
            self._report(row, point)

    def end(self, run: Run) -> None:
        """Show all of a run, what was trained before this cell included."""
        if self.is_watched:
            del self.lines[1:]
            status = {"diverged": run.diverged_at is not None, "stopped": not run.finished}
            for row in run.rows:
                self._send({"row": row, "point": None})
            for point in run.points:
                self._send({"row": None, "point": point})
            self._write(json.dumps(status))

    def _send(self, message: dict[str, Any]) -> None:
        self.lines.append(json.dumps(message, default=float))
        self._write(self.lines[-1])


@contextmanager
def _drawing() -> Iterator[Any]:
    """Start what draws; give a function that tells it a line. Each picture takes the place of the
    one before."""
    handle = DisplayHandle()
    handle.display({"text/plain": "The curve appears here."}, raw=True)
    command = [sys.executable, "-m", f"{__package__}.watching"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            env=environment, start_new_session=True,
        )  # fmt: skip
        assert process.stdin
        stdin = process.stdin

        def send(line: str) -> None:
            with suppress(OSError):  # a picture less; training goes on
                stdin.write(line.encode() + b"\n")
                stdin.flush()

        thread = threading.Thread(target=_show, args=(process, handle), daemon=True)
        thread.start()
        try:
            yield send
        finally:
            with suppress(OSError):
                stdin.close()
            thread.join()
            if process.wait():
                stderr.seek(0)
                reason = stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
                handle.update({"text/plain": f"The curve could not be drawn: {reason}"}, raw=True)


def _show(process: "subprocess.Popen[bytes]", handle: DisplayHandle) -> None:
    """Show each picture that comes, after a line with its size and its width on the screen."""
    assert process.stdout
    while line := process.stdout.readline():
        size, width = map(int, line.split())
        handle.update(Image(process.stdout.read(size), width=width))


WRITE_INTERVAL = 2.0
"""Seconds between two writes: training waits for none that matters."""


@contextmanager
def training_progress(total: int, folder: Path) -> Iterator[Report]:
    """Give what `lib.run.training.train` calls after each of `total` steps of the run in a
    folder."""
    if os.environ.get(HEADLESS):
        with _logged(folder) as report:
            yield report
        return
    with tqdm(total=total, unit="step") as bar:

        def update(row: Row, point: Row | None) -> None:
            bar.update(row["step"] - bar.n)
            if point:
                bar.set_postfix_str(_summary(point))

        yield update


def _summary(point: Row) -> str:
    return f"dev loss {point['dev_loss']:.4f}, embedding norm {point['embedding_norm']:.2f}"


@contextmanager
def _logged(folder: Path) -> Iterator[Report]:
    """Print evaluations, and append every step to the run's live file, some at a time. A step that
    fp16 skipped has no gradient norm."""
    start = written = time.monotonic()
    waiting: list[str] = []

    def write() -> None:
        if waiting:
            with suppress(OSError), live_file(folder).open("a", encoding="utf-8") as file:
                file.writelines(waiting)
            waiting.clear()

    def report(row: Row, point: Row | None) -> None:
        nonlocal written
        if point:
            print(f"step {row['step']}: {_summary(point)}", flush=True)
        now = time.monotonic()
        values = row | {"elapsed": round(now - start, 2)}
        values |= {"grad_norm": ""} if row.get("skipped") else {}
        waiting.append(",".join(str(values[name]) for name in COLUMNS) + "\n")
        if now - written > WRITE_INTERVAL:
            write()
            written = now

    try:
        yield report
    finally:
        write()
