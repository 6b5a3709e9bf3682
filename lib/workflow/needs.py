"""What a run asks of a cluster: memory, and time with a margin, as `estimate` says."""

import math
from collections.abc import Collection
from pathlib import Path

from lib.study.config import Study
from lib.workflow.dry_run import seconds_of_runs
from lib.workflow.estimate import MARGIN, estimate, peak_bytes, runs
from lib.workflow.time_left import workloads

_PROGRAM = {"cpu": 2e9, "cuda": 4e9}
"""Bytes of a node's memory for each process beside what its run holds, and for the notebook: Python
and its packages, on a GPU also CUDA's."""
_BEGIN = 15
"""Minutes for what is no step: the start, the suite, and all that is measured."""
_SLOWER = 2
"""How many times longer than here a step may take: nodes differ, and the dev curve comes on top."""
_ELSEWHERE = "T4-hours"
"""What is taken where only other machines have the GPU: the slowest that is known."""


def needs(study: Study, stale: Collection[Path] = ()) -> dict[str, dict[str, int]]:
    """Return, for each arm, what the cluster must give a run: `mem_mb`, and `runtime` in minutes.

    Where runs of the study are done and not `stale` they tell the time, else a few steps made here.
    Raises CorpusError as `lib.workflow.estimate.runs` does.
    """
    processes, resources = study.machine.processes or 1, dict[str, dict[str, int]]()
    seconds, _ = seconds_of_runs(study, stale)
    if any(map(math.isnan, seconds.values())):
        work = workloads([study])
        pace = estimate(study).hours[_ELSEWHERE] * 3600 / processes / sum(work.values())
        seconds = {run_key: pace * units for run_key, units in work.items()}
    device = "cuda" if study.machine.device == "cuda" else "cpu"
    for arm, run in zip(study.arms(), runs(study, None), strict=True):
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
