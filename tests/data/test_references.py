import itertools
import math
from collections import Counter

import pytest

from lib.data.describe import SOURCE_LOSS, references, source_loss
from lib.data.suite import ORDER, NGrams
from lib.data.text import load_corpus
from lib.study.schema import CorpusConfig


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


def test_the_embedded_text_has_the_loss_of_its_source() -> None:
    corpus = load_corpus(CorpusConfig(source="synthetic"))
    found = references(corpus, 128)
    assert found["source_loss"] == 0.6953409433666945  # as in the results of the study `texts`
    assert 0.6664 < found["source_loss"] < found["bigram_loss"]
    losses = [references(corpus, size)["source_loss"] for size in (1, 7, 100, 128, 300, 5000)]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize(
    ("block_size", "loss"),
    [(48, 0.7475023289648292), (192, 0.6843546736150743), (768, 0.6677261276690392)],
)
def test_a_loss_between_those_known_is_that_of_the_source(block_size: int, loss: float) -> None:
    """By `Source.nll` of `synthetic_text.py`, which takes seconds."""
    assert source_loss(block_size) == pytest.approx(loss, abs=4e-4)
    for size, known in SOURCE_LOSS.items():
        assert source_loss(size) == pytest.approx(known, rel=1e-15)
        assert source_loss(size) == known or size & (size - 1)  # powers of two are published


def test_the_real_text_has_the_published_unigram_entropy(shakespeare) -> None:
    assert references(shakespeare, 128)["unigram_entropy"] == pytest.approx(3.309, abs=5e-4)


def by_hand(text: str, history: str, symbol: str) -> float:
    """Witten and Bell's estimate after the whole of a history, and so on without its first."""
    if not history:
        counts, lower = Counter(text), 1 / len(set(text))
    else:
        n = len(history)
        counts = Counter(text[i + n] for i in range(len(text) - n) if text[i : i + n] == history)
        lower = by_hand(text, history[1:], symbol)
    total, kinds = sum(counts.values()), len(counts)
    return (counts[symbol] + kinds * lower) / (total + kinds) if total else lower


def test_ngrams_are_smoothed_as_witten_and_bell_do() -> None:
    text, context, continuation = "abracadabra, abrabra cadabra!", "a xbrac", "adra,"
    (found,) = NGrams(text).scores([context], [continuation])
    whole = context + continuation
    for order in range(1, ORDER + 1):
        logs = [
            math.log(by_hand(text, whole[i - order + 1 : i], whole[i]))
            for i in range(len(context), len(whole))
        ]
        assert found[order - 1] == pytest.approx(sum(logs))


def test_ngrams_see_nothing_before_the_beginning_and_no_other_text() -> None:
    text = "abab abba " * 9
    alone = NGrams(text).scores([""], ["ba"])
    assert NGrams(text).scores(["abab ab", ""], ["a", "ba"])[1] == pytest.approx(alone[0])
    assert alone[0, 1] == pytest.approx(
        math.log(by_hand(text, "", "b")) + math.log(by_hand(text, "b", "a"))
    )
