"""Runs are placed on the GPUs of a machine, here of fake ones, several on each."""

import os
import stat
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lib.study.schema import MachineConfig, ModelConfig
from lib.study.study import Study
from lib.workflow import gpus
from lib.workflow.gpus import gpu_names, gpu_slots


@pytest.fixture
def two_t4s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's tool that names two T4s, and four cores."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        '#!/bin/sh\nprintf "15360\\n15360\\n"\n',
        "utf-8",
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)


@pytest.mark.usefixtures("two_t4s")
@pytest.mark.parametrize(
    ("cores", "needed", "runs"),
    [(4, 1e9, 2), (16, 5e9, 3), (16, 1e12, 1), (1, 1e9, 1)],  # at 16 cores memory decides
)
def test_cores_and_memory_decide_how_many_runs_share_a_gpu(
    cores: int, needed: float, runs: int, tiny_study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr("lib.workflow.estimate.gpu_memory", lambda studies: needed)
    assert gpu_names() == ["0", "1"]
    assert gpu_slots([tiny_study]) == ["0", "1"] * runs


@pytest.mark.usefixtures("two_t4s")
def test_a_sweep_takes_gpus_only_for_studies_that_run_on_them(tiny_study: Study) -> None:
    on_cpu = tiny_study.model_copy(update={"machine": MachineConfig(device="cpu")})
    assert gpu_slots([on_cpu]) == []
    assert gpu_slots([on_cpu, tiny_study]) == ["0", "1", "0", "1"]
    assert gpu_slots([tiny_study], per_gpu=1) == ["0", "1"]
    model = ModelConfig(n_layer=24, n_head=16, n_embd=1024, block_size=1024)
    large = tiny_study.model_copy(update={"model": model})
    assert gpu_slots([large]) == ["0", "1"]


@pytest.mark.usefixtures("two_t4s")
def test_a_driver_that_does_not_answer_lists_no_gpus(tmp_path: Path, tiny_study: Study) -> None:
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 'has failed'\nexit 9\n", "utf-8")
    assert gpu_names() == gpu_slots([tiny_study]) == []


def test_visible_gpus_are_those_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    assert gpu_names() == ["1", "2"]
    for hidden in ("", "-1", "-1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert gpu_names() == []


@pytest.mark.parametrize(("listed", "slots"), [("0,3", ["0", "3"]), ("0,1,0,1", ["0", "1"] * 2)])
def test_each_job_holds_a_slot_of_its_own_and_the_next_waits(
    listed: str, slots: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "RUNS", tmp_path)
    monkeypatch.setenv(gpus.GPUS, listed)
    late: list[str | None] = []

    def take() -> None:
        with gpus.acquire_gpus(MachineConfig()) as device:
            late.append(device)

    waiting = threading.Thread(target=take)
    with ExitStack() as held:
        taken = [held.enter_context(gpus.acquire_gpus(MachineConfig())) for _ in slots[1:]]
        assert taken == slots[:-1]
        with gpus.acquire_gpus(MachineConfig()) as last:
            assert last == slots[-1]
            waiting.start()
            waiting.join(timeout=0.5)
            assert late == []
        waiting.join(timeout=30)
        assert late == [last]


@pytest.mark.parametrize(
    ("listed", "machine", "held"),
    [
        ("0,3,5", {"processes": 1}, "0"),
        ("0,3,5", {"processes": 2}, "0,3"),
        ("0,3,5", {"processes": None}, "0,3,5"),
        ("0,3,5", {"processes": 9}, "0,3,5"),
        ("0,1,0,1", {"processes": 2}, "0,1"),  # processes of one run never share a GPU
        ("0", {"device": "cpu"}, None),
        ("", {}, None),
    ],
)
def test_a_job_holds_a_gpu_for_each_of_its_processes(
    listed: str,
    machine: dict[str, Any],
    held: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "RUNS", tmp_path)
    monkeypatch.setenv(gpus.GPUS, listed)
    with gpus.acquire_gpus(MachineConfig(**machine)) as devices:
        assert devices == held
