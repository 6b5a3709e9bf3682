"""A process that has imported what notebooks import, and forks what would import it again: kernels,
and what `lib.record.replay` asks of older commits.

    python lib/record/warm.py SOCKET

It imports packages and never `lib`, so a fork reads the code of its own folder, whichever commit
that holds. Each connection is given a fork, which reads there what it is to run, answers its
process id, runs it, says so if it came to a good end, and ends with the connection; a fork that
cannot be as asked ends without an answer. The process itself ends with its standard input.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WARM = "STUDY_WARM"
"""Environment variable that names the socket of the warm process."""
TIMEOUT = 60.0
"""Seconds that it is given to answer: it may be importing still."""
PACKAGES = (
    *("torch", "numpy", "pandas", "scipy.stats", "scipy.optimize", "scipy.interpolate"),
    *("statsmodels.stats.multitest", "statsmodels.stats.power", "pyarrow.parquet", "seaborn"),
    *("matplotlib.pyplot", "pydantic.json_schema", "pydantic.main", "pydantic.fields", "yaml"),
    *("safetensors.torch", "tokenizers", "filelock", "rich.live", "tqdm", "IPython", "papermill"),
    *("ipykernel.kernelapp", "ipykernel.inprocess.manager"),
    *("nbclient", "nbformat.v4", "jinja2", "datasets", "lm_eval.evaluator", "lm_eval.tasks"),
    *("torch._dynamo",),
)
FIXED = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("GLIBC_TUNABLES", "ATEN_CPU_CAPABILITY"),
)
"""Environment variables that are read once, so that a fork cannot have others than this process; it
has these where it asks for none."""
_WELL = b"ended well"
_PID = 10
"""Digits."""


class Forked:
    """As much of a Popen as a provisioner uses, of a process that is no child of this one."""

    stdin = stdout = stderr = None

    def __init__(
        self, argv: list[str], folder: str, environment: dict[str, str], *streams: int
    ) -> None:
        """Ask for a fork that prints to `streams`. Raises OSError, KeyError or ValueError where
        there is none to be had."""
        request = {"argv": argv, "folder": folder, "environment": environment}
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(TIMEOUT)
        self.connection.connect(os.environ[WARM])
        socket.send_fds(self.connection, [b"\n"], streams or [1, 2])
        self.connection.sendall(json.dumps(request).encode() + b"\n")
        self.pid = int(self.connection.recv(_PID))
        self.connection.setblocking(False)

    def poll(self) -> int | None:
        """Return None while the process lives. What it ended with is not known."""
        try:
            while self.connection.recv(len(_WELL)):
                pass  # it says that it ends, and has not yet
        except BlockingIOError:
            return None
        return 1

    wait = poll
    """A provisioner waits only for what has ended."""

    def ends_well(self) -> bool:
        """Wait until the process has ended; tell whether it came to a good end."""
        self.connection.setblocking(True)
        return b"".join(iter(lambda: self.connection.recv(len(_WELL)), b"")) == _WELL

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def printed(folder: Path, argv: list[str], own: dict[str, str]) -> str:
    """Run Python in a fork, with environment variables of its `own`; return what it prints. Empty
    where there is no fork to be had, or it comes to a bad end."""
    left_out = {"PYTHONPATH", *FIXED}
    environment = {k: v for k, v in os.environ.items() if k not in left_out} | own
    with (
        contextlib.suppress(OSError, KeyError, ValueError),
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as errors,
    ):
        if Forked(argv, str(folder), environment, out.fileno(), errors.fileno()).ends_well():
            out.seek(0)
            return out.read().decode()
    return ""


def prefer_forks() -> None:
    """Have Jupyter fork the kernels of this process, or start ordinary ones where it cannot."""
    from jupyter_client.provisioning.factory import KernelProvisionerFactory
    from jupyter_client.provisioning.local_provisioner import LocalProvisioner

    class Provisioner(LocalProvisioner):
        process: Any = None

        async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
            folder = str(kwargs.get("cwd") or Path.cwd())
            with contextlib.suppress(OSError, KeyError, ValueError):
                self.process = Forked(cmd, folder, kwargs["env"])
                self.pid = self.pgid = self.process.pid
                self.cwd = folder
                return self.connection_info
            return await super().launch_kernel(cmd, **kwargs)

    factory: Any = KernelProvisionerFactory.instance()
    factory.provisioners["forked"] = SimpleNamespace(load=lambda: Provisioner)
    factory.default_provisioner_name = "forked"


def over_sockets(folder: str) -> Any:
    """Configure kernels that talk through socket files in a folder: over TCP, those started at once
    sometimes take one port, and any user of the machine can listen."""
    from traitlets.config import Config

    return Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/k"}})


def serve(address: str) -> socket.socket:
    """Listen at a socket; return, in a fork of its own, each connection. Ends with standard
    input."""
    # Named, not imported: only in a kernel that imports it itself does it show pictures.
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.environ["JPY_PARENT_PID"] = "1"  # ipykernel's sign not to watch a parent
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)  # who asks before all is imported, waits
    for name in PACKAGES:
        if select.select([0], [], [], 0)[0]:
            os._exit(0)
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Imported where no kernel is yet, pandas takes this for a terminal and would show all columns.
    sys.modules["pandas"].set_option("display.max_columns", 20)
    assert not sys.modules["torch"].cuda.is_initialized()  # it does not survive a fork
    gc.freeze()  # a collection in a fork would copy it all
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that have ended leave nothing
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    while True:  # those threads are Arrow's allocator's, which renews them
        if select.select([0, listener.fileno()], [], [])[0][0] == 0:
            os._exit(0)
        connection, _ = listener.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return connection
        connection.close()


def become(connection: socket.socket) -> None:
    """Run the module or the program that is asked for as if `python -m` or `python -c` had started
    it. Returns at its end."""
    os.setsid()
    _, streams, *_ = socket.recv_fds(connection, 1, 2)
    request: dict[str, Any] = json.loads(connection.makefile("rb").readline())
    (python, option, code, *words), environment = request["argv"], request["environment"]
    environment = {n: os.environ[n] for n in FIXED if n in os.environ} | environment
    other = [name for name in FIXED if os.environ.get(name) != environment.get(name)]
    if other or python != sys.executable or option not in ("-m", "-c") or _cuda_is_lost():
        return
    for number, stream in enumerate([os.open(os.devnull, os.O_RDONLY), *streams]):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(environment)
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [str(Path.cwd()), *filter(None, path)]
    sys.modules["numpy"].random.seed()  # Python's own generator sees to it itself
    prefer_forks()  # also of code from before there were forks
    connection.sendall(b"%*d" % (_PID, os.getpid()))
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    sys.argv = [option if option == "-c" else code, *words]
    try:
        if option == "-c":
            exec(code, {"__name__": "__main__"})
        else:
            runpy.run_module(code, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise
    sys.stdout.flush()
    with contextlib.suppress(OSError):  # a kernel's client may be gone
        connection.sendall(_WELL)


def _cuda_is_lost() -> bool:
    """Tell whether this process was forked from one in which something touched a GPU."""
    lost: bool = sys.modules["torch"].cuda._is_in_bad_fork()
    return lost


def _end_with(connection: socket.socket) -> None:
    connection.recv(1)  # nothing more is ever sent
    os._exit(1)


if __name__ == "__main__":
    # The last thing that a fork does: to take apart all that it has imported takes half a second.
    atexit.register(os._exit, 0)
    del sys.path[0]  # this folder, whose modules are none of a notebook's
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    become(serve(sys.argv[1]))
