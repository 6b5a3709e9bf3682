"""However a sweep ends, nothing of it goes on, and the next one can begin."""

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.conftest import Tree

pytestmark = pytest.mark.slow

LONG = {"training": {"iterations": 100_000, "batch_size": 4}}
TRAIN = ("params/long.yaml", "--until", "train")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A study that no test trains to its end: each sweep goes on where the one before it ended."""
    tree = Tree(tmp_path_factory.mktemp("processes") / "embedding-norm")
    tree.write_study("long", **LONG)
    tree.spare_rehearsals()
    return tree


@pytest.fixture(autouse=True)
def _alone(tree: Tree) -> None:
    """Wait until all has ended that the sweep of an earlier test began. What imports at that moment
    sees later that it is alone: under load, later than another sweep waits for."""
    (tree.root / "runs").mkdir(exist_ok=True)
    with (tree.root / "runs" / "sweep.log").open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)


@pytest.fixture
def sweep(tree: Tree) -> Iterator["subprocess.Popen[str]"]:
    """A sweep whose run is training."""
    begun = time.time()
    process = tree.start(*TRAIN)
    while not tree.trained_since(begun, "long", "baseline"):
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


def is_warm(process: psutil.Process | None) -> bool:
    """Tell whether a process is the warm one, or a fork of it, which bears its command line."""
    return process is not None and any(w.endswith("record/warm.py") for w in command(process))


def is_forked(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return is_warm(process) and is_warm(process.parent())
    return False


def is_kernel(process: psutil.Process) -> bool:
    """Tell whether a process is a kernel: an ordinary one, or a fork."""
    return "ipykernel_launcher" in command(process) or is_forked(process)


def started_by(sweep: "subprocess.Popen[str]") -> list[psutil.Process]:
    processes = psutil.Process(sweep.pid).children(recursive=True)
    assert any(map(is_kernel, processes))
    return processes


@pytest.mark.parametrize(
    ("send", "number"),
    [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)],
    ids=["as Ctrl-C does", "to the sweep alone"],
)
def test_a_signal_stops_everything_in_seconds_and_says_how_to_continue(
    send: Callable[[int, int], None],
    number: signal.Signals,
    tree: Tree,
    sweep: "subprocess.Popen[str]",
) -> None:
    processes = started_by(sweep)
    send(sweep.pid, number)
    text, _ = sweep.communicate(timeout=10)
    assert sweep.returncode == 130
    assert text.endswith("stopped; a plain rerun continues\n")
    assert re.search(r"\n0/\d runs, [01]/\d jobs done in 0:\d\d\n(In the middle: .+\n)+", text)
    # As it was last looked at, once a second.
    assert re.search("In the middle: baseline · seed 0: (starts|step )", text)
    assert psutil.wait_procs(processes, timeout=5)[1] == []
    assert not (tree.run_folder("long", "baseline") / "result.json").exists()


@pytest.mark.parametrize(
    "victims",
    [{"lib.workflow.cli", "snakemake"}, pytest.param({"snakemake"}, marks=pytest.mark.long)],
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
    processes = started_by(sweep)
    kernel = next(filter(is_kernel, processes))
    kernel.suspend()  # so that it cannot see that it is alone
    sweep.kill()
    sweep.wait()
    status, text = tree.run_all("params/long.yaml", "--summary")
    assert status == 1
    assert text.count("\n") == 1
    assert f"another sweep, or what is left of one, is running in this folder (process {sweep.pid}, since" in text  # noqa: E501  # fmt: skip
    kernel.resume()
    assert psutil.wait_procs(processes, timeout=10)[1] == []  # they end by themselves
    assert tree.run_all("params/long.yaml", "--summary")[0] == 0


def test_a_sweep_ends_with_its_time(tree: Tree) -> None:
    status, text = tree.run_all(*TRAIN, "--stop-after", "0.001")
    assert (status, text.splitlines()[-1]) == (
        3,
        "stopped after 0.001 hours, as asked; a plain rerun continues",
    ), text
    assert "error" not in text
    assert not (tree.run_folder("long", "baseline") / "result.json").exists()


def test_a_sweep_whose_folder_is_deleted_says_so(
    tree: Tree, sweep: "subprocess.Popen[str]"
) -> None:
    processes = started_by(sweep)
    (tree.root / "runs").rename(tree.root / "gone")
    for process in filter(is_kernel, processes):
        process.kill()
    text, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 1
    assert text.endswith("error: runs/ was deleted while its studies ran; a rerun begins anew\n")
    assert "Traceback" not in text
