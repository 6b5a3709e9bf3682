"""A sweep that is killed at any moment and started again ends with the same weights."""

import contextlib
import random
import signal
import time

import psutil
import pytest

from lib.config.files import read_json
from lib.config.study import Study
from lib.data.text import load_corpus
from lib.train.model import weights_digest
from tests.conftest import TINY, Tree
from tests.train.samples import train

pytestmark = [pytest.mark.slow, pytest.mark.long]

KILLS = 20
LONG = TINY | {
    "name": "long",
    "seeds": [0, 1],
    "training": {"iterations": 6000, "batch_size": 4},
    "evaluation": {"interval": 500, "dev_windows": 4, "items_per_task": 0},
    "machine": {"evaluation_batch_size": 64, "checkpoint_interval": 50},
}
VICTIMS = ("ipykernel_launcher", "lib.sweep.execute", "snakemake", "lib.sweep.cli", "")
"""A word in the command line of the processes to kill: kernels, `execute`, Snakemake, the sweep; or
all of them."""


def running(pid):
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def kernels(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return [p for p in running(pid) if VICTIMS[0] in " ".join(p.cmdline())]
    return []


def test_killed_again_and_again_two_runs_end_at_the_same_weights(tmp_path):
    study = Study.model_validate(LONG)
    (arm,) = study.arms()
    corpus = load_corpus(study.corpus)
    alone = [train(arm.config, corpus, seed, tmp_path / str(seed)) for seed in study.seeds]
    undisturbed = [weights_digest(run.model, all_weights=True) for run in alone]
    tree, moments = Tree(tmp_path / "embedding-norm"), random.Random(0)
    tree.write_study(**LONG)
    folders = [tree.run_folder("long", arm.id, seed) for seed in study.seeds]
    kills, furthest = 0, {folder: 0 for folder in folders}
    while kills < KILLS:
        sweep = tree.start("long", "--jobs", "2", "--until", "train")
        victim, after = VICTIMS[kills % len(VICTIMS)], moments.uniform(0, 8)
        while sweep.poll() is None and not kernels(sweep.pid):
            time.sleep(0.02)
        time.sleep(after)
        if sweep.poll() is not None:
            break
        for process in running(sweep.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                if victim in " ".join(process.cmdline()):
                    process.send_signal(signal.SIGKILL)
        kills += 1
        text, _ = sweep.communicate(timeout=300)
        assert "Traceback" not in text, text
        for folder in folders:  # no checkpoint is lost
            names = [path.name for path in folder.glob("checkpoints/*/step-*")]
            steps = [int(name.split("-")[1]) for name in names]
            assert max(steps, default=0) >= furthest[folder] or (folder / "result.json").exists()
            furthest[folder] = max(steps, default=furthest[folder])
    print(f"{kills} kills")
    assert kills > KILLS // 2
    status, text = tree.run_all("long", "--jobs", "2", "--until", "train")
    assert status == 0, text
    results = [read_json(folder / "result.json") for folder in folders]
    assert [result["final_weights"] for result in results] == undisturbed
    assert all(result["resumed_at"] for result in results)
