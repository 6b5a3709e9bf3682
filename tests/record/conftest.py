"""A site built once from a made-up record, for the tests that only look at it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lib.site import build_site
from tests.record.samples import move_to, write_samples


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a made-up record with its site built, the library looking there."""
    folder = tmp_path_factory.mktemp("samples")
    with pytest.MonkeyPatch.context() as patch:
        move_to(folder, patch)
        write_samples(folder)
        build_site()
        yield folder


@pytest.fixture(scope="session")
def pages(samples: Path) -> Path:
    """Where the built pages lie."""
    return samples / "paper" / "site"
