"""The machine under a run: device, precision, determinism, and one random stream per purpose."""

import hashlib
import os
import platform
import resource
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import torch
from torch import nn

from lib.results import MachineFacts
from lib.study.code import code_state
from lib.study.schema import MACHINE_SETTINGS, Machine, RunConfig
from lib.study.yaml import ConfigError

# Deterministic cuBLAS needs this before CUDA starts (PyTorch, "Reproducibility").
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

GPU_EVALUATION = 32_768
"""Most characters per forward pass of an evaluation on a GPU, which bounds its logits' memory."""
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def is_usable(device: str) -> bool:
    """Tell whether a device can do arithmetic: some report themselves available and then cannot run
    a kernel (a P100 under a build without sm_60, for one)."""
    try:
        ones = torch.ones(2, 2, device=device)
        return bool((ones @ ones).sum() == 8)
    except (RuntimeError, AssertionError):  # no such device, no CUDA
        return False


def choose_device(requested: str) -> Literal["cpu", "cuda"]:
    """Resolve `auto` to CUDA where it works, and else to the CPU.

    Raises ConfigError when a device asked for by name does not work.
    """
    if requested == "auto":
        return "cuda" if is_usable("cuda") else "cpu"
    if not is_usable(requested):
        raise ConfigError(
            f"machine.device: '{requested}' does not work on this machine; use auto or cpu"
        )
    return "cuda" if requested == "cuda" else "cpu"


def prepare(config: RunConfig) -> Machine:
    """Choose the device, pin threads, and make every operation deterministic or an error.

    Raises ConfigError for a device, precision or compiler that this machine lacks.
    """
    settings = config.machine
    device = choose_device(settings.device)
    native_bf16 = device != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    if config.training.precision == "bf16" and not native_bf16:
        raise ConfigError("training.precision: this GPU has no bf16; use fp16 or fp32")
    threads = settings.threads or 1
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("error")  # the usual call imports the compiler: a second
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # never read
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if settings.compile and (fault := compiler_fault(device)):
        raise ConfigError(
            f"machine.compile: torch.compile does not work on this machine ({fault}); install a "
            "C++ compiler, on a GPU Triton, or set it to false"
        )
    batch_size, least = config.training.batch_size, settings.micro_batch_size or 1
    gpus = torch.cuda.device_count() if device == "cuda" else 1
    processes = settings.processes or max(
        n for n in range(1, max(1, gpus) + 1) if batch_size % (n * least) == 0
    )
    share = batch_size // processes
    # On a CPU a few sequences stay in a core's cache: a step is a tenth faster.
    sequences = next(size for size in (4, 3, 2, 1) if share % size == 0)
    windows = evaluation_windows(device, config.model.block_size)
    resolved = {
        "device": device,
        "threads": threads,
        "micro_batch_size": settings.micro_batch_size or (sequences if device == "cpu" else share),
        "evaluation_batch_size": settings.evaluation_batch_size or windows,
        "processes": processes,
    }
    return Machine.model_validate(settings.model_dump() | resolved)


def describe(machine: Machine) -> MachineFacts:
    """Name all of a machine that may change a number."""
    cuda = machine.device == "cuda"
    return MachineFacts(
        **machine.model_dump(include=set(MACHINE_SETTINGS)),
        device_name=torch.cuda.get_device_name() if cuda else _cpu_name(),
        vector_level=torch.backends.cpu.get_cpu_capability(),
        cores=os.cpu_count(),
        platform=f"{platform.system()} {platform.machine()}",
    )


def _cpu_name() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def package_versions() -> dict[str, str | None]:
    """Name the versions of what computes; None of what is missing, as on a Kaggle image."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("torch", "numpy", "scipy", "pandas", "papermill", "lm_eval"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def execution_environment(machine: Machine) -> dict[str, Any]:
    """Name what executes: code, machine and versions."""
    return {**code_state(), "machine": describe(machine), "packages": package_versions()}


def evaluation_windows(device: str, block_size: int) -> int:
    """Return how many windows a pass of evaluation takes where the study does not say."""
    return 8 if device == "cpu" else min(256, max(1, GPU_EVALUATION // block_size))


@lru_cache
def compiler_fault(device: str) -> str | None:
    """Compile a function of one line; return None, or in a few words why that does not work."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(8, device=device))
    except Exception as error:  # of dynamo, inductor, Triton or the compiler
        return next(iter(str(error).strip().splitlines()), type(error).__name__)
    return None


def count_devices(kind: str) -> int:
    """Count the processes that find a device of their own: GPUs, or on a CPU cores."""
    return torch.cuda.device_count() if kind == "cuda" else os.cpu_count() or 1


def require_devices(machine: Machine) -> None:
    """Raise ConfigError for more processes than there are devices."""
    devices, kind = count_devices(machine.device), machine.device
    if machine.processes > devices:
        raise ConfigError(
            f"machine.processes: {machine.processes} is more than the {devices} "
            f"{'cores' if kind == 'cpu' else 'devices'} of this machine; use auto or at most "
            f"{devices}"
        )


def recompute_activations(blocks: Iterable[nn.Module], random: bool = False) -> None:
    """Keep only the inputs of these blocks in the forward pass; the backward pass computes the rest
    again (Chen et al. 2016, arXiv 1604.06174), where they draw at `random` with the same draws."""
    from torch.utils.checkpoint import checkpoint

    for block in blocks:
        again = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=random)
        block.forward = again


def peak_memory(device: str) -> int:
    """Most bytes held at once so far: by tensors on a GPU, elsewhere by the whole process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes


def autocast(precision: str, device: str) -> AbstractContextManager[object]:
    """Return the context in which the forward pass runs at this precision."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device, dtype=_DTYPES[precision])


def random_stream(seed: int, purpose: str) -> torch.Generator:
    """Return a CPU generator of its own for one seed and purpose, so that drawing from one
    (sampling text, say) never shifts another (the order of batches)."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose))


def derive_seed(seed: int, purpose: str) -> int:
    """Return 63 bits that follow from a seed and a purpose."""
    key = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(key[:8], "big") >> 1
