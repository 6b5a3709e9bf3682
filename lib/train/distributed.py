"""Train one run in several processes, by data parallelism (Li et al. 2020, arXiv 2006.15704): all
hold the whole model, and each takes its share of every batch.

`machine.processes` asks for them, and torchrun starts them; each runs
`python -m lib.train.trainer FOLDER CONFIG`.
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
"""Start of a line that reports a step: its row of the trace and its point of the curve."""
Row = dict[Any, Any]
Report = Callable[[Row, Row | None], None]
"""Called for every step, some steps at a time, with its row of the trace, and its point of the dev
curve if there is one: for a log or a curve that grows during training."""


def launch(config: RunConfig, folder: Path, report: Report) -> None:
    """Train a run to its end in several processes, from its last checkpoint if there is one. They
    leave a checkpoint. If one of them is lost the others end. If this process ends, so do they:
    nobody reads the steps that they report.

    Raises UserError when one of them ends before training does.
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
            for line in agent.stdout or ():
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
