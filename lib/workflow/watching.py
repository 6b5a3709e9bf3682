"""Draws the curve of a run in training from the file of its steps. `lib.workflow.live` starts this
process and shows the pictures that it gives."""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd

from lib.analysis.stability import rule_of, training_warnings
from lib.figures.style import variant
from lib.figures.training import live_picture
from lib.record.record import finished_run
from lib.results import raw_file, read_live, read_raw_file
from lib.study.preregistration import load_plan
from lib.study.study import load_study
from lib.study.yaml import UserError
from lib.workflow.time_left import clock, seconds_per_step

SHARE = 0.25
"""The most of a core that drawing takes."""
MIN_INTERVAL = 1.0
"""Seconds between two pictures."""


def standing(trace: pd.DataFrame, total: int, end: dict[str, Any]) -> str:
    """Say how far a run is, and how it ended if it did."""
    done = int(trace["step"].max()) if len(trace) else 0
    if end.get("diverged"):
        return f"DIVERGED at step {done} of {total}"
    if end.get("stopped"):
        return f"stopped at step {done} of {total}; run this cell again to continue"
    if done in (0, total) or end:
        return f"step {done} of {total}"
    return f"step {done} of {total}, {clock(seconds_per_step(trace) * (total - done))} left"


def baseline(study: str, arm: str, seed: int) -> dict[str, pd.DataFrame]:
    """Read trace and curve of a finished run, in `runs/` or in the record; nothing without one."""
    folder = finished_run(study, arm, seed)
    if folder is None or not raw_file(folder, "trace").is_file():  # older records have none
        return {}
    return {name: read_raw_file(folder, name) for name in ("trace", "curve")}


def tables(folder: Path, end: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Return trace and curve: of a run that ended as it was told, else what there is so far."""
    steps = read_live(folder)
    curve = steps[["step", "dev_loss"]].dropna()
    return {
        name: pd.DataFrame(end[name]) if end.get(name) else so_far
        for name, so_far in (("trace", steps), ("curve", curve))
    }


def main(words: str) -> None:
    """Draw whenever there are more steps, until the end is told, and then once more."""
    about, end, over = json.loads(words), dict[str, Any](), threading.Event()
    study, arm, base, total = (about[name] for name in ("study", "arm", "baseline", "total"))
    others, note, rule = {}, [], rule_of(None)
    try:
        design = load_study(study)
        rule = rule_of(load_plan(design))
        if base != arm and (curves := baseline(study, base, about["seed"])):
            others = {base: curves}
        elif base != arm:
            note = [f"There is no finished run of {base}, seed {about['seed']}, to compare"]
        looks = [variant(about["variant"]), variant(design.arm(base).variant)]
    except UserError as error:
        note, looks = [f"Nothing to compare with: {error}"], [variant(about["variant"])]

    def listen() -> None:
        try:
            end.update(json.loads(sys.stdin.read() or "{}"))
        finally:  # whoever trained may be gone
            over.set()

    threading.Thread(target=listen, daemon=True).start()
    drawn, is_over = -1, False
    while not is_over:
        is_over, start = over.is_set(), time.monotonic()
        run = tables(Path(about["folder"]), end)
        if is_over or len(run["trace"]) != drawn:
            drawn = len(run["trace"])
            found = training_warnings(run["trace"], rule).values()
            warnings = [f"Warning: {text}" for text in found] + note
            runs = {arm.removeprefix(f"{study},"): run} | others
            said = standing(run["trace"], total, end)
            png, width = live_picture(runs, looks, total, said, warnings)
            sys.stdout.buffer.write(f"{len(png)} {width}\n".encode() + png)
            sys.stdout.buffer.flush()
        over.wait(max(MIN_INTERVAL, (time.monotonic() - start) / SHARE))


if __name__ == "__main__":
    main(*sys.argv[1:])
