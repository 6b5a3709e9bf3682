"""What can be predicted of a text without a network: losses to read a model's loss against."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lib.data import synthetic
from lib.data.corpus import Corpus

MOST_PAIRS = 2**24
"""Pairs of tokens that are counted; those of a larger vocabulary would be too many."""


def references(corpus: Corpus, block_size: int) -> dict[str, float]:
    """Losses of a text, in nats per character, or per token where tokens are something else:

    unigram_entropy (of the training part: the least training loss without any context),
    unigram_loss and bigram_loss (of the held-out part by counts of the training part, one added to
    each; the latter for up to 4,096 tokens), uniform_loss (ln V), and source_loss where the
    characters' source is known: the held-out loss of the source itself in windows of `block_size`,
    below which no model comes on average.
    """
    heldout, n = corpus.heldout.numpy(), corpus.vocab_size
    counts, pairs = _counts(corpus)
    shares = counts[counts > 0] / len(corpus.train)
    unigram = np.log((counts + 1) / (len(corpus.train) + n))
    found = {
        "unigram_entropy": float(-(shares * np.log(shares)).sum()),
        "unigram_loss": float(-unigram[heldout[1:]].mean()),
        "uniform_loss": float(np.log(n)),
    }
    if pairs is not None:
        bigram = np.log((pairs + 1) / (pairs + 1).sum(1)[:, None])
        found["bigram_loss"] = float(-bigram[heldout[:-1], heldout[1:]].mean())
    if corpus.sha256 == synthetic.SHA256 and corpus.unit == "characters":
        found["source_loss"] = _source_loss(corpus.decode(corpus.heldout), block_size)
    return found


@lru_cache(maxsize=8)  # asked for every run
def _source_loss(text: str, block_size: int) -> float:
    return float(synthetic.play().nll(text, block_size).mean())


def _counts(corpus: Corpus) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Count tokens of the training part, (V,), and their pairs, (V, V), block by block."""
    n, size = corpus.vocab_size, 2**20
    counts = np.zeros(n, np.int64)
    pairs = np.zeros(n * n, np.int64) if n * n <= MOST_PAIRS else None
    for start in range(0, len(corpus.train), size):
        ids = corpus.train[start : start + size + 1].numpy()
        counts += np.bincount(ids[:size], minlength=n)
        if pairs is not None:
            pairs += np.bincount(ids[:-1] * n + ids[1:], minlength=n * n)
    return counts, None if pairs is None else pairs.reshape(n, n)
