import pytest

from lib.stats import paired


@pytest.fixture
def few_resamples(monkeypatch):
    """For tests in which no bootstrap interval decides anything; all 256 sign flips of eight seeds
    are taken."""
    monkeypatch.setattr(paired, "RESAMPLES", 256)
