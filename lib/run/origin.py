"""What a run is made with, as its provenance holds it: machine, versions, code and time."""

import os
import platform
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from lib.data.corpus import Corpus
from lib.run.machine import Machine, prepare
from lib.study.config import Arm, Study
from lib.study.digests import training_digest
from lib.study.plan import read_plan
from lib.study.provenance import Execution, MachineAccount, Provenance, code_state

_PACKAGES = ("torch", "numpy", "scipy", "pandas", "papermill", "lm_eval")


def begin(study: Study, arm: Arm, seed: int, corpus: Corpus) -> Provenance:
    """Write down what a run is about to be trained with.

    Raises ConfigError for a device or precision that this machine lacks, or a plan that is missing.
    """
    plan = read_plan(study.plan) if study.plan else None
    return Provenance(
        study=study.name,
        arm=arm.id,
        seed=seed,
        plan=plan.hash if plan else None,
        training_digest=training_digest(),
        corpus_sha256=corpus.sha256,
        tokenizer_sha256=corpus.tokenizer.sha256,
        parameters=arm.config.model_dump(exclude={"machine"}),
        **_circumstances(prepare(arm.config)),
    )


def execution(machine: Machine, from_checkpoint: bool) -> Execution:
    """Write down what a run is measured with."""
    return Execution(from_checkpoint=from_checkpoint, **_circumstances(machine))


def _circumstances(machine: Machine) -> dict[str, Any]:
    packages = {"python": platform.python_version()} | {p: _version(p) for p in _PACKAGES}
    return {**code_state(), "machine": describe(machine), "packages": packages}


def describe(machine: Machine) -> MachineAccount:
    """Name all of a machine that may change a number."""
    cuda = machine.device.type == "cuda"
    return MachineAccount(
        **asdict(machine) | {"device": machine.device.type},
        device_name=torch.cuda.get_device_name(machine.device) if cuda else _cpu_name(),
        vector_level=torch.backends.cpu.get_cpu_capability(),
        cores=os.cpu_count(),
        platform=f"{platform.system()} {platform.machine()}",
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a Kaggle or Colab image lacks some
        return None


def _cpu_name() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
