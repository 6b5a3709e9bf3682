"""A study's analysis is rehearsed on made-up results before anything trains, under any history that
its plan may have in git."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lib.study.config import Study, load_study
from lib.study.errors import UserError
from lib.study.paths import run_folder
from lib.study.raw import read_raw
from lib.study.record import RunResult
from lib.workflow import rehearsal
from lib.workflow.made_up import made_up
from lib.workflow.rehearsal import rehearse
from tests.run.samples import finished_study
from tests.study.samples import Parameters
from tests.study.test_history import ONE, TWO, Repository

FACTORS = {"model.embedding_norm": ["none", "layernorm", "rmsnorm"]}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A study with a plan of its own, in git."""
    parameters = Parameters(tmp_path, monkeypatch)
    parameters.study()
    return Repository(parameters)
