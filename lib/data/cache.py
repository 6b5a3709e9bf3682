"""Keep below `data/` what follows from a text and takes long to make, for all runs to read."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lib.config.files import atomic_write, locked, write_json
from lib.config.paths import output_root
from lib.config.schema import digest
from lib.config.yaml import Json

_FORMAT = 13
"""Raise it when something is to be made in another way: then all is made again."""


def cached(kind: str, name: str, made_of: Any, make: Callable[[Path], Json]) -> tuple[Path, Json]:
    """Return a folder below `data/KIND/`, and what `make` said of the files that it wrote there.

    `make` is called only if there is no folder that was made of the same (`made_of`: texts, sizes,
    code), or if one of its files is no longer as it was written. A process that finds another one
    at work waits for it.

    Raises OSError if the files cannot be kept.
    """
    key = digest([_FORMAT, made_of])
    top = (output_root() / "data").resolve()  # it may be a link to a folder that is not there yet
    folder = top / kind / f"{name}-{key[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(Path(f"{folder}.lock")):
        index = _as_written(folder, key)
        if index is None:
            shutil.rmtree(folder, ignore_errors=True)
            with atomic_write(folder, only_writer=True) as temporary:
                temporary.mkdir()
                index = make(temporary)
                told = index | {"digest": _digest(temporary, key, index)}
                write_json(temporary / "index.json", told)
    return folder, index


def _as_written(folder: Path, key: str) -> Json | None:
    """Read the index of a folder; None unless it was made of the same, and all files are as they
    were written."""
    with suppress(OSError, ValueError, LookupError):
        index: Json = json.loads((folder / "index.json").read_text("utf-8"))
        if index.pop("digest") == _digest(folder, key, index):
            return index
    return None


def _digest(folder: Path, key: str, index: Json) -> str:
    """Hash what a folder was made of (`key`), its index, and size and time of its other files.

    Their bytes are not read. That would take every run a second for each gigabyte, and a run reads
    on for hours after it. What damages files in practice (an editor, a copy that stopped, a full
    disk) changes their size or time; and after a power cut they are whole, because `atomic_write`
    has them on the disk before the folder has its name.
    """
    files = sorted(path for path in folder.iterdir() if path.name != "index.json")
    stats = {path.name: path.stat() for path in files}
    return digest([key, index, {name: [s.st_size, s.st_mtime_ns] for name, s in stats.items()}])
