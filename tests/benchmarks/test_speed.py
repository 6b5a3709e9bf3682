"""How fast a training step is, beside Hugging Face GPT-2 at the same configuration.

Run alone on a quiet machine: `./run_all.sh test -m benchmark -s`. Steps of both sides alternate in
one process, so that a machine whose speed drifts slows both; medians and ratios are what counts.
On a machine with a GPU the step is measured there.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lib.config.study import load_study
from lib.data.text import load_corpus, sample_batch
from lib.train.machine import choose_device, describe, peak_flops, prepare
from lib.train.model import GPT, count_parameters, flops_per_token
from lib.train.trainer import Trainer
from tests.train.samples import as_loaded, begun

pytestmark = pytest.mark.benchmark
ROUNDS = 20


def hugging_face_step(ours: GPT, device: str, folder: Path) -> Callable[[], None]:
    """The peer's step: batch, forward with its own loss, backward, norm, AdamW."""
    model = as_loaded(ours, 65, folder).train().to(device)
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    corpus, stream = load_corpus(load_study("final").corpus), torch.Generator().manual_seed(0)

    def step() -> None:
        x = sample_batch(corpus.train, 16, 128, stream)[0].to(device)
        loss = model(x, labels=x).loss
        loss.backward()
        torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def test_a_step_is_at_least_as_fast_as_hugging_faces(tmp_path: Path) -> None:
    config, device = load_study("final").arm("none").config, choose_device("auto")
    corpus, name = load_corpus(config.corpus), describe(prepare(config)).device_name
    trainer = Trainer(config, corpus, begun(config, corpus), tmp_path)
    steps = [trainer.training_step, hugging_face_step(trainer.model, device, tmp_path)]
    torch.use_deterministic_algorithms(False)  # the peer need not pay for ours
    seconds: list[list[float]] = [[], []]
    for _ in range(ROUNDS + 2):  # two of warm-up
        for step, column in zip(steps, seconds, strict=True):
            start = time.perf_counter()
            step()
            if device != "cpu":
                torch.accelerator.synchronize()  # a step only hands its work over
            column.append(time.perf_counter() - start)
    ours, theirs = (column[2:] for column in seconds)
    ratio = statistics.median(y / x for x, y in zip(ours, theirs, strict=True))
    per_token = flops_per_token(config.model, corpus.vocab_size, count_parameters(trainer.model))
    speed, peak = per_token * 16 * 128 / statistics.median(ours), peak_flops(name, "fp32")
    print(f"\n{statistics.median(ours):.3f} s on {name}: {ratio:.2f} × Hugging Face's speed")
    print(f"{speed:.2e} FLOP/s" + (f", {speed / peak:.0%} of the peak" if peak else ""))
    assert ratio >= 1
