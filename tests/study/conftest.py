from pathlib import Path

import pytest

from tests.study.samples import Parameters


@pytest.fixture
def parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parameters:
    """A study whose seeds are drawn, and a plan that is frozen for it."""
    parameters = Parameters(tmp_path, monkeypatch)
    parameters.study()
    parameters.plan(frozen={"trial": parameters.frozen()})
    return parameters
