"""The machine under a run is chosen, and pinned; each purpose draws for itself."""

import itertools
import os
from collections.abc import Iterator

import pytest
import torch

from lib.run.machine import (
    autocast,
    choose_device,
    compiler_fault,
    prepare,
    random_stream,
    require_devices,
    works,
)
from lib.study.errors import ConfigError
from lib.study.fields import Machine, MachineConfig, ModelConfig, RunConfig, TrainingConfig

CPU = "cpu"


def machine_on(device: str, processes: int) -> Machine:
    sizes = {"threads": 1, "micro_batch_size": 1, "evaluation_batch_size": 1}
    return Machine.model_validate({"device": device, "processes": processes} | sizes)


PURPOSES = ("weights", "batches", "sample")


@pytest.fixture
def loose_torch() -> Iterator[None]:
    """PyTorch as it starts, whatever ran before; all that `prepare` sets is put back after."""
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


@pytest.mark.parametrize(
    ("seed", "purpose", "start"),
    [(0, "weights", 133441691874178746), (1, "batches", 7119672969635933958)],
)
def test_a_stream_starts_where_it_always_has(seed: int, purpose: str, start: int) -> None:
    assert random_stream(seed, purpose).initial_seed() == start


def test_streams_of_all_seeds_and_purposes_differ() -> None:
    streams = [random_stream(*key) for key in itertools.product(range(5), PURPOSES)]
    draws = {torch.rand(4, generator=stream).numpy().tobytes() for stream in streams}
    assert len(draws) == 15


def test_drawing_from_one_stream_shifts_no_other() -> None:
    alone = torch.rand(4, generator=random_stream(0, "batches"))
    batches = random_stream(0, "batches")
    torch.rand(1000, generator=random_stream(0, "sample"))
    torch.rand(1000)
    assert torch.rand(4, generator=batches).equal(alone)


def test_a_stream_leaves_torchs_own_alone() -> None:
    before = torch.get_rng_state()
    torch.rand(4, generator=random_stream(0, "weights"))
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize(
    ("working", "chosen"),
    [(("cuda", "cpu"), "cuda"), (("cpu",), "cpu")],
)
def test_auto_is_the_first_device_that_works(
    monkeypatch: pytest.MonkeyPatch, working: tuple[str, ...], chosen: str
) -> None:
    monkeypatch.setattr("lib.run.machine.works", lambda name: name in working)
    assert choose_device("auto") == chosen


def test_the_cpu_works_and_can_be_asked_for() -> None:
    assert works("cpu")
    assert choose_device("cpu") == CPU


@pytest.mark.skipif(works("cuda"), reason="this machine has CUDA")
def test_a_device_that_the_machine_lacks_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"machine\.device: 'cuda' .* use auto or cpu"):
        choose_device("cuda")


def test_prepare_pins_the_threads(loose_torch: None) -> None:
    machine = MachineConfig(device="cpu", threads=2)
    assert prepare(RunConfig(machine=machine)).threads == 2
    assert torch.get_num_threads() == 2


def test_prepare_makes_an_operation_that_is_not_deterministic_an_error(loose_torch: None) -> None:
    def put() -> torch.Tensor:
        return torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)

    put()
    prepare(RunConfig())
    with pytest.raises(RuntimeError, match="deterministic"):
        put()


def test_prepare_turns_tf32_off(loose_torch: None) -> None:
    prepare(RunConfig())
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


def test_cublas_is_told_to_be_deterministic() -> None:
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] in (":4096:8", ":16:8")


@pytest.mark.parametrize(
    ("device", "batch_size", "micro_batch_size"),
    [("cpu", 16, 4), ("cpu", 6, 3), ("cpu", 7, 1), ("cuda", 16, 16)],
)
def test_auto_takes_micro_batches_that_fill_the_batch(
    loose_torch: None,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    batch_size: int,
    micro_batch_size: int,
) -> None:
    monkeypatch.setattr("lib.run.machine.choose_device", lambda _: device)
    config = RunConfig(training=TrainingConfig(batch_size=batch_size))
    assert prepare(config).micro_batch_size == micro_batch_size


@pytest.mark.parametrize(
    ("batch_size", "gpus", "machine", "processes", "micro_batch_size"),
    [
        (16, 4, {}, 1, 16),
        (16, 4, {"processes": 2}, 2, 8),
        (16, 4, {"processes": None}, 4, 4),
        (12, 8, {"processes": None}, 6, 2),
        (16, 8, {"processes": None, "micro_batch_size": 8}, 2, 8),
        (16, 0, {"processes": None}, 1, 16),
    ],
)
def test_auto_takes_as_many_gpus_as_divide_the_batch(
    loose_torch: None,
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int,
    gpus: int,
    machine: dict[str, int],
    processes: int,
    micro_batch_size: int,
) -> None:
    monkeypatch.setattr("lib.run.machine.choose_device", lambda _: "cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    training = TrainingConfig(batch_size=batch_size)
    prepared = prepare(RunConfig(training=training, machine=MachineConfig(**machine)))
    assert (prepared.processes, prepared.micro_batch_size) == (processes, micro_batch_size)


@pytest.mark.parametrize(("device", "devices"), [("cpu", "the 3 cores"), ("cuda", "the 2 devices")])
def test_more_processes_than_devices_are_refused(
    monkeypatch: pytest.MonkeyPatch, device: str, devices: str
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    require_devices(machine_on(device, 1))
    with pytest.raises(
        ConfigError, match=rf"machine\.processes: 4 is more than {devices}.* use au"
    ):
        require_devices(machine_on(device, 4))


@pytest.mark.parametrize(
    ("error", "fault"), [(RuntimeError("no g++\nat line 3"), "no g++"), (OSError(), "OSError")]
)
def test_compiling_without_a_compiler_is_refused(
    loose_torch: None, monkeypatch: pytest.MonkeyPatch, error: Exception, fault: str
) -> None:
    def cannot(_: object) -> None:
        raise error

    compiler_fault.cache_clear()
    monkeypatch.setattr("torch.compile", cannot)
    with pytest.raises(ConfigError, match=r"^machine\.compile: .*; install a C") as caught:
        prepare(RunConfig(machine=MachineConfig(device="cpu", compile=True)))
    assert f"({fault})" in str(caught.value)
    compiler_fault.cache_clear()


@pytest.mark.parametrize(
    ("device", "block_size", "windows"),
    [
        ("cpu", 128, 8),
        ("cuda", 64, 256),
        ("cuda", 128, 256),
        ("cuda", 1024, 32),
        ("cuda", 10**6, 1),
    ],
)
def test_auto_evaluates_in_batches_of_the_device(
    loose_torch: None,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    block_size: int,
    windows: int,
) -> None:
    monkeypatch.setattr("lib.run.machine.choose_device", lambda _: device)
    config = RunConfig(model=ModelConfig(block_size=block_size))
    assert prepare(config).evaluation_batch_size == windows
    pinned = RunConfig(model=config.model, machine=MachineConfig(evaluation_batch_size=3))
    assert prepare(pinned).evaluation_batch_size == 3


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_gpu_without_bf16_still_runs_other_precisions(
    loose_torch: None, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    gpu_without_bf16(monkeypatch)
    config = RunConfig.model_validate({"training": {"precision": precision}})
    assert prepare(config).device == "cuda"


def test_bf16_is_refused_where_a_gpu_lacks_it(
    loose_torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_without_bf16(monkeypatch)
    with pytest.raises(ConfigError, match=r"training\.precision: .* no bf16; use fp16 or fp32"):
        prepare(RunConfig(training=TrainingConfig(precision="bf16")))


def gpu_without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lib.run.machine.choose_device", lambda _: "cuda")
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: False)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_autocast_multiplies_at_the_configured_precision(
    precision: str, dtype: torch.dtype
) -> None:
    ones = torch.ones(2, 2)
    with autocast(precision, CPU):
        assert (ones @ ones).dtype == dtype
    assert (ones @ ones).dtype == torch.float32
