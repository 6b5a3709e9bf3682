"""Socket folders of killed kernels go; those in use stay."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lib.study.paths import ROOT
from lib.workflow.sockets import remove_dead, socket_folder

LEAVE = """
import os
from lib.workflow.sockets import socket_folder
folder = socket_folder()
folder.__enter__()
os._exit(9)
"""


def test_only_dead_folders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "norm-kernel-of-nobody").mkdir()  # it has no lock: it may just be made
    (tmp_path / "other").mkdir()
    with socket_folder() as living:
        (living / "k-1").touch()
        assert subprocess.run([sys.executable, "-c", LEAVE], cwd=ROOT).returncode == 9
        assert len(list(tmp_path.iterdir())) == 4
        remove_dead()
        kept = {path.name for path in tmp_path.iterdir()}
        assert kept == {"norm-kernel-of-nobody", "other", living.name}
        assert (living / "k-1").exists()
    assert not living.exists()
