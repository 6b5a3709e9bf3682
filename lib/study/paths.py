"""Where things are: the repository, what a study writes, and where a corpus may lie.

On Kaggle the repository is a read-only input, so everything a run writes goes to the working
folder beside the inputs; everywhere else it goes to the repository itself.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"


def kaggle_folder(root: Path = ROOT) -> Path | None:
    """Return Kaggle's top folder (it holds `input/` and `working/`), or None elsewhere.

    A repository that lies below some `input/` with a `working/` beside it is on Kaggle.
    """
    candidates = [parent.parent for parent in root.parents if parent.name == "input"]
    return next((k for k in [*candidates, Path("/kaggle")] if (k / "working").is_dir()), None)


def output_root(root: Path = ROOT) -> Path:
    """Return the folder under which `runs/`, `data/`, `papers/` and one's own `params/` are
    written."""
    kaggle = kaggle_folder(root)
    if kaggle is not None and root.is_relative_to(kaggle / "input"):
        return kaggle / "working"
    return root


HEADLESS = "STUDY_HEADLESS"
"""Environment variable that `lib.workflow.execution` sets: nobody watches, so no bars."""
PARAMS = output_root() / "params"
PLANS = PARAMS / "plans"
RUNS = output_root() / "runs"
PAPERS = output_root() / "papers"
PAPER = PAPERS / "embedding-norm"
"""Of a study that names no other."""
TEMPLATES = ROOT / "papers" / "embedding-norm" / "templates"


_SHARED = ("01_data", "03_analysis", "04_figures")
BESIDE_ARMS = frozenset(
    {
        *("suite", "figures", "by-hand", "verdict.json", "archive.json", "archive.log"),
        *("other-versions.json", "commits.json"),
        *(name + end for name in _SHARED for end in (".ipynb", ".json", ".lock", ".partial")),
        *("parameters.yaml", "plan.yaml", "raw.zip", "MANIFEST.sha256"),
    }
)
"""What lies beside the folders of a study's arms, in `runs/` or in its record."""


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
    if arm:
        return run_folder(study, arm, seed) / "result.json"
    return study_folder(study) / f"{notebook}.json"


def relative(path: Path) -> str:
    """Write a path relative to where outputs go, so that no machine's folders are recorded."""
    for base in (output_root(), ROOT):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.name


def corpus_places(file_name: str) -> list[Path]:
    """List where a corpus file may lie, in search order; none of them need exist."""
    candidates = [
        ROOT / "data" / file_name,
        output_root() / "data" / file_name,
        ROOT.parent / "shared" / "data" / file_name,
    ]
    kaggle = kaggle_folder()
    if kaggle is not None:
        candidates += sorted((kaggle / "input").glob(f"**/{file_name}"))
    return candidates
