"""Showing how far a run is: a bar for a person, one line per evaluation for a log."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from lib.run.training import Report

HEADLESS = "STUDY_HEADLESS"
"""Environment variable that `lib.workflow.execution` sets: nobody watches, so no bars."""


@contextmanager
def training_progress(total: int) -> Iterator[Report]:
    """Give what `lib.run.training.train` calls after each of `total` steps."""
    if os.environ.get(HEADLESS):
        yield lambda step, line: print(line, flush=True) if line else None
        return
    with tqdm(total=total, unit="step") as bar:

        def update(step: int, line: str) -> None:
            bar.update(step - bar.n)
            if line:
                bar.set_postfix_str(line.partition(": ")[2])

        yield update
