"""Prepare the machine for a run: device, precision, determinism, and random streams."""

import hashlib
import os
import platform
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from lib.config.environment import cores, start_up_files, variables
from lib.config.errors import ConfigError
from lib.config.provenance import git_state, measure_key
from lib.config.schema import Machine, RunConfig
from lib.results import MachineFacts
from lib.train.graph import why_eager

# Deterministic cuBLAS needs this before CUDA starts (PyTorch, "Reproducibility").
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(requested: str) -> str:
    """Return the device to use. `auto` means CUDA if it works, or else the CPU.

    Try each device with a small product, because `torch.cuda.is_available()` is also true for a GPU
    without kernels in this build of torch (such as a P100, in a build without sm_60).

    Raises ConfigError if a device is requested by name and does not work.
    """
    candidates = ("cuda", "cpu") if requested == "auto" else (requested,)
    for device in candidates:
        try:
            torch.ones(2, 2, device=device).matrix_power(2).sum().item()
        except (RuntimeError, AssertionError):  # no such device, no CUDA
            continue
        return device
    raise ConfigError(
        f"machine.device: '{requested}' does not work on this machine; use auto or cpu"
    )


def prepare(config: RunConfig) -> Machine:
    """Set up torch for a run: the device, the number of threads, and determinism. An operation that
    is not deterministic raises an error. Return the machine settings with every `auto` resolved.

    Raises ConfigError for a device, precision, compiler or CUDA graph that this machine lacks.
    """
    settings = config.machine
    device = choose_device(settings.device)
    precision = config.training.precision
    if precision == "tf32" and device == "cpu":
        raise ConfigError("training.precision: tf32 needs a GPU; use fp32 or bf16")
    is_of_newer_gpus = device == "cuda" and precision in ("tf32", "bf16")
    if is_of_newer_gpus and torch.cuda.get_device_capability() < (8, 0):
        raise ConfigError(f"training.precision: this GPU has no {precision}; use fp16 or fp32")
    torch.set_num_threads(settings.threads)
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(False)
    # Like `torch.use_deterministic_algorithms(True)`, but without importing the compiler, which
    # takes a second.
    torch.set_deterministic_debug_mode("error")
    # We never read memory before we write to it, so torch need not fill it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.allow_tf32 = False
    if settings.compile:
        try:
            torch.compile(torch.neg)(torch.ones(8, device=device))
        except Exception as error:  # from dynamo, inductor, Triton or the C++ compiler
            raise ConfigError(
                f"machine.compile: it does not work on this machine ({type(error).__name__}); "
                "install a C++ compiler, on a GPU Triton, or set it to false"
            ) from None
    machine = config.machine_on(device, torch.cuda.device_count() if device == "cuda" else 1)
    reasons = why_eager(config, machine)
    if settings.graph is True and reasons:
        raise ConfigError(f"machine.graph: impossible with {reasons}; set it to auto")
    return machine.model_copy(update={"graph": settings.graph is not False and not reasons})


def describe(machine: Machine) -> MachineFacts:
    """Return everything about a machine that may change computed numbers."""
    is_cuda = machine.device == "cuda"
    return MachineFacts(
        **machine.model_dump(exclude={"checkpoint_interval"}),
        device_name=torch.cuda.get_device_name() if is_cuda else _cpu_name(),
        vector_level=torch.backends.cpu.get_cpu_capability(),
        cores=os.cpu_count(),
        platform=f"{platform.system()} {platform.machine()}",
        variables=variables(),
        start_up=start_up_files(),
    )


def _cpu_name() -> str:
    facts = Path("/proc/cpuinfo").read_text("utf-8") if sys.platform == "linux" else ""
    named = re.search(r"model name\s*: (.*\S)", facts)
    return named[1] if named else platform.processor() or platform.machine()


def package_versions() -> dict[str, str | None]:
    """Return the versions of all packages that compute numbers. The version of a missing package is
    None (Kaggle's images lack lm_eval)."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("torch", "numpy", "scipy", "pandas", "papermill", "lm_eval"):
        versions[package] = None
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def execution_environment(machine: Machine) -> dict[str, Any]:
    """Return the fields of `lib.results.Environment`: code, machine and versions of this process.
    Raises ConfigError if a notebook changed torch's default dtype, because that changes the
    weights."""
    if torch.get_default_dtype() != torch.float32:
        raise ConfigError("training: torch's default dtype is not float32; restart the kernel")
    return {
        **git_state(),
        "measuring_digest": measure_key(),
        "machine": describe(machine),
        "packages": package_versions(),
    }


def require_devices(machine: Machine) -> None:
    """Raise ConfigError if a run needs more processes than this machine has GPUs. On a CPU, compare
    the processes with the number of cores."""
    devices = torch.cuda.device_count() if machine.device == "cuda" else cores()
    if machine.processes > devices:
        raise ConfigError(
            f"machine.processes: {machine.processes} is more than the {devices} devices of this "
            f"machine; use auto or at most {devices}"
        )


def peak_memory(device: str) -> int:
    """Return the peak memory so far, in bytes. On a GPU, it is that of all tensors; on a CPU, that
    of this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes


def autocast(precision: str, device: str) -> torch.autocast:
    """Return a context manager for a forward pass at this precision."""
    return torch.autocast(device, dtype=HALF.get(precision), enabled=precision in HALF)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """With tf32, let a GPU multiply float32 matrices in TF32 inside this context: TF32 rounds their
    entries to 10 bits. Otherwise, and outside the context, products are in full float32."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


def random_stream(seed: int, purpose: str) -> torch.Generator:
    """Return a new CPU generator for a seed and a purpose. Each purpose has its own generator. So
    sampling a text, for example, never changes the batches."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose))


def derive_seed(seed: int, purpose: str) -> int:
    """Derive the seed of a generator from the run's seed and a purpose, with SHA-256."""
    key = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(key[:8], "big") >> 1  # 63 bits, which fit a signed integer
