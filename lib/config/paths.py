"""Where things are.

On Kaggle the repository is a read-only input, so everything a run writes goes to the working
folder beside the inputs; everywhere else it goes to the repository itself.
"""

import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
OUTPUT = "STUDY_OUTPUT"
"""Environment variable that names the folder to write to, where that is another than `ROOT`."""


def kaggle_folder(root: Path = ROOT) -> Path | None:
    """Return Kaggle's top folder (it holds `input/` and `working/`), or None elsewhere.

    A repository that lies below some `input/` with a `working/` beside it is on Kaggle.
    """
    candidates = [parent.parent for parent in root.parents if parent.name == "input"]
    return next((k for k in [*candidates, Path("/kaggle")] if (k / "working").is_dir()), None)


def output_root(root: Path = ROOT) -> Path:
    """Return the folder under which `runs/`, `data/`, `papers/` and one's own `params/` are
    written: of a checkout that an arm's code is taken from, the one that runs the sweep."""
    if os.environ.get(OUTPUT):
        return Path(os.environ[OUTPUT])
    kaggle = kaggle_folder(root)
    return kaggle / "working" if kaggle and root.is_relative_to(kaggle / "input") else root


PARAMS = output_root() / "params"
PLANS = PARAMS / "plans"
RUNS = output_root() / "runs"
PAPERS = output_root() / "papers"
PAPER = PAPERS / "embedding-norm"
"""Of a study that names no other."""
COPIES = (RUNS / ".code").resolve()
"""Where a sweep keeps the code that it executes: a copy, and worktrees of arms that are commits."""
SWEEP = RUNS / "sweep.json"
"""What a sweep tells all that it executes, as `lib.sweep.code` writes it."""
CHECKOUT = Path(json.loads(SWEEP.read_text("utf-8"))["checkout"]) if ROOT.parent == COPIES else ROOT
"""The repository that a user works in: git, parameters, texts and tasks are looked for there, and
never in the code that a sweep keeps."""
TEMPLATES = CHECKOUT / "papers" / "embedding-norm" / "templates"


def study_folder(study: str) -> Path:
    """Work in progress of one study: `runs/<study>/`."""
    return RUNS / study


def run_folder(study: str, arm: str, seed: int) -> Path:
    """Work in progress of one run: `runs/<study>/<arm>/seed-<seed>/`."""
    return study_folder(study) / arm / f"seed-{seed}"


def executed_notebook(notebook: str, study: str, arm: str = "", seed: int = 0) -> Path:
    """Return where the executed copy of a notebook goes, e.g. `runs/final/03_analysis.ipynb`."""
    folder = run_folder(study, arm, seed) if arm else study_folder(study)
    return folder / f"{notebook}.ipynb"


def result_file(notebook: str, study: str, arm: str = "", seed: int = 0) -> Path:
    """Return where the one result goes that a notebook declares."""
    name = "result.json" if arm else f"{notebook}.json"
    return executed_notebook(notebook, study, arm, seed).with_name(name)


def relative(path: Path) -> str:
    """Write a path relative to where outputs go, so that no machine's folders are recorded."""
    for base in (ROOT, output_root()):  # a copy of the code lies below the latter
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.name


def find(path: str) -> Path | None:
    """Find a path, seen from where outputs go, from the repository or from the working folder, in
    that order, so that every process of a sweep finds the same; None where there is none. Raises
    OSError or RuntimeError for what cannot be a path."""
    tops = output_root(), CHECKOUT, Path()
    return next(filter(Path.exists, (top / Path(path).expanduser() for top in tops)), None)


def listed(folder: Path, pattern: str) -> list[Path]:
    """List what matches a pattern in a folder, sorted, without what is hidden there: the lock of an
    editor (`.#x.yaml`), what macOS adds (`._x.yaml`), the rest of a write that was killed."""
    found = ((path, path.relative_to(folder).parts) for path in folder.glob(pattern))
    return sorted(path for path, parts in found if not any(part[0] == "." for part in parts))


def corpus_places(file_name: str) -> list[Path]:
    """List where a corpus file may lie, in search order; none of them need exist."""
    tops = [CHECKOUT, output_root(), output_root().parent / "shared", CHECKOUT.parent / "shared"]
    places = [top / "data" / file_name for top in tops]
    if kaggle := kaggle_folder():
        places += listed(kaggle / "input", f"**/{file_name}")
    return places
