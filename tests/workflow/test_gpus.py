"""Runs are placed on the GPUs of a machine, here of fake ones, several on each."""

import os
import stat
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from lib.study.config import Study
from lib.study.fields import MachineConfig, ModelConfig
from lib.workflow import execution as gpus
from lib.workflow.execution import gpu_names, runs_per_gpu
from lib.workflow.sweep import Sweep, places


@pytest.fixture
def two_t4s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's tool that names two T4s, and four cores."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        '#!/bin/sh\n[ "$1" = -L ] && printf "GPU 0: Tesla T4\\nGPU 1: Tesla T4\\n" && exit\n'
        'printf "15360\\n15360\\n"\n',
        "utf-8",
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)


@pytest.mark.usefixtures("two_t4s")
def test_two_t4s_with_four_cores_take_two_runs_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_names() == ["0", "1"]
    assert runs_per_gpu(2, 1e9) == 2
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert runs_per_gpu(2, 5e9) == 3  # then memory decides
    assert runs_per_gpu(2, 1e12) == 1
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert runs_per_gpu(2, 1e9) == 1


@pytest.mark.usefixtures("two_t4s")
def test_a_sweep_takes_gpus_only_for_studies_that_run_on_them(tiny_study: Study) -> None:
    on_cpu = tiny_study.model_copy(update={"machine": MachineConfig(device="cpu")})
    local, asked = Sweep(), Sweep(runs_per_gpu=1)
    assert places([on_cpu], local) == []
    assert places([on_cpu, tiny_study], local) == ["0", "1", "0", "1"]
    assert places([tiny_study], asked) == ["0", "1"]
    assert places([tiny_study], Sweep(is_local=False)) == []
    model = ModelConfig(n_layer=24, n_head=16, n_embd=1024, block_size=1024)
    large = tiny_study.model_copy(update={"model": model})
    assert places([large], local) == ["0", "1"]


def test_visible_gpus_are_those_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    assert gpu_names() == ["1", "2"]
    for hidden in ("", "-1", "-1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert gpu_names() == []


@pytest.mark.parametrize(("listed", "places"), [("0,3", ["0", "3"]), ("0,1,0,1", ["0", "1"] * 2)])
def test_each_job_holds_a_place_of_its_own_and_the_next_waits(
    listed: str, places: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "RUNS", tmp_path)
    monkeypatch.setenv(gpus.GPUS, listed)
    late: list[str | None] = []

    def take() -> None:
        with gpus.gpus(MachineConfig()) as device:
            late.append(device)

    waiting = threading.Thread(target=take)
    with ExitStack() as held:
        assert [held.enter_context(gpus.gpus(MachineConfig())) for _ in places[1:]] == places[:-1]
        with gpus.gpus(MachineConfig()) as last:
            assert last == places[-1]
            waiting.start()
            waiting.join(timeout=0.5)
            assert late == []
        waiting.join(timeout=30)
        assert late == [last]


def test_without_a_list_of_gpus_none_is_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gpus.GPUS, raising=False)
    with gpus.gpus(MachineConfig()) as device:
        assert device is None


def test_a_run_on_the_cpu_holds_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpus.GPUS, "0")
    with gpus.gpus(MachineConfig(device="cpu")) as device:
        assert device is None


@pytest.mark.parametrize(
    ("listed", "processes", "held"),
    [
        ("0,3,5", 1, "0"),
        ("0,3,5", 2, "0,3"),
        ("0,3,5", None, "0,3,5"),
        ("0,3,5", 9, "0,3,5"),
        ("0,1,0,1", 2, "0,1"),  # processes of one run never share a GPU
    ],
)
def test_a_job_holds_a_gpu_for_each_of_its_processes(
    listed: str,
    processes: int | None,
    held: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "RUNS", tmp_path)
    monkeypatch.setenv(gpus.GPUS, listed)
    with gpus.gpus(MachineConfig(processes=processes)) as devices:
        assert devices == held
