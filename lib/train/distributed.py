"""Several processes that train one run together, by data parallelism (Li et al. 2020, arXiv
2006.15704): all hold the whole model, and each takes its share of every batch.

A training cell starts them, by torchrun, where `machine.processes` asks for more than one; each
is then `python -m lib.train.trainer FOLDER CONFIG`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.config.io import relative
from lib.config.schema import RunConfig
from lib.config.yaml import UserError

STEP = "\x1estep "
"""What a line begins with that reports a step: its row of the trace and its point of the curve."""
Row = dict[Any, Any]
Report = Callable[[Row, Row | None], None]
"""Called for every step, some steps at a time, with its row of the trace and, where the dev curve
has a point there, that point: for a log or a curve that grows while it trains."""


def launch(config: RunConfig, folder: Path, report: Report) -> None:
    """Train a run to its end in processes of their own, from its last checkpoint if there is one.
    What they leave is a checkpoint. All of them end with the first that is lost, and soon after
    this process: then there is nobody that they could report a step to.

    Raises UserError when one of them ends before training does.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1"]  # this machine's name need not be known to it
    command += ["--nproc-per-node", str(config.machine.processes), "-m", "lib.train.trainer"]
    command += [str(folder), config.model_dump_json()]
    environment = os.environ | {"OMP_NUM_THREADS": str(config.machine.threads)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with (
        (folder / "processes.log").open("w", encoding="utf-8") as log,
        subprocess.Popen(command, env=environment, text=True, **both) as agent,  # type: ignore[call-overload]
    ):
        try:
            for line in agent.stdout:
                if line.startswith(STEP):
                    report(*json.loads(line.removeprefix(STEP)))
                else:
                    log.write(line)
        except BaseException:  # a notebook's stop among them
            agent.terminate()
            raise
    if agent.returncode:
        raise UserError(
            "a process ended early; a rerun continues from the last checkpoint "
            f"(what the processes said: {relative(folder / 'processes.log')})"
        )


def tell(row: Row, point: Row | None) -> None:
    """Report a step to the process that launched this one."""
    print(f"{STEP}{json.dumps([row, point])}", flush=True)
