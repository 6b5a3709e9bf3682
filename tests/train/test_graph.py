"""A step replayed as a CUDA graph makes the bits that a step launched by the host makes.

Without a GPU, `Replayed` stands for the graph, so that these tests also run on a CPU.
"""

import gc
import weakref
from contextlib import nullcontext
from functools import partial
from typing import get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lib.config.errors import ConfigError
from lib.config.schema import EmbeddingNorm, RunConfig
from lib.train import graph
from lib.train.graph import StepGraph, why_eager
from lib.train.machine import prepare
from lib.train.trainer import Trainer
from tests.train.samples import NANOCHAT, begun, train

STEPS = 30
BASE = {
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 16},
    "training": {"iterations": STEPS, "batch_size": 8, "warmup_iterations": 5},
    "evaluation": {"interval": 30, "items_per_task": 0},
    "machine": {"checkpoint_interval": 10},
}
COSINE = {"schedule": "warmup_cosine", "embedding_learning_rate_ratio": 35.0, "gradient_clip": 1.0}
CASES = {
    **{norm: {"model": {"embedding_norm": norm}} for norm in get_args(EmbeddingNorm)},
    "cosine, clip, ratio": {"training": COSINE},
    "untied": {"model": {"tied": False}, "training": COSINE},
    "modern": {"model": NANOCHAT, "training": COSINE},
    "tf32": {"training": COSINE | {"precision": "tf32"}},
    "bf16": {"training": COSINE | {"precision": "bf16"}},
    "fp16": {"training": COSINE | {"precision": "fp16"}},
    "fp16 diverges": {"training": {"precision": "fp16"}},
    "micro-batches": {"training": COSINE, "machine": {"micro_batch_size": 2}},
    "diverges": {"training": {"learning_rate": 1e6}},
}


def of_memory(value):
    """Return the address of each tensor in a nested value."""
    return [t.untyped_storage() for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


class Replayed(TorchDispatchMode):
    """A stand-in for a CUDA graph, which records operations and the memory that they read and
    write. A capture leaves that memory unchanged, and fails if the host reads from it. A replay
    runs the same operations on the same memory."""

    def __init__(self):
        super().__init__()
        self.operations = []
        self.before = {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        assert operation is not torch.ops.aten._local_scalar_dense.default, "the host waits"
        kwargs = kwargs or {}
        for memory in of_memory((args, kwargs)):
            self.before.setdefault(memory.data_ptr(), (memory, memory.clone()))
        made = operation(*args, **kwargs)
        self.operations.append((operation, args, kwargs, made))
        return made

    def __exit__(self, *error):
        super().__exit__(*error)
        for memory, content in self.before.values():
            memory.copy_(content)

    @torch.no_grad()
    def replay(self):
        for operation, args, kwargs, made in self.operations:
            again = operation(*args, **kwargs)
            for place, content in zip(of_memory(made), of_memory(again), strict=True):
                if place.data_ptr() != content.data_ptr():  # otherwise in place, or a view
                    place.copy_(content)


@pytest.fixture
def stand_in(monkeypatch):
    """Make `StepGraph` replay on a CPU."""
    stream = nullcontext()
    stream.wait_stream = lambda _: None
    monkeypatch.setattr(graph, "capture_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Replayed)
    monkeypatch.setattr(torch.cuda, "graph", lambda replayed, stream: replayed)


@pytest.fixture
def on_cpu(stand_in, monkeypatch):
    """Train runs on a CPU as on a GPU: as a graph, with the learning rate on the device."""

    def prepared(config):
        without = config.machine.model_copy(update={"graph": False})
        machine = prepare(config.model_copy(update={"machine": without}))
        return machine.model_copy(update={"graph": config.machine.graph is True})

    def load(run, load=Trainer.load):
        load(run)
        for group in run.optimizer.param_groups:
            group["lr"] = torch.zeros(())

    monkeypatch.setattr("lib.train.machine.prepare", prepared)
    monkeypatch.setattr(Trainer, "load", load)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cpu":
        request.getfixturevalue("on_cpu")
    return request.param


@pytest.fixture(autouse=True)
def overflows(request, monkeypatch):
    """Have fp16's loss scale begin too large and grow at every second step, so that steps are
    skipped in the warm-up and in replays.

    About eight are skipped first. If five are a divergence, later ones could train, were the run
    not stopped."""
    scaler = partial(torch.amp.GradScaler, init_scale=2.0**26, growth_interval=2)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    if "fp16 diverges" in request.node.name:
        monkeypatch.setattr("lib.train.trainer.OVERFLOWS", 5)


def config_of(case, **machine_settings):
    content = {section: dict(fields) for section, fields in BASE.items()}
    for section, fields in CASES[case].items():
        content[section] |= fields
    content["machine"] |= machine_settings
    return RunConfig.model_validate(content)


def end_of(run):
    """Return everything in which two runs with the same bits must agree."""
    weights = {name: weight.cpu() for name, weight in run.model.state_dict().items()}
    columns = [name for name in run.trace if name != "seconds"]
    trace = run.trace[columns].to_dict("list")
    return {"weights": weights, "trace": trace, "step": run.step, "diverged": run.diverged_at}


def assert_equal(one, other):
    torch.testing.assert_close(one.pop("weights"), other.pop("weights"), rtol=0, atol=0)
    torch.testing.assert_close(one.pop("trace"), other.pop("trace"), rtol=0, atol=0, equal_nan=True)
    assert one == other


def needs(case, device):
    """Skip a precision that this device does not have."""
    try:
        prepare(config_of(case, device=device))
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("case", CASES)
def test_graph_equals_eager_to_the_bit(case, device, corpus, tmp_path):
    needs(case, device)
    captured = train(config_of(case, device=device, graph=True), corpus, 0, tmp_path / "graph")
    eager = train(config_of(case, device=device, graph=False), corpus, 0, tmp_path / "eager")
    assert captured.machine.graph
    assert not eager.machine.graph
    assert (captured.diverged_at is not None) == ("diverges" in case)
    if case == "fp16":
        assert set(captured.trace["skipped"][StepGraph.WARM_UP :]) == {True, False}
    assert_equal(end_of(captured), end_of(eager))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("case", ["cosine, clip, ratio", "fp16"])
def test_resumes_as_graph_or_eager_to_the_bit(case, first, device, corpus, tmp_path):
    whole = train(config_of(case, device=device, graph=True), corpus, 0, tmp_path / "whole")
    config = config_of(case, device=device, graph=first)
    begun_run = Trainer(config, corpus, begun(config, corpus), tmp_path / "parts")
    begun_run.evaluate()
    for _ in range(17):
        begun_run.training_step()
    begun_run.read_notes()
    begun_run.save()
    other = config_of(case, device=device, graph=not first)
    resumed = train(other, corpus, 0, tmp_path / "parts")
    assert resumed.resumed_at == [17]
    assert_equal(end_of(resumed), end_of(whole))


@pytest.fixture
def no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
def test_run_frees_its_graph_and_memory(device, corpus, tmp_path):
    """So a notebook's training cell can be run again and again."""
    allocated, reserved = [], []
    for i in range(4):
        run = train(config_of("none", device=device, graph=True), corpus, 0, tmp_path / f"{i}")
        assert not [thing for thing in gc.get_objects() if type(thing) is StepGraph]
        allocated.append(torch.cuda.memory_allocated())  # 0 on a CPU
        reserved.append(torch.cuda.memory_reserved())
    ended = weakref.ref(run)
    del run
    assert ended() is None
    # The first run also allocates cuBLAS's workspaces, and no other run is beside it.
    assert allocated[3] <= allocated[1]
    assert reserved[3] <= reserved[1]


@pytest.mark.gpu
def test_tf32_rounds_training_and_no_evaluation(corpus, tmp_path):
    needs("tf32", "cuda")
    runs = {}
    for precision in ("fp32", "tf32"):
        case = "cosine, clip, ratio" if precision == "fp32" else "tf32"
        config = config_of(case, device="cuda")
        runs[precision] = train(config, corpus, 0, tmp_path / precision)
    curves = [run.curve["dev_loss"] for run in runs.values()]
    losses = [run.trace["loss"].to_numpy() for run in runs.values()]
    assert curves[0][0] == curves[1][0]  # of the untrained model
    assert (losses[0] != losses[1]).any()
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


@pytest.mark.gpu
def test_a_batch_is_copied_from_pinned_memory_to_where_the_graph_reads(
    corpus, tmp_path, monkeypatch
):
    batches = []
    next_batch = Trainer.next_batch
    monkeypatch.setattr(
        Trainer, "next_batch", lambda run: batches.append(next_batch(run)) or batches[-1]
    )
    config = config_of("none", device="cuda")
    run = Trainer(config, corpus, begun(config, corpus), tmp_path / "run")
    for _ in range(STEPS):
        run.training_step()
        if run.step > StepGraph.WARM_UP:
            assert run.graph.x.cpu().equal(batches[-1][0])
            assert run.graph.y.cpu().equal(batches[-1][1])
    assert all(part.is_pinned() for batch in batches for part in batch)


def test_three_steps_warm_up_and_every_later_one_replays_on_the_batch_at_hand(stand_in):
    updates = []

    def update(x, y):
        updates.append(x)
        return x.sum() + 10 * y.sum()

    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    step = StepGraph(update, optimizer)
    noted = [step(torch.full((2,), float(i)), torch.ones(2)) for i in range(6)]
    assert [float(note) for note in noted] == [20, 22, 24, 26, 28, 30]  # none is overwritten
    assert len(updates) == 4  # the fourth is captured, then replayed like the rest
    assert optimizer.param_groups[0]["capturable"]

    x, y = torch.rand(2), torch.rand(2)
    with Replayed() as watched:
        step(x, y)
    reads = [
        (of, args) for of, args, *_ in watched.operations if any(a is x or a is y for a in args)
    ]
    assert [of for of, _ in reads] == [torch.ops.aten.copy_.default] * 2  # each is copied once,
    for (_, (place, _, non_blocking)), read in zip(reads, (step.x, step.y), strict=True):
        assert place is read  # straight to where the graph reads,
        assert non_blocking  # and the host does not wait


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        ({"model": {"dropout": 0.1}}, "dropout"),
        ({"training": {"precision": "fp16"}}, "fp16 (machine.graph: true tries it)"),
        ({"training": {"precision": "fp16"}, "machine": {"graph": True}}, ""),
        ({"machine": {"activation_checkpointing": True}}, "activation checkpointing"),
        ({"training": {"optimizer": "muon"}}, "Muon"),
        ({"machine": {"processes": 2}}, "several processes"),
    ],
)
def test_features_that_rule_out_a_graph_are_named(fields, reason):
    config = RunConfig.model_validate({"corpus": {"source": "synthetic"}} | fields)
    assert why_eager(config, config.machine_on("cuda")) == reason
    on_a_cpu = ", ".join(filter(None, ["a CPU", reason]))
    assert why_eager(config, config.machine_on("cpu")) == on_a_cpu
    if reason:
        asked = config.model_copy(
            update={"machine": config.machine.model_copy(update={"graph": True})}
        )
        with pytest.raises(ConfigError, match=r"^machine\.graph: impossible with a CPU.*; set it"):
            prepare(asked)
