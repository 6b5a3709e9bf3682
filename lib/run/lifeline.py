"""Processes end with whoever started them, however that ends: they hold a pipe that it never writes
to.

Whoever a sweep, or a run over several devices, starts, and whatever they start, inherits the pipe
as standard input. It reaches its end when the starter is gone, also after `kill -9`.
"""

import os
import subprocess
import threading
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


def hold_on() -> None:
    """End this process as soon as whoever started it is gone. One that runs by itself, or on
    another machine of a cluster, has another standard input and goes on."""
    if os.environ.get(_PIPE) == str(os.fstat(0).st_ino):
        threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    os.read(0, 1)  # nothing is ever written
    os._exit(1)
