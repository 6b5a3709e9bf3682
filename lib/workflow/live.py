"""How far a run in training is: every step in a file. Where somebody looks at the notebook, a
picture grows below the cell, the baseline's curve beside it; else evaluations are printed.

What draws the picture is a process of its own, `lib.workflow.watching`, which reads the file and
gives pictures. So training waits for no picture, and no code of figures can decide a weight.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

from IPython import get_ipython
from IPython.display import DisplayHandle, Image

from lib.results import COLUMNS, live_file
from lib.run.trainer import Row, Run
from lib.study.io import ROOT, run_folder
from lib.study.study import Arm, Study
from lib.study.yaml import HEADLESS

WRITE_INTERVAL = 1.0
"""Seconds between two writes: training waits for none that matters."""


class LiveCurve:
    """What a training cell calls for every step. The cell executed again goes on with it."""

    def __init__(self, study: Study, design: Study, arm: Arm, seed: int) -> None:
        folder = run_folder(design.name, arm.id, seed)
        self.file = live_file(folder)
        self.about: dict[str, Any] = {"study": study.name, "arm": arm.id, "variant": arm.variant}
        self.about |= {"baseline": arm.baseline, "seed": seed, "folder": str(folder)}
        self.about |= {"total": arm.config.training.iterations}
        self._waiting: list[str] = []
        self._with = ExitStack()

    def __enter__(self) -> Self:
        self._start = self._written = time.monotonic()
        if self.is_watched:
            self._tell_end = self._with.enter_context(_drawing(self.about))
        return self

    def __exit__(self, *_: object) -> None:
        self._write()
        self._with.close()

    @property
    def is_watched(self) -> bool:
        """Whether there is a notebook, and somebody to look at it."""
        return not os.environ.get(HEADLESS) and hasattr(get_ipython(), "kernel")

    def __call__(self, row: Row, point: Row | None) -> None:
        """Print an evaluation where no picture shows it, and append every step to the file, some at
        a time. A step that fp16 skipped has no gradient norm."""
        now, values = time.monotonic(), Row({"dev_loss": ""}) | (point or {}) | row
        if point and not self.is_watched:
            line = "step {step}: dev loss {dev_loss:.4f}, embedding norm {embedding_norm:.2f}"
            print(line.format(**values), flush=True)
        values["elapsed"] = round(now - self._start, 2)
        values |= {"grad_norm": ""} if row.get("skipped") else {}
        self._waiting.append(",".join(str(values[name]) for name in COLUMNS) + "\n")
        if now - self._written > WRITE_INTERVAL:
            self._write()
            self._written = now

    def _write(self) -> None:
        if self._waiting:
            with suppress(OSError), self.file.open("a", encoding="utf-8") as file:
                file.writelines(self._waiting)
            self._waiting.clear()

    def end(self, run: Run) -> None:
        """Show all of a run, what was trained before this cell included."""
        if self.is_watched:
            status = {"diverged": run.diverged_at is not None, "stopped": not run.finished}
            self._tell_end(status | {"trace": run.rows, "curve": run.points})
            if run.finished:
                self._waiting.clear()
                self.file.unlink(missing_ok=True)


@contextmanager
def _drawing(about: dict[str, Any]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Start what draws; give a function that tells it, at last, how the run ended. Each picture
    takes the place of the one before."""
    handle = DisplayHandle()
    handle.display({"text/plain": "The curve appears here."}, raw=True)
    command = [sys.executable, "-m", f"{__package__}.watching", json.dumps(about)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            env=environment, start_new_session=True,
        )  # fmt: skip
        assert process.stdin
        stdin = process.stdin

        def tell_end(end: dict[str, Any]) -> None:
            with suppress(OSError):  # a picture less
                stdin.write(json.dumps(end, default=float).encode())

        thread = threading.Thread(target=_show, args=(process, handle), daemon=True)
        thread.start()
        try:
            yield tell_end
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
