"""How fast a training step is, beside Hugging Face's GPT-2 and nanoGPT's own model and loop.

Run alone on a quiet machine: `NANOGPT=<a clone of karpathy/nanoGPT> ./run_all.sh test -m benchmark
-n 0 -s`; without the clone nanoGPT is left out. Blocks of steps alternate in one process, so that a
machine whose speed drifts slows all; medians and ratios are what counts. On a CPU there are neither
graphs nor the larger model.
"""

import os
import statistics
import sys
import time

import pytest
import torch

from lib.config.schema import RunConfig
from lib.config.study import load_study
from lib.data.text import load_corpus, sample_batch
from lib.train.machine import autocast, choose_device, describe, prepare
from lib.train.trainer import READ_EVERY, Trainer
from tests.train.samples import as_loaded, begun

pytestmark = pytest.mark.benchmark
DEVICE = choose_device("auto")
NANOGPT = os.environ.get("NANOGPT", "")
ROUNDS, BLOCK = (20, 1) if DEVICE == "cpu" else (15, 20)
MODELS = {
    "final": {},
    "124M": {
        "model": {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024},
        "training": {"batch_size": 12, "precision": "bf16"},
    },
}


def configured(name, **machine):
    content = load_study("final").arm("none").config.model_dump()
    for section, fields in MODELS[name].items():
        content[section] |= fields
    content["machine"] |= machine
    return RunConfig.model_validate(content)


def our_step(trainer):
    """All that a step of a run does: batch, hash, forward, backward, norm, AdamW, notes."""

    def step():
        trainer.training_step()
        if len(trainer.unread) == READ_EVERY:
            trainer.read_notes()

    return step


def peer_step(model, loss_of, config):
    """A peer's step: batch, forward with its own loss, backward, norm, fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    corpus, stream = load_corpus(config.corpus), torch.Generator().manual_seed(0)
    ids, ends = corpus.train, corpus.ends["train"]
    size = config.training.batch_size, config.model.block_size

    def step():
        x, y = (part.to(DEVICE) for part in sample_batch(ids, ends, *size, stream))
        with autocast(config.training.precision, DEVICE):
            loss = loss_of(model, x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def nanogpt(config, compiled):
    sys.path.insert(0, NANOGPT)
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    shape = config.model.model_dump(include={"n_layer", "n_head", "n_embd", "block_size"})
    vocab_size = load_corpus(config.corpus).vocab_size
    model = GPT(GPTConfig(vocab_size=vocab_size, dropout=0.0, bias=True, **shape)).to(DEVICE)
    model = torch.compile(model) if compiled else model
    return peer_step(model, lambda model, x, y: model(x, y)[1], config)


def timed(steps, ours):
    """Time steps in turn, a block at a time, after three blocks of warm-up: median seconds each.
    Only ours pay for determinism."""
    seconds = {name: [] for name in steps}
    for _ in range(ROUNDS + 3):
        for name, step in steps.items():
            torch.set_deterministic_debug_mode("error" if name in ours else "default")
            start = time.perf_counter()
            for _ in range(BLOCK):
                step()
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - start) / BLOCK)
    return {name: statistics.median(of[3:]) for name, of in seconds.items()}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_at_least_as_fast_as_its_peers(name, tmp_path):
    config = configured(name)
    if DEVICE == "cpu" and name != "final":
        pytest.skip("takes a minute a step on a CPU")
    ways = {"eager": {"graph": False}}
    if DEVICE == "cuda":
        ways |= {"graph": {}, "graph, compiled": {"compile": True}}
    corpus = load_corpus(config.corpus)
    trainers = {
        way: Trainer(of, corpus, begun(of, corpus), tmp_path / way)
        for way, of in ((way, configured(name, **ways[way])) for way in ways)
    }
    steps = {way: our_step(trainer) for way, trainer in trainers.items()}
    if name == "final":
        peer = tmp_path / "peer"
        peer.mkdir()
        ours = trainers["eager"].model.cpu()
        model = as_loaded(ours, peer).to(DEVICE).train()
        ours.to(DEVICE)
        loss = lambda model, x, y: model(x, labels=x).loss  # noqa: E731
        steps["Hugging Face"] = peer_step(model, loss, config)
    if NANOGPT:
        steps["nanoGPT"] = nanogpt(config, compiled=False)
        steps |= {"nanoGPT compiled": nanogpt(config, compiled=True)} if DEVICE == "cuda" else {}
    seconds = timed(steps, ways)

    device_name = describe(prepare(config)).device_name
    print(f"\n{name} on {device_name}, {config.training.precision}:")
    for way, took in seconds.items():
        print(f"  {way:17} {1000 * took:8.2f} ms, {seconds['eager'] / took:5.2f} × eager")
    fastest = min(seconds[way] for way in ways)
    peers = [seconds[way] for way in seconds if way not in ways]
    assert fastest <= min(peers, default=fastest)
