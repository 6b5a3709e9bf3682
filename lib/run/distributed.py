"""One of the processes that train one run together, by data parallelism (Li et al. 2020, arXiv
2006.15704): all hold the whole model, and each takes its share of every batch.

    torchrun … -m lib.run.distributed STUDY ARM SEED

trains a run on one machine or several of a cluster; its notebook then finds it trained. A training
cell starts the processes itself where `machine.processes` asks for more than one.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from filelock import FileLock

from lib.data.text import Corpus, CorpusError, load_corpus
from lib.results import Provenance
from lib.run.machine import choose_device
from lib.run.processes import JOB, STEP, Job, exit_with_parent
from lib.run.trainer import Row, Run, begin, main_process_first
from lib.study.io import run_folder, write_json
from lib.study.schema import RunConfig
from lib.study.study import load_study
from lib.study.yaml import ConfigError

TIMEOUT = timedelta(minutes=5)
"""How long a process waits for the others while they train: longer than one takes to write a
checkpoint."""
LOADING_TIMEOUT = timedelta(days=1)
"""How long it waits before that, while the first finds, checks or tokenizes the corpus. Whoever
started them ends all when one is lost."""


class TrainingJob(NamedTuple):
    """What the processes are to train."""

    config: RunConfig
    folder: Path
    begin: Callable[[Corpus], Provenance]
    lock: AbstractContextManager[object]
    """Of the folder; whoever wrote a job there holds it already."""


def parse_job(words: list[str]) -> TrainingJob:
    """Read what to train: a folder that holds a job, or a study, an arm and a seed. Raises
    ConfigError for words that are neither."""
    if len(words) == 1 and Path(words[0], JOB).is_file():
        job = Job.model_validate_json(Path(words[0], JOB).read_text("utf-8"))
        return TrainingJob(job.config, Path(words[0]), lambda _: job.provenance, nullcontext())
    if len(words) != 3 or not words[2].isdecimal():
        raise ConfigError(f"{' '.join(words)!r} is no run; give STUDY ARM SEED, the seed a number")
    study = load_study(words[0])
    arm, seed = study.arm(words[1]), study.require_seed(int(words[2]))
    folder = run_folder(study.name, arm.id, seed)
    lock = FileLock(folder / ".training.lock")
    return TrainingJob(arm.config, folder, lambda corpus: begin(study, arm, seed, corpus), lock)


def local_device(requested: str) -> str:
    """Choose the device of this process, of several GPUs the one of its place."""
    rank = int(os.environ["LOCAL_RANK"])
    if requested != "cpu" and rank < torch.cuda.device_count():
        torch.cuda.set_device(rank)  # before anything else touches a GPU, or all share the first
    return choose_device(requested)


def train(job: TrainingJob) -> None:
    """Train in this process of several. The first of them writes."""
    first = dist.get_rank() == 0
    job.folder.mkdir(parents=True, exist_ok=True)
    with job.lock if first else nullcontext():
        with main_process_first(dist.group.WORLD):  # what it has verified the others need not read
            corpus = load_corpus(job.config.corpus)
        shared = [job.begin(corpus) if first else None]
        dist.broadcast_object_list(shared)
        assert shared[0] is not None
        group = dist.new_group(timeout=TIMEOUT)
        run = Run(job.config, corpus, shared[0], job.folder, group)
        if first:
            write_json(job.folder / "provenance.json", run.provenance.model_dump(mode="json"))
        run.training_loop(_report if first else lambda *_: None)


def _report(row: Row, point: Row | None) -> None:
    print(f"{STEP}{json.dumps([row, point])}", flush=True)


def main(words: list[str]) -> int:
    """Train a run with the other processes that torchrun started."""
    exit_with_parent()
    try:
        job = parse_job(words)
        backend = "nccl" if local_device(job.config.machine.device) == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=LOADING_TIMEOUT)
        train(job)
    except (ConfigError, CorpusError) as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", flush=True)
        return 1
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
