import pytest

from lib.config.study import load_study
from tests.config.samples import Parameters


@pytest.fixture
def parameters(tmp_path, monkeypatch):
    """Use an empty repository in place of this one."""
    return Parameters(tmp_path, monkeypatch)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that writes `little.yaml`, the only study, and loads it."""
    monkeypatch.setattr("lib.config.study.PARAMS", tmp_path)

    def write_and_load(content):
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / "little.yaml").write_bytes(data)
        return load_study("little")

    return write_and_load
