"""A step replayed as a CUDA graph makes the bits that a step launched by the host makes."""

from typing import get_args

import pytest
import torch

from lib.config.schema import EmbeddingNorm, RunConfig
from lib.train import graph
from lib.train.graph import StepGraph, why_eager
from lib.train.trainer import Trainer
from tests.train.samples import NANOCHAT, begun, train

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
STEPS = 60
BASE = {
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 16},
    "training": {"iterations": STEPS, "batch_size": 8, "warmup_iterations": 5},
    "evaluation": {"interval": 20, "items_per_task": 0},
    "machine": {"device": "cuda", "checkpoint_interval": 20},
}
COSINE = {"schedule": "warmup_cosine", "embedding_learning_rate_ratio": 35.0, "gradient_clip": 1.0}
CASES = {
    **{norm: {"model": {"embedding_norm": norm}} for norm in get_args(EmbeddingNorm)},
    "cosine, clip, ratio": {"training": COSINE},
    "untied": {"model": {"tied": False}, "training": COSINE},
    "modern": {"model": NANOCHAT, "training": COSINE},
    "bf16": {"training": COSINE | {"precision": "bf16"}},
    "micro-batches": {"training": COSINE, "machine": {"micro_batch_size": 2}},
    "dropout, so eager": {"model": {"dropout": 0.1}},
    "fp16, so eager": {"training": {"precision": "fp16"}},
    "Muon, so eager": {"training": COSINE | {"optimizer": "muon"}},
    "diverges": {"training": {"learning_rate": 1e6}},
}


def config_of(case, **machine_settings):
    content = {section: dict(fields) for section, fields in BASE.items()}
    for section, fields in CASES[case].items():
        content[section] |= fields
    content["machine"] |= machine_settings
    return RunConfig.model_validate(content)


def end_of(run):
    """All that two runs to the same bits share."""
    weights = {name: weight.cpu() for name, weight in run.model.state_dict().items()}
    columns = [name for name in run.trace if name != "seconds"]
    trace = run.trace[columns].to_dict("list")
    return {"weights": weights, "trace": trace, "step": run.step, "diverged": run.diverged_at}


def assert_equal(one, other):
    torch.testing.assert_close(one.pop("weights"), other.pop("weights"), rtol=0, atol=0)
    torch.testing.assert_close(one.pop("trace"), other.pop("trace"), rtol=0, atol=0, equal_nan=True)
    assert one == other


@CUDA
@pytest.mark.parametrize("case", CASES)
def test_a_graph_makes_the_bits_of_the_eager_step(case, corpus, tmp_path):
    graph = train(config_of(case, graph="auto"), corpus, 0, tmp_path / "graph")
    eager = train(config_of(case, graph=False), corpus, 0, tmp_path / "eager")
    assert graph.machine.graph == (not case.endswith("eager"))
    assert not eager.machine.graph
    assert (graph.diverged_at is not None) == (case == "diverges")
    assert_equal(end_of(graph), end_of(eager))


@CUDA
@pytest.mark.parametrize("first", ["auto", False])
def test_a_run_goes_on_as_a_graph_or_eagerly_to_the_same_bits(first, corpus, tmp_path):
    whole = train(config_of("cosine, clip, ratio"), corpus, 0, tmp_path / "whole")
    config = config_of("cosine, clip, ratio", graph=first)
    begun_run = Trainer(config, corpus, begun(config, corpus), tmp_path / "parts")
    begun_run.evaluate()
    for _ in range(17):
        begun_run.training_step()
    begun_run.read_notes()
    begun_run.save()
    other = config_of("cosine, clip, ratio", graph=False if first else "auto")
    resumed = train(other, corpus, 0, tmp_path / "parts")
    assert resumed.resumed_at == [17]
    assert_equal(end_of(resumed), end_of(whole))


class MadeUp:
    """Stands for CUDA's streams and graphs: a replay makes the captured update once more."""

    def __init__(self):
        self.captured = []

    def wait_stream(self, _): ...

    def __enter__(self): ...

    def __exit__(self, *_): ...

    def replay(self):
        (step,) = self.captured
        step.notes.copy_(step.update(step.x, step.y))


def test_three_steps_warm_up_and_every_later_one_replays_on_the_batch_at_hand(monkeypatch):
    made_up = MadeUp()
    for name in ("Stream", "CUDAGraph", "current_stream", "stream", "graph"):
        monkeypatch.setattr(graph.torch.cuda, name, lambda *_, **__: made_up)
    updates = []

    def update(x, y):
        updates.append(float(x.sum()))
        return x.sum() + 10 * y.sum()

    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    step = StepGraph(update, optimizer)
    made_up.captured.append(step)
    noted = [step(torch.full((2,), float(i)), torch.ones(2)) for i in range(6)]
    assert [float(note) for note in noted] == [20, 22, 24, 26, 28, 30]  # none is overwritten
    # The fourth is captured, which on a device executes nothing, and then replayed as are the rest.
    assert updates == [0, 2, 4, 6, 6, 8, 10]
    assert optimizer.param_groups[0]["capturable"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        ({"model": {"dropout": 0.1}, "training": {"precision": "fp16"}}, "dropout, fp16"),
        ({"machine": {"activation_checkpointing": True}}, "activation checkpointing"),
        ({"training": {"optimizer": "muon"}}, "Muon"),
    ],
)
def test_what_no_graph_holds_is_named(fields, reason):
    config = RunConfig.model_validate({"corpus": {"source": "synthetic"}} | fields)
    assert why_eager(config, 1) == reason
    assert "several processes" in why_eager(config, 2)
