"""Atomic writes, locks, and remedies for errors of the machine."""

import errno
import fcntl
import glob
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

_LACKS = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
"""Errors of file systems without flock (Lustre), or without fsync of folders (shares, WSL)."""


def prepare_params() -> None:
    """Copy the parameters of a read-only repository to a folder that can be written."""
    if not PARAMS.is_dir():
        with atomic_write(PARAMS) as temporary:
            for path in listed(CHECKOUT / "params", "**/*.*"):
                target = temporary / path.relative_to(CHECKOUT / "params")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


@contextmanager
def atomic_write(path: Path, *, only_writer: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`. When the block ends, flush the file or folder
    at that path to the disk, and rename it to `path`. After an error or a kill, the old one is
    still there. With `only_writer`, also remove the temporary folders of killed writers.

    Raises OSError if `path` is a folder that is not empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # No other writer has this name. Keep the suffix, because libraries read the format from it.
    temporary = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    if only_writer:
        for left in path.parent.glob(f".{'[0-9a-f]' * 8}.{glob.escape(path.name)}"):
            shutil.rmtree(left)
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
    """Flush a file, or a folder's list of names, to the disk. Some file systems refuse folders."""
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
    """Return a lock. Without flock, it is a file that exists as long as a process has the lock. If
    that process died on this machine, its file does not count."""
    soft = path.with_suffix(".held.lock")
    return FileLock(path) if has_flock(path.parent) else SoftFileLock(soft)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock while the block runs. After waiting for a second, print that another process
    holds it."""
    lock = file_lock(path)
    message = f"{relative(path)} is held by another process; waiting for it to end"
    for seconds in (1, 10, -1):  # print twice: papermill saves a line when the next one comes
        with suppress(Timeout):
            lock.acquire(timeout=seconds)
            break
        print(message, file=sys.stderr, flush=True)  # records leave stderr out
    try:
        yield
    finally:
        lock.release()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically. UTF-8 cannot encode half a surrogate pair: it becomes `?`."""
    write_bytes(path, text.encode("utf-8", "replace"))


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Write a JSON file atomically, with NaN and infinities as null. Without `indent`, the file is
    a single line, and smaller by a quarter."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(nan_to_none(content), indent=indent, separators=separators, allow_nan=False)
    write_text(path, text + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises UserError if it is damaged."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        raise UserError(f"{relative(path)} cannot be read; restore it, or delete it") from None


_OF_THE_FILE = ("ENOENT", "ENOTDIR", "EISDIR", "EINVAL", "ELOOP", "ENAMETOOLONG")
"""Errors of a file, not of the machine: it is missing, or damaged."""
_NO_MEMORY = "can't allocate memory|can't start new thread"
"""Messages of torch and Python about missing memory."""
_FREE_SPACE = "free some space, or name a folder that has some by TMPDIR"
_RIGHTS = "give yourself the right to read it, and to write to TMPDIR"
_REMEDIES = {
    "ENOSPC": _FREE_SPACE,
    "EDQUOT": _FREE_SPACE,
    "EFBIG": _FREE_SPACE,
    "EROFS": _FREE_SPACE,
    "ENOENT": _FREE_SPACE,
    "EACCES": _RIGHTS,
    "EPERM": _RIGHTS,
    "EMFILE": "allow more open files by ulimit -n",
    "ENFILE": "allow more open files by ulimit -n",
    "ENOMEM": "end other programs",
    "EAGAIN": "end other programs",
}


def machine_fault(error: BaseException | None) -> str:
    """Return the cause and the remedy of an error, if the machine refused something (space, memory,
    a right). Return "" if the file that was read is the cause."""
    while error:
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, MemoryError) or re.search(_NO_MEMORY, str(error)):
            number = errno.ENOMEM
        name, file = errno.errorcode.get(number or 0), getattr(error, "filename", None)
        # ENOENT without a file name means that there is no folder for temporary files.
        if name and (name not in _OF_THE_FILE or (name == "ENOENT" and not file)):
            where = f" ({relative(Path(str(file)))})" if file else ""
            return f"{os.strerror(number or 0)}{where}; {_REMEDIES.get(name, 'try again')}"
        error = error.__context__
    return ""


def slim(content: Json) -> Json:
    """Remove from an executed notebook everything that differs between executions (warnings, times
    of cells), and the plain-text copy of a table or picture."""
    for cell in content.get("cells", []):
        if "outputs" in cell:
            tags = cell["metadata"].get("tags")
            cell["metadata"] = {"tags": tags} if tags else {}
            cell["outputs"] = [o for o in cell["outputs"] if o.get("name") != "stderr"]
            for shown in (output.get("data", {}) for output in cell["outputs"]):
                if shown.keys() & {"text/html", "image/png", "text/markdown"}:
                    shown.pop("text/plain", None)
    return content


def leave_out_indentation(notebook: Json) -> None:
    """Write the HTML of an executed notebook's tables without indentation, a third of it."""
    for cell in notebook["cells"]:
        for shown in (output.get("data", {}) for output in cell.get("outputs", [])):
            if "text/html" in shown:  # a string, or a list of lines
                shown["text/html"] = re.sub(r"\n\s+(?=<)", "\n", "".join(shown["text/html"]))


def nan_to_none(value: Any) -> Any:
    """Replace NaN and infinities by None at any depth, because JSON has neither."""
    if isinstance(value, dict):
        return {key: nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sha256(path: Path) -> str:
    """Hash a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
