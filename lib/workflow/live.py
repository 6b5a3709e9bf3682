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

    def __init__(self, asked: Study, design: Study, arm: Arm, seed: int) -> None:
        self.folder = run_folder(design.name, arm.id, seed)
        self.total = arm.config.training.iterations
        about: dict[str, Any] = {"study": asked.name, "arm": arm.id, "variant": arm.variant}
        about |= {"baseline": arm.baseline, "seed": seed, "total": self.total}
        self.told = [json.dumps(about)]
        """Every line so far, for the next process that draws."""
        self._with = ExitStack()

    def __enter__(self) -> Self:
        if self.is_watched:
            self._say = self._with.enter_context(_drawing())
            for line in self.told:
                self._say(line)
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
            self._tell({"row": row, "point": point})
        else:
            self._report(row, point)

    def end(self, run: Run) -> None:
        """Show all of a run, what was trained before this cell included."""
        if self.is_watched:
            del self.told[1:]
            end = {"diverged": run.diverged_at is not None, "stopped": not run.finished}
            for row in run.rows:
                self._tell({"row": row, "point": None})
            for point in run.points:
                self._tell({"row": None, "point": point})
            self._say(json.dumps(end))

    def _tell(self, news: dict[str, Any]) -> None:
        self.told.append(json.dumps(news, default=float))
        self._say(self.told[-1])


@contextmanager
def _drawing() -> Iterator[Any]:
    """Start what draws; give a function that tells it a line. Each picture takes the place of the
    one before."""
    handle = DisplayHandle()
    handle.display({"text/plain": "The curve appears here."}, raw=True)
    command = [sys.executable, "-m", f"{__package__}.watching"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            env=environment, start_new_session=True,
        )  # fmt: skip
        assert process.stdin
        told = process.stdin

        def say(line: str) -> None:
            with suppress(OSError):  # a picture less; training goes on
                told.write(line.encode() + b"\n")
                told.flush()

        shower = threading.Thread(target=_show, args=(process, handle), daemon=True)
        shower.start()
        try:
            yield say
        finally:
            with suppress(OSError):
                told.close()
            shower.join()
            if process.wait():
                said.seek(0)
                why = said.read().decode(errors="replace").strip().rpartition("\n")[2]
                handle.update({"text/plain": f"The curve could not be drawn: {why}"}, raw=True)


def _show(process: "subprocess.Popen[bytes]", handle: DisplayHandle) -> None:
    """Show each picture that comes, after a line with its size and its width on the screen."""
    assert process.stdout
    while line := process.stdout.readline():
        size, width = map(int, line.split())
        handle.update(Image(process.stdout.read(size), width=width))
