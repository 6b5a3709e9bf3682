"""However a sweep ends, nothing of it goes on, and the next one can begin."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import Tree

pytestmark = pytest.mark.slow

LONG = {"training": {"iterations": 100_000, "batch_size": 4}}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "embedding-norm")
    tree.write_study("long", **LONG)
    return tree


@pytest.fixture
def sweep(tree: Tree) -> Iterator["subprocess.Popen[str]"]:
    """A sweep whose run is training."""
    process = tree.start("params/long.yaml")
    while not list(tree.run_folder("long", "baseline").glob("checkpoints/*/step-*")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def command(process: psutil.Process) -> list[str]:
    """A process's command line; empty for one that ends at this moment."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def started_by(sweep: "subprocess.Popen[str]") -> list[psutil.Process]:
    processes = psutil.Process(sweep.pid).children(recursive=True)
    assert any("ipykernel_launcher" in command(process) for process in processes)
    return processes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_sweep_alone_stops_everything_in_seconds(
    number: signal.Signals, tree: Tree, sweep: "subprocess.Popen[str]"
) -> None:
    processes = started_by(sweep)
    os.kill(sweep.pid, number)
    text, _ = sweep.communicate(timeout=10)
    assert sweep.returncode == 130
    assert text.endswith("stopped; a plain rerun continues\n")
    assert psutil.wait_procs(processes, timeout=5)[1] == []
    assert not (tree.run_folder("long", "baseline") / "result.json").exists()


@pytest.mark.parametrize(
    "victims", [{"lib.workflow.cli"}, {"snakemake"}, {"lib.workflow.cli", "snakemake"}]
)
def test_what_a_killed_sweep_leaves_ends_by_itself(
    victims: set[str], sweep: "subprocess.Popen[str]"
) -> None:
    processes = started_by(sweep)
    chosen = [p for p in [psutil.Process(sweep.pid), *processes] if victims & set(command(p))]
    for process in chosen:
        process.kill()
    assert len(chosen) == len(victims)
    assert psutil.wait_procs(processes, timeout=10)[1] == []


def test_a_second_sweep_is_refused_until_the_first_ones_processes_have_ended(
    tree: Tree, sweep: "subprocess.Popen[str]"
) -> None:
    kernel = next(p for p in started_by(sweep) if "ipykernel_launcher" in command(p))
    kernel.suspend()  # so that it cannot see that it is alone
    sweep.kill()
    sweep.wait()
    status, text = tree.run_all("params/long.yaml", "-n")
    assert status == 1
    assert text.count("\n") == 1
    assert f"another sweep, or what is left of one, is running in this folder (process {sweep.pid}, since" in text  # noqa: E501  # fmt: skip
    kernel.resume()
    psutil.wait_procs([kernel], timeout=10)
    assert tree.run_all("params/long.yaml", "-n")[0] == 0


def test_a_sweep_whose_folder_is_deleted_says_so(
    tree: Tree, sweep: "subprocess.Popen[str]"
) -> None:
    processes = started_by(sweep)
    (tree.root / "runs").rename(tree.root / "gone")
    for process in processes:
        if "ipykernel_launcher" in command(process):
            process.kill()
    text, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 1
    assert text.endswith("error: runs/ was deleted while its studies ran; a rerun begins anew\n")
    assert "Traceback" not in text
