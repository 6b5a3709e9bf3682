"""Whether a Slurm cluster will say that a run has ended.

Snakemake's plugin asks `squeue`, which forgets ended jobs after MinJobAge, or `sacct`, which knows
them only if accounts are kept. If neither can tell, the plugin would wait for ever.
"""

import re
import shutil
import subprocess

from lib.config.errors import UserError

LEAST_AGE = 45
"""Seconds that Slurm must remember ended jobs, or the plugin asks `sacct` whatever it is told:
three times `slurm-init-seconds-before-status-checks`."""


def read_slurm_config() -> str:
    """Return what `scontrol show config` says; "" if it cannot be asked here."""
    if not shutil.which("scontrol"):
        return ""
    command = ["scontrol", "show", "config"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def require_end_is_told(config: str, status_command: str | None) -> None:
    """Raise UserError if a cluster with this configuration would not tell that a run has ended.
    Without a command, the plugin asks `sacct`."""
    fields = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", config, re.MULTILINE))
    if fields.get("AccountingStorageType", "accounting_storage/none") != "accounting_storage/none":
        return
    keeps = "this cluster keeps no accounts, so nobody would learn that a run has ended"
    if "MinJobAge" not in fields:
        raise UserError(
            "slurm: `scontrol show config` cannot be read here, and without it the sweep may wait "
            "for ever: start it where Slurm's commands work"
        )
    if (age := int(re.findall(r"\d+", fields["MinJobAge"])[0])) < LEAST_AGE:
        raise UserError(
            f"slurm: MinJobAge is {age} s and {keeps}: have it set to 300 in slurm.conf "
            f"({LEAST_AGE} at least), or accounting switched on"
        )
    if status_command != "squeue":
        raise UserError(f"slurm: {keeps} from sacct: add --slurm-status-command squeue")
