import itertools
import math
from collections import Counter

import pytest

from lib.data.corpus import load_corpus
from lib.data.references import references
from lib.data.synthetic import play
from lib.study.fields import CorpusConfig


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.txt"
    path.write_text("abcab\n\nbca abc cab\n" * 40)
    return load_corpus(CorpusConfig(source=str(path)))


def test_losses_follow_from_counts_by_hand(tiny) -> None:
    found, n = references(tiny, 8), tiny.vocab_size
    train, heldout = tiny.decode(tiny.train), tiny.decode(tiny.heldout)
    counts, pairs = Counter(train), Counter(itertools.pairwise(train))
    entropy = -sum(c / len(train) * math.log(c / len(train)) for c in counts.values())
    unigram = [-math.log((counts[c] + 1) / (len(train) + n)) for c in heldout[1:]]
    before = Counter(train[:-1])
    bigram = [
        -math.log((pairs[a, b] + 1) / (before[a] + n)) for a, b in itertools.pairwise(heldout)
    ]
    assert found["unigram_entropy"] == pytest.approx(entropy)
    assert found["unigram_loss"] == pytest.approx(sum(unigram) / len(unigram))
    assert found["bigram_loss"] == pytest.approx(sum(bigram) / len(bigram))
    assert found["uniform_loss"] == pytest.approx(math.log(n))
    assert "source_loss" not in found


@pytest.mark.slow
def test_the_embedded_text_has_the_loss_of_its_source() -> None:
    corpus = load_corpus(CorpusConfig(source="synthetic"))
    found = references(corpus, 128)
    assert found["source_loss"] == play().nll(corpus.decode(corpus.heldout), 128).mean()
    assert play().entropy_rate < found["source_loss"] < found["bigram_loss"]


def test_the_real_text_has_the_published_unigram_entropy(shakespeare) -> None:
    assert references(shakespeare, 128)["unigram_entropy"] == pytest.approx(3.309, abs=5e-4)
