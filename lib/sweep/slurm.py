"""Check that a Slurm cluster reports the end of a run.

Snakemake's plugin asks `squeue`, which forgets ended jobs after MinJobAge, or `sacct`, which needs
accounting. If neither knows that a job has ended, the plugin waits for ever.
"""

import re
import shutil
import subprocess

from lib.config.errors import UserError

LEAST_AGE = 45
"""Seconds that Slurm must remember ended jobs: three times the plugin's
`slurm-init-seconds-before-status-checks`. Below that, the plugin always asks `sacct`."""


def read_slurm_config() -> str:
    """Return the output of `scontrol show config`; "" if there is no scontrol here."""
    if not shutil.which("scontrol"):
        return ""
    command = ["scontrol", "show", "config"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def require_end_is_told(config: str, status_command: str | None) -> None:
    """Raise UserError if a cluster with this configuration would not report the end of a run. If
    `status_command` is None, the plugin asks `sacct`."""
    fields = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", config, re.MULTILINE))
    if fields.get("AccountingStorageType", "accounting_storage/none") != "accounting_storage/none":
        return
    unknown = "this cluster has no accounting, so the end of a run would not be seen"
    if "MinJobAge" not in fields:
        raise UserError(
            "slurm: `scontrol show config` cannot be read here, so the sweep might wait for ever; "
            "start it where Slurm's commands work"
        )
    if (age := int(re.findall(r"\d+", fields["MinJobAge"])[0])) < LEAST_AGE:
        raise UserError(
            f"slurm: MinJobAge is {age} s, and {unknown}; ask for MinJobAge=300 in slurm.conf "
            f"(at least {LEAST_AGE}), or for accounting"
        )
    if status_command != "squeue":
        raise UserError(f"slurm: {unknown} by sacct; add --slurm-status-command squeue")
