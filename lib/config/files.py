"""Files, each written whole or not at all; locks; and what a machine refuses."""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from lib.config.errors import UserError
from lib.config.paths import CHECKOUT, PARAMS, listed, relative
from lib.config.yaml import Json

MAX_JSON = 10**8
"""Bytes: more than any notebook here; in memory they take thirty times as much."""
_LACKS = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
"""What file systems answer that have no flock (Lustre), or no fsync of folders (shares, WSL)."""


def prepare_params() -> None:
    """Copy a repository's parameters to where they can be added to, if it cannot be written."""
    if not PARAMS.is_dir():
        with atomic_write(PARAMS) as temporary:
            for path in listed(CHECKOUT / "params", "**/*.*"):
                target = temporary / path.relative_to(CHECKOUT / "params")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


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
    """Bring a file, or a folder's list of names, to the disk; a folder only if it can be."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _LACKS or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


@cache
def has_flock(folder: Path) -> bool:
    """Return whether files in a folder can be locked by flock."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _LACKS:
                raise
            return False
    return True


def file_lock(path: Path) -> BaseFileLock:
    """Return a lock. Without flock it is a file that exists while the lock is held; one left by a
    process of this machine that is gone does not count."""
    soft = path.with_suffix(".held.lock")
    return FileLock(path) if has_flock(path.parent) else SoftFileLock(soft)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock while the block runs; say after a second that another process holds it."""
    lock = file_lock(path)
    message = f"{relative(path)} is held by another process; waiting for it to end"
    for seconds in (1, 10, -1):  # twice: papermill saves what a cell says when it says more
        with suppress(Timeout):
            lock.acquire(timeout=seconds)
            break
        print(message, file=sys.stderr, flush=True)  # in no record
    try:
        yield
    finally:
        lock.release()


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
    """Read a JSON file. Raises UserError, naming it, for one that is damaged, or far too large."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise ValueError
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        raise UserError(f"{relative(path)} cannot be read; restore it, or delete it") from None


_OF_THE_FILE = ("ENOENT", "ENOTDIR", "EISDIR", "EINVAL", "ELOOP", "ENAMETOOLONG")
"""Errors that tell of a file and not of the machine: it is missing, or damaged."""
_NO_MEMORY = "can't allocate memory|can't start new thread"
"""How torch and Python say it."""
_REMEDIES = {
    "ENOSPC EDQUOT EFBIG EROFS ENOENT": "free some space, or name a folder that has some by TMPDIR",
    "EACCES EPERM": "give yourself the right to read it, and to write to TMPDIR",
    "EMFILE ENFILE": "allow more open files by ulimit -n",
    "ENOMEM EAGAIN": "end other programs",
}


def machine_fault(error: BaseException | None) -> str:
    """Say what the machine refused (space, memory, a right), with the remedy, if an error, or one
    that it was raised for, comes of that; "" if it tells of what was read."""
    while error:
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, MemoryError) or re.search(_NO_MEMORY, str(error)):
            number = errno.ENOMEM
        name, file = errno.errorcode.get(number or 0), getattr(error, "filename", None)
        # Without the name of a file, it is no folder for temporary ones that was found.
        if name and (name not in _OF_THE_FILE or (name == "ENOENT" and not file)):
            remedies = (text for names, text in _REMEDIES.items() if name in names.split())
            where = f" ({relative(Path(str(file)))})" if file else ""
            return f"{os.strerror(number or 0)}{where}; {next(remedies, 'try again')}"
        error = error.__context__
    return ""


def slim(content: Json) -> Json:
    """Take out of an executed notebook what differs from one execution to the next (warnings, the
    times of cells) and the plain text of what is shown as a table or a picture."""
    for cell in content.get("cells", []):
        if "outputs" in cell:
            tags = cell["metadata"].get("tags")
            cell["metadata"] = {"tags": tags} if tags else {}
            cell["outputs"] = [o for o in cell["outputs"] if o.get("name") != "stderr"]
            for shown in (output.get("data", {}) for output in cell["outputs"]):
                if shown.keys() & {"text/html", "image/png", "text/markdown"}:
                    shown.pop("text/plain", None)
    return content


def nan_to_none(value: Any) -> Any:
    """Replace the numbers that JSON lacks, NaN and the infinities, by None, at any depth."""
    if isinstance(value, dict):
        return {key: nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sha256(path: Path) -> str:
    """Hash a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
