"""Time and memory of a training step, beside nanoGPT's own model and step.

Run it alone on a quiet machine: `./run_all.sh test -m benchmark -n 0 -s`. It prints a Markdown
table for each model. nanoGPT's `model.py` is downloaded to `data/nanogpt.py` and checked by its
hash; without the internet put it there.

A cell holds milliseconds, their ratio to nanoGPT's eager step at the same precision, and on a GPU
the peak memory. Times are medians. Blocks of both steps alternate, so that a machine whose speed
drifts slows both. nanoGPT beside itself shows the noise. On a CPU only eager steps of the small
model are timed, in fp32 and bf16, by the process's CPU time; the rest would take minutes or is
impossible.
"""

import gc
import statistics
import sys
import time
from contextlib import redirect_stdout
from typing import get_args

import pooch
import pytest
import torch

from lib.config.errors import ConfigError
from lib.config.paths import ROOT
from lib.config.schema import RunConfig, TrainingConfig
from lib.config.study import load_study
from lib.data.text import Corpus, load_corpus, sample_batch
from lib.train.machine import autocast, choose_device, describe, matmul_precision, prepare
from lib.train.trainer import READ_EVERY, Trainer
from tests.train.samples import begun

pytestmark = pytest.mark.benchmark
NANOGPT = (
    "https://raw.githubusercontent.com/karpathy/nanoGPT/3adf61e154c3fe3fca428ad6bc3818b27a3b8291/model.py",
    "7c01703240dbec5d554527dc666e35b3df8391d0b117fddc07afcf325a21d11c",
)
DEVICE = choose_device("auto")
NOT_HERE = "not on this machine"
PRECISIONS = get_args(TrainingConfig.model_fields["precision"].annotation)
EAGER, COMPILED = {"graph": False}, {"graph": False, "compile": True}
WAYS = {
    "nanoGPT": EAGER,
    "nanoGPT, compiled": COMPILED,
    "eager": EAGER,
    "compiled": COMPILED,
    "graph": {"graph": True},
    "graph, compiled": {"graph": True, "compile": True},
}
MODELS = {
    "small": {},
    "124 M": {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024},
}
GPT2_SYMBOLS = 50_304
"""As nanoGPT rounds GPT-2's 50,257. They make it 124 million parameters."""
WARM_UP = 5
"""Steps before the first that is timed. They compile the model, and capture the graph."""


def configured(name, precision, machine):
    content = load_study("final").arm("none").config.model_dump()
    content["model"] |= MODELS[name]
    content["training"]["precision"] = precision
    if name == "124 M":
        holds_it = torch.cuda.get_device_properties(0).total_memory > 40e9
        content["training"]["batch_size"] = 12 if holds_it else 2
    content["machine"] |= machine
    return RunConfig.model_validate(content)


def our_step(config, folder):
    """Everything in a step of a run: batch, hash, forward, backward, norm, AdamW, notes."""
    corpus = load_corpus(config.corpus)
    trainer = Trainer(config, corpus, begun(config, corpus), folder)

    def step():
        torch.set_deterministic_debug_mode("error")  # which only ours pay for
        trainer.training_step()
        if len(trainer.unread) == READ_EVERY:
            trainer.read_notes()

    return step


def nanogpt_step(config):
    """nanoGPT's step: batch, forward, backward, norm, fused AdamW, and with fp16 a scaled loss."""
    pooch.retrieve(*NANOGPT, "nanogpt.py", ROOT / "data")
    sys.path.insert(0, str(ROOT / "data"))
    from nanogpt import GPT, GPTConfig

    corpus, stream = load_corpus(config.corpus), torch.Generator().manual_seed(0)
    shape = config.model.model_dump(include={"n_layer", "n_head", "n_embd", "block_size"})
    settings = GPTConfig(vocab_size=corpus.vocab_size, dropout=0.0, bias=True, **shape)
    with redirect_stdout(None):  # it prints its size
        model = GPT(settings).to(DEVICE)
    model = torch.compile(model) if config.machine.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    precision = config.training.precision
    scaler = torch.amp.GradScaler(DEVICE, enabled=precision == "fp16")
    drawn = corpus.train, corpus.ends["train"], config.training.batch_size, config.model.block_size

    def step():
        torch.set_deterministic_debug_mode("default")
        x, y = (part.to(DEVICE) for part in sample_batch(*drawn, stream))
        with matmul_precision(precision):
            with autocast(precision, DEVICE):
                loss = model(x, y)[1]
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def seconds_of(step, steps):
    clock = time.process_time if DEVICE == "cpu" else time.perf_counter
    start = clock()
    for _ in range(steps):
        step()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return (clock() - start) / steps


def compared(name, precision, way, folder):
    """Return the median seconds of a step made this way and of nanoGPT's, timed in turns, and the
    peak memory of the first in bytes. Raises ConfigError if this machine lacks something."""
    is_slow = name == "124 M" or precision == "fp16" or "compiled" in way
    if DEVICE == "cpu" and is_slow:
        raise ConfigError("it takes minutes on a CPU")
    config = configured(name, precision, WAYS[way])
    prepare(config)
    peer = nanogpt_step(configured(name, precision, EAGER))
    seconds_of(peer, WARM_UP)
    before = torch.cuda.memory_allocated()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step = nanogpt_step(config) if way.startswith("nanoGPT") else our_step(config, folder)
    seconds_of(step, WARM_UP)
    peak = torch.cuda.max_memory_allocated() - before

    rounds, block = (10, 1) if DEVICE == "cpu" else (15, 20) if name == "small" else (10, 4)
    pairs = [(seconds_of(step, block), seconds_of(peer, block)) for _ in range(rounds)]
    return *map(statistics.median, zip(*pairs, strict=True)), peak


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_as_fast_as_that_of_nanogpt(name, tmp_path, monkeypatch):
    if name == "124 M":
        monkeypatch.setattr(Corpus, "vocab_size", GPT2_SYMBOLS)
    device = describe(prepare(RunConfig())).device_name
    print(
        f"\n| {name} on {device} | {' | '.join(PRECISIONS)} |",
        "|---" * (len(PRECISIONS) + 1) + "|",
        sep="\n",
    )
    ratios = {precision: [] for precision in PRECISIONS}
    for way in WAYS:
        cells = []
        for precision in PRECISIONS:
            try:
                took, peers, peak = compared(name, precision, way, tmp_path / f"{way}, {precision}")
            except ConfigError:
                cells.append(NOT_HERE)
            except torch.OutOfMemoryError:
                cells.append("out of memory")
            else:
                cells.append(f"{1000 * took:.2f} ms, {took / peers:.2f} ×")
                if DEVICE == "cuda":
                    cells[-1] += f", {peak / 2**30:.2f} GiB"
                if not way.startswith("nanoGPT"):
                    ratios[precision].append(took / peers)
            torch.compiler.reset()  # it keeps models, and gives up after eight
            gc.collect()
            torch.cuda.empty_cache()
        print(f"| {way} | {' | '.join(cells)} |", flush=True)
    assert all(min(of) < 1.1 for of in ratios.values() if of)
