"""Kernels that are forked from a warm process (`lib.workflow.warm`), which spares each its imports.

They are signalled, killed and ended as ordinary ones, and compute the same bits. Where there is no
warm process, or it does not answer, an ordinary kernel is started.
"""

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import IO, Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from lib.run import processes
from lib.study.fields import digest
from lib.study.paths import RUNS

WARM = "STUDY_WARM"
"""Environment variable that names the socket of the warm process."""
TIMEOUT = 60.0
"""Seconds that it is given to answer: it may be importing still."""
SOCKETS = f"kernel-{digest(str(RUNS))[:8]}-"
"""How the folders of kernels' sockets begin: a sweep removes those that a killed one left."""


@contextmanager
def warm_process(environment: dict[str, str], log: IO[bytes]) -> Iterator[None]:
    """Have kernels forked, where processes that are started within this block ask for some with
    these environment variables."""
    kernel_environment = {k: v for k, v in (os.environ | environment).items() if k != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix=SOCKETS) as folder:
        address = str(Path(folder, "warm"))
        command = [sys.executable, str(Path(__file__).with_name("warm.py")), address]
        with processes.start(command, kernel_environment, log) as server:
            os.environ[WARM] = address
            try:
                yield
            finally:
                del os.environ[WARM]
                server.kill()  # it may be importing, and holds the log, whose lock is the sweep's
                server.wait()


class Forked:
    """As much of a Popen as a provisioner uses, of a process that is no child of this one."""

    stdin = stdout = stderr = None

    def __init__(self, argv: list[str], folder: str, environment: dict[str, str]) -> None:
        """Raises OSError, KeyError or ValueError where there is no fork to be had."""
        request = {"argv": argv, "folder": folder, "environment": environment}
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(TIMEOUT)
        self.connection.connect(os.environ[WARM])
        socket.send_fds(self.connection, [b"\n"], [1, 2])
        self.connection.sendall(json.dumps(request).encode() + b"\n")
        self.pid = int(self.connection.recv(20))
        self.connection.setblocking(False)

    def poll(self) -> int | None:
        """Return None while the process lives. What it ended with is not known."""
        try:
            self.connection.recv(1)  # nothing is ever sent
        except BlockingIOError:
            return None
        return 1

    wait = poll
    """A provisioner waits only for what has ended."""

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkedProvisioner(LocalProvisioner):
    process: Any = None

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Fork a kernel, or start an ordinary one."""
        folder = str(kwargs.get("cwd") or Path.cwd())
        with suppress(OSError, KeyError, ValueError):
            self.process = Forked(cmd, folder, kwargs["env"])
            self.pid = self.pgid = self.process.pid
            self.cwd = folder
            return self.connection_info
        return await super().launch_kernel(cmd, **kwargs)


def prefer_forks() -> None:
    """Have Jupyter fork the kernels of this process."""
    factory = KernelProvisionerFactory.instance()
    object_reference = f"{__name__}:{ForkedProvisioner.__name__}"
    factory.provisioners["forked"] = EntryPoint("forked", object_reference, factory.GROUP_NAME)
    factory.default_provisioner_name = "forked"
