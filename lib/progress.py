"""Showing how far a run is: a bar for a person, one line per evaluation for a log."""

import os

from tqdm import tqdm

from lib.training import Report

HEADLESS = "STUDY_HEADLESS"
"""Environment variable that `lib.execution` sets: nobody watches, so no bars."""


def training_progress(total: int) -> Report:
    """Return what `lib.training.train` calls after each of `total` steps."""
    if os.environ.get(HEADLESS):
        return lambda step, line: print(line, flush=True) if line else None
    bar = tqdm(total=total, unit="step")

    def update(step: int, line: str) -> None:
        bar.update(step - bar.n)
        if line:
            bar.set_postfix_str(line.partition(": ")[2])
        if step == total:
            bar.close()

    return update
