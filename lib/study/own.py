"""Studies and plans of one's own, from a notebook: the text in a cell, or a YAML elsewhere. The
folder `params/` gets a copy, so that every process finds it. And tasks of one's own.

On Kaggle, where the repository cannot be written, `params/` is itself a copy beside `runs/`.
"""

from pathlib import Path

from lib.study.errors import ConfigError
from lib.study.fields import digest
from lib.study.files import replacing, sha256, write_text
from lib.study.inputs import copy_missing
from lib.study.paths import PARAMS, ROOT, shown

MARK = "# Written by a notebook, which writes it anew.\n"
"""How a copy begins: what nobody wrote by hand may be replaced."""
PLAN_BELOW = "\n---\n"
"""A line that separates a study from its plan, where both are one text."""


def prepare_params() -> None:
    """Copy a repository's parameters to where they can be added to, if it cannot be written."""
    if not PARAMS.is_dir():
        with replacing(PARAMS) as temporary:
            copy_missing(ROOT / "params", temporary)


def own_text(study: str | Path) -> str | None:
    """Return the text of a study that is given as text, or as a path of a file that is not in
    params/; None for a name, or a path there."""
    if isinstance(study, str) and "\n" in study:
        return study.removeprefix(MARK).strip("\n")
    path = Path(study)
    if (
        path.suffix != ".yaml"
        or not path.is_file()
        or path.resolve().parent in (PARAMS.resolve(), ROOT / "params")
    ):
        return None
    return path.read_text("utf-8").removeprefix(MARK).strip("\n")


def write_copy(text: str, file: Path) -> None:
    """Keep a text in params/. ConfigError where another file is there that no notebook wrote."""
    written = f"{MARK}{text}\n"
    if file.is_file() and (existing := file.read_text("utf-8")) != written:
        if existing.strip("\n") == text:
            return
        if not existing.startswith(MARK):
            raise ConfigError(f"there is another {shown(file)}; give yours another name")
    write_text(file, written)


def is_copy(file: Path) -> bool:
    """Tell whether a file of params/ is such a copy."""
    return file.is_file() and file.read_text("utf-8").startswith(MARK)


def tasks_hash(include_path: str | None) -> str | None:
    """Compute the SHA-256 of the files in `evaluation.include_path`; None without it. ConfigError
    where no task is there."""
    if include_path is None:
        return None
    folder = ROOT / include_path
    names = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    files = {
        name.as_posix(): sha256(path)
        for name, path in names.items()
        if not any(part.startswith((".", "__pycache__")) for part in name.parts)
    }
    if not any(name.endswith(".yaml") for name in files):
        raise ConfigError(
            f"evaluation.include_path: {include_path}/ holds no task file (.yaml); give the path "
            "of a folder of them from the repository's top, or leave it out"
        )
    return digest(files)
