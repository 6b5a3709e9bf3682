"""Corpora that several tests of this room read."""

from mmap import mmap

import numpy as np
import pytest

from lib.config.paths import corpus_places
from lib.config.schema import CorpusConfig
from lib.data.text import KNOWN, load_corpus


@pytest.fixture(scope="session")
def shakespeare():
    """The text of the study. Only what is about that text needs it; tests download nothing."""
    known = KNOWN["tinyshakespeare"]
    if not any(path.is_file() for path in corpus_places(known[0])):
        pytest.skip(f"needs the real text: data/{known[0]} is not there")
    return load_corpus(CorpusConfig())


@pytest.fixture
def from_text(tmp_path):
    """Write a text or bytes to a file of one's own and load it by its path."""

    def write_and_load(text, **fields):
        path = tmp_path / "own.txt"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return load_corpus(CorpusConfig(source=str(path), **fields))

    return write_and_load


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Where tokens are kept."""
    monkeypatch.setattr("lib.data.cache.output_root", lambda: tmp_path / "kept")
    return tmp_path / "kept" / "data" / "tokens"


def is_mapped(ids):
    """Whether ids are read from a file when they are asked for, in place of memory."""
    while isinstance(ids, np.ndarray):
        ids = ids.base
    return isinstance(ids, mmap)


def nine_to_one(train, heldout):
    """Put blank lines before `train` until `heldout` is the last tenth of the text."""
    text = "\n" * (9 * len(heldout) - len(train)) + train + heldout
    assert int(0.9 * len(text)) == len(text) - len(heldout)
    return text
