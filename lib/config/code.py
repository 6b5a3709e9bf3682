"""Which code a run is of: the commit, and keys over the bytes of the sources that decide numbers.

A run whose train key is another is trained anew; one whose measure key alone is another is measured
anew from its weights. Neither key asks git, nor when a file was changed. They are taken when `lib`
is imported, as an edit after that changes the files and not the code that runs.
"""

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from lib.config.io import (
    CHECKOUT,
    COPIES,
    NOTEBOOKS,
    ROOT,
    SWEEP,
    listed,
    read_json,
    sha256,
)
from lib.config.schema import digest
from lib.config.yaml import HEADLESS, Json, UserError

TRAIN_FILES = (
    *("lib/config/schema.py", "lib/config/study.py", "lib/config/yaml.py"),
    *("lib/data/split.py", "lib/data/text.py", "lib/data/tokens.py"),
    *("lib/train/model.py", "lib/train/trainer.py", "lib/train/checkpoint.py"),
    *("lib/train/machine.py", "lib/train/distributed.py", "lib/train/diagnostics.py"),
    *("lib/train/graph.py", "lib/train/optim.py"),
)
"""Files that decide the weights, or the curve, which is made in training and comes back from a
checkpoint. Training imports a few others: `tests/config/test_code.py` names each of them, with the
reason why it decides neither."""
_MEASURE_FILES = ("lib/config/metrics.py", "lib/results.py", "lib/data/*.py", "lib/train/*.py")
"""Further files that decide the numbers of given weights; the same test names the harmless ones."""
_OF_TOOLS = (
    "PYTHON* IPYTHON* JUPYTER* JPY_* MPL* MATPLOTLIBRC GIT_* SNAKEMAKE_* BASH_ENV LANGUAGE COLUMNS"
    " LINES NO_COLOR FORCE_COLOR CLICOLOR* PET_* RANK *_RANK *WORLD_SIZE MASTER_*"
)
"""Variables that neither runs nor git inherit: settings of tools, of terminals, of other jobs."""
_OF_BITS = (
    "MKL_* OMP_* GOMP_* KMP_* TORCH* PYTORCH_* ATEN_* DISABLE_ADDMM_* ONEDNN_* DNNL_* OPENBLAS_*"
    " GOTO_* BLIS_* VECLIB_* NPY_* SCIPY_* PANDAS_* NUMEXPR_* NUMBA_* CUBLAS* CUDNN_* NVIDIA_TF32_*"
    " CUDA_*JIT CUDA_INJECTION* INTEL_* MALLOC_* GLIBC_TUNABLES LD_PRELOAD LD_AUDIT DYLD_INSERT_*"
)
"""Others that they do not inherit: these may change how numbers are rounded."""
_HARMLESS = "PYTORCH_*ALLOC_CONF *_CACHE_DIR"
"""What they inherit all the same: where numbers lie on a GPU, and where compiled code does."""
_TOLD = "NCCL_* TRITON_* CUDA_MPS_ACTIVE_* LD_LIBRARY_PATH CC CXX"
"""What they inherit though it may change bits: devices, libraries and compilers are found by it."""
_FIXED = {
    **{"PYTHONPATH": str(ROOT), "PYTHONNOUSERSITE": "1", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"},
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # deterministic (PyTorch, "Reproducibility")
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # a step is a twentieth faster
}
PARENT = "STUDY_PARENT"
"""Environment variable that names the process that starts another, on this machine."""
_FIRST = "--IPKernelApp.exec_lines=import lib.config.code; lib.config.code.end_with_parent()"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_SETTINGS = "JUPYTER_PATH JUPYTER_DATA_DIR JUPYTER_CONFIG_DIR IPYTHONDIR XDG_CONFIG_HOME"
_RUNS = ("lib", "notebooks", "run_all.sh", "pyproject.toml", "requirements.lock")
"""What must be as committed, beside parameters, for a run's commit to say what made it."""


def hash_code(top: Path) -> dict[str, str]:
    """Hash every file in a folder's `lib` and `notebooks`, by name."""
    files = [path for room in ("lib", "notebooks") for path in listed(top / room, "**/*")]
    kept = [path for path in files if path.is_file() and path.parent.name != "__pycache__"]
    return {path.relative_to(top).as_posix(): sha256(path) for path in kept}


@cache
def imported_code() -> dict[str, str]:
    """Return the code that this process imported (see `hash_code`)."""
    return hash_code(ROOT)


@cache
def train_key() -> str:
    """Compute the SHA-256 of the code that decides weights: the sources in `TRAIN_FILES`, and the
    cells of 02_train up to the one that trains."""
    cells = _cells()
    return _key(TRAIN_FILES, cells[: _last_call("train", cells) + 1])


@cache
def measure_key() -> str:
    """Compute the SHA-256 of the code that decides the numbers of given weights: the other sources
    of data and runs, and the cells of 02_train after training up to the one with the result."""
    cells = _cells()
    first, last = _last_call("train", cells), _last_call("write_result", cells)
    return _key(measure_files(), cells[first + 1 : last + 1])


def measure_files() -> list[str]:
    """List the files whose code the measure key is of."""
    of = [name for name in imported_code() if any(map(Path(name).match, _MEASURE_FILES))]
    return [name for name in of if name not in TRAIN_FILES]


def require_unedited(names: Iterable[str]) -> None:
    """Raise UserError for a file of the code that was edited after this process imported `lib`:
    what it imports later, or another process does, would not be what its keys say."""
    for name in names:
        if not (ROOT / name).is_file() or sha256(ROOT / name) != imported_code()[name]:
            fault = f"{name}: was edited after this notebook imported lib"
            raise UserError(f"{fault}; restart its kernel and run all cells")


def _key(files: Iterable[str], cells: list[str]) -> str:
    return digest({name: imported_code()[name] for name in files} | {"02_train": cells})


def _cells() -> list[str]:
    """Return the code cells of 02_train but the parameters, which say what is made and not how."""
    content = json.loads((NOTEBOOKS / "02_train.ipynb").read_text("utf-8"))
    return [
        "".join(cell["source"])
        for cell in content["cells"]
        if cell["cell_type"] == "code" and "parameters" not in cell["metadata"].get("tags", [])
    ]


def _last_call(name: str, cells: list[str]) -> int:
    """Find the last cell that calls a function; ValueError where none does."""
    return max(i for i, cell in enumerate(cells) if re.search(rf"\b{name}\(", cell))


def tasks_hash(include_path: str | None) -> str | None:
    """Compute the SHA-256 of the files in `evaluation.include_path`; None without it."""
    if include_path is None:
        return None
    folder = CHECKOUT / include_path
    files = [path for path in listed(folder, "**/*") if path.is_file()]
    kept = [path for path in files if not path.match("__pycache__/*.pyc")]
    return digest({path.relative_to(folder).as_posix(): sha256(path) for path in kept})


def _of_process(patterns: str) -> dict[str, str]:
    """Return the variables of this process whose names match one of some patterns."""
    found = os.environ.items()
    return {k: v for k, v in found if any(fnmatchcase(k, each) for each in patterns.split())}


def environment(**values: str) -> dict[str, str]:
    """Return the variables that code runs with wherever it is started from: those of this process
    less `_OF_TOOLS` and `_OF_BITS`, those that are fixed, and these."""
    dropped = _of_process(f"{_OF_TOOLS} {_OF_BITS}").keys() - _of_process(_HARMLESS).keys()
    return {k: v for k, v in os.environ.items() if k not in dropped} | _FIXED | values


def end_with_parent() -> None:
    """End this process within a second of the one that started it, however that ended."""
    # The one that started it may have ended before this line, and left it to another.
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
    """Have kernels inherit `environment` while the block runs: this Python, its threads pinned,
    settings and start-up files of nobody, nobody watching. Give a short folder."""
    from unittest.mock import patch  # here, as both take a while

    from ipykernel.kernelspec import write_kernel_spec

    # The path of a socket has at most 107 characters, and names of what makes one take some 35.
    top = tempfile.gettempdir()
    top = top if len(os.fsencode(top)) <= 70 else "/tmp"
    with tempfile.TemporaryDirectory(prefix="k", dir=top) as folder:
        # By themselves kernels end with their starter only where process 1 takes its children over.
        write_kernel_spec(f"{folder}/kernels/python3", extra_arguments=[_FIRST, "--log-level=40"])
        values |= {HEADLESS: "1", PARENT: str(os.getpid()), "TMPDIR": top}
        values |= dict.fromkeys(_SETTINGS.split(), folder) | dict.fromkeys(_THREADS, str(threads))
        with patch.dict(os.environ, environment(**values), clear=True):
            yield folder


def variables() -> dict[str, str]:
    """Return the variables of this process that may change bits and are not as every run has them;
    of one that holds a path, a hash."""
    others = _of_process(f"{_OF_BITS} {_TOLD}").items() - _FIXED.items()
    harmless = {*_THREADS, *_of_process(_HARMLESS)}
    return {k: digest(v)[:12] if "/" in v else v for k, v in sorted(others) if k not in harmless}


def start_up_files() -> list[str]:
    """Name the files that Python and IPython execute before a notebook's first cell."""
    own = Path(os.environ.get("IPYTHONDIR") or Path.home() / ".ipython", "profile_default")
    folders = [own, *(Path(top, "etc", "ipython") for top in (sys.prefix, "/usr/local", "/"))]
    wanted = [(folder, name) for folder in folders for name in ("startup/*.*py", "*_config.*")]
    wanted += [(Path(folder), "*.pth") for folder in sys.path]
    names = {path.name for folder, name in wanted for path in folder.glob(name)}
    return sorted(names | {"sitecustomize", "usercustomize"} & sys.modules.keys())


def git(*words: str) -> str | None:
    """Return what a command of git prints in the checkout; None where it fails or git is not
    there. OSError where the machine has no process for it, or killed it."""
    # No lock, as a user may work with git meanwhile; names and log entries as they are.
    options = ["--no-optional-locks", "-c", "core.quotePath=false", "-c", "log.showSignature=false"]
    command = ["git", *options, "-C", str(CHECKOUT), *words]
    try:
        process = subprocess.run(command, env=environment(), capture_output=True, check=True)
    except (FileNotFoundError, PermissionError):
        return None
    except subprocess.CalledProcessError as error:
        if error.returncode < 0:
            raise OSError(errno.EAGAIN, "git was killed") from None
        return None
    return process.stdout.decode("utf-8", "replace")


def is_checkout() -> bool:
    """Tell whether this folder has a git repository of its own."""
    top = git("rev-parse", "--show-toplevel")
    return top is not None and Path(top.strip()) == CHECKOUT


@cache  # it is asked of every run
def git_state() -> Json:
    """Return the commit, and whether code and parameters are as committed: None where git does not
    tell, as in a tree that `git archive` packed, whose commit stands in lib/VERSION.

    What a sweep executes is told by the sweep, which asked git when it copied the code: the
    checkout may have moved on since. Of an arm that is a commit, `code` is that commit, and the
    rest is about the parameters.
    """
    if ROOT.parent != COPIES:
        return ask_git()["code"]
    git_of: dict[str, Json] = read_json(SWEEP)["git"]
    is_commit = re.fullmatch(r"[0-9a-f]{40}", ROOT.name)
    return git_of["parameters"] | {"code": ROOT.name} if is_commit else git_of["code"]


def ask_git() -> dict[str, Json]:
    """Ask git for the commit, and whether all of the `code`, or only its `parameters`, are as
    committed."""
    version = ROOT / "lib" / "VERSION"
    packed = version.read_text("utf-8").strip() if version.is_file() else ""
    commit: str | None = None
    parts: list[bool | None] = [None, None]
    if re.fullmatch(r"[0-9a-f]{40}", packed):
        commit = packed
    elif is_checkout():
        commit = (git("rev-parse", "HEAD") or "").strip() or None
        parts = [is_as_committed(*_RUNS), is_as_committed("params")]
    return {
        "code": {"commit": commit, "clean": None if None in parts else all(parts)},
        "parameters": {"commit": commit, "clean": parts[1]},
    }


def is_as_committed(*paths: str, top: Path | None = None) -> bool | None:
    """Return whether git calls files and folders of a checkout unchanged, and knows all files in
    them that it does not ignore; None if git does not tell. The checkout is this one, or `top`."""
    status = git("-C", str(top or CHECKOUT), "status", "--porcelain", "--", *paths)
    return None if status is None else not status


def plan_log(file: str) -> str:
    """List the commits that changed a plan of `params/plans/`, newest first, also under the names
    that it had before."""
    log = git("log", "--follow", "--format=%h %cs %s", "--", f"params/plans/{file}")
    return (log or "").strip() or "git knows no commit of it"


train_key(), measure_key()
