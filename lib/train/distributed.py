"""Train one run in several processes, with data parallelism (Li et al. 2020, arXiv 2006.15704).
Each process holds the whole model, and trains on its share of every batch.

`machine.processes` sets their number. `launch` starts them with torchrun, each as
`python -m lib.train.trainer FOLDER CONFIG`. The first one prints its steps, and `launch` reads
them.
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
"""Start of an output line that reports a step. The rest of the line is JSON: the step's row of the
trace and its point of the curve. `STEP` begins with ASCII's record separator."""
Row = dict[Any, Any]
Report = Callable[[Row, Row | None], None]
"""Function to call for every step. The first argument is the step's row of the trace. The second
argument is its point of the dev curve, or None if the step has no point. The function draws the
growing curve during training. The calls for several steps come at once, after the host has read the
results of these steps from the device."""


def launch(config: RunConfig, folder: Path, report: Report) -> None:
    """Train a run to its end in several processes, or resume it from its last checkpoint. The final
    weights are then in the last checkpoint.

    If one process dies, torchrun ends the others. If this process ends, all of them end as well,
    because nothing reads the pipe that they write to.

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
            for line in agent.stdout or ():  # until all processes end
                if line.startswith(STEP):
                    report(*json.loads(line.removeprefix(STEP)))
                else:
                    log.write(line)
        except BaseException:  # also KeyboardInterrupt, from the stop button of a notebook
            agent.terminate()
            raise
    if agent.returncode:
        raise UserError(
            "a process ended early; run this again to continue from the last checkpoint "
            f"(their output: {relative(folder / 'processes.log')})"
        )


def tell(row: Row, point: Row | None) -> None:
    """Report a step to `launch`, which started this process."""
    print(f"{STEP}{json.dumps([row, point])}", flush=True)
