"""Start the processes that train one run together, and follow them to their end."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from lib.run import lifeline
from lib.study.fields import Machine, RunConfig
from lib.study.files import write_json
from lib.study.paths import ROOT, shown
from lib.study.provenance import Provenance

WORKER = "lib.run.distributed"
"""The module that each process runs."""
JOB, LOG = "job.json", "processes.log"
"""What the processes are to do, and what they say, in the run's folder."""
STEP = "\x1estep "
"""What a line begins with that reports a step: its row of the trace and its point of the curve."""


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
            lifeline.start(command, environment, subprocess.PIPE) as agent,
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
            f"checkpoint (what the processes said: {shown(folder / LOG)})"
        )


def _reason(log: str) -> str:
    """Find in what the processes said why they ended."""
    if said := re.search(r"^error: (.*)$", log, re.MULTILINE):
        return said[1]
    first = log.partition("Root Cause")[2]
    rank, code = (re.search(rf"{name}\s*: (-?\d+)", first) for name in ("rank", "exitcode"))
    if rank and code:
        return f"training process {rank[1]} ended with status {code[1]}"
    return "the training processes could not be started"
