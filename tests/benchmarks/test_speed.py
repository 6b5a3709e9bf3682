"""How fast a training step is, beside Hugging Face GPT-2 at the same configuration; and a study.

Run alone on a quiet machine: `./run_all.sh test -m benchmark -s`. Steps of both sides alternate in
one process, so that a machine whose speed drifts slows both; medians and ratios are what counts.
Even these differ by a tenth from run to run on shared machines. On a machine with a GPU the step is
measured there.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import torch

from lib.data.text import load_corpus, sample_batch
from lib.run.cost import peak_flops
from lib.run.machine import choose_device, describe, prepare
from lib.run.trainer import READ_EVERY, Run
from lib.study.study import load_study
from lib.workflow.forked import HUGE_PAGES
from tests.run.samples import begun, hugging_face

pytestmark = pytest.mark.benchmark
CORES = multiprocessing.cpu_count()
DEVICE = choose_device("auto")


def our_step(folder: Path) -> Callable[[], None]:
    """All that one step of `final` does: batch, hash, backward, norm, AdamW, trace."""
    arm = load_study("final").arm("none")
    corpus = load_corpus(arm.config.corpus)
    run = Run(arm.config, corpus, begun(arm.config, corpus), folder)

    def step() -> None:
        run.training_step()
        if len(run.notes) == READ_EVERY:
            run.read_notes()

    return step


def hugging_face_step() -> Callable[[], None]:
    """The peer's step: batch, forward with its own loss, backward, norm, AdamW."""
    model = hugging_face(n_layer=8, n_head=8, n_embd=128, block_size=128).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    corpus, stream = load_corpus(load_study("final").corpus), torch.Generator().manual_seed(0)

    def step() -> None:
        x = sample_batch(corpus.train, 16, 128, stream)[0].to(DEVICE)
        loss = model(x, labels=x).loss
        loss.backward()
        torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def timed(steps: list[Callable[[], None]], rounds: int) -> list[list[float]]:
    """Time `steps` in turn; seconds per step and round, after two rounds of warm-up."""
    seconds: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds + 2):
        for step, column in zip(steps, seconds, strict=True):
            start = time.perf_counter()
            step()
            if DEVICE != "cpu":
                torch.accelerator.synchronize()  # a step only hands its work over
            column.append(time.perf_counter() - start)
    return [column[2:] for column in seconds]


def flop_per_step() -> float:
    """Matrix products of forward and backward (3 × forward): linear layers, output, attention."""
    tokens, width, layers = 16 * 128, 128, 8
    linear = layers * 12 * width * width + 65 * width
    attention = layers * 2 * 128 * width
    return 3 * 2 * tokens * (linear + attention)


def worker(folder: Path, barrier: Barrier, seconds: "multiprocessing.Queue[float]") -> None:
    step = our_step(folder)
    for _ in range(3):
        step()
    barrier.wait()
    start = time.perf_counter()
    for _ in range(20):
        step()
    seconds.put((time.perf_counter() - start) / 20)


def test_a_step_is_at_least_as_fast_as_hugging_faces(tmp_path: Path) -> None:
    config = load_study("final").arm("none").config
    name = describe(prepare(config)).device_name
    ours, theirs = our_step(tmp_path), hugging_face_step()
    torch.use_deterministic_algorithms(False)  # the peer need not pay for ours
    a, b = timed([ours, theirs], 20)
    ratio = statistics.median(y / x for x, y in zip(a, b, strict=True))
    step, peak = statistics.median(a), peak_flops(name, "fp32", DEVICE)
    print(f"\n{step * 1000:.0f} ms on {name}: {ratio:.2f} × Hugging Face's speed, "
          f"{flop_per_step() / step / peak:.0%} of the peak")  # fmt: skip
    assert ratio >= 1


@pytest.mark.skipif(CORES < 2 or DEVICE != "cpu", reason="needs two cores and no GPU")
def test_two_workers_beat_one_process_with_all_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers run as `lib.workflow.execution` runs a kernel, the peer as a user would start it."""
    torch.set_num_threads(CORES)
    (theirs,) = timed([hugging_face_step()], 10)
    for name, value in HUGE_PAGES.items():
        monkeypatch.setenv(name, value)
    context = multiprocessing.get_context("spawn")
    barrier, seconds = context.Barrier(2), context.Queue()
    workers = [
        context.Process(target=worker, args=(tmp_path / str(i), barrier, seconds)) for i in (0, 1)
    ]
    for process in workers:
        process.start()
    per_step = max(seconds.get(timeout=300) for _ in workers) / 2
    for process in workers:
        process.join()
    ratio = statistics.median(theirs) / per_step
    print(
        f"\ntwo workers: {ratio:.2f} × the throughput of Hugging Face's step with {CORES} threads"
    )
    assert ratio >= 1.25
