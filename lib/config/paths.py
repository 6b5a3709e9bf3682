"""Where files and folders are.

On Kaggle the repository is a read-only input, so everything is written to the working folder beside
the inputs. Everywhere else it is written to the repository itself.
"""

import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
OUTPUT = "STUDY_OUTPUT"
"""Environment variable with the folder to write to, if it is not `ROOT`."""


def kaggle_folder(root: Path = ROOT) -> Path | None:
    """Return Kaggle's top folder, with `input/` and `working/` in it; None on other machines. A
    repository counts as on Kaggle if it is inside an `input/` with a `working/` next to it."""
    candidates = [parent.parent for parent in root.parents if parent.name == "input"]
    return next((k for k in [*candidates, Path("/kaggle")] if (k / "working").is_dir()), None)


def output_root(root: Path = ROOT) -> Path:
    """Return the folder in which `runs/`, `data/`, `papers/` and your own `params/` are written.
    The code of an arm that is a commit writes to the checkout that runs the sweep."""
    if os.environ.get(OUTPUT):
        return Path(os.environ[OUTPUT])
    kaggle = kaggle_folder(root)
    return kaggle / "working" if kaggle and root.is_relative_to(kaggle / "input") else root


PARAMS = output_root() / "params"
PLANS = PARAMS / "plans"
RUNS = output_root() / "runs"
PAPERS = output_root() / "papers"
PAPER = PAPERS / "embedding-norm"
"""The paper of a study that names no other."""
COPIES = (RUNS / ".code").resolve()
"""The code that a sweep executes: a copy, and worktrees of arms that are commits."""
SWEEP = RUNS / "sweep.json"
"""Facts that a sweep passes to its notebooks; `lib.sweep.code` writes this file."""
CHECKOUT = Path(json.loads(SWEEP.read_text("utf-8"))["checkout"]) if ROOT.parent == COPIES else ROOT
"""The repository that the user works in. Git, parameters, texts and tasks are looked up there,
never in a sweep's copy of the code."""
TEMPLATES = CHECKOUT / "papers" / "embedding-norm" / "templates"


def study_folder(study: str) -> Path:
    """Return the folder of a study's own runs: `runs/<study>/`."""
    return RUNS / study


def run_folder(study: str, arm: str, seed: int) -> Path:
    """Return the folder of a run: `runs/<study>/<arm>/seed-<seed>/`."""
    return study_folder(study) / arm / f"seed-{seed}"


def executed_notebook(notebook: str, study: str, arm: str = "", seed: int = 0) -> Path:
    """Return the path of a notebook's executed copy, e.g. `runs/final/03_analysis.ipynb`."""
    folder = run_folder(study, arm, seed) if arm else study_folder(study)
    return folder / f"{notebook}.ipynb"


def result_file(notebook: str, study: str, arm: str = "", seed: int = 0) -> Path:
    """Return the path of a notebook's result."""
    name = "result.json" if arm else f"{notebook}.json"
    return executed_notebook(notebook, study, arm, seed).with_name(name)


def relative(path: Path) -> str:
    """Write a path relative to the output folder, so that no machine's folders are recorded."""
    for base in (ROOT, output_root()):  # a sweep's copy of the code is inside the output folder
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.name


def find(path: str) -> Path | None:
    """Find a path relative to the output folder, the repository or the working folder, in this
    order. So every process of a sweep finds the same file. Return None if there is none. Raises
    OSError or RuntimeError if it cannot be a path."""
    tops = output_root(), CHECKOUT, Path()
    return next(filter(Path.exists, (top / Path(path).expanduser() for top in tops)), None)


def listed(folder: Path, pattern: str) -> list[Path]:
    """List the paths in a folder that match a pattern, sorted. Leave out hidden ones: an editor's
    lock (`.#x.yaml`), a file that macOS adds (`._x.yaml`), a half-written file of a killed process.
    """
    found = ((path, path.relative_to(folder).parts) for path in folder.glob(pattern))
    return sorted(path for path, parts in found if not any(part[0] == "." for part in parts))


def corpus_places(file_name: str) -> list[Path]:
    """List the places where a corpus file may be, in search order. They need not exist."""
    tops = [CHECKOUT, output_root(), output_root().parent / "shared", CHECKOUT.parent / "shared"]
    places = [top / "data" / file_name for top in tops]
    if kaggle := kaggle_folder():
        places += listed(kaggle / "input", f"**/{file_name}")
    return places
