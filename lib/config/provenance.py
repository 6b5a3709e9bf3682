"""Which code a run is of: the commit, and keys over the bytes of the sources that decide numbers.

A run whose train key is another is trained anew; one whose measure key alone is another is measured
anew from its weights. Neither key asks git, nor when a file was changed. They are taken when `lib`
is imported, as an edit after that changes the files and not the code that runs.
"""

import errno
import json
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from lib.config.environment import environment
from lib.config.errors import UserError
from lib.config.files import read_json, sha256
from lib.config.paths import CHECKOUT, COPIES, NOTEBOOKS, ROOT, SWEEP, listed
from lib.config.schema import digest
from lib.config.yaml import Json

TRAIN_FILES = (
    *("lib/config/schema.py", "lib/config/study.py", "lib/config/yaml.py"),
    *("lib/data/split.py", "lib/data/text.py", "lib/data/tokens.py"),
    *("lib/train/model.py", "lib/train/trainer.py", "lib/train/checkpoint.py"),
    *("lib/train/machine.py", "lib/train/distributed.py", "lib/train/diagnostics.py"),
    *("lib/train/graph.py", "lib/train/optim.py"),
)
"""Files that decide the weights, or the curve, which is made in training and comes back from a
checkpoint. Training imports a few others: `tests/config/test_provenance.py` names each of them,
with the reason why it decides neither."""
_MEASURE_FILES = ("lib/config/metrics.py", "lib/results.py", "lib/data/*.py", "lib/train/*.py")
"""Further files that decide the numbers of given weights; the same test names the harmless ones."""
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
