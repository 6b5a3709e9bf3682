"""Which code made a run: the commit, and hashes (keys) of the sources that decide numbers.

If the train key changes, the run is trained again. If only the measure key changes, it is measured
again from its weights. Neither key depends on git or on the time of an edit. Both are computed when
`lib` is imported, because a later edit changes the files but not the code that runs.
"""

import errno
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from lib.config.environment import environment
from lib.config.errors import UserError
from lib.config.files import read_json, sha256
from lib.config.paths import CHECKOUT, COPIES, NOTEBOOKS, ROOT, SWEEP, listed
from lib.config.schema import digest
from lib.config.yaml import Json

TRAIN_FILES = (
    "lib/config/schema.py",
    "lib/config/study.py",
    "lib/config/yaml.py",
    "lib/data/cache.py",
    "lib/data/split.py",
    "lib/data/text.py",
    "lib/data/tokens.py",
    "lib/train/checkpoint.py",
    "lib/train/diagnostics.py",
    "lib/train/distributed.py",
    "lib/train/graph.py",
    "lib/train/machine.py",
    "lib/train/model.py",
    "lib/train/optim.py",
    "lib/train/trainer.py",
)
"""Files that decide the weights, or the dev curve that training makes. Training imports a few more
files. `tests/config/test_provenance.py` lists them, and why each of them decides neither."""
_MEASURE_FILES = ("lib/config/metrics.py", "lib/results.py", "lib/data/*.py", "lib/train/*.py")
"""Further files that decide the measures of given weights. The same test lists the harmless
ones."""
_RUNS = ("lib", "notebooks", "run_all.sh", "pyproject.toml", "requirements.lock")
"""Files that, like the parameters, must be committed. Otherwise a run's commit does not tell which
code made the run."""


def hash_code(top: Path) -> dict[str, str]:
    """Hash every file in a folder's `lib` and `notebooks`, by name."""
    files = [path for room in ("lib", "notebooks") for path in listed(top / room, "**/*")]
    kept = [path for path in files if path.is_file() and path.parent.name != "__pycache__"]
    return {path.relative_to(top).as_posix(): sha256(path) for path in kept}


@cache
def imported_code() -> dict[str, str]:
    """Return the hashes of the code that this process imported (see `hash_code`)."""
    return hash_code(ROOT)


@cache
def train_key() -> str:
    """Compute the SHA-256 of the code that decides weights: `TRAIN_FILES`, and the cells of
    02_train up to the one that trains."""
    cells = _cells()
    return _key(TRAIN_FILES, cells[: _last_call("train", cells) + 1])


@cache
def measure_key() -> str:
    """Compute the SHA-256 of the code that decides the measures of given weights: `measure_files`,
    and the cells of 02_train from training up to the result."""
    cells = _cells()
    first, last = _last_call("train", cells), _last_call("write_result", cells)
    return _key(measure_files(), cells[first + 1 : last + 1])


def measure_files() -> list[str]:
    """List the files that the measure key covers."""
    of = [name for name in imported_code() if any(map(Path(name).match, _MEASURE_FILES))]
    return [name for name in of if name not in TRAIN_FILES]


def require_unedited(names: Iterable[str]) -> None:
    """Raise UserError if a file was edited after this process imported `lib`. Otherwise later
    imports, and other processes, would run code that the keys do not cover."""
    for name in names:
        if not (ROOT / name).is_file() or sha256(ROOT / name) != imported_code()[name]:
            fault = f"{name}: was edited after this notebook imported lib"
            raise UserError(f"{fault}; restart its kernel and run all cells")


def _key(files: Iterable[str], cells: list[str]) -> str:
    return digest({name: imported_code()[name] for name in files} | {"02_train": cells})


def _cells() -> list[str]:
    """Return the code cells of 02_train, without the cell with its parameters."""
    content = read_json(NOTEBOOKS / "02_train.ipynb")
    return [
        "".join(cell["source"])
        for cell in content["cells"]
        if cell["cell_type"] == "code" and "parameters" not in cell["metadata"].get("tags", [])
    ]


def _last_call(name: str, cells: list[str]) -> int:
    """Return the index of the last cell that calls a function; ValueError if none does."""
    return max(i for i, cell in enumerate(cells) if re.search(rf"\b{name}\(", cell))


def tasks_hash(include_path: str | None) -> str | None:
    """Compute the SHA-256 of the files in `evaluation.include_path`; None if there is none."""
    if include_path is None:
        return None
    folder = CHECKOUT / include_path
    files = [path for path in listed(folder, "**/*") if path.is_file()]
    kept = [path for path in files if not path.match("__pycache__/*.pyc")]
    return digest({path.relative_to(folder).as_posix(): sha256(path) for path in kept})


def git(*words: str) -> str | None:
    """Return the output of a git command in the checkout; None if it fails or git is missing.
    Raises OSError if the machine cannot start git, or killed it."""
    # No locks, because the user may be using git. No quotes around names, no signatures in logs.
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
    """Return whether this folder is the top of a git repository."""
    top = git("rev-parse", "--show-toplevel")
    return top is not None and Path(top.strip()) == CHECKOUT


@cache  # every run asks
def git_state() -> Json:
    """Return the commit, and `clean`: whether code and parameters are as committed. `clean` is None
    if git cannot tell, as in a tree from `git archive`; such a tree has its commit in lib/VERSION.

    In a sweep's copy of the code, return git's answer from the time when the sweep made the copy,
    because the checkout may have changed since then. For an arm that is a commit, `code` is that
    commit, and the other fields are about the parameters.
    """
    if ROOT.parent != COPIES:
        return ask_git()["code"]
    git_of: dict[str, Json] = read_json(SWEEP)["git"]
    is_commit = re.fullmatch(r"[0-9a-f]{40}", ROOT.name)
    return git_of["parameters"] | {"code": ROOT.name} if is_commit else git_of["code"]


def ask_git() -> dict[str, Json]:
    """Ask git for the commit and whether files are as committed: code and parameters under `code`,
    the parameters alone under `parameters`."""
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
    """Return whether files and folders of a checkout (this one, or `top`) are unchanged, without
    untracked files in them; None if git cannot tell."""
    status = git("-C", str(top or CHECKOUT), "status", "--porcelain", "--", *paths)
    return None if status is None else not status


def plan_log(file: str) -> str:
    """List the commits that changed a plan in `params/plans/`, newest first. Include commits from
    before the plan was renamed."""
    log = git("log", "--follow", "--format=%h %cs %s", "--", f"params/plans/{file}")
    return (log or "").strip() or "git knows no commit of it"


with suppress(OSError, UserError):  # an unreadable notebook is reported when a key is needed
    train_key(), measure_key()
