"""The picture that grows below a training cell: the run's curve, and its baseline's beside it.

What draws it is a process of its own, `lib.workflow.watching`, which is told numbers and gives
pictures. So training waits for no picture, and no code of figures can decide a weight.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

from IPython import get_ipython
from IPython.display import DisplayHandle, Image

from lib.run.progress import training_progress
from lib.run.training import Report, Row, Run
from lib.study.config import Arm, Study
from lib.study.paths import HEADLESS, ROOT, run_folder


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
