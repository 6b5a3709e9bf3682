"""Start the processes that train one run together, and follow them to their end; and have every
process end with whoever started it, however that ends.

Whoever a sweep, or a run over several devices, starts, and whatever they start, inherits as
standard input a pipe to which nothing is ever written. It reaches its end when the starter is gone,
also after `kill -9`.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pydantic import BaseModel

from lib.results import Provenance
from lib.study.io import ROOT, relative, write_json
from lib.study.schema import Machine, RunConfig

WORKER = "lib.run.distributed"
"""The module that each process runs."""
JOB, LOG = "job.json", "processes.log"
"""What the processes are to do, and what they say, in the run's folder."""
STEP = "\x1estep "
"""What a line begins with that reports a step: its row of the trace and its point of the curve."""
_PIPE = "STUDY_LIFELINE"
"""Environment variable that names the pipe by which a process was started."""


class LostProcessError(RuntimeError):
    """A process that ended before training did; the message says which and what to do."""


class Job(BaseModel):
    """What the processes of a run are to do."""

    config: RunConfig
    provenance: Provenance


def launch(
    config: RunConfig,
    machine: Machine,
    provenance: Provenance,
    folder: Path,
    report: Callable[..., None],
) -> None:
    """Train a run to its end in processes of their own, from its last checkpoint if there is one.
    What they leave is a checkpoint.

    They end with this process, and all of them with the first that is lost: then LostProcessError.
    """
    write_json(folder / JOB, Job(config=config, provenance=provenance).model_dump(mode="json"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1"]  # this machine's name need not be known to it
    command += ["--nproc-per-node", str(machine.processes), "-m", WORKER, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": str(machine.threads)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    agent: subprocess.Popen[bytes] | None = None
    try:
        with (
            (folder / LOG).open("w", encoding="utf-8") as log,
            start(command, environment, subprocess.PIPE) as agent,
        ):
            assert agent.stdout is not None
            for line in agent.stdout:
                text = line.decode("utf-8", "replace")
                if text.startswith(STEP):
                    report(*json.loads(text.removeprefix(STEP)))
                else:
                    log.write(text)
    finally:  # without their pipe the processes end, and then what started them
        status = agent.wait() if agent else 1
    if status:
        raise LostProcessError(
            f"{_reason((folder / LOG).read_text('utf-8'))}; a rerun continues from the last "
            f"checkpoint (what the processes said: {relative(folder / LOG)})"
        )


def _reason(log: str) -> str:
    """Find in what the processes said why they ended."""
    if message := re.search(r"^error: (.*)$", log, re.MULTILINE):
        return message[1]
    first = log.partition("Root Cause")[2]
    rank, code = (re.search(rf"{name}\s*: (-?\d+)", first) for name in ("rank", "exitcode"))
    if rank and code:
        return f"training process {rank[1]} ended with status {code[1]}"
    return "the training processes could not be started"


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


def exit_with_parent(patience: float = 0) -> None:
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
