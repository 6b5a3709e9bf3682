"""A sweep through Slurm: a run that outlives its limits is submitted again, and continues.

It needs a cluster (one machine is enough: Debian's slurm-wlm and munge, with OverMemoryKill) and
the two packages of params/slurm/requirements.txt; else it is skipped.
"""

import importlib.util
import shutil
import subprocess

import pytest

from lib.config.files import read_json
from lib.config.study import Study
from lib.data.text import load_corpus
from lib.train.model import weights_digest
from tests.conftest import TINY, Tree
from tests.train.samples import train


def has_cluster():
    plugin = importlib.util.find_spec("snakemake_executor_plugin_slurm")
    return plugin and shutil.which("sinfo") and not subprocess.run(["sinfo"]).returncode


pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(not has_cluster(), reason="no Slurm, or not its two packages"),
]

MINUTES = TINY | {
    "name": "minutes",
    "training": {"iterations": 50000, "batch_size": 4},
    "evaluation": {"interval": 10000, "dev_windows": 4, "items_per_task": 0},
    "machine": {"evaluation_batch_size": 64, "checkpoint_interval": 500},
}


@pytest.mark.parametrize(
    ("limit", "resumes"),
    [("runtime=attempt", True), ("mem_mb=250*attempt*attempt", False)],  # a minute, 250 MB
)
def test_a_run_that_needs_more_than_it_asked_for_is_asked_again(tmp_path, limit, resumes):
    iterations = 50000 if resumes else 200
    content = MINUTES | {"training": MINUTES["training"] | {"iterations": iterations}}
    study = Study.model_validate(content | {"seeds": [0]})
    (arm,) = study.arms()
    undisturbed = train(arm.config, load_corpus(study.corpus), 0, tmp_path / "alone")
    tree = Tree(tmp_path / "embedding-norm")
    tree.write_study(**content)
    flags = ["--profile", "params/slurm", "--set-resources", f"train_0:{limit}"]
    status, text = tree.run_all("minutes", *flags, "--until", "train")
    log = (tree.root / "runs" / "sweep.log").read_text("utf-8")
    assert status == 0, text + log
    result = read_json(tree.run_folder("minutes", arm.id) / "result.json")
    assert result["final_weights"] == weights_digest(undisturbed.model, all_weights=True)
    assert log.count("Error in rule train_0") >= 1
    assert bool(result["resumed_at"]) == resumes


def test_smoke_goes_through_slurm(tmp_path):
    tree = Tree(tmp_path / "embedding-norm")
    status, text = tree.run_all("smoke", "--profile", "params/slurm")
    assert status == 0, text
    assert (tree.root / "papers" / "smoke" / "record" / "smoke" / "manifest.json").is_file()
