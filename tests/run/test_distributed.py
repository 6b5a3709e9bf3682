"""Several processes train the run that one would have trained."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import distributed as dist

from lib.data import tokens
from lib.data.text import Corpus, CorpusError, load_corpus
from lib.run import distributed, processes
from lib.run import trainer as training
from lib.run.model import weights_digest
from lib.run.trainer import Run
from lib.study.io import write_json
from lib.study.schema import RunConfig
from lib.study.yaml import ConfigError
from tests.conftest import TINY, change
from tests.run.samples import begun, train

STEPS, KILLED_AFTER = 40, 12  # the last checkpoint before it is that of step 10
TWO = change(
    change(RunConfig.model_validate(TINY), "training", iterations=STEPS, gradient_clip=0.5),
    "machine",
    processes=2,
    micro_batch_size=1,
)


def in_forks(size: int, store: Path, work: Callable[[], object]) -> None:
    """Work in processes that need import nothing."""

    def at(rank: int) -> None:
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


def train_in_forks(config: RunConfig, corpus: Corpus, folder: Path, stop_at: int = 0) -> Run:
    """Train as several processes do; perhaps all end after a step. Read what they left."""

    def work() -> None:
        def report(row: dict[str, float], _: object) -> None:
            if row["step"] == stop_at:
                os._exit(0)

        dist.init_process_group("gloo")
        Run(config, corpus, begun(config, corpus), folder, dist.group.WORLD).training_loop(report)

    in_forks(config.machine.processes or 1, folder.with_name(f"{folder.name}-{stop_at}"), work)
    return Run(config, corpus, begun(config, corpus), folder)


def test_two_processes_equal_one_to_float64s_rounding(
    float64: None, corpus: Corpus, tmp_path: Path
) -> None:
    shared = train_in_forks(TWO, corpus, tmp_path / "shared")
    alone = train(change(TWO, "machine", processes=1), corpus, 0, tmp_path / "alone")
    assert alone.model.transformer.wte.weight.dtype == torch.float64
    assert (shared.batches, shared.initial_weights) == (alone.batches, alone.initial_weights)
    assert len(shared.trace) == STEPS
    for table, other in ((shared.trace, alone.trace), (shared.curve, alone.curve)):
        np.testing.assert_allclose(
            table.drop(columns="seconds"), other.drop(columns="seconds"), rtol=1e-12, atol=1e-18
        )
    assert shared.machine.processes == 2


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_a_rerun_ends_at_the_undisturbed_weights(
    corpus: Corpus, tmp_path: Path
) -> None:
    killed: list[tuple[float, list[psutil.Process]]] = []

    def kill_the_second(row: dict[str, float], _: object) -> None:
        if row["step"] == KILLED_AFTER and not killed:
            workers = [p for p in psutil.Process().children(recursive=True) if rank_of(p)]
            killed.append((time.monotonic(), workers))
            next(p for p in workers if rank_of(p) == "1").kill()

    with pytest.raises(processes.LostProcessError, match="process 1 ended with status -9; a rerun"):
        train(TWO, corpus, 0, tmp_path / "killed", kill_the_second)
    ((then, workers),) = killed
    assert time.monotonic() - then < 10
    assert [rank_of(p) for p in workers if p.is_running()] == []

    whole, again = (train_in_forks(TWO, corpus, tmp_path / name) for name in ("whole", "killed"))
    assert 0 < again.resumed_at[0] < STEPS
    assert weights_digest(again.model) == weights_digest(whole.model)
    np.testing.assert_array_equal(again.trace["loss"], whole.trace["loss"])
    again = train(TWO, corpus, 0, tmp_path / "killed")
    assert again.from_checkpoint  # and nothing is started for it


@pytest.mark.slow
def test_three_processes_that_resume_add_up_in_the_order_of_those_that_did_not_stop(
    corpus: Corpus, tmp_path: Path
) -> None:
    """Of two numbers every order has the same sum; of three, in float32, it has not."""
    three = change(change(TWO, "training", batch_size=6, iterations=24), "machine", processes=3)
    whole = train_in_forks(three, corpus, tmp_path / "whole")
    train_in_forks(three, corpus, tmp_path / "stopped", stop_at=KILLED_AFTER)
    again = train_in_forks(three, corpus, tmp_path / "stopped")
    assert again.resumed_at == [10]
    assert weights_digest(again.model) == weights_digest(whole.model)


def rank_of(process: psutil.Process) -> str | None:
    """The rank of a training process; None for any other."""
    try:
        return process.environ().get("RANK")
    except psutil.Error:
        return None


def test_only_the_first_process_hashes_the_shards_and_the_others_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three shards of a second each, and processes that wait two seconds for each other."""
    source = tmp_path / "own.txt"
    source.write_text("to be or not to be\n" * 200, "utf-8")
    monkeypatch.setattr(tokens, "output_root", lambda: tmp_path)
    config = change(change(TWO, "corpus", source=str(source), tokenizer="bytes"),
                    "training", iterations=2)  # fmt: skip
    provenance = begun(config, load_corpus(config.corpus))
    for checked in tmp_path.rglob("checked.json"):
        checked.unlink()
    hash_of = tokens._hash_of

    def slowly(path: Path) -> str | None:
        time.sleep(1)
        (tmp_path / f"hashed-{os.environ['RANK']}-{path.name}").touch(exist_ok=False)
        return hash_of(path)

    monkeypatch.setattr(tokens, "_hash_of", slowly)
    monkeypatch.setattr(distributed, "TIMEOUT", timedelta(seconds=2))
    job = processes.Job(config=config, provenance=provenance)
    write_json(tmp_path / processes.JOB, job.model_dump(mode="json"))
    in_forks(2, tmp_path / "store", lambda: distributed.main([str(tmp_path)]))
    assert len(Run(config, load_corpus(config.corpus), provenance, tmp_path).trace) == 2
    assert [path.name[:9] for path in tmp_path.glob("hashed-*")] == ["hashed-0-"] * 3


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """A group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_group_of_one_trains_to_the_bits_of_a_run_without_a_group(
    group: dist.ProcessGroup, tiny: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    for of, folder in ((group, tmp_path / "group"), (None, tmp_path / "none")):
        Run(tiny, corpus, begun(tiny, corpus), folder, of).training_loop(lambda *_: None)
    one, other = (train(tiny, corpus, 0, tmp_path / name) for name in ("group", "none"))
    assert one.from_checkpoint
    assert other.from_checkpoint
    assert weights_digest(one.model) == weights_digest(other.model)


def test_each_process_reads_rows_of_its_own_and_the_first_hashes_all(
    tiny: RunConfig, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tiny, corpus, begun(tiny, corpus), tmp_path)
    start = run.batch_stream.get_state()
    x, y = run.next_batch()
    hashed, run.processes = run.batches, 2
    read: list[int] = []
    draw = training.sample_batch

    def counted(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = draw(*given)
        read.append(len(drawn[0]))
        return drawn

    monkeypatch.setattr(training, "sample_batch", counted)
    shares = []
    for run.rank in (0, 1):
        run.batches = ""
        run.batch_stream.set_state(start)
        shares.append(run.next_batch())
        assert run.batches == ("" if run.rank else hashed)
    assert read == [len(x), len(x) // 2]
    for whole, *parts in zip((x, y), *shares, strict=True):
        assert torch.cat(parts).equal(whole)


def test_only_the_first_process_writes(tiny: RunConfig, corpus: Corpus, tmp_path: Path) -> None:
    run = Run(tiny, corpus, begun(tiny, corpus), tmp_path)
    run.training_step()
    run.read_notes()
    run.rank = 1
    run.save()
    assert not run.folder.exists()
    run.rank = 0
    run.save()
    assert [path.name for path in run.folder.iterdir()] == ["step-00000001"]


def test_another_number_of_processes_than_asked_for_is_refused(
    group: dist.ProcessGroup, tiny: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    two = change(tiny, "machine", processes=2)
    with pytest.raises(ConfigError, match=r"machine\.processes: 2, and 1 processes were started"):
        Run(two, corpus, begun(two, corpus), tmp_path, group)


def test_a_corpus_shorter_than_the_context_is_refused(
    group: dist.ProcessGroup, tiny: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    long = change(tiny, "model", block_size=60_000)
    with pytest.raises(CorpusError, match="block_size 60000 needs 60001"):
        Run(long, corpus, begun(long, corpus), tmp_path, group)


@pytest.mark.parametrize("words", ["", "smoke", "smoke none", "smoke none x", "smoke none 1 2"])
def test_other_words_than_a_study_an_arm_and_a_seed_are_refused(words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^'{words}' is no run; give STUDY ARM SEED"):
        distributed.parse_job(words.split())


@pytest.mark.parametrize(("asked", "placed"), [("cpu", []), ("auto", [1])])
def test_a_process_takes_its_own_gpu_and_none_for_a_study_of_the_cpu(
    asked: str, placed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert distributed.local_device(asked) == "cpu"  # no kernel runs here
    assert taken == placed


def test_torchrun_takes_a_study_an_arm_and_a_seed(corpus: Corpus) -> None:
    asked = distributed.parse_job(["smoke", "layernorm", "1"])
    assert asked.folder.parts[-3:] == ("smoke", "layernorm", "seed-1")
    assert asked.config.model.embedding_norm == "layernorm"
    provenance = asked.begin(corpus)
    assert (provenance.study, provenance.seed) == ("smoke", 1)
