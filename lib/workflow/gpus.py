"""The GPUs of a sweep: which there are, how many runs share one, and which a job holds."""

import contextlib
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator

from filelock import FileLock, Timeout

from lib.study.fields import MachineConfig
from lib.study.paths import RUNS

GPUS = "STUDY_GPUS"
"""Environment variable that lists the GPUs a sweep may use, each as often as it takes runs."""


def gpu_names() -> list[str]:
    """Name the GPUs that jobs may use: those visible, or all that the driver lists."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = map(str.strip, visible.split(","))
        return list(itertools.takewhile(lambda name: name not in ("", "-1"), names))  # as CUDA does
    return [str(i) for i in range(sum(line.startswith("GPU ") for line in _ask("-L")))]


def runs_per_gpu(gpus: int, needed: float) -> int:
    """How many runs that need so many bytes share each of some GPUs: as many as its part of the
    cores, and its memory, suffice for."""
    asked = _ask("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    memory = [int(line) for line in asked if line.strip().isdigit()]
    fit = int(min(memory, default=0) * 2**20 / needed)
    return max(1, min((os.cpu_count() or 1) // gpus, fit))


def _ask(*words: str) -> list[str]:
    """Return the lines that the driver's tool prints; none where there is no such tool."""
    if shutil.which("nvidia-smi") is None:
        return []
    return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True).stdout.split("\n")


@contextlib.contextmanager
def gpus(machine: MachineConfig) -> Iterator[str | None]:
    """Hold a place on as many of the GPUs listed in `STUDY_GPUS` as a run has processes (`auto`: on
    all), none of which another job holds; give their names, as `0,1`. Without a list, and for a run
    on the CPU, None."""
    listed = [device for device in os.environ.get(GPUS, "").split(",") if device]
    if not listed or machine.device == "cpu":
        yield None
        return
    RUNS.mkdir(parents=True, exist_ok=True)
    wanted = min(machine.processes or len(listed), len(set(listed)))
    while True:
        with contextlib.ExitStack() as locks:
            held: list[str] = []
            for number, device in enumerate(listed):
                if len(held) < wanted and device not in held:
                    place = RUNS / f".gpu-{device}-{listed[:number].count(device)}.lock"
                    with contextlib.suppress(Timeout):
                        locks.enter_context(FileLock(place, timeout=0))
                        held.append(device)
            if len(held) == wanted:
                yield ",".join(held)
                return
        time.sleep(0.2)
