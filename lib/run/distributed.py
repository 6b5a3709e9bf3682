"""One of the processes that train one run together, by data parallelism (Li et al. 2020, arXiv
2006.15704): all hold the whole model, and each takes its share of every batch.

    torchrun … -m lib.run.distributed STUDY ARM SEED

trains a run on one machine or several of a cluster; its notebook then finds it trained. A training
cell starts the processes itself where `machine.processes` asks for more than one.
"""

import json
import os
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from filelock import FileLock

from lib.data.corpus import CorpusError, load_corpus
from lib.run import lifeline
from lib.run.machine import choose_device
from lib.run.processes import JOB, STEP, Job
from lib.run.training import Row, Run, begin, first_alone
from lib.study.config import load_study
from lib.study.errors import ConfigError
from lib.study.files import write_json
from lib.study.paths import run_folder

PATIENCE = timedelta(minutes=5)
"""How long a process waits for the others while they train: longer than one takes to write a
checkpoint."""
LOADING = timedelta(days=1)
"""How long it waits before that, while the first finds, checks or tokenizes the corpus. Whoever
started them ends all when one is lost."""


def _device(words: list[str]) -> str:
    """The device that a job asks for, of this process. Raises ConfigError for words that are no
    job."""
    if len(words) == 1 and Path(words[0], JOB).is_file():
        asked = Job.model_validate_json(Path(words[0], JOB).read_text("utf-8")).config
    elif len(words) == 3 and words[2].isdecimal():
        asked = load_study(words[0]).arm(words[1]).config
    else:
        raise ConfigError(f"{' '.join(words)!r} is no run; give STUDY ARM SEED, the seed a number")
    place = int(os.environ["LOCAL_RANK"])
    if asked.machine.device != "cpu" and place < torch.cuda.device_count():
        torch.cuda.set_device(place)  # before anything else touches a GPU, or all share the first
    return choose_device(asked.machine.device)


def _job(words: list[str]) -> tuple[Job, Path]:
    """Read what to do: a folder that holds a job, or a study, an arm and a seed."""
    if len(words) == 1:
        return Job.model_validate_json(Path(words[0], JOB).read_text("utf-8")), Path(words[0])
    study = load_study(words[0])
    arm, seed = study.arm(words[1]), study.require_seed(int(words[2]))
    corpus = load_corpus(arm.config.corpus)
    provenance = begin(study, arm, seed, corpus)
    folder = run_folder(study.name, arm.id, seed)
    write_json(folder / "provenance.json", provenance.model_dump(mode="json"))
    return Job(config=arm.config, provenance=provenance), folder


def _report(row: Row, point: Row | None) -> None:
    if dist.get_rank() == 0:
        print(f"{STEP}{json.dumps([row, point])}", flush=True)


def _train(words: list[str]) -> None:
    """Train in this process of several."""
    found = [_job(words) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    assert found[0] is not None
    job, folder = found[0]
    alone = dist.get_rank() == 0 and len(words) > 1  # else whoever launched this holds the lock
    with FileLock(folder / ".training.lock") if alone else nullcontext():
        with first_alone(dist.group.WORLD):  # what it has verified the others need not read
            corpus = load_corpus(job.config.corpus)
        group = dist.new_group(timeout=PATIENCE)
        Run(job.config, corpus, job.provenance, folder, group).complete(_report)


def main(words: list[str]) -> int:
    """Train a run with the other processes that torchrun started."""
    lifeline.hold_on()
    try:
        backend = "nccl" if _device(words) == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=LOADING)
        _train(words)
    except (ConfigError, CorpusError) as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", flush=True)
        return 1
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
