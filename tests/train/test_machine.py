"""Device and settings of a run are chosen and fixed; each purpose has its own random numbers."""

import itertools
import os

import pytest
import torch

from lib.config.errors import ConfigError
from lib.config.schema import Machine, MachineConfig, ModelConfig, RunConfig, TrainingConfig
from lib.train import machine as of_machine
from lib.train.machine import prepare, random_stream

CPU = "cpu"


@pytest.fixture
def loose_torch():
    """Reset PyTorch's settings before a test; after it, restore everything that `prepare` sets."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32


def test_each_seed_and_purpose_has_a_stream_that_no_other_draw_shifts():
    keys = list(itertools.product(range(5), ("weights", "batches", "sample")))
    before = torch.get_rng_state()
    draws = {key: torch.rand(4, generator=random_stream(*key)) for key in keys}
    assert torch.get_rng_state().equal(before)
    assert len({draw.numpy().tobytes() for draw in draws.values()}) == 15
    streams = {key: random_stream(*key) for key in keys}
    for key in reversed(keys):  # in another order, among other draws
        torch.rand(1000)
        assert torch.rand(4, generator=streams[key]).equal(draws[key])


@pytest.mark.parametrize("works", [True, False])
def test_auto_is_the_first_device_that_can_do_arithmetic(monkeypatch, works):
    """torch may lack kernels for a GPU that it finds."""
    ones = torch.ones

    def on(*size, device):
        if device == "cuda" and not works:
            raise RuntimeError("no kernel image is available")
        return ones(*size)

    monkeypatch.setattr(torch, "ones", on)
    assert of_machine.choose_device("auto") == ("cuda" if works else CPU)
    assert of_machine.choose_device("cpu") == CPU
    if not works:
        with pytest.raises(ConfigError, match=r"machine\.device: 'cuda' .* use auto or cpu"):
            of_machine.choose_device("cuda")


def test_prepare_pins_threads_and_precision_and_refuses_what_is_not_deterministic(loose_torch):
    def put():
        return torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)

    put()
    assert prepare(RunConfig(machine=MachineConfig(device="cpu", threads=2))).threads == 2
    assert torch.get_num_threads() == 2
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] in (":4096:8", ":16:8")
    with pytest.raises(RuntimeError, match="deterministic"):
        put()


def test_another_default_dtype_is_refused(loose_torch, monkeypatch):
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)
    with pytest.raises(ConfigError, match="torch's default dtype is not float32"):
        of_machine.execution_environment(prepare(RunConfig(machine=MachineConfig(device="cpu"))))


@pytest.mark.parametrize(
    ("device", "gpus", "batch_size", "block_size", "machine", "settled"),
    [  # micro-batch, processes, windows of an evaluation
        ("cpu", 0, 16, 128, {}, (4, 1, 8)),
        ("cpu", 0, 6, 128, {}, (3, 1, 8)),
        ("cpu", 0, 7, 128, {}, (1, 1, 8)),
        ("cuda", 4, 16, 64, {}, (16, 1, 256)),
        ("cuda", 4, 16, 1024, {"processes": 2}, (8, 2, 32)),
        ("cuda", 4, 16, 10**6, {"processes": None}, (4, 4, 1)),
        ("cuda", 8, 12, 128, {"processes": None}, (2, 6, 256)),
        ("cuda", 8, 16, 128, {"processes": None, "micro_batch_size": 8}, (8, 2, 256)),
        ("cuda", 1, 16, 128, {"processes": None, "evaluation_batch_size": 3}, (16, 1, 3)),
    ],
)
def test_auto_resolves_to_what_the_device_can_take(
    loose_torch, monkeypatch, device, gpus, batch_size, block_size, machine, settled
):
    monkeypatch.setattr("lib.train.machine.choose_device", lambda _: device)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    training, model = TrainingConfig(batch_size=batch_size), ModelConfig(block_size=block_size)
    found = prepare(RunConfig(training=training, model=model, machine=MachineConfig(**machine)))
    assert (found.micro_batch_size, found.processes, found.evaluation_batch_size) == settled


@pytest.mark.parametrize(
    ("device", "capability", "precision", "refusal"),
    [
        ("cpu", None, "tf32", "tf32 needs a GPU; use fp32 or bf16"),
        ("cpu", None, "bf16", None),
        ("cuda", (7, 5), "tf32", "this GPU has no tf32; use fp16 or fp32"),  # a T4
        ("cuda", (7, 5), "bf16", "this GPU has no bf16; use fp16 or fp32"),
        ("cuda", (7, 5), "fp16", None),
        ("cuda", (8, 0), "tf32", None),  # an A100
        ("cuda", (8, 0), "bf16", None),
    ],
)
def test_a_precision_that_the_device_lacks_is_refused(
    loose_torch, monkeypatch, device, capability, precision, refusal
):
    monkeypatch.setattr("lib.train.machine.choose_device", lambda _: device)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    config = RunConfig(training=TrainingConfig(precision=precision))
    if refusal is None:
        assert prepare(config).device == device
    else:
        with pytest.raises(ConfigError, match=rf"^training\.precision: {refusal}$"):
            prepare(config)


@pytest.mark.parametrize(("device", "devices"), [("cpu", 3), ("cuda", 2)])
def test_more_processes_than_devices_are_refused(monkeypatch, device, devices):
    monkeypatch.setattr("lib.train.machine.cores", lambda: 3)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    sizes = {"threads": 1, "micro_batch_size": 1, "evaluation_batch_size": 1, "processes": 1}
    machine = Machine.model_validate({"device": device} | sizes)
    of_machine.require_devices(machine)
    said = rf"machine\.processes: 4 is more than the {devices} .* use au"
    with pytest.raises(ConfigError, match=said):
        of_machine.require_devices(machine.model_copy(update={"processes": 4}))


def test_compiling_without_a_compiler_is_refused(loose_torch, monkeypatch):
    def cannot(_):
        raise OSError

    monkeypatch.setattr("torch.compile", cannot)
    with pytest.raises(ConfigError, match=r"^machine\.compile: .* \(OSError\); install a C"):
        prepare(RunConfig(machine=MachineConfig(device="cpu", compile=True)))
