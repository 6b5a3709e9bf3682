"""A folder for the sockets of each kernel, and none left over."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "norm-kernel-"  # short: a socket's whole path may take about a hundred characters


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """Make a folder, locked while its process lives, and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    new = folder / "new"
    try:
        with new.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            new.rename(folder / "lock")  # so that no lock is ever seen unlocked
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_dead() -> None:
    """Remove this user's folders whose process was killed."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/lock"):
        with contextlib.suppress(OSError):  # of another user, in use, or gone meanwhile
            if lock.parent.lstat().st_uid == os.getuid() and not lock.parent.is_symlink():
                with lock.open("w") as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent)
