"""A Slurm of one node in a folder, under the user who runs the tests, taken down with them.

Debian's packages `slurm-wlm` and `munge` suffice. It keeps no accounts, needs no systemd, and has
ports, key and socket of its own, so that it disturbs no Slurm that is there for good. Of the node
it says that it has two GPUs.
"""

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
NODE = "node1"
PATIENCE = 60.0
"""Seconds to wait for a daemon: a node with loaded cores takes long."""
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
MinJobAge={age}
GresTypes=gpu
KillWait=5
NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=16000 Gres=gpu:2
PartitionName=main Nodes={name} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Name the programs that a cluster needs and this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


class Cluster:
    """A running Slurm; `environment` makes its commands find it."""

    def __init__(self, folder: Path, cpus: int = 2, age: int = 3600) -> None:
        self.folder = folder
        path = f"{folder / 'bin'}:{_path()}"
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "spool"):
            (folder / name).mkdir(mode=0o755)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        text = _CONFIGURATION.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            controller=_free_port(),
            node=_free_port(),
            name=NODE,
            cpus=cpus,
            age=age,
        )
        (folder / "slurm.conf").write_text(text, "utf-8")
        for name in ("gpu0", "gpu1"):
            (folder / name).touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n", "utf-8")
        self._write_srun()
        try:
            self.start_munge()
            self._start("slurmctld", "-D", "-c")
            self._start("slurmd", "-D", "-N", NODE)
            self.await_node("idle")
        except BaseException:
            self.stop()
            raise

    def _write_srun(self) -> None:
        """Put an `srun` first that knows this cluster: Snakemake's executor starts a job's step
        without the variable that says where it is configured."""
        srun = self.folder / "bin" / "srun"
        srun.parent.mkdir()
        srun.write_text(
            f'#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {shutil.which("srun")} "$@"\n'
        )
        srun.chmod(0o755)

    def start_munge(self) -> None:
        """Start the daemon that signs messages, and wait until it listens."""
        files = [
            f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")
        ]
        listening = self.folder / "munge.socket"
        self._start("munged", "--foreground", "--force", f"--socket={listening}", *files)
        _wait(listening.exists, "munged does not listen", self.folder)

    def stop_daemon(self, name: str) -> None:
        """Stop one daemon."""
        daemon = self._daemons.pop(name)
        daemon.terminate()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def stop(self) -> None:
        """Cancel all jobs and stop all daemons."""
        if {"munged", "slurmctld"} <= set(self._daemons):
            subprocess.run(
                ["scancel", "--quiet", "--user", getpass.getuser()],
                env=os.environ | self.environment,
                capture_output=True,
                timeout=60,
            )
            jobs_left = lambda: not self.ask("squeue", "-h")  # noqa: E731
            _wait(jobs_left, "jobs do not end", self.folder)
        for name in list(self._daemons)[::-1]:
            self.stop_daemon(name)

    def ask(self, *command: str) -> str:
        """Run a command of the cluster; return what it prints."""
        done = subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout.strip()

    def await_node(self, state: str) -> None:
        """Wait until the node is in a state."""
        command = ["sinfo", "-h", "-N", "-o", "%T"]

        def there() -> bool:
            done = subprocess.run(
                command, env=os.environ | self.environment, capture_output=True, text=True
            )
            return done.stdout.strip().rstrip("*") == state

        _wait(there, f"the node does not become {state}", self.folder)

    def update_node(self, state: str) -> None:
        """Drain or resume the node."""
        self.ask("scontrol", "update", f"nodename={NODE}", f"state={state}", "reason=maintenance")

    def _start(self, name: str, *flags: str) -> None:
        program = shutil.which(name, path=_path())
        assert program
        with (self.folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [program, *flags],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _wait(done, what: str, folder: Path) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > until:
            logs = "\n".join(
                path.read_text("utf-8", "replace")[-2000:]
                for path in sorted([*folder.glob("*.out"), *folder.glob("*.log")])
            )
            raise AssertionError(f"{what} within {PATIENCE:g} s\n{logs}")
        time.sleep(0.2)
