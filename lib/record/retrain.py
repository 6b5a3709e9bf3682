"""Train recorded runs again with today's code, and compare them with their record.

Initial weights and batches must have the same hashes. On the same type of CPU with the same
versions, final weights must be equal to the bit. On other machines they are rounded differently,
and some recipes amplify that. If the final loss moved by less than would matter to a reader, the
run is within tolerance. If it moved further, the run cannot be judged: the cause may be rounding or
a wrong number.
"""

import random
from collections.abc import Callable

from lib.config.claim import load_plan
from lib.config.errors import UsageError, UserError, suggest
from lib.config.schema import CODE
from lib.config.study import Study, load_study
from lib.record.archive import Record, Run, recorded_studies, require_recorded
from lib.results import trained_with

Train = Callable[[Study, str, int], Run]
"""Study, arm and seed → the result of a run that was trained and measured here, as JSON."""
EQUAL, WITHIN = "equal to the bit", "within tolerance"
DIFFERS, UNJUDGED = "differs", "cannot be judged"
STATUS = {EQUAL: 0, WITHIN: 0, UNJUDGED: 4, DIFFERS: 1}
"""Outcome → exit status."""
SMALLEST = 0.03
"""The smallest effect of interest in most plans, in nats. A tenth of it is the tolerance."""
MACHINE = ("device_name", "vector_level", "precision", "threads", "processes", "micro_batch_size")
"""Facts about a machine that decide how sums are rounded, in addition to package versions."""


def retrain(words: list[str], studies: list[str], train: Train) -> int:
    """Train runs again, print how each compares, and return the exit status of the worst.

    Each of `words` is a run, STUDY/ARM/SEED, or a number of runs to draw at random from `studies`
    (if empty, from all recorded studies). Raises UsageError for any other word.
    """
    chosen: list[Run] = []
    for word in words:
        if "/" in word:
            named = require_recorded([word.partition("/")[0]])
            runs = {name_of(run): run for run in Record(named[0]).runs}
            if word not in runs:
                raise UsageError(f"run: {suggest(word, runs)}")
            chosen.append(runs[word])
        elif word.isdecimal() and int(word):
            known = [run for of in studies or recorded_studies() for run in Record(of).runs]
            chosen += random.SystemRandom().sample(known, min(int(word), len(known)))
        else:
            fault = f"--retrain: '{word}' is not a run"
            raise UsageError(f"{fault}; write a number of runs, or STUDY/ARM/SEED")
    outcomes = []
    for run in chosen:
        outcome, lines = train_again(run, train)
        print(f"{name_of(run)}: trained again, {outcome}", *lines, sep="\n  ", flush=True)
        outcomes.append(STATUS[outcome])
    return min(filter(None, outcomes), default=0)


def name_of(run: Run) -> str:
    """Return the name of a run on the command line."""
    return f"{run['study']}/{run['arm']}/{run['seed']}"


def train_again(run: Run, train: Train) -> tuple[str, list[str]]:
    """Train a recorded run again. Return the outcome, and lines with the compared values."""
    if CODE in run["levels"]:
        return UNJUDGED, [
            f"it was made by the code of commit {trained_with(run['provenance'])['code']}"
        ]
    study = load_study(run["study"])
    try:
        again = train(study, run["arm"], run["seed"])
    except (OSError, UserError) as error:
        return UNJUDGED, [f"it could not be trained here: {error}"]
    lines = [
        f"loss {result['measures'].get('loss')}, {result['status']}, on {machine_of(result)}"
        for result in (run, again)
    ]
    for name in ("initial_weights", "batches"):
        if again[name] != run[name]:
            stated = f"{name} {again[name][:12]}, recorded {run[name][:12]}"
            return DIFFERS, [*lines, stated]
    if again["final_weights"] == run["final_weights"]:
        return EQUAL, lines
    if machine_of(again) == machine_of(run):
        return DIFFERS, [*lines, "its final weights differ, on the same type of machine"]
    is_within = all(again[name] == run[name] for name in ("status", "diverged_at"))
    if is_within and run["status"] == "completed":
        plan = load_plan(study)
        smallest = plan.smallest_effect_of_interest.get("loss", SMALLEST) if plan else SMALLEST
        tolerance = smallest / 10
        moved = abs(again["measures"]["loss"] - run["measures"]["loss"])
        lines.append(f"its loss moved by {moved:.2g} nats (tolerance {tolerance:.2g})")
        is_within = moved <= tolerance
    return (WITHIN if is_within else UNJUDGED), lines


def machine_of(result: Run) -> str:
    """Return the facts about a run's machine that decide how numbers are rounded."""
    origin = trained_with(result["provenance"])
    facts = [f"{name} {origin.get(name)}" for name in MACHINE]
    facts += [f"{name} {value}" for name, value in origin.get("variables", {}).items()]
    return ", ".join([*facts, f"torch {origin['packages']['torch']}"])
