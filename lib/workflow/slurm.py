"""What a Slurm cluster lacks, said in one line before a sweep begins.

Slurm itself lets a job wait without limit for a node that is drained, or for one that never was. So
it does during a sweep, as a cluster's users expect: `squeue` says what the jobs wait for.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass

from lib.study.yaml import UserError, suggest

MIN_JOB_AGE = 240
"""Seconds: an ended job must be remembered for longer than Snakemake pauses between looks, which
is three minutes at most."""
_YEAR = 525_600
"""Minutes: the longest that Slurm lets a job run."""
_UNUSABLE = ("down", "drained", "fail", "failing", "error", "unknown", "inval", "maint")
_STATE_SUFFIXES = "*~#!%$@^-+"
"""What Slurm appends to a node's state, and to the name of the default partition."""


class ClusterError(UserError):
    """A cluster that cannot run a sweep's jobs; the message says what it lacks, and the remedy."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"Slurm: {fault}")


@dataclass(frozen=True)
class Cluster:
    """What flags and profile say of a Slurm cluster."""

    partition: str | None = None
    status_command: str | None = None

    def require_ready(self) -> None:
        """Raise ClusterError for the first thing that the cluster lacks."""
        if shutil.which("sbatch") is None:
            raise ClusterError(
                "there is no sbatch here; start the sweep on a node that submits jobs"
            )
        self.require_nodes()
        output = _run("scontrol", "show", "config")
        settings = dict(re.findall(r"^(\w+)\s*= (\S+)", output, re.MULTILINE))
        accounting = settings.get("AccountingStorageType", "").rpartition("/")[2]
        job_age = int(settings.get("MinJobAge", MIN_JOB_AGE))
        if self.status_command == "sacct" and accounting in ("", "none", "(null)"):
            raise ClusterError(
                "it keeps no accounts for sacct, so no job would ever be seen to end; set "
                "slurm-status-command: squeue in the profile"
            )
        if self.status_command == "squeue" and job_age < MIN_JOB_AGE:
            raise ClusterError(
                f"it forgets ended jobs after {job_age} s; have MinJobAge set to "
                f"{MIN_JOB_AGE}, or, where accounts are kept, set slurm-status-command: sacct "
                "in the profile"
            )

    def longest_job(self) -> int:
        """Return how many minutes the partition lets a job run. Raises ClusterError."""
        for line in _run("sinfo", "--noheader", "--format=%P|%l").splitlines():
            name, limit = line.split("|")
            is_usual = self.partition is None and name.endswith("*")
            if is_usual or name.rstrip("*") == self.partition:
                return _minutes(limit)
        return _YEAR

    def require_nodes(self) -> None:
        """Raise ClusterError where no node of the partition can take a job."""
        output = _run("sinfo", "--noheader", "--format=%P|%a|%T|%E")
        rows = [line.split("|", 3) for line in output.splitlines()]
        names = list(dict.fromkeys(row[0].rstrip("*") for row in rows))
        default = [row[0].rstrip("*") for row in rows if row[0].endswith("*")]
        name = self.partition or next(iter(default), None)
        if name is None:
            raise ClusterError(
                f"it has no default partition; set slurm_partition: {' or '.join(names) or 'NAME'} "
                "under default-resources in the profile"
            )
        if name not in names:
            raise ClusterError(f"slurm_partition: {suggest(name, names)}")
        nodes = [row for row in rows if row[0].rstrip("*") == name]
        if (availability := nodes[0][1]) != "up":
            raise ClusterError(
                f"partition {name} is {availability}; set another as slurm_partition"
            )
        states = {row[2].rstrip(_STATE_SUFFIXES): row[3] for row in nodes}
        if all(state in _UNUSABLE for state in states):
            summary = ", ".join(f"{state} ({reason})" for state, reason in states.items())
            raise ClusterError(
                f"no node of partition {name} takes jobs: {summary}; have one resumed, or set "
                "another as slurm_partition"
            )


def _run(*command: str) -> str:
    """Return what a command of Slurm prints. Raises ClusterError with its own words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{command[0]} does not answer ({error})") from None
    if done.returncode:
        reason = explanation(done.stderr) or done.stderr.strip() or f"status {done.returncode}"
        raise ClusterError(
            f"{command[0]} does not answer ({reason}); see that munged and slurmctld run"
        )
    return done.stdout


def _minutes(limit: str) -> int:
    """Read a limit of time as Slurm writes it: 30:00, 4:00:00, 7-00:00:00 or infinite."""
    if not limit[0].isdigit():
        return _YEAR
    days, _, clock = limit.rpartition("-")
    *hours, minutes, _ = map(int, clock.split(":"))
    return int(days or 0) * 1440 + sum(hours) * 60 + minutes


def explanation(log: str) -> str | None:
    """Find in a log the last line by which Slurm says what went wrong, or how a job ended."""
    programs = "sbatch|srun|sinfo|squeue|scontrol|slurmstepd"
    errors = re.findall(rf"(?:{programs}): (?:error|fatal): (.*)", log)
    errors = errors or [f"job {state}" for state in re.findall(r"SLURM status is: '(\w+)'", log)]
    return errors[-1].strip(" *'") if errors else None
