"""A tiny study, recorded once, and commands on it in another process."""

import os
import subprocess
import sys

import pytest

from lib.config.paths import ROOT


def run_tiny(folder, *words):
    """Run `tests.record.tiny` with a folder as the output folder."""
    variables = os.environ | {"STUDY_OUTPUT": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.record.tiny", *words]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The folder in which a tiny study was made and archived."""
    folder = tmp_path_factory.mktemp("tiny")
    done = run_tiny(folder)
    assert done.returncode == 0, done.stderr
    return folder
