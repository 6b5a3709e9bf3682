"""What a sweep would do (`-n`): which runs, why, and how long it takes."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rich import box
from rich.table import Table

from lib.study.config import Study
from lib.study.paths import result_file, run_folder
from lib.study.result import read_live
from lib.workflow.estimate import estimate
from lib.workflow.progress import terminal
from lib.workflow.time_left import RUN, USUAL, clock, taken

NOTEBOOKS = {"data": "01_data", "analysis": "03_analysis", "figures": "04_figures"}
"""What jobs are called, by rule, where not by the rule itself."""


def needed(study: Study, stale: Mapping[Path, str]) -> Iterator[tuple[str, int, str]]:
    """Yield arm and seed of each run of a study that has no result, or one of these stale ones (→
    why), and why it is made."""
    for arm, seed in itertools.product(study.arms(), study.seeds):
        path, total = result_file("02_train", study.name, arm.id, seed), arm.config.training
        if path in stale:
            yield arm.id, seed, stale[path]
        elif not path.is_file():
            steps = read_live(run_folder(study.name, arm.id, seed))["step"]
            why = f"stopped at step {steps.max():.0f} of {total.iterations}: continues"
            yield arm.id, seed, "not made yet" if steps.empty else why


def foretell(
    studies: Sequence[Study], stale: Mapping[Path, str], jobs: Mapping[str, int], at_once: int
) -> None:
    """Print which runs of some studies a sweep of so many jobs by rule would make, why, and how
    long it takes with some jobs at once."""
    if not jobs:
        print("Nothing to do: everything is up to date.")
        return
    console, named, seconds, sources = terminal(), 0, 0.0, []
    for study in studies:
        runs = list(needed(study, stale))
        named += len(runs)
        all_runs = len(list(study.arms())) * len(study.seeds)
        print(f"{study.name}: would make {len(runs)} of {all_runs} runs")
        if not runs:
            continue
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for heading in ("arm", "seeds", "why"):
            table.add_column(heading, overflow="fold")
        for (arm, why), same in itertools.groupby(runs, key=lambda run: (run[0], run[2])):
            table.add_row(arm, ", ".join(str(seed) for _, seed, _ in same), why)
        console.print("", table, "")
        each, source = seconds_of_run(study)
        seconds += len(runs) * each / at_once
        sources.append(source)
    if named and jobs.get(RUN, 0) != named:
        seconds *= jobs.get(RUN, 0) / named
        print(f"The flags ask for {jobs.get(RUN, 0)} runs.")
    others = {rule: number for rule, number in jobs.items() if rule != RUN}
    if others:
        names = [NOTEBOOKS.get(rule, rule) + f" × {n}" * (n > 1) for rule, n in others.items()]
        console.print(f"Then: {', '.join(sorted(names))}.")
    seconds += sum(USUAL.get(rule, 0.0) * number for rule, number in others.items())
    least = "At least" if STEPS in sources else "About"
    by = f", by {' and '.join(dict.fromkeys(sources))}" if sources else ""
    console.print(f"{least} {clock(seconds)} with {at_once} at once{by}.")


STEPS = "training steps made now, without measuring"


def seconds_of_run(study: Study) -> tuple[float, str]:
    """Return what a run of a study takes here in seconds, and what says so: those that are done,
    or else a few steps, which are made."""
    if done := taken([study]):
        return fmean(done), f"runs of {study.name} that are done"
    hours = estimate(study).hours
    here = next((value for name, value in hours.items() if name.endswith("here")), float("nan"))
    runs = len(list(study.arms())) * len(study.seeds)
    return here * 3600 / (study.machine.threads or 1) / runs, STEPS
