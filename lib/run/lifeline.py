"""Processes end with whoever started them, however that ends: they hold a pipe that it never writes
to.

Whoever a sweep, or a run over several devices, starts, and whatever they start, inherits the pipe
as standard input. It reaches its end when the starter is gone, also after `kill -9`.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

_PIPE = "STUDY_LIFELINE"


@contextmanager
def start(
    command: list[str], environment: dict[str, str], output: IO[bytes] | int
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process that ends when this block is left, with all that it starts."""
    inner, outer = os.pipe()
    environment = environment | {_PIPE: str(os.fstat(inner).st_ino)}
    try:
        # A session of its own: Ctrl-C reaches the sweep alone, which then ends the others.
        yield subprocess.Popen(
            command,
            env=environment,
            stdin=inner,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    finally:
        os.close(inner)
        os.close(outer)


def hold_on(patience: float = 0) -> None:
    """End this process as soon as whoever started it is gone. One that runs by itself, or on
    another machine of a cluster, has another standard input and goes on.

    With patience (seconds) it is interrupted first, and has that long to cancel what it has running
    elsewhere.
    """
    if os.environ.get(_PIPE) == str(os.fstat(0).st_ino):
        threading.Thread(target=_wait, args=(patience,), daemon=True).start()


def _wait(patience: float) -> None:
    os.read(0, 1)  # nothing is ever written
    if patience:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(patience)
    os._exit(1)
