"""Several processes that train one run together, by data parallelism (Li et al. 2020, arXiv
2006.15704): all hold the whole model, and each takes its share of every batch.

A training cell starts them, by torchrun, where `machine.processes` asks for more than one.
"""

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from lib.config.io import ROOT, relative, write_json
from lib.config.schema import Machine, RunConfig
from lib.config.yaml import ConfigError
from lib.data.text import CorpusError, load_corpus
from lib.results import Provenance
from lib.train.machine import choose_device
from lib.train.trainer import Report, Row, Trainer, main_process_first

JOB, LOG = "job.json", "processes.log"
"""What the processes are to do, and what they say, in the run's folder."""
STEP = "\x1estep "
"""What a line begins with that reports a step: its row of the trace and its point of the curve."""
TIMEOUT, LOADING_TIMEOUT = timedelta(minutes=5), timedelta(days=1)
"""How long a process waits for the others: while they train, longer than one takes to write a
checkpoint; and before that, while the first finds, checks or tokenizes the corpus."""


class LostProcessError(RuntimeError):
    """A process that ended before training did; the message says which and what to do."""


def launch(
    config: RunConfig, machine: Machine, provenance: Provenance, folder: Path, report: Report
) -> None:
    """Train a run to its end in processes of their own, from its last checkpoint if there is one.
    What they leave is a checkpoint. All of them end with the first that is lost, and soon after
    this process: then there is nobody that they could report a step to.

    Raises LostProcessError.
    """
    job = {"config": config.model_dump(), "provenance": provenance.model_dump(mode="json")}
    write_json(folder / JOB, job)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1"]  # this machine's name need not be known to it
    command += ["--nproc-per-node", str(machine.processes), "-m", __name__, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": str(machine.threads)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with (
        (folder / LOG).open("w", encoding="utf-8") as log,
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
        said = (folder / LOG).read_text("utf-8")
        error = re.search(r"^error: (.*)$", said, re.MULTILINE)
        lost = re.search(r"Root Cause.*?rank\s*: (\d+).*?exitcode\s*: (-?\d+)", said, re.DOTALL)
        reason = "process {} ended with status {}".format(*lost.groups()) if lost else "none began"
        raise LostProcessError(
            f"{error[1] if error else reason}; a rerun continues from the last checkpoint "
            f"(what the processes said: {relative(folder / LOG)})"
        )


def main(folder: Path) -> int:
    """Train in this process of several what a folder's job says. The first of them writes."""
    job = json.loads((folder / JOB).read_text("utf-8"))
    config = RunConfig.model_validate(job["config"])
    rank = int(os.environ["LOCAL_RANK"])
    if config.machine.device != "cpu" and rank < torch.cuda.device_count():
        torch.cuda.set_device(rank)  # before anything else touches a GPU, or all share the first
    try:
        backend = "nccl" if choose_device(config.machine.device) == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=LOADING_TIMEOUT)
        with main_process_first(dist.group.WORLD):  # what it has verified the others need not read
            corpus = load_corpus(config.corpus)
        provenance = Provenance.model_validate(job["provenance"])
        run = Trainer(config, corpus, provenance, folder, dist.new_group(timeout=TIMEOUT))
        run.training_loop(_report if rank == 0 else lambda *_: None)
    except (ConfigError, CorpusError) as error:
        if rank == 0:
            print(f"error: {error}", flush=True)
        return 1
    dist.destroy_process_group()
    return 0


def _report(row: Row, point: Row | None) -> None:
    print(f"{STEP}{json.dumps([row, point])}", flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
