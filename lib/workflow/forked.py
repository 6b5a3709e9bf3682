"""Have a warm process (`lib.record.warm`) from which kernels are forked, each without its imports.

They are signalled, killed and ended as ordinary ones, and compute the same bits. Where there is no
warm process, or it does not answer, an ordinary kernel is started.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lib.record import warm
from lib.run import processes
from lib.study.io import RUNS
from lib.study.schema import digest

SOCKETS = f"kernel-{digest(str(RUNS))[:8]}-"
"""How the folders of kernels' sockets begin: a sweep removes those that a killed one left."""
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Large pages for large tensors: a training step is a twentieth faster. Other C libraries than
glibc ignore it; numbers stay the same."""


def variables(threads: int) -> dict[str, str]:
    """Return the environment variables that a training of so many threads reads once."""
    return thread_variables(threads) | HUGE_PAGES


def thread_variables(threads: int) -> dict[str, str]:
    """Return those of them that set the number of threads. Without large tensors, large pages cost
    time: a fork copies them."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


@contextmanager
def warm_process(environment: dict[str, str], log: IO[bytes] | int) -> Iterator[None]:
    """Have kernels, and what `lib.record.replay` asks, forked where this process and those that it
    starts within this block ask for them with these environment variables."""
    kernel_environment = {k: v for k, v in (os.environ | environment).items() if k != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix=SOCKETS) as folder:
        address = str(Path(folder, "warm"))
        command = [sys.executable, warm.__file__, address]
        with processes.start(command, kernel_environment, log) as server:
            os.environ[warm.WARM] = address
            try:
                yield
            finally:
                del os.environ[warm.WARM]
                server.kill()  # it may be importing, and holds the log, whose lock is the sweep's
                server.wait()
