"""Several processes train a run to the result of one process."""

import multiprocessing
import os
import signal
import time
from functools import partial

import numpy as np
import psutil
import pytest
import torch
from torch import distributed as dist

from lib.config.errors import UserError
from lib.config.schema import RunConfig
from lib.train.model import weights_digest
from lib.train.trainer import Trainer
from tests.conftest import TINY, change
from tests.train.samples import begun, train

STEPS, KILLED_AFTER = 16, 12  # the last checkpoint before it is that of step 10
TWO = change(
    change(RunConfig.model_validate(TINY), "training", iterations=STEPS, gradient_clip=0.5),
    "machine",
    processes=2,
    micro_batch_size=1,
)


def in_forks(size, store, work):
    """Fork worker processes, so that they need not import anything."""

    def at(rank):
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        place = {"store": dist.FileStore(str(store), size), "rank": rank, "world_size": size}
        dist.init_process_group = partial(dist.init_process_group, **place)
        os._exit(work() or 0)

    forks = multiprocessing.get_context("fork")
    started = [forks.Process(target=at, args=(rank,)) for rank in range(size)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * size


def train_in_forks(config, corpus, folder, stop_at=0):
    """Train with several processes, perhaps until all are killed after a step. Return what they
    left."""

    def work():
        def report(row, _):
            if row["step"] == stop_at:
                os._exit(0)

        dist.init_process_group("gloo")
        Trainer(config, corpus, begun(config, corpus), folder).training_loop(report)

    in_forks(config.machine.processes or 1, folder.with_name(f"{folder.name}-{stop_at}"), work)
    return Trainer(config, corpus, begun(config, corpus), folder)


def test_two_processes_equal_one_up_to_float64_rounding(float64, corpus, tmp_path):
    shared = train_in_forks(TWO, corpus, tmp_path / "shared")
    alone = train(change(TWO, "machine", processes=1), corpus, 0, tmp_path / "alone")
    assert alone.model.transformer.wte.weight.dtype == torch.float64
    assert (shared.batches, shared.initial_weights) == (alone.batches, alone.initial_weights)
    assert len(shared.trace) == STEPS
    for name in ("trace", "curve"):
        tables = (getattr(run, name).drop(columns="seconds") for run in (shared, alone))
        np.testing.assert_allclose(*tables, rtol=1e-12, atol=1e-18)
    assert shared.machine.processes == 2


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_a_rerun_has_undisturbed_weights(corpus, tmp_path):
    killed = []

    def kill_the_second(row, _):
        if row["step"] == KILLED_AFTER and not killed:
            workers = [p for p in psutil.Process().children(recursive=True) if rank_of(p)]
            killed.append((time.monotonic(), workers))
            next(p for p in workers if rank_of(p) == "1").kill()

    with pytest.raises(UserError, match="a process ended early; run this again"):
        train(TWO, corpus, 0, tmp_path / "killed", kill_the_second)
    ((then, workers),) = killed
    assert time.monotonic() - then < 10
    assert [rank_of(p) for p in workers if p.is_running()] == []

    whole, again = (train_in_forks(TWO, corpus, tmp_path / name) for name in ("whole", "killed"))
    assert 0 < again.resumed_at[0] < STEPS
    assert weights_digest(again.model) == weights_digest(whole.model)
    np.testing.assert_array_equal(again.trace["loss"], whole.trace["loss"])
    again = train(TWO, corpus, 0, tmp_path / "killed")
    assert again.from_checkpoint  # and no process is started


@pytest.mark.slow
def test_three_processes_that_resume_add_up_in_the_order_of_those_that_go_on(corpus, tmp_path):
    """Two numbers have the same sum in any order; three float32 numbers may not."""
    three = change(change(TWO, "training", batch_size=6, iterations=24), "machine", processes=3)
    whole = train_in_forks(three, corpus, tmp_path / "whole")
    train_in_forks(three, corpus, tmp_path / "stopped", stop_at=KILLED_AFTER)
    again = train_in_forks(three, corpus, tmp_path / "stopped")
    assert again.resumed_at == [10]
    assert weights_digest(again.model) == weights_digest(whole.model)


def rank_of(process):
    """Return the rank of a training process; None for any other process."""
    try:
        return process.environ().get("RANK")
    except psutil.Error:
        return None


@pytest.mark.slow
def test_processes_end_soon_after_their_parent(corpus, tmp_path):
    """Nobody reads the progress that they report."""
    long = change(TWO, "training", iterations=100_000)
    fork = os.fork()
    if fork == 0:
        try:
            train(long, corpus, 0, tmp_path, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        finally:
            os._exit(1)
    os.waitpid(fork, 0)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and workers_of(tmp_path):
        time.sleep(0.2)
    assert workers_of(tmp_path) == []


def workers_of(folder):
    processes = psutil.process_iter(["cmdline"])
    return [p for p in processes if str(folder) in (p.info["cmdline"] or [])]
