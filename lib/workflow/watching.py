"""Draws the curve of a run in training: `lib.workflow.live` tells it every step, a line each, and
shows the pictures that it gives."""

import json
import math
import sys
import threading
import time
from typing import Any

import pandas as pd

from lib.analysis.stability import WARNING_RULE, rule_of, training_warnings
from lib.figures.training import live_picture
from lib.record.record import finished_run
from lib.study.claim import load_plan
from lib.study.config import load_study
from lib.study.errors import UserError
from lib.study.raw import raw_file, read_raw_file
from lib.study.variants import variant
from lib.workflow.time_left import clock

SHARE = 0.25
"""The most of a core that drawing takes."""
MIN_INTERVAL = 1.0
"""Seconds between two pictures."""
REPLAY = 2.0
"""Seconds at the start in which steps made before are told again: these say nothing of speed."""


class LiveRun:
    """A run in training, as far as it was told. A thread reads, so that training never waits."""

    def __init__(self) -> None:
        self.about: dict[str, Any] = json.loads(sys.stdin.readline())
        self.rows: list[dict[str, Any]] = []
        self.points: dict[int, dict[str, Any]] = {}
        self.end: dict[str, Any] = {}
        self.times: list[float] = []
        """When, by `time.monotonic`, each step was told."""
        self.new, self.over = threading.Event(), False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if row := message.get("row"):
                self.times.append(time.monotonic())
                del self.rows[row["step"] - 1 :]  # told again
                self.rows.append(row)
            elif "stopped" in message:
                self.end = message
            if point := message.get("point"):
                self.points[point["step"]] = point
            self.new.set()
        self.over = True
        self.new.set()

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the trace and the curve so far."""
        rows, points = list(self.rows), sorted(self.points.copy().items())
        trace = pd.DataFrame(rows)
        if not rows:
            trace = pd.DataFrame(columns=["step", "loss", "grad_norm"], dtype=float)
        curve = pd.DataFrame([point for _, point in points])
        return {"trace": trace, "curve": curve if points else pd.DataFrame(columns=["step"])}

    def standing(self, tables: dict[str, pd.DataFrame]) -> str:
        """Say how far the run is."""
        total, done = self.about["total"], max(tables["trace"]["step"], default=0)
        if self.end.get("diverged"):
            return f"DIVERGED at step {done} of {total}"
        if self.end.get("stopped"):
            return f"stopped at step {done} of {total}; run this cell again to continue"
        if done in (0, total) or self.end:
            return f"step {done} of {total}"
        times = list(self.times)
        first_time = max(when for when in times if when <= times[0] + REPLAY)
        n_new = sum(when > first_time for when in times)
        seconds_each = (times[-1] - first_time) / n_new if n_new else math.nan
        return f"step {done} of {total}, {clock(seconds_each * (total - done))} left"


def baseline(study: str, arm: str, seed: int) -> dict[str, pd.DataFrame]:
    """Read trace and curve of a finished run, in `runs/` or in the record; nothing without one."""
    folder = finished_run(study, arm, seed)
    if folder is None or not raw_file(folder, "trace").is_file():  # older records have none
        return {}
    return {name: read_raw_file(folder, name) for name in ("trace", "curve")}


def main() -> None:
    """Draw until nothing more is told, and then once more."""
    run = LiveRun()
    study, arm, base = (run.about[name] for name in ("study", "arm", "baseline"))
    others, note, rule = {}, [], WARNING_RULE
    try:
        design = load_study(study)
        plan_rule = rule_of(load_plan(design))
        rule = plan_rule if plan_rule.is_defined else WARNING_RULE
        if base != arm and (curves := baseline(study, base, run.about["seed"])):
            others = {base: curves}
        elif base != arm:
            note = [f"There is no finished run of {base}, seed {run.about['seed']}, to compare"]
        looks = [variant(run.about["variant"]), variant(design.arm(base).variant)]
    except UserError as error:
        note, looks = [f"Nothing to compare with: {error}"], [variant(run.about["variant"])]
    over = False
    while not over:
        run.new.wait()
        run.new.clear()
        over, start, tables = run.over, time.monotonic(), run.tables()
        runs = {arm.removeprefix(f"{study},"): tables} | others
        warnings = [
            f"Warning: {text}" for text in training_warnings(tables["trace"], rule).values()
        ] + note
        standing = run.standing(tables)
        png, width = live_picture(runs, looks, run.about["total"], standing, warnings)
        sys.stdout.buffer.write(f"{len(png)} {width}\n".encode() + png)
        sys.stdout.buffer.flush()
        draw_seconds = time.monotonic() - start
        until = start + max(MIN_INTERVAL, draw_seconds / SHARE)
        while not run.over and time.monotonic() < until:
            time.sleep(0.05)


if __name__ == "__main__":
    main()
