"""A process that has imported what notebooks import, and forks their kernels.

    python lib/workflow/warm.py SOCKET

It imports packages and never `lib`, so a kernel reads the code of its own folder, whichever commit
that holds. Each connection is given a fork, which reads there what it is to run, answers its
process id, and ends with the connection; a fork that cannot be as asked ends without an answer.
The process itself ends with its standard input.
"""

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
import threading
import warnings
from pathlib import Path
from typing import Any

PACKAGES = (
    *("torch", "numpy", "pandas", "scipy.stats", "scipy.optimize", "scipy.interpolate"),
    *("statsmodels.stats.multitest", "statsmodels.stats.power", "pyarrow.parquet", "seaborn"),
    *("matplotlib.pyplot", "pydantic", "yaml", "safetensors.torch", "tokenizers", "filelock"),
    *("rich.live", "tqdm", "IPython", "ipykernel.kernelapp", "papermill", "nbclient", "nbformat"),
    *("jinja2", "datasets", "lm_eval.evaluator", "lm_eval.tasks"),
)
FIXED = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("GLIBC_TUNABLES", "ATEN_CPU_CAPABILITY"),
)
"""Environment variables that are read once, so that a fork cannot have others than this process."""


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
    """Run the module that is asked for as if `python -m` had started it. Returns at its end."""
    os.setsid()
    _, streams, *_ = socket.recv_fds(connection, 1, 2)
    request: dict[str, Any] = json.loads(connection.makefile("rb").readline())
    (python, option, *argv), environment = request["argv"], request["environment"]
    other = [name for name in FIXED if os.environ.get(name) != environment.get(name)]
    if other or (python, option) != (sys.executable, "-m") or _cuda_is_lost():
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
    connection.sendall(b"%d" % os.getpid())
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    sys.argv = argv
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)


def _cuda_is_lost() -> bool:
    """Tell whether this process was forked from one in which something touched a GPU."""
    lost: bool = sys.modules["torch"].cuda._is_in_bad_fork()
    return lost


def _end_with(connection: socket.socket) -> None:
    connection.recv(1)  # nothing more is ever sent
    os._exit(1)


if __name__ == "__main__":
    del sys.path[0]  # this folder, whose modules are none of a notebook's
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    become(serve(sys.argv[1]))
