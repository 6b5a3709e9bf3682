"""Cache in `data/` whatever follows from a text and takes long to compute. All runs read it."""

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
"""Increase it if anything is to be computed in another way: then the whole cache is rebuilt."""


def cached(kind: str, name: str, made_of: Any, make: Callable[[Path], Json]) -> tuple[Path, Json]:
    """Return a folder in `data/KIND/`, and its index: what `make` returned when it wrote the files.

    `make` is called only if no folder was made from the same `made_of` (texts, sizes, code), or if
    a file in that folder has changed since. If another process is writing the folder, wait for it.

    Raises OSError if the files cannot be written.
    """
    key = digest([_FORMAT, made_of])
    top = (output_root() / "data").resolve()  # may be a link to a folder that does not exist yet
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
    """Return a folder's index. Return None if the folder was made from something else, or if a file
    in it has changed."""
    with suppress(OSError, ValueError, LookupError):
        index: Json = json.loads((folder / "index.json").read_text("utf-8"))
        if index.pop("digest") == _digest(folder, key, index):
            return index
    return None


def _digest(folder: Path, key: str, index: Json) -> str:
    """Hash a folder's `key`, its index, and the size and time of each other file.

    The files' bytes are not hashed. That would cost every run a second per gigabyte, and a run goes
    on reading for hours after the check. What damages files in practice (an editor, an interrupted
    copy, a full disk) changes their size or time. A power cut leaves them whole, because
    `atomic_write` flushes them to the disk before the folder gets its name.
    """
    files = sorted(path for path in folder.iterdir() if path.name != "index.json")
    stats = {path.name: path.stat() for path in files}
    return digest([key, index, {name: [s.st_size, s.st_mtime_ns] for name, s in stats.items()}])
