"""A sweep through Slurm: a run that exceeds its limits is submitted again, and continues.

It needs a cluster (one machine is enough: Debian's slurm-wlm and munge, with OverMemoryKill) and
the two packages of params/slurm/requirements.txt; else it is skipped.
"""

import importlib.util
import re
import shutil
import subprocess

import pytest

from lib.config.files import read_json
from lib.config.study import Study
from lib.data.text import load_corpus
from lib.sweep.slurm import require_end_is_told
from lib.sweep.sweep import Sweep
from lib.train.model import weights_digest
from tests.conftest import TINY, Tree, refused
from tests.train.samples import train


def has_cluster():
    plugin = importlib.util.find_spec("snakemake_executor_plugin_slurm")
    return plugin and shutil.which("sinfo") and not subprocess.run(["sinfo"]).returncode


through_slurm = pytest.mark.skipif(not has_cluster(), reason="no Slurm, or not its two packages")


@pytest.mark.parametrize(
    ("flags", "executor", "status_command"),
    [
        ("--until train", "", None),
        ("--profile params/slurm", "slurm", "squeue"),
        ("--profile=params/slurm --slurm-status-command sacct", "slurm", "sacct"),
        ("--executor slurm", "slurm", None),
        ("-e slurm", "slurm", None),
        ("--profile elsewhere", "unknown", None),
    ],
)
def test_where_a_sweep_runs_is_read_from_its_flags_or_their_profile(
    flags, executor, status_command
):
    sweep = Sweep(["smoke"], flags.split())
    assert sweep.cluster == (executor, status_command)
    assert sweep.is_local == (executor == "")


def configured(age, accounting="accounting_storage/none"):
    """Return a part of what `scontrol show config` prints."""
    return f"""Configuration data as of 2026-11-28T08:00:00
AccountingStorageType   = {accounting}
MinJobAge               = {age}
"""


@pytest.mark.parametrize(
    ("config", "status_command", "fault"),
    [
        (configured("300 sec"), "squeue", ""),
        (configured("45 sec"), "squeue", ""),
        (configured("2 sec", "accounting_storage/slurmdbd"), "squeue", ""),
        (configured("300 sec", "accounting_storage/slurmdbd"), "sacct", ""),
        (configured("44 sec"), "squeue", "slurm: MinJobAge is 44 s, and this cluster has no"),
        (configured("300 sec"), "sacct", "slurm: this cluster has no accounting, so the end"),
        (configured("300 sec"), None, "slurm: this cluster has no accounting, so the end"),
        ("", "squeue", "slurm: `scontrol show config` cannot be read here"),
    ],
)
def test_a_cluster_that_would_not_tell_that_a_run_has_ended_is_refused(
    config, status_command, fault
):
    if not fault:
        require_end_is_told(config, status_command)
        return
    assert refused(require_end_is_told, config, status_command).startswith(fault)


MINUTES = TINY | {
    "name": "minutes",
    "training": {"iterations": 50000, "batch_size": 4},
    "evaluation": {"interval": 10000, "dev_windows": 4, "items_per_task": 0},
    "machine": {"evaluation_batch_size": 64, "checkpoint_interval": 500},
}


@pytest.mark.slow
@pytest.mark.long
@through_slurm
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


@pytest.mark.slow
@pytest.mark.long
@through_slurm
def test_smoke_goes_through_slurm(tmp_path):
    tree = Tree(tmp_path / "embedding-norm")
    status, text = tree.run_all("smoke", "--profile", "params/slurm")
    assert status == 0, text
    log = (tree.root / "runs" / "sweep.log").read_text("utf-8")
    asked = re.findall(r"rule train_\d:(?s:.*?)resources: .*mem_mb=(\d+).*runtime=(\d+)", log)
    assert len(asked) == 4  # measured, not the profile's 4 GB and 60 minutes
    assert all(1800 < int(mb) < 2500 and 10 < int(minutes) < 15 for mb, minutes in asked), asked
    assert (tree.root / "papers" / "smoke" / "record" / "smoke" / "MANIFEST.sha256").is_file()
