from pathlib import Path

import pytest

from tests.study.samples import Parameters


@pytest.fixture
def parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parameters:
    """An empty repository, in place of this one."""
    return Parameters(tmp_path, monkeypatch)
