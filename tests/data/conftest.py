"""Corpora that several tests of this room read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lib.config.io import corpus_places
from lib.config.schema import CorpusConfig
from lib.data.text import KNOWN, Corpus, load_corpus

FromText = Callable[..., Corpus]


@pytest.fixture(scope="session")
def shakespeare() -> Corpus:
    """The text of the study. Only what is about that text needs it; tests download nothing."""
    known = KNOWN["tinyshakespeare"]
    if not any(path.is_file() for path in corpus_places(known[0])):
        pytest.skip(f"needs the real text: data/{known[0]} is not there")
    return load_corpus(CorpusConfig())


@pytest.fixture
def from_text(tmp_path: Path) -> FromText:
    """Write a text or bytes to a file of one's own and load it by its path."""

    def write_and_load(text: str | bytes, **fields: object) -> Corpus:
        path = tmp_path / "own.txt"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return load_corpus(CorpusConfig(source=str(path), **fields))

    return write_and_load


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tokens are kept."""
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: tmp_path / "kept")
    return tmp_path / "kept" / "data" / "tokens"


def nine_to_one(train: str, heldout: str) -> str:
    """Put blank lines before `train` until `heldout` is the last tenth of the text."""
    text = "\n" * (9 * len(heldout) - len(train)) + train + heldout
    assert int(0.9 * len(text)) == len(text) - len(heldout)
    return text
