"""Train recorded runs again, by today's code, and compare with their record.

Initial weights and batches must be the same, by their hashes. On the same type of CPU with the same
versions the final weights are equal to the bit. Elsewhere rounding moves them, and some recipes
amplify it: a final loss that has moved no further than a reader would mind is within tolerance, and
one that has moved further says nothing, as a wrong number and rounding look alike.
"""

import random
from collections.abc import Callable

from lib.config.schema import CODE
from lib.config.yaml import UsageError, suggest
from lib.record.archive import Record, Run, recorded_studies, require_recorded
from lib.results import trained_with

Train = Callable[[str, str, int], Run]
"""Study, arm and seed → the result of a run that was trained and measured here, as JSON."""
EQUAL, WITHIN = "equal to the bit", "within tolerance"
DIFFERS, UNJUDGED = "differs", "cannot be judged"
STATUS = {EQUAL: 0, WITHIN: 0, UNJUDGED: 4, DIFFERS: 1}
"""Outcome → exit status."""
TOLERANCE = 0.003
"""Nats: a tenth of 0.03, the smallest effect of interest of most plans."""
ROUNDING = {"turn": 0.015}
"""Study → nats that its losses move on average between two types of CPU, as measured."""
MACHINE = ("device_name", "vector_level", "precision", "threads", "processes", "micro_batch_size")
"""What of a machine decides how its sums are rounded, beside the versions of packages."""


def retrain(words: list[str], studies: list[str], train: Train) -> int:
    """Train runs again, print how each compares, and return the exit status: that of the worst.

    `words` is a number of runs to draw from some (none named: all) recorded studies, or the runs
    themselves as STUDY/ARM/SEED. UsageError for a word that is neither, or no recorded run.
    """
    names = [word for word in words if "/" in word]
    studies = studies or ([] if names == words else recorded_studies())
    asked = require_recorded([name.partition("/")[0] for name in names])
    runs = {
        f"{study}/{run['arm']}/{run['seed']}": run
        for study in {*asked, *studies}
        for run in Record(study).runs
    }
    for word in words:
        if word.isdecimal() and int(word):
            known = sorted(name for name in runs if name.partition("/")[0] in studies)
            names += random.SystemRandom().sample(known, min(int(word), len(known)))
        elif "/" not in word:
            raise UsageError(f"--retrain: '{word}' is no number of runs, and no STUDY/ARM/SEED")
        elif word not in runs:
            raise UsageError(f"run: {suggest(word, list(runs))}")
    outcomes = []
    for name in names:
        outcome, lines = train_again(runs[name], train)
        print(f"{name}: trained again, {outcome}", *lines, sep="\n  ", flush=True)
        outcomes.append(STATUS[outcome])
    return min(filter(None, outcomes), default=0)


def train_again(run: Run, train: Train) -> tuple[str, list[str]]:
    """Train a recorded run again; return how it compares, and lines with what was compared."""
    if CODE in run["levels"]:
        return UNJUDGED, [f"its code is that of commit {trained_with(run['provenance'])['code']}"]
    again = train(run["study"], run["arm"], run["seed"])
    lines = [
        f"loss {result['measures'].get('loss')}, {result['status']}, on {machine_of(result)}"
        for result in (run, again)
    ]
    for name in ("initial_weights", "batches"):
        if again[name] != run[name]:
            return DIFFERS, [*lines, f"{name} {again[name][:12]}, recorded {run[name][:12]}"]
    if again["final_weights"] == run["final_weights"]:
        return EQUAL, lines
    if machine_of(again) == machine_of(run):
        return DIFFERS, [*lines, "its final weights are others, on the same type of machine"]
    plan = Record(run["study"]).plan
    margin = plan.smallest_effect_of_interest.get("loss") if plan else None
    tolerance = max(margin / 10 if margin else TOLERANCE, ROUNDING.get(run["study"], 0.0))
    if again["status"] == run["status"] == "completed":
        moved = abs(again["measures"]["loss"] - run["measures"]["loss"])
        lines.append(f"its loss moved by {moved:.2g} nats; the tolerance is {tolerance:.2g}")
        return (WITHIN if moved <= tolerance else UNJUDGED), lines
    same_end = [again[name] == run[name] for name in ("status", "diverged_at")]
    return (WITHIN if all(same_end) else UNJUDGED), lines


def machine_of(result: Run) -> str:
    """Say what a run was trained on, as far as it decides how numbers are rounded."""
    origin = trained_with(result["provenance"])
    facts = [f"{name} {origin.get(name)}" for name in MACHINE]
    facts += [f"{name} {value}" for name, value in origin.get("variables", {}).items()]
    return ", ".join([*facts, f"torch {origin['packages']['torch']}"])
