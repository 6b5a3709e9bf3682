"""Runs are placed on the GPUs of a machine, here of fake ones, several on each."""

import os
import stat
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from lib.workflow import gpus
from lib.workflow.gpus import gpu_names, runs_per_gpu


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
    assert runs_per_gpu(2) == 2
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert runs_per_gpu(2) == 3  # then memory decides
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert runs_per_gpu(2) == 1


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
        with gpus.gpus(1) as device:
            late.append(device)

    waiting = threading.Thread(target=take)
    with ExitStack() as held:
        assert [held.enter_context(gpus.gpus(1)) for _ in places[1:]] == places[:-1]
        with gpus.gpus(1) as last:
            assert last == places[-1]
            waiting.start()
            waiting.join(timeout=0.5)
            assert late == []
        waiting.join(timeout=30)
        assert late == [last]


def test_without_a_list_of_gpus_none_is_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gpus.GPUS, raising=False)
    with gpus.gpus(1) as device:
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
    with gpus.gpus(processes) as devices:
        assert devices == held
