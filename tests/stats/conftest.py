import pytest

from lib.stats import paired


@pytest.fixture
def few_resamples(monkeypatch):
    """Draw few resamples, in tests where no bootstrap interval decides anything. They still include
    all 256 sign flips of eight seeds."""
    monkeypatch.setattr(paired, "RESAMPLES", 256)
