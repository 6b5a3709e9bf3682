"""Killed anywhere, at any moment, a plain rerun ends at the weights of an undisturbed run."""

import contextlib
import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from lib.data.text import load_corpus
from lib.run.model import weights_digest
from lib.study.study import Study
from tests.conftest import TINY, Tree
from tests.run.samples import train
from tests.workflow.test_processes import command, is_forked, is_kernel, is_warm

pytestmark = pytest.mark.slow

LONG = {"training": {"iterations": 2500, "batch_size": 4, "checkpoint_interval": 100}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final weights' digest of the run that the other tests disturb."""
    study = Study.model_validate(TINY | LONG | {"name": "long", "seeds": [0]})
    (arm,) = study.arms()
    trained = train(arm.config, load_corpus(study.corpus), 0, tmp_path_factory.mktemp("run"))
    return weights_digest(trained.model)


def kernel(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if is_kernel(p)]


def server(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if is_warm(p) and not is_forked(p)]


def papermill(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [
        p for p in processes if "lib.workflow.execution" in command(p) and "-c" not in command(p)
    ]


def snakemake(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The sweep and its Snakemake, whose jobs live on."""
    return [p for p in processes if {"lib.workflow.cli", "snakemake"} & set(command(p))]


def everything(processes: list[psutil.Process]) -> list[psutil.Process]:
    return processes


def sweep_alone(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if "lib.workflow.cli" in command(p)]


def snakemake_alone(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if "snakemake" in command(p)]


def jobs(processes: list[psutil.Process]) -> list[psutil.Process]:
    """What executes the notebook, and its kernel."""
    return papermill(processes) + kernel(processes)


Victims = Callable[[list[psutil.Process]], list[psutil.Process]]
KINDS: dict[str, tuple[Victims, signal.Signals]] = {
    f"{victims.__name__} by {number.name}": (victims, number)
    for victims, number in [
        (kernel, signal.SIGKILL),
        (kernel, signal.SIGTERM),
        (kernel, signal.SIGSEGV),
        (server, signal.SIGKILL),
        (server, signal.SIGTERM),
        (papermill, signal.SIGKILL),
        (papermill, signal.SIGTERM),
        (jobs, signal.SIGKILL),
        (snakemake_alone, signal.SIGKILL),
        (sweep_alone, signal.SIGKILL),
        (sweep_alone, signal.SIGTERM),
        (sweep_alone, signal.SIGINT),
        (snakemake, signal.SIGKILL),
        (everything, signal.SIGKILL),
        (everything, signal.SIGINT),
    ]
}
KILLS = 5


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_killed_again_and_again_a_run_ends_at_the_same_weights(
    kind: str, undisturbed: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    victims, number = KINDS[kind]
    moments = random.Random(kind)
    tree = Tree(tmp_path / "embedding-norm")
    tree.write_study("long", **LONG)
    folder = tree.run_folder("long", "baseline")
    kills = 0
    while kills < KILLS and not (folder / "result.json").exists():
        started = time.time()
        sweep = tree.start("params/long.yaml")
        # Any moment must do: seconds after the first victim is there, or after it has trained.
        wanted, trains = moments.uniform(0, 3), kills % 2 == 1
        seen = None
        while sweep.poll() is None:
            running = [psutil.Process(sweep.pid), *psutil.Process(sweep.pid).children(True)]
            chosen = victims(running)
            there = (
                chosen
                and kernel(running)
                and (not trains or tree.trained_since(started, "long", "baseline"))
            )
            seen = seen or (time.monotonic() if there else None)
            if seen and chosen and time.monotonic() > seen + wanted:
                for process in chosen:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(number)
                kills += 1
                break
            time.sleep(0.02)
        text, _ = sweep.communicate(timeout=300)
        assert "Traceback" not in text, text
    record_property("kills", kills)
    assert kills

    text = ""
    for _ in range(30):  # while what a killed sweep left goes on, the next one is refused
        status, text = tree.run_all("params/long.yaml")
        if status == 0:
            break
        assert "Traceback" not in text, text
        time.sleep(1)
    assert status == 0, text
    result = json.loads((folder / "result.json").read_text())
    assert result["final_weights"] == undisturbed
    if (victims, number) == (kernel, signal.SIGKILL):
        assert result["resumed_at"]
    assert (tree.root / "papers/embedding-norm/record/long").exists()
