"""The cores and memory that a process may use, and the environment variables of runs."""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from lib.config.errors import HEADLESS
from lib.config.paths import ROOT
from lib.config.schema import digest

CGROUPS = Path("/sys/fs/cgroup")


def cores() -> int:
    """Count the cores that this process may use, also in a container."""
    few = getattr(os, "sched_getaffinity", None)  # macOS lacks it
    here = len(few(0)) if few else os.cpu_count() or 1
    limits = [tuple(of) for of in _limits("cpu.max")]
    # Control groups of version 1 have two files.
    of_v1 = (_limits(f"cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
    limits += [(quota, period) for (quota,), (period,) in zip(*of_v1, strict=False)]
    return min([here, *(max(1, quota // period) for quota, period in limits if quota > 0)])


def total_memory() -> int:
    """Return the bytes of memory that this process may use, also in a container."""
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    of_v1 = "memory/memory.limit_in_bytes"
    return min([here, *(limit for name in ("memory.max", of_v1) for (limit,) in _limits(name))])


def _limits(name: str) -> Iterator[list[int]]:
    """Yield the limits in the file `name` of this process's control group and of the groups around
    it (Linux, "Control Group v2")."""
    own = ""
    with suppress(OSError):
        own = Path("/proc/self/cgroup").read_text("utf-8").rpartition("0::/")[2].strip()
    for group in (CGROUPS / own, *(CGROUPS / own).parents):
        with suppress(OSError, ValueError):  # no such file; "max"
            yield [int(number) for number in (group / name).read_text("utf-8").split()]


_OF_TOOLS = (
    # Python and notebooks.
    "PYTHON*",
    "IPYTHON*",
    "JUPYTER*",
    "JPY_*",
    "MPL*",
    "MATPLOTLIBRC",
    # Other tools.
    "GIT_*",
    "SNAKEMAKE_*",
    "BASH_ENV",
    # Terminals.
    "LANGUAGE",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR*",
    # Distributed jobs.
    "PET_*",
    "RANK",
    "*_RANK",
    "*WORLD_SIZE",
    "MASTER_*",
)
"""Variables that neither runs nor git inherit: settings of tools, terminals and other jobs."""
_OF_BITS = (
    "MKL_*",
    "OMP_*",
    "GOMP_*",
    "KMP_*",
    "TORCH*",
    "PYTORCH_*",
    "ATEN_*",
    "DISABLE_ADDMM_*",
    "ONEDNN_*",
    "DNNL_*",
    "OPENBLAS_*",
    "GOTO_*",
    "BLIS_*",
    "VECLIB_*",
    "NPY_*",
    "SCIPY_*",
    "PANDAS_*",
    "NUMEXPR_*",
    "NUMBA_*",
    "CUBLAS*",
    "CUDNN_*",
    "NVIDIA_TF32_*",
    "CUDA_*JIT",
    "CUDA_INJECTION*",
    "INTEL_*",
    "MALLOC_*",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "LD_AUDIT",
    "DYLD_INSERT_*",
)
"""Also not inherited: variables that may change how numbers are rounded."""
_HARMLESS = (
    "PYTORCH_*ALLOC_CONF",
    "*_CACHE_DIR",
)
"""Exceptions that are inherited: settings of the allocator, and folders for compiled code."""
_TOLD = (
    "NCCL_*",
    "TRITON_*",
    "CUDA_MPS_ACTIVE_*",
    "LD_LIBRARY_PATH",
    "CC",
    "CXX",
)
"""Variables that are inherited although they may change bits: without them, devices, libraries and
compilers are not found. Every run records them."""
_FIXED = {
    "PYTHONPATH": str(ROOT),
    "PYTHONNOUSERSITE": "1",
    "PYTHONUTF8": "1",
    "LC_ALL": "C.UTF-8",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # deterministic (PyTorch, "Reproducibility")
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # a step is a twentieth faster
}
PARENT = "STUDY_PARENT"
"""Environment variable with the id of the process that started this one. It cannot be an argument,
because Snakemake and a shell are between a sweep and a run."""
_FIRST = (
    "--IPKernelApp.exec_lines="
    "import lib.config.environment; lib.config.environment.end_with_parent()"
)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_SETTINGS = (
    "JUPYTER_PATH",
    "JUPYTER_DATA_DIR",
    "JUPYTER_CONFIG_DIR",
    "IPYTHONDIR",
    "XDG_CONFIG_HOME",
)


def _matching(patterns: Iterable[str]) -> dict[str, str]:
    """Return the variables of this process whose names match any of the patterns."""
    found = os.environ.items()
    return {k: v for k, v in found if any(fnmatchcase(k, pattern) for pattern in patterns)}


def environment(**values: str) -> dict[str, str]:
    """Return the environment variables for a new process: those of this process without `_OF_TOOLS`
    and `_OF_BITS`, then the fixed ones and `values`."""
    dropped = _matching(_OF_TOOLS + _OF_BITS).keys() - _matching(_HARMLESS).keys()
    return {k: v for k, v in os.environ.items() if k not in dropped} | _FIXED | values


def end_with_parent() -> None:
    """Watch the parent. When it ends, in whatever way, end this process within a second."""
    # The parent may already be gone. Then this process is the child of another process.
    parent = int(os.environ.get(PARENT) or os.getppid())
    if PARENT in os.environ:
        os.environ[PARENT] = str(os.getpid())

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.3)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def kernel_environment(threads: int, **values: str) -> Iterator[str]:
    """Make kernels inherit `environment` while the block runs, with this Python, a fixed number of
    threads and `HEADLESS`, but without settings or start-up files of the user. Yield a folder with
    a short path."""
    from unittest.mock import patch  # imported here because both imports take a while

    from ipykernel.kernelspec import write_kernel_spec

    # The path of a socket has at most 107 characters, and 35 are added to the folder's path.
    top = tempfile.gettempdir()
    top = top if len(os.fsencode(top)) <= 70 else "/tmp"
    with tempfile.TemporaryDirectory(prefix="k", dir=top) as folder:
        # Without this, kernels end with their parent only if process 1 adopts its children.
        write_kernel_spec(f"{folder}/kernels/python3", extra_arguments=[_FIRST, "--log-level=40"])
        values |= {HEADLESS: "1", PARENT: str(os.getpid()), "TMPDIR": top}
        values |= dict.fromkeys(_SETTINGS, folder) | dict.fromkeys(_THREADS, str(threads))
        with patch.dict(os.environ, environment(**values), clear=True):
            yield folder


def variables() -> dict[str, str]:
    """Return the variables of this process that may change bits and differ from the fixed ones. A
    path is replaced by its hash."""
    others = _matching(_OF_BITS + _TOLD).items() - _FIXED.items()
    harmless = {*_THREADS, *_matching(_HARMLESS)}
    return {k: digest(v)[:12] if "/" in v else v for k, v in sorted(others) if k not in harmless}


def start_up_files() -> list[str]:
    """List the files that Python and IPython execute before a notebook's first cell."""
    own = Path(os.environ.get("IPYTHONDIR") or Path.home() / ".ipython", "profile_default")
    folders = [own, *(Path(top, "etc", "ipython") for top in (sys.prefix, "/usr/local", "/"))]
    wanted = [(folder, name) for folder in folders for name in ("startup/*.*py", "*_config.*")]
    wanted += [(Path(folder), "*.pth") for folder in sys.path]
    names = {path.name for folder, name in wanted for path in folder.glob(name)}
    return sorted(names | {"sitecustomize", "usercustomize"} & sys.modules.keys())
