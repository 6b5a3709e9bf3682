"""What a Slurm cluster lacks is said in one line. Here its commands are played; `tests/cluster`
asks real ones."""

import importlib.util
from pathlib import Path

import pytest
import yaml

from lib.study.io import ROOT
from lib.study.yaml import UsageError
from lib.workflow import sweep
from lib.workflow.cli import parse_sweep
from lib.workflow.slurm import Cluster, ClusterError

PROFILE = ROOT / "params" / "slurm"
INSTALLED = importlib.util.find_spec("snakemake_executor_plugin_slurm") is not None
SINFO = "main*|up|idle|none\nother|up|down*|power failure\n"
CONFIG = "AccountingStorageType   = accounting_storage/none\nMinJobAge               = 300 sec\n"


class Played:
    """Slurm's commands, each printing what it is told to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setenv("PATH", str(folder))
        for name, text in {"sinfo": SINFO, "scontrol": CONFIG, "sbatch": ""}.items():
            self.say(name, text)

    def say(self, name: str, text: str, status: int = 0) -> None:
        file = self.folder / name
        file.write_text(
            f"#!/bin/sh\n/bin/cat <<'TEXT' >&{2 if status else 1}\n{text}TEXT\nexit {status}\n"
        )
        file.chmod(0o755)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(tmp_path, monkeypatch)


def refusal(cluster: Cluster) -> str:
    with pytest.raises(ClusterError) as error:
        cluster.require_ready()
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix("Slurm: ")


def test_a_sound_cluster_is_ready(played: Played) -> None:
    Cluster(None, "squeue").require_ready()
    Cluster("main", "squeue").require_ready()
    played.say("sinfo", "main*|up|idle|none\nmain*|up|drained|maintenance\n")
    Cluster("main", "squeue").require_ready()


@pytest.mark.parametrize(
    ("sinfo", "partition", "message"),
    [
        (SINFO, "mian", "slurm_partition: 'mian' is unknown; did you mean 'main'?"),
        (SINFO, "other", "no node of partition other takes jobs: down (power failure)"),
        ("main|up|idle|none\n", None, "it has no default partition; set slurm_partition: main"),
        ("", None, "it has no default partition; set slurm_partition: NAME"),
        ("main*|down|idle|none\n", None, "partition main is down"),
        (
            "main*|up|drained|maintenance\nmain*|up|down*|not responding\n",
            None,
            "no node of partition main takes jobs: drained (maintenance), down (not responding)",
        ),
    ],
)
def test_a_partition_or_node_that_is_missing_is_named(
    sinfo: str, partition: str | None, message: str, played: Played
) -> None:
    played.say("sinfo", sinfo)
    assert refusal(Cluster(partition, "squeue")).startswith(message)


@pytest.mark.parametrize(
    ("partition", "limit", "minutes"),
    [
        (None, "30:00", 30),
        ("main", "4:30:00", 270),
        ("main", "2-12:00:00", 3600),
        (None, "infinite", 525_600),
        ("other", "1:00:00", 5),
    ],
)
def test_a_partition_says_how_long_its_jobs_may_be(
    partition: str | None, limit: str, minutes: int, played: Played
) -> None:
    played.say("sinfo", f"other|5:00\nmain*|{limit}\n")
    assert Cluster(partition, "squeue").longest_job() == minutes


def test_a_command_that_fails_or_is_missing_is_named(played: Played) -> None:
    played.say(
        "sinfo",
        "sinfo: error: If munged is up, restart with --num-threads=10\n"
        "sinfo: error: Munge encode failed: Failed to access socket\n",
        status=1,
    )
    assert refusal(Cluster(None, "squeue")) == (
        "sinfo does not answer (Munge encode failed: Failed to access socket); see that munged and "
        "slurmctld run"
    )
    (played.folder / "sbatch").unlink()
    assert refusal(Cluster(None, "squeue")).startswith("there is no sbatch here; ")


@pytest.mark.parametrize(
    ("command", "storage", "age", "message"),
    [
        ("sacct", "none", 300, "it keeps no accounts for sacct"),
        ("squeue", "none", 60, "it forgets ended jobs after 60 s"),
        ("squeue", "slurmdbd", 60, "it forgets ended jobs after 60 s"),
        ("sacct", "slurmdbd", 60, None),
        ("squeue", "none", 300, None),
    ],
)
def test_a_cluster_that_could_not_tell_how_a_job_ended_is_refused(
    command: str, storage: str, age: int, message: str | None, played: Played
) -> None:
    settings = CONFIG.replace("300", str(age)).replace("storage/none", f"storage/{storage}")
    played.say("scontrol", settings)
    if message:
        assert refusal(Cluster(None, command)).startswith(message)
    else:
        Cluster(None, command).require_ready()


def test_the_clusters_log_says_why_a_job_was_ended(tmp_path: Path) -> None:
    notebook = tmp_path / "02_train.ipynb"
    log = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 12:00 DUE TO TIME LIMIT ***\nover\n"
    why = "Slurm: JOB 7 ON n1 CANCELLED AT 12:00 DUE TO TIME LIMIT"
    assert sweep.reason(notebook, log) == why
    early = (
        "SLURM-job '7' failed, SLURM status is: 'CANCELLED'. Detailed failure reason unavailable"
    )
    assert sweep.reason(notebook, early) == "Slurm: job CANCELLED"
    notebook.write_text('{"metadata": {"study": {"status": "failed", "reason": "ValueError: x"}}}')
    assert sweep.reason(notebook, log).startswith("ValueError: x")


def test_the_profile_is_snakemakes_and_its_packages_are_pinned() -> None:
    profile = yaml.safe_load((PROFILE / "config.yaml").read_text("utf-8"))
    assert profile["executor"] == "slurm"
    assert profile["retries"] == 2
    if INSTALLED:
        command = parse_sweep(["smoke", "--profile", "params/slurm"])
        assert command.cluster == Cluster(None, "squeue")
    else:
        with pytest.raises(UsageError, match=r"invalid choice: 'slurm'.*slurm/requirements.txt"):
            parse_sweep(["smoke", "--profile", "params/slurm"])
    pinned = (PROFILE / "requirements.txt").read_text("utf-8").replace("\\\n", "")
    blocks = [line for line in pinned.splitlines() if not line.startswith("#")]
    assert [block.partition("==")[0] for block in blocks] == [
        "snakemake-executor-plugin-slurm",
        "snakemake-executor-plugin-slurm-jobstep",
    ]
    assert all("--hash=sha256:" in block for block in blocks)
