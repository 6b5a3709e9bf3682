"""The synthetic text is what its grammar writes, carries the tasks, and its loss is exact."""

import importlib.util
import re
from itertools import product
from types import ModuleType

import numpy as np
import pytest

from lib.data.describe import SOURCE_LOSS, duplication_report
from lib.data.text import Corpus, load_corpus
from lib.study.io import ROOT
from lib.study.schema import CorpusConfig


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    path = ROOT / "papers" / "embedding-norm" / "synthetic_text.py"
    spec = importlib.util.spec_from_file_location("synthetic_text", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def whole() -> Corpus:
    return load_corpus(CorpusConfig(source="synthetic"))


def text_of(corpus: Corpus) -> str:
    return corpus.training_text + corpus.decode(corpus.heldout)


@pytest.mark.slow
def test_it_is_the_text_and_the_loss_of_its_grammar(writer: ModuleType, whole: Corpus) -> None:
    rules = writer.rules()
    # Floating-point numbers would leave the text to the machine.
    assert all(type(weight) is int for strings in rules.values() for weight, _, _ in strings)
    assert writer.generate(rules, "court speech", writer.LENGTH, writer._SEED) == text_of(whole)
    losses = writer.Source(rules).nll(whole.decode(whole.heldout), 128)
    assert np.isfinite(losses).all()
    assert losses.mean() == pytest.approx(SOURCE_LOSS[128], rel=1e-9)


def test_a_sources_loss_is_what_counting_all_its_paths_gives(writer: ModuleType) -> None:
    """A fair coin, written twice each time: a window that begins at any place is known by hand."""
    source = writer.Source({"a": [(1, "xx", "a"), (1, "yy", "a")]})
    assert source.entropy_rate == pytest.approx(np.log(2) / 2)

    def probability(text: str) -> float:
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


def test_it_is_a_play_whose_verbs_agree(whole: Corpus) -> None:
    for turn in text_of(whole).split("\n\n")[1:-1]:
        speaker, *lines = turn.split("\n")
        assert speaker.endswith(":")
        assert lines
    words = text_of(whole).lower()
    assert not re.search(r"\bthou (are|is|have|hath|will|shall|do|doth)\b", words)
    assert not re.search(r"\b(we|you|ye|they) (is|art|hath|hast|am|wilt|shalt|doth)\b", words)
    _, long_lines, windows = duplication_report(whole)
    assert long_lines < 0.001
    assert windows < 0.05
