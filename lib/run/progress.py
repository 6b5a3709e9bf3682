"""Showing how far a run is: a bar for a person, one line per evaluation for a log, and all steps so
far in a file for whoever watches."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from lib.run.training import Report, Row
from lib.study.paths import HEADLESS
from lib.study.result import COLUMNS, live_file

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
