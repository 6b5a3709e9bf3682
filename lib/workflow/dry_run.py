"""What a sweep would do (`-n`): which runs, in which order, why, and how long it takes; and what
each run asks of a cluster."""

import heapq
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from lib.results import read_live
from lib.study.io import result_file, run_folder
from lib.study.study import Study
from lib.workflow.estimate import MARGIN, estimate, peak_bytes, run_costs
from lib.workflow.progress import plain_table, terminal
from lib.workflow.time_left import (
    RUN,
    USUAL,
    JobKey,
    clock,
    durations,
    finished_results,
    pace,
    workloads,
)

NOTEBOOK_OF_RULE = {"data": "01_data", "analysis": "03_analysis", "figures": "04_figures"}
"""The notebook that a rule of the Snakefile executes; other rules execute none."""


def due_runs(study: Study, stale: Mapping[Path, str]) -> Iterator[tuple[str, int, str]]:
    """Yield arm, seed and reason of each run that a sweep would make: one without a result, or with
    one that `stale` names, by its path, with the reason."""
    for arm, seed in itertools.product(study.arms(), study.seeds):
        path, training = result_file("02_train", study.name, arm.id, seed), arm.config.training
        if path in stale:
            yield arm.id, seed, stale[path]
        elif not path.is_file():
            steps = read_live(run_folder(study.name, arm.id, seed))["step"]
            reason = f"stopped at step {steps.max():.0f} of {training.iterations}: continues"
            yield arm.id, seed, "not made yet" if steps.empty else reason


def print_dry_run(
    studies: Sequence[Study], stale: Mapping[Path, str], jobs: Mapping[str, int], at_once: int
) -> None:
    """Print which runs of some studies a sweep of so many jobs by rule would make, why, and how
    long it takes with some jobs at once."""
    if not jobs:
        print("Nothing to do: everything is up to date.")
        return
    console, times, sources = terminal(), list[float](), list[str]()
    for study in studies:
        runs = list(due_runs(study, stale))
        all_runs = len(list(study.arms())) * len(study.seeds)
        print(f"{study.name}: would make {len(runs)} of {all_runs} runs")
        if not runs:
            continue
        table = plain_table("arm", "seeds", "why")
        for (arm, reason), group in itertools.groupby(runs, key=lambda run: (run[0], run[2])):
            table.add_row(arm, ", ".join(str(seed) for _, seed, _ in group), reason)
        console.print("", table, "")
        seconds_of, source = seconds_of_runs(study, stale)
        times += [seconds_of[study.name, arm, str(seed)] for arm, seed, _ in runs]
        sources.append(source)
    if times and jobs.get(RUN, 0) != len(times):
        print(f"The flags ask for {jobs.get(RUN, 0)} runs.")
        times = list(itertools.islice(itertools.cycle(times), jobs.get(RUN, 0)))
    others = {rule: number for rule, number in jobs.items() if rule != RUN}
    if others:
        names = [
            NOTEBOOK_OF_RULE.get(rule, rule) + f" × {n}" * (n > 1) for rule, n in others.items()
        ]
        console.print(f"Then: {', '.join(sorted(names))}.")
    seconds = makespan(times, at_once)
    seconds += sum(USUAL.get(rule, 0.0) * number for rule, number in others.items())
    bound = "At least" if STEPS in sources else "About"
    basis = f", by {' and '.join(dict.fromkeys(sources))}" if sources else ""
    console.print(f"{bound} {clock(seconds)} with {at_once} at once{basis}.")


def makespan(times: Sequence[float], at_once: int) -> float:
    """Return how many seconds runs of some lengths take when so many go on at once (Graham
    1969). The longest go first, and each begins as soon as another has ended. NaN where one has
    no length."""
    return _end(sorted(times, reverse=True), at_once)


def _end(times: Iterable[float], at_once: int) -> float:
    """Return when the last of some runs has ended that begin in this order."""
    ends = at_once * [0.0]
    for seconds in times:
        heapq.heapreplace(ends, ends[0] + seconds)
    return float(np.max(ends))


def longest_runs(studies: Sequence[Study], stale: Mapping[Path, str], at_once: int) -> list[Path]:
    """Return the results of those runs that a sweep should begin with, so that no core is idle
    while a long one ends the sweep; none where all are equally long. Snakemake takes two classes:
    the longer begin first, and within a class any order, here the worst."""
    works = workloads(studies)
    length = {
        result_file("02_train", study.name, arm, seed): works[study.name, arm, str(seed)]
        for study in studies
        for arm, seed, _ in due_runs(study, stale)
    }

    def ends(threshold: float) -> float:
        return _end(sorted(length.values(), key=lambda work: (work < threshold, work)), at_once)

    candidates = sorted(set(length.values()), reverse=True)[:-1]
    threshold = min(candidates, key=ends, default=math.inf)
    return [path for path, work in length.items() if work >= threshold]


STEPS = "training steps made now, without measuring"


def seconds_of_runs(study: Study, stale: Collection[Path]) -> tuple[dict[JobKey, float], str]:
    """Return what each run of a study takes here in seconds, and what says so: those that are done
    and not stale, or else a few steps, which are made. Runs share by the work that they are."""
    works, source = workloads([study]), f"runs of {study.name} that are done"
    per_unit = pace(durations(finished_results(works, stale)), works)
    if per_unit is None:
        hours, source = estimate(study).hours, STEPS
        local = next((value for name, value in hours.items() if name.endswith("here")), math.nan)
        per_unit = local * 3600 / (study.machine.threads or 1) / sum(works.values())
    return {run: per_unit * work for run, work in works.items()}, source


_PROGRAM = {"cpu": 2e9, "cuda": 4e9}
"""Bytes of a node's memory for each process beside what its run holds, and for the notebook: Python
and its packages, on a GPU also CUDA's."""
_BEGIN = 15
"""Minutes for what is no step: the start, the suite, and all that is measured."""
_SLOWER = 2
"""How many times longer than here a step may take: nodes differ, and the dev curve comes on top."""
_ELSEWHERE = "T4-hours"
"""What is taken where only other machines have the GPU: the slowest that is known."""


def job_resources(study: Study, stale: Collection[Path] = ()) -> dict[str, dict[str, int]]:
    """Return, for each arm, what the cluster must give a run: `mem_mb`, and `runtime` in minutes.

    Where runs of the study are done and not `stale` they tell the time, else a few steps made here.
    Raises CorpusError as `lib.workflow.estimate.run_costs` does.
    """
    processes, resources = study.machine.processes or 1, dict[str, dict[str, int]]()
    seconds, _ = seconds_of_runs(study, stale)
    if any(map(math.isnan, seconds.values())):
        works = workloads([study])
        per_unit = estimate(study).hours[_ELSEWHERE] * 3600 / processes / sum(works.values())
        seconds = {run: per_unit * work for run, work in works.items()}
    device = "cuda" if study.machine.device == "cuda" else "cpu"
    for arm, run in zip(study.arms(), run_costs(study, None), strict=True):
        sizes = peak_bytes(run, device, processes)
        if device == "cuda":  # of which the node itself holds what a checkpoint does
            sizes = {name: sizes[name] for name in ("weights", "gradients", "AdamW")}
        memory = processes * (_PROGRAM[device] + MARGIN * sum(sizes.values()))
        steps = _SLOWER * seconds[study.name, arm.id, str(study.seeds[0])]
        resources[arm.id] = {
            "mem_mb": math.ceil(memory / 1e6),
            "runtime": _BEGIN + math.ceil(steps / 60),
        }
    return resources
