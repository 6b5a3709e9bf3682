"""What git knows of this repository."""

import subprocess
from pathlib import Path

from lib.study.paths import ROOT


def git(*words: str) -> str | None:
    """What a command of git prints in this checkout; None where it fails or git is not there."""
    command = ["git", "-C", str(ROOT), "-c", "core.quotepath=off", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError, UnicodeDecodeError):
        return None


def is_checkout() -> bool:
    """Tell whether this folder has a git repository of its own."""
    top = git("rev-parse", "--show-toplevel")
    return top is not None and Path(top.strip()) == ROOT
