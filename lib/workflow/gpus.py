"""Which GPUs runs take: a sweep lists places on them, and each of its jobs holds some."""

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Iterator

from filelock import FileLock, Timeout

from lib.study.io import RUNS
from lib.study.schema import MachineConfig
from lib.study.study import Study

GPUS = "STUDY_GPUS"
"""Environment variable that lists the GPUs a sweep may use, each as often as it takes runs."""


def gpu_slots(studies: list[Study], per_gpu: int | None = None) -> list[str]:
    """List the GPUs that runs of some studies take turns on, each as often as it takes runs at
    once, all once before any twice; none for studies of the CPU. If `per_gpu` does not say how
    often, as many runs share a GPU as its part of the cores, and its memory, suffice for."""
    studies = [study for study in studies if study.machine.device != "cpu"]
    names = gpu_names() if studies else []
    if names and per_gpu is None:
        from lib.workflow.estimate import gpu_memory

        fit = int(min(_gpu_memories(), default=0) * 2**20 / gpu_memory(studies))
        per_gpu = max(1, min((os.cpu_count() or 1) // len(names), fit))
    return names * (per_gpu or 0)


def gpu_names() -> list[str]:
    """Name the GPUs that jobs may use: those visible, or all that the driver lists."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(i) for i in range(len(_gpu_memories()))]
    names = map(str.strip, visible.split(","))
    return list(itertools.takewhile(lambda name: name not in ("", "-1"), names))  # as CUDA does


def _gpu_memories() -> list[int]:
    """Ask the driver's tool for the memory of every GPU, in MiB (0: it does not say); none where
    there is no such tool."""
    call = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(call, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        return []
    return [int(line) if line.strip().isdigit() else 0 for line in lines if line]


@contextlib.contextmanager
def acquire_gpus(machine: MachineConfig) -> Iterator[str | None]:
    """Hold a slot on as many of the GPUs listed in `STUDY_GPUS` as a run has processes (`auto`: on
    all), none of which another job holds; give their names, as `0,1`. Without a list, and for a run
    on the CPU, None."""
    devices = [device for device in os.environ.get(GPUS, "").split(",") if device]
    if not devices or machine.device == "cpu":
        yield None
        return
    RUNS.mkdir(parents=True, exist_ok=True)
    n = min(machine.processes or len(devices), len(set(devices)))
    while True:
        with contextlib.ExitStack() as locks:
            acquired: list[str] = []
            for number, device in enumerate(devices):
                if len(acquired) < n and device not in acquired:
                    slot = RUNS / f".gpu-{device}-{devices[:number].count(device)}.lock"
                    with contextlib.suppress(Timeout):
                        locks.enter_context(FileLock(slot, timeout=0))
                        acquired.append(device)
            if len(acquired) == n:
                yield ",".join(acquired)
                return
        time.sleep(0.2)
