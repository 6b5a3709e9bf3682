"""Train one run in several processes, by data parallelism (Li et al. 2020, arXiv 2006.15704). Each
process holds the whole model, and trains on its share of every batch.

`machine.processes` says how many. `launch` has torchrun start them, each as
`python -m lib.train.trainer FOLDER CONFIG`. The first one prints its steps for `launch` to read.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.config.errors import UserError
from lib.config.paths import relative
from lib.config.schema import RunConfig

STEP = "\x1estep "
"""Marks a line of a process's output that reports a step. The rest of the line is JSON: its row of
the trace and its point of the curve. The mark begins with ASCII's record separator."""
Row = dict[Any, Any]
Report = Callable[[Row, Row | None], None]
"""Called for every step with its row of the trace, and its point of the dev curve or None. The
calls come several at a time, when the host has read the device's notes. It draws the curve that
grows during training."""


def launch(config: RunConfig, folder: Path, report: Report) -> None:
    """Train a run to its end in several processes, from its last checkpoint if there is one. Its
    final weights are then in its last checkpoint.

    If one process is lost, torchrun ends the others. If this process ends, they end as well: they
    can no longer write to its pipe.

    Raises UserError if a process ends before training does.
    """
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=127.0.0.1",  # a machine may not know its own name
        f"--nproc-per-node={config.machine.processes}",
        "-m",
        "lib.train.trainer",
        str(folder),
        config.model_dump_json(),
    ]
    environment = os.environ | {
        "OMP_NUM_THREADS": str(config.machine.threads),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with (
        (folder / "processes.log").open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as agent,
    ):
        try:
            for line in agent.stdout or ():  # until all processes have ended
                if line.startswith(STEP):
                    report(*json.loads(line.removeprefix(STEP)))
                else:
                    log.write(line)
        except BaseException:  # also KeyboardInterrupt, from a notebook's stop button
            agent.terminate()
            raise
    if agent.returncode:
        raise UserError(
            "a process ended early; run this again to continue from the last checkpoint "
            f"(what the processes printed: {relative(folder / 'processes.log')})"
        )


def tell(row: Row, point: Row | None) -> None:
    """Report a step to `launch`, from inside a process that it started."""
    print(f"{STEP}{json.dumps([row, point])}", flush=True)
