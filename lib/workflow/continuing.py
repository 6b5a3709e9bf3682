"""What stands beside a run that somebody looks at: what its baseline measured, and writes."""

import os
import textwrap
from contextlib import suppress
from itertools import zip_longest

from pydantic import ValidationError

from lib.record.record import Record, finished_run, sample
from lib.results import RunResult
from lib.run.finished import UnfinishedError, read_finished
from lib.run.machine import random_stream
from lib.run.model import GPT
from lib.run.trainer import Run
from lib.study.study import Arm, Study
from lib.study.yaml import HEADLESS

DEFAULTS = "", 200, 1.0
"""Prompt, length and temperature of what a recorded notebook printed."""
WIDTH = 44
"""Characters of a column: two stand in a narrow notebook."""


def baseline_result(study: Study, arm: Arm, seed: int) -> RunResult | None:
    """Return the result of a run's baseline of the same seed, where somebody looks on and it has
    run; None elsewhere, and for the baseline itself."""
    if os.environ.get(HEADLESS) or arm.baseline == arm.id:
        return None
    folder = finished_run(study.name, arm.baseline, seed)
    with suppress(ValidationError):  # of another version
        if folder is not None:
            return RunResult.model_validate_json((folder / "result.json").read_bytes())
    return None


def continuations(
    run: Run, study: Study, arm: Arm, prompt: str = "", length: int = 200, temperature: float = 1.0
) -> str:
    """Continue a prompt (none: the beginning of a text) by `length` characters or tokens; where
    somebody looks on, also by the baseline of the same seed, with the same random numbers. Where
    its weights are not here, what its recorded notebook printed stands there, if that was asked
    the same.

    Raises CorpusError for a prompt with symbols that the text lacks, and ValueError for a
    temperature that is not positive.
    """
    if run.diverged_at is not None:
        return "nothing: the weights of a diverged model give no probabilities"
    corpus, seed = run.corpus, run.provenance.seed
    ids = corpus.encode(prompt) if prompt else corpus.beginning

    def write(model: GPT) -> str:
        device = model.transformer.wte.weight.device
        stream = random_stream(seed, "sample")
        text = model.generate(ids[None].to(device), length, stream, temperature)
        return corpus.decode(text[0])

    continuation = write(run.model)
    if os.environ.get(HEADLESS) or arm.baseline == arm.id:
        return continuation
    name, other = arm.id.removeprefix(f"{study.name},"), arm.baseline
    try:
        reference = write(read_finished(study.name, other, seed).model)
    except UnfinishedError as error:
        notebook = Record(study.name).run_notebook({"arm": other, "seed": seed})
        reference = sample(notebook) if (prompt, length, temperature) == DEFAULTS else ""
        if not reference:
            return f"{continuation}\n\n(Nothing beside it: {error}.)"
        other = f"{other}, as recorded"
    return side_by_side({name: continuation, other: reference})


def side_by_side(texts: dict[str, str]) -> str:
    """Lay out named texts in columns."""
    columns = []
    for name, text in texts.items():
        lines = [part for line in text.splitlines() for part in textwrap.wrap(line, WIDTH) or [""]]
        columns.append([name[:WIDTH], "─" * WIDTH, *lines])
    rows = zip_longest(*columns, fillvalue="")
    return "\n".join("  ".join(f"{part:<{WIDTH}}" for part in row).rstrip() for row in rows)
