"""Sweeps on a real Slurm of one node: to the table and the record, and through what goes wrong."""

import importlib.util
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from lib.run.machine import is_usable
from lib.study.io import read_json
from tests.cluster.slurm import Cluster, missing
from tests.conftest import Tree

_PLUGIN = "snakemake_executor_plugin_slurm"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed: no {missing()}"),
    pytest.mark.skipif(
        importlib.util.find_spec(_PLUGIN) is None, reason=f"{_PLUGIN} is not installed"
    ),
]
ON_SLURM = ("--profile", "params/slurm")
FACTORS = {"model.embedding_norm": ["none", "layernorm"]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    cluster = Cluster(folder)
    yield cluster
    cluster.stop()


@pytest.fixture
def tree(tmp_path: Path, cluster: Cluster) -> Tree:
    """A copied tree whose sweeps find the cluster."""
    tree = Tree(tmp_path / "embedding-norm")
    environment = tree.environment["VIRTUAL_ENV"]
    tree.environment |= cluster.environment
    tree.environment["PATH"] = f"{environment}/bin:{cluster.environment['PATH']}"
    return tree


def jobs(cluster: Cluster, tree: Tree, states: str = "all") -> list[list[str]]:
    """The jobs of a tree, each with its number, state, cores and what it does."""
    said = cluster.ask("squeue", "-h", f"--states={states}", "--format=%i|%T|%C|%k|%Z")
    rows = [line.split("|") for line in said.splitlines()]
    return [row[:4] for row in rows if row[4] == str(tree.root)]


def wait(done: Callable[[], object], seconds: float = 240) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.5)


def test_a_cancelled_job_is_named_and_a_rerun_ends_with_table_and_record(
    cluster: Cluster, tree: Tree
) -> None:
    tree.write_study("small", factors=FACTORS)
    sweep = tree.start("params/small.yaml", *ON_SLURM, "--until", "train", "--retries", "0")
    wait(lambda: any("layernorm" in job[3] for job in jobs(cluster, tree, "running")))
    (cancelled,) = [job[0] for job in jobs(cluster, tree) if "layernorm" in job[3]]
    cluster.ask("scancel", cancelled)
    text, _ = sweep.communicate(timeout=600)
    assert sweep.returncode == 1
    (line,) = [line for line in text.splitlines() if line.startswith("FAILED")]
    assert re.match(r"FAILED small/layernorm/seed-0/02_train.ipynb: Slurm: .*CANCELLED", line), text
    assert (tree.run_folder("small", "none") / "result.json").is_file()

    status, text = tree.run_all("params/small.yaml", *ON_SLURM, seconds=900)
    assert status == 0, text
    assert "\nsmall: 2 runs, of 2 arms × 1 seeds\n" in text
    record = tree.root / "papers/embedding-norm/record/small"
    assert (record / "MANIFEST.sha256").is_file()
    done = [job[3].split("_wildcards")[0] for job in jobs(cluster, tree, "completed")]
    assert sorted(done) == ["rule_analysis", "rule_data", "rule_figures"] + 2 * ["rule_train"]
    status, text = tree.run_all("params/small.yaml", *ON_SLURM)
    assert status == 0
    assert "Nothing to do: everything is up to date." in text


@pytest.fixture
def stuck_tree(tree: Tree) -> Tree:
    """A tree with a run that hangs after eight steps until it is killed, and then continues; at
    first it asks for a minute."""
    step = "self.step += 1"
    hangs = f"{step}\n        time.sleep(9999 if self.step == 8 and not self.resumed_at else 0)"
    for name, old, new in (
        ("run/trainer.py", step, hangs),
        ("workflow/dry_run.py", "_BEGIN = 15", "_BEGIN = 1"),
        ("workflow/dry_run.py", "_SLOWER = 2", "_SLOWER = 0"),
    ):
        path = tree.root / "lib" / name
        text = path.read_text("utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), "utf-8")
    tree.write_study("stuck")
    return tree


def test_a_run_ended_by_its_limit_is_given_longer_and_continues_from_its_checkpoint(
    cluster: Cluster, stuck_tree: Tree
) -> None:
    words = ("params/stuck.yaml", *ON_SLURM, "--until", "train", "--retries", "9")
    status, text = stuck_tree.run_all(*words)
    assert status == 0, text
    assert "FAILED" not in text
    fields = "--Format=workdir:200,timelimit:20,minmemory:20,state:20"
    rows = [row.split() for row in cluster.ask("squeue", "-h", "--states=all", fields).splitlines()]
    first, *further, last = sorted(row[1:] for row in rows if row[0] == str(stuck_tree.root))
    asked = read_json(stuck_tree.root / "runs" / ".sweep.json")["needs"]["stuck"]["baseline"]
    assert first == ["1:00", f"{asked['mem_mb']}M", "TIMEOUT"]
    assert last == [f"{2 + len(further)}:00", f"{asked['mem_mb']}M", "COMPLETED"]
    result = read_json(stuck_tree.run_folder("stuck", "baseline") / "result.json")
    assert (result["status"], result["steps"], result["resumed_at"]) == ("completed", 12, [5])


def test_a_run_whose_node_is_lost_continues_from_its_checkpoint(
    cluster: Cluster, stuck_tree: Tree
) -> None:
    path = stuck_tree.root / "lib" / "workflow" / "needs.py"
    path.write_text(path.read_text("utf-8").replace("_BEGIN = 1", "_BEGIN = 60"), "utf-8")
    sweep = stuck_tree.start("params/stuck.yaml", *ON_SLURM, "--until", "train")
    folder = stuck_tree.run_folder("stuck", "baseline")
    wait(lambda: list(folder.glob("checkpoints/*/step-00000005/manifest.json")), seconds=900)
    cluster.update_node("down")
    cluster.update_node("resume")
    text, _ = sweep.communicate(timeout=1800)
    assert sweep.returncode == 0, text
    result = read_json(folder / "result.json")
    assert (result["status"], result["steps"], result["resumed_at"]) == ("completed", 12, [5])


def test_two_processes_train_one_run_in_one_job_that_has_their_cores(
    cluster: Cluster, tree: Tree
) -> None:
    tree.write_study("shared", machine={"processes": 2})
    status, text = tree.run_all("params/shared.yaml", *ON_SLURM, "--until", "train", seconds=600)
    assert status == 0, text
    folder = tree.run_folder("shared", "baseline")
    result = json.loads((folder / "result.json").read_text("utf-8"))
    assert result["provenance"]["trained"]["machine"]["processes"] == 2
    assert result["status"] == "completed"
    assert [(job[1], job[2]) for job in jobs(cluster, tree)] == [("COMPLETED", "2")]


@pytest.mark.skipif(is_usable("cuda"), reason="this machine has CUDA")
def test_a_run_that_asks_for_cuda_is_given_a_gpu_and_says_where_there_is_none(
    cluster: Cluster, tree: Tree
) -> None:
    tree.write_study("on-gpu", machine={"device": "cuda"})
    tree.write_study("on-cpu", machine={"device": "cpu"})
    studies = ("params/on-gpu.yaml", "params/on-cpu.yaml")
    status, text = tree.run_all(*studies, *ON_SLURM, "--until", "train", seconds=600)
    assert status == 1
    (line,) = [line for line in text.splitlines() if line.startswith("FAILED")]
    assert re.match(r"FAILED on-gpu/baseline/seed-0/.*: machine.device: 'cuda' does not", line), (
        text
    )
    fields = "--Format=comment:90,tres-per-job:30,state"
    rows = [row.split() for row in cluster.ask("squeue", "-h", "--states=all", fields).splitlines()]
    asked = {row[0]: row[1:] for row in rows}
    assert asked["rule_train_wildcards_on-gpu_baseline_0"] == ["gres:gpu:1", "FAILED"]
    assert asked["rule_train_wildcards_on-cpu_baseline_0"] == ["N/A", "COMPLETED"]


def test_a_drained_node_is_said_at_once(cluster: Cluster, tree: Tree) -> None:
    tree.write_study("small")
    cluster.update_node("drain")
    try:
        start = time.monotonic()
        status, text = tree.run_all("params/small.yaml", *ON_SLURM)
        assert (status, text.count("\n")) == (1, 1)
        said = "no node of partition main takes jobs: drained (maintenance); have one resumed"
        assert f"error: Slurm: {said}" in text
        assert time.monotonic() - start < 60
    finally:
        cluster.update_node("resume")


def test_an_interrupted_sweep_cancels_its_jobs(cluster: Cluster, tree: Tree) -> None:
    tree.write_study("small", training={"iterations": 10**6, "batch_size": 4})
    sweep = tree.start("params/small.yaml", *ON_SLURM, "--until", "train")
    wait(lambda: jobs(cluster, tree, "running"))
    time.sleep(5)
    sweep.terminate()
    assert "a plain rerun continues" in sweep.communicate(timeout=60)[0]
    wait(lambda: [job[1] for job in jobs(cluster, tree)] == ["CANCELLED"])


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"slurm_partition": "mian"}, "slurm_partition: 'mian' is unknown; did you mean 'main'?"),
        ({"mem_mb": 10**7}, "Requested node configuration is not available"),
    ],
)
def test_what_the_cluster_does_not_have_is_said(
    resources: dict[str, object], message: str, tree: Tree
) -> None:
    path = tree.root / "params/slurm/config.yaml"
    profile = yaml.safe_load(path.read_text("utf-8"))
    profile["default-resources"] |= resources
    path.write_text(yaml.safe_dump(profile), "utf-8")
    tree.write_study("small")
    status, text = tree.run_all("params/small.yaml", *ON_SLURM)
    assert status == 1
    said = [line for line in text.splitlines() if line.startswith(("error: Slurm", "FAILED"))]
    assert said, text
    assert all(message in line for line in said)


def test_a_cluster_that_does_not_answer_is_said_to(cluster: Cluster, tree: Tree) -> None:
    tree.write_study("small")
    cluster.stop_daemon("munged")
    try:
        status, text = tree.run_all("params/small.yaml", *ON_SLURM)
    finally:
        cluster.start_munge()
    assert (status, text.count("\n")) == (1, 1)
    assert text.startswith("error: Slurm: sinfo does not answer (")
    assert text.endswith("; see that munged and slurmctld run\n")
