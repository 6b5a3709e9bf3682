"""A site built once from a made-up record, for the tests that only look at it; and a copy of a
recorded study, to be changed."""

import shutil
from pathlib import Path

import pytest

from lib.publish.site import build_site
from lib.record import record
from lib.study.io import PAPERS
from tests.record.samples import move_to, write_samples


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a made-up record with its site built."""
    folder = tmp_path_factory.mktemp("samples")
    with pytest.MonkeyPatch.context() as patch:  # only meanwhile: other tests want the real record
        move_to(folder, patch)
        write_samples(folder)
        build_site()
    return folder


@pytest.fixture
def samples(built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder, with the library looking there."""
    move_to(built, monkeypatch)
    return built


@pytest.fixture(scope="session")
def pages(built: Path) -> Path:
    """Where the built pages lie."""
    return built / "paper" / "site"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a copied paper, which is where records are looked for."""
    monkeypatch.setattr(record, "PAPERS", tmp_path)
    for name in ("record", "results", "figures"):
        shutil.copytree(PAPERS / "example" / name, tmp_path / "example" / name)
    return tmp_path / "example"
