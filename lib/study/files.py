"""Files: each is written whole or not at all, and read with the reason why not."""

import hashlib
import json
import math
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.study.errors import UserError
from lib.study.paths import relative


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. The file or folder that is written there takes its
    name when the block ends, once it is on the disk; after an error or a kill the old one stands.

    A folder takes the place of none, or of an empty one. Raises OSError for one that has files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Apart from those of other writers; with the suffix, from which libraries tell the format.
    temporary = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        yield temporary
        for item in [*temporary.rglob("*"), temporary]:
            _flush(item)
        temporary.replace(path)
        _flush(path.parent)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Bring a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def walk(folder: Path) -> Iterator[Path]:
    """List every file below a folder, through links as well, and none of a folder twice."""
    seen = set()
    for top, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(top)) in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(top, name) for name in names)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically; half of a surrogate pair, which UTF-8 lacks, becomes `?`."""
    write_bytes(path, text.encode("utf-8", "replace"))


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Write a JSON file atomically. Numbers that JSON lacks are written as null. Without indent it
    is a quarter smaller, and all in one line."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(nan_to_none(content), indent=indent, separators=separators, allow_nan=False)
    write_text(path, text + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises UserError, naming it, for one that is damaged."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        raise UserError(f"{relative(path)} cannot be read; restore it, or delete it") from None


def nan_to_none(value: Any) -> Any:
    """Replace the numbers that JSON lacks, NaN and the infinities, by None, at any depth."""
    if isinstance(value, dict):
        return {key: nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sha256(path: Path | zipfile.Path) -> str:
    """Hash a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
