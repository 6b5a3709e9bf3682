"""Show how a run trains. In an open notebook: a picture below the cell, with the finished
baseline's curve, and a warning as soon as something goes wrong. Always: two files in the run's
folder. The sweep reads its step there, and the site its curve."""

import json
import os
import time
from contextlib import suppress
from typing import Any, Self

import pandas as pd
from IPython import get_ipython

from lib.config.claim import load_plan
from lib.config.errors import HEADLESS
from lib.config.paths import run_folder
from lib.config.study import Arm, Study
from lib.results import STEP_FILE, STEPS_FILE, read_raw_file
from lib.train.distributed import Row

INTERVAL, SHARE = 1.0, 0.25
"""The least number of seconds between two pictures, and the largest share of the time that they
may take."""


class LiveCurve:
    """The callback of training. `asked` is the study as loaded, `design` the one that trains. With
    `changes` that is a scratch run; it is drawn together with the unchanged arm."""

    def __init__(self, asked: Study, design: Study, arm: Arm, seed: int) -> None:
        self.asked, self.arm, self.seed = asked, arm, seed
        self.folder = run_folder(design.name, arm.id, seed)
        self.rows: list[Row] = []
        self.points: list[Row] = []
        self._lines: list[tuple[Row, Row | None]] = []
        """Of `STEPS_FILE`, not yet written."""
        self.is_watched = not os.environ.get(HEADLESS) and hasattr(get_ipython(), "kernel")
        self._next = 0.0

    def __enter__(self) -> Self:
        """Read the curves of the baseline, if its run is finished."""
        if not self.is_watched:
            return self
        from IPython.display import display

        from lib.figures.style import looks
        from lib.stats.stability import rule_of

        text = {"text/plain": "The curve appears here."}
        self._picture = display(text, raw=True, display_id=True)
        baseline = self.asked.arm(self.arm.baseline)
        self._looks = [*looks([baseline.id, self.arm.id]).values()][::-1]
        self._rule, self._baseline = rule_of(load_plan(self.asked)), dict[str, Any]()
        folder = run_folder(self.asked.name, baseline.id, self.seed)
        if folder != self.folder and (folder / "result.json").is_file():
            tables = {name: read_raw_file(folder, name) for name in ("trace", "curve")}
            self._baseline = {f"{baseline.id} (finished)": tables}
        return self

    def __call__(self, row: Row, point: Row | None) -> None:
        """Record a step, and an evaluation if there was one. Drawing takes at most a quarter of the
        time."""
        self.rows.append(row)
        self._lines.append((row, point))
        if point:
            self.points.append(point)
        if point and not self.is_watched:
            print("step {step}: dev loss {dev_loss:.4f}".format(**point), flush=True)
        if (start := time.monotonic()) >= self._next:
            self._show()
            seconds = time.monotonic() - start
            self._next = start + max(seconds + INTERVAL, seconds / SHARE)

    def __exit__(self, *_: object) -> None:
        if self.rows:
            self._show()

    def _show(self) -> None:
        with suppress(OSError):  # a full disk: the checkpoint says so
            (self.folder / STEP_FILE).write_text(str(self.rows[-1]["step"]), "utf-8")
            self._write_lines()
        if not self.is_watched:
            return
        from IPython.display import Image

        from lib.figures.training import live_picture
        from lib.stats.stability import training_warnings

        trace, total = pd.DataFrame(self.rows), self.arm.config.training.iterations
        curve = pd.DataFrame(self.points, columns=None if self.points else ["step", "dev_loss"])
        runs = {self.arm.id: {"trace": trace, "curve": curve}} | self._baseline
        warnings = list(training_warnings(trace, self._rule).values())
        standing = f"step {self.rows[-1]['step']} of {total}"
        png, width = live_picture(runs, self._looks, total, standing, warnings)
        self._picture.update(Image(png, width=width))

    def _write_lines(self) -> None:
        """Append the new steps to `STEPS_FILE`. A run that starts from step 1 begins a new file."""
        lines, self._lines = self._lines, []
        if lines:
            mode = "w" if lines[0][0]["step"] == 1 else "a"
            with (self.folder / STEPS_FILE).open(mode, encoding="utf-8") as file:
                file.writelines(f"{json.dumps(line)}\n" for line in lines)
