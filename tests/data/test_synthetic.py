"""The synthetic text is what its grammar writes, carries the tasks, and its loss is exact."""

import hashlib
import importlib.util
from itertools import product

import numpy as np
import pytest

from lib.config.paths import ROOT
from lib.config.schema import CorpusConfig
from lib.data.describe import SOURCE_LOSS
from lib.data.text import load_corpus


@pytest.fixture(scope="module")
def writer():
    path = ROOT / "papers" / "embedding-norm" / "synthetic_text.py"
    spec = importlib.util.spec_from_file_location("synthetic_text", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_grammar_writes_the_synthetic_text_and_its_loss(writer):
    rules, whole = writer.rules(), load_corpus(CorpusConfig(source="synthetic"))
    # Floating-point numbers would leave the text to the machine.
    assert all(type(weight) is int for strings in rules.values() for weight, _, _ in strings)
    text = writer.generate(rules, "court speech", writer.LENGTH, writer._SEED)
    assert hashlib.sha256(text.encode()).hexdigest() == whole.sha256
    losses = writer.Source(rules).nll(whole.decode(whole.heldout), 128)
    assert np.isfinite(losses).all()
    assert losses.mean() == pytest.approx(SOURCE_LOSS[128], rel=1e-9)


def test_source_loss_equals_a_count_over_all_paths(writer):
    """A fair coin, written twice each time: a window that begins at any place is known by hand."""
    source = writer.Source({"a": [(1, "xx", "a"), (1, "yy", "a")]})
    assert source.entropy_rate == pytest.approx(np.log(2) / 2)

    def probability(text):
        """Of a text from a random place on: at the first of a pair, or at its second."""
        shares = []
        for begin in (text, f"{text[0]}{text}"):
            pairs = [begin[i : i + 2] for i in range(0, len(begin), 2)]
            alike = all(len(set(pair)) == 1 for pair in pairs)
            shares.append(alike * 0.5 ** len(pairs))
        return sum(shares) / 2

    for text in map("".join, product("xy", repeat=5)):
        likely = [probability(text[: i + 1]) for i in range(5)]
        with np.errstate(divide="ignore", invalid="ignore"):
            by_hand = -np.log(np.divide(likely[1:], likely[:-1]))
        found = source.nll(text, 8)
        assert found[np.isfinite(found)] == pytest.approx(by_hand[np.isfinite(found)])
        assert np.isfinite(found).all() == (likely[-1] > 0)
