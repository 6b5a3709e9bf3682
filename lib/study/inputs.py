"""What comes from outside: what earlier sessions left, attached on Kaggle or as a zip; and studies,
plans and tasks of one's own.

A zip is unpacked only if nothing in it could reach outside its folder. A study of one's own is a
text in a cell, or a YAML elsewhere; `params/` gets a copy, so that every process finds it. On
Kaggle, where the repository cannot be written, `params/` is itself a copy beside `runs/`.
"""

import os
import re
import shutil
import stat
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path, PurePosixPath

from lib.study.io import (
    PARAMS,
    ROOT,
    atomic_write,
    kaggle_folder,
    read_json,
    relative,
    sha256,
    study_folder,
    write_text,
)
from lib.study.schema import digest
from lib.study.yaml import HEADLESS, ConfigError, UserError

MAX_FILES, MAX_BYTES = 100_000, 20 * 10**9
"""What a zip may hold, unpacked: as much as Kaggle keeps of one session."""
BY_HAND = "by-hand"
"""Where notebooks are kept that somebody ran, until `./run_all.sh import` files them."""
_SESSIONS = "__notebook__.ipynb"
"""What Kaggle calls the notebook of a session among its outputs."""
_NEVER = ("archive.json", "*.lock")
"""What tells of another folder, not of the study."""


class ZipError(UserError):
    """A zip that is not unpacked; the message says why."""


def unpack(file: Path, folder: Path) -> None:
    """Unpack a zip into a folder.

    Raises ZipError for a file that is no sound zip, holds a link or a name that leads elsewhere, or
    is too large.
    """
    try:
        with zipfile.ZipFile(file) as content:
            members = content.infolist()
            if len(members) > MAX_FILES or sum(m.file_size for m in members) > MAX_BYTES:
                raise ZipError(f"it holds more than {MAX_FILES:,} files or {MAX_BYTES:,} bytes")
            for member in members:
                name = PurePosixPath(member.filename)
                if name.is_absolute() or ".." in name.parts or "\\" in member.filename:
                    raise ZipError(f"{member.filename!r} leads out of it")
                if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise ZipError(f"{member.filename!r} is a link, or no plain file")
            if len(set(content.namelist())) < len(members):
                raise ZipError("it holds two files of one name")
            content.extractall(folder)
    except ZipError:
        raise
    except Exception as error:  # zipfile lets through what its decompressors raise
        raise ZipError(f"it cannot be read as a zip ({error})") from None


def resume_from_inputs(study: str) -> list[str]:
    """Copy what the attached inputs hold of a study to the working folder, so that it is continued
    there, on Kaggle. Return a line for each place that gave a run.

    Of a run that several hold, or that was begun here, the one that got furthest counts. Elsewhere,
    and in a notebook that a sweep executes, nothing is done. Raises ZipError, naming the zip.
    """
    kaggle = kaggle_folder()
    if kaggle is None or os.environ.get(HEADLESS):
        return []
    inputs = kaggle / "input"
    folders = [path for path in sorted(inputs.glob(f"**/runs/{study}")) if path.is_dir()]
    messages = [_take(path, path.relative_to(inputs).as_posix()) for path in folders]
    for archive in [] if folders else sorted(inputs.glob(f"**/{study}.zip")):
        with tempfile.TemporaryDirectory() as folder:
            try:
                unpack(archive, Path(folder))
            except ZipError as error:
                raise ZipError(f"{archive.name}: {error}; attach a sound one, or none") from None
            messages.append(_take(Path(folder, "runs", study), archive.name))
    return list(filter(None, messages))


def _take(source: Path, name: str) -> str:
    target, n_runs = study_folder(source.name), 0
    for run in sorted(path.parent for path in source.glob("*/seed-*/provenance.json")):
        local = target / run.relative_to(source)
        if _progress(run) > _progress(local):
            shutil.rmtree(local, ignore_errors=True)
            copy_missing(run, local)
            n_runs += 1
    for path in sorted(source.glob("*")):  # what is made of the runs, after them
        if path.suffix in (".json", ".ipynb") or path.name in ("suite", "figures", BY_HAND):
            copy_missing(path, target / path.name)
    session = source.parents[1] / _SESSIONS
    if session.is_file():
        copy_missing(session, target / BY_HAND / f"{sha256(session)[:12]}.ipynb")
    return f"{n_runs} runs taken up from {name}" if n_runs else ""


def _progress(run: Path) -> tuple[bool, int, str]:
    """Tell how far a run got: whether it is finished, the step of its last checkpoint, and when it
    was begun. Of two that got equally far the newer one counts."""
    names = [path.name[5:] for path in run.glob("checkpoints/*/step-*")]
    last = max((int(name) for name in names if name.isdecimal()), default=-1)
    provenance = run / "provenance.json"
    started = "0" if provenance.is_file() else ""  # "0" where it cannot be read
    with suppress(OSError, ValueError, LookupError, TypeError):
        started = str(read_json(provenance)["started"])
    return (run / "result.json").is_file(), last, started


def copy_missing(source: Path, target: Path) -> None:
    """Copy a file or folder that is not there yet, without its times and read-only modes."""
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file():
                copy_missing(path, target / path.relative_to(source))
    elif not target.exists() and not any(source.match(pattern) for pattern in _NEVER):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


MARK = "# Written by a notebook, which writes it anew.\n"
"""How a copy begins: what nobody wrote by hand may be replaced."""
PLAN_BELOW = "\n---\n"
"""A line that separates a study from its plan, where both are one text."""
_SEPARATOR = re.compile(r"^---[ \t]*$\n?", re.MULTILINE)


def prepare_params() -> None:
    """Copy a repository's parameters to where they can be added to, if it cannot be written."""
    if not PARAMS.is_dir():
        with atomic_write(PARAMS) as temporary:
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


def split_plan(text: str) -> tuple[str, str]:
    """Split a text into its study and the plan below the line ---, "" where there is no such line;
    ConfigError where nothing stands below it. A line above the study only begins it, as in YAML."""
    first, *rest = _SEPARATOR.split(text, maxsplit=1)
    if rest and all(line.startswith("#") for line in first.splitlines() if line.strip()):
        first, *rest = _SEPARATOR.split(rest[0], maxsplit=1)
    if rest and not rest[0].strip():
        raise ConfigError(
            "study: nothing stands below the line ---; write a plan there, or delete it"
        )
    return first.rstrip("\n"), "".join(rest)


def write_copy(text: str, file: Path) -> None:
    """Keep a text in params/. ConfigError where another file is there that no notebook wrote."""
    written = f"{MARK}{text}\n"
    if file.is_file() and (existing := file.read_text("utf-8")) != written:
        if existing.strip("\n") == text:
            return
        if not existing.startswith(MARK):
            raise ConfigError(f"there is another {relative(file)}; give yours another name")
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
