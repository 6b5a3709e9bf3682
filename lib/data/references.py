"""What can be predicted of a text without a network, to read a model against."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lib.data.corpus import Corpus
from lib.data.sources import KNOWN

ORDER = 5
"""Characters of the longest n-grams that are counted."""
MAX_PAIRS = 2**24
"""Pairs of tokens that are counted; those of a larger vocabulary would be too many."""
SOURCE_LOSS = {
    1: 2.2749478829745717,
    2: 1.8985117407328005,
    3: 1.6127284341700616,
    4: 1.4251516882559354,
    6: 1.2127931654969688,
    8: 1.096131385603323,
    12: 0.9700964616885218,
    16: 0.9005356202114454,
    24: 0.8257356064845214,
    32: 0.7873041486099794,
    64: 0.7276569040538964,
    128: 0.6953409433666945,
    256: 0.6788285239269224,
    512: 0.6704155088228798,
    1024: 0.6659658971566438,
    2048: 0.6639607355723125,
    4096: 0.6630514909387749,
}
"""Block size → held-out loss (nats per character) of the grammar that wrote the synthetic text, by
`papers/embedding-norm/synthetic_text.py`. Of an endless text it is 0.66643."""


def source_loss(block_size: int) -> float:
    """Return the held-out loss of the synthetic text's own source in windows of `block_size`.

    Between two known sizes the loss summed over a window is taken to grow evenly, which at 48, 96,
    …, 768 is within 3e-4 of the loss computed for them; beyond the largest, it is that one's.
    """
    size, sizes = min(block_size, max(SOURCE_LOSS)), np.array([*SOURCE_LOSS])
    return float(np.interp(size, sizes, sizes * np.array([*SOURCE_LOSS.values()])) / size)


def references(corpus: Corpus, block_size: int) -> dict[str, float]:
    """Losses of a text, in nats per character, or per token where tokens are something else:

    unigram_entropy (of the training part: the least training loss without any context),
    unigram_loss and bigram_loss (of the held-out part by counts of the training part, one added to
    each; the latter for up to 4,096 tokens), uniform_loss (ln V), and of the synthetic text in
    characters source_loss: the held-out loss of the source itself in windows of `block_size`. No
    model comes below it on average.
    """
    heldout, n = corpus.heldout.numpy(), corpus.vocab_size
    counts, pairs = _counts(corpus)
    shares = counts[counts > 0] / len(corpus.train)
    unigram = np.log((counts + 1) / (len(corpus.train) + n))
    losses = {
        "unigram_entropy": float(-(shares * np.log(shares)).sum()),
        "unigram_loss": float(-unigram[heldout[1:]].mean()),
        "uniform_loss": float(np.log(n)),
    }
    if pairs is not None:
        bigram = np.log((pairs + 1) / (pairs + 1).sum(1)[:, None])
        losses["bigram_loss"] = float(-bigram[heldout[:-1], heldout[1:]].mean())
    if corpus.sha256 == KNOWN["synthetic"].sha256 and corpus.unit == "characters":
        losses["source_loss"] = source_loss(block_size)
    return losses


def _counts(corpus: Corpus) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Count tokens of the training part, (V,), and their pairs, (V, V), block by block."""
    n, size = corpus.vocab_size, 2**20
    counts = np.zeros(n, np.int64)
    pairs = np.zeros(n * n, np.int64) if n * n <= MAX_PAIRS else None
    for start in range(0, len(corpus.train), size):
        ids = corpus.train[start : start + size + 1].numpy()
        counts += np.bincount(ids[:size], minlength=n)
        if pairs is not None:
            pairs += np.bincount(ids[:-1] * n + ids[1:], minlength=n * n)
    return counts, None if pairs is None else pairs.reshape(n, n)


class NGrams:
    """Likelihoods of characters by counts of a text's n-grams, up to `ORDER` characters, each order
    smoothed by the next lower one (Witten & Bell 1991)."""

    def __init__(self, text: str) -> None:
        self._uniform = 1 / max(1, len(set(text)))
        self._tables = []
        """By order: how often an n-gram stands there, what precedes its last character, and of how
        many kinds that last character is."""
        history = np.zeros(len(text), np.uint64)
        for grams in _keys(text):
            # The first of its order has no character before it and lies outside.
            known, first, n = np.unique(grams, return_index=True, return_counts=True)
            histories, history_of, kinds = np.unique(
                history[first], return_inverse=True, return_counts=True
            )
            after = np.bincount(history_of, n)
            self._tables.append(
                (_Table(known, n), _Table(histories, after), _Table(histories, kinds))
            )
            history = np.append(np.uint64(0), grams[:-1])

    def scores(self, contexts: list[str], continuations: list[str]) -> NDArray[np.float64]:
        """Score each continuation after its context: summed log-likelihoods (nats) by the n-grams
        of 1 … `ORDER` characters; (N, ORDER)."""
        padding = "\0" * ORDER  # no n-gram reaches over it
        texts = [padding + c + after for c, after in zip(contexts, continuations, strict=True)]
        ends = np.cumsum([*map(len, texts)])
        lengths = np.array([*map(len, continuations)])
        owner = np.repeat(np.arange(len(texts)), lengths)
        scored = np.arange(len(owner)) + np.repeat(ends - np.cumsum(lengths), lengths)
        likely, history = np.full(len(owner), self._uniform), np.zeros(ends[-1], np.uint64)
        sums = []
        for grams, tables in zip(_keys("".join(texts)), self._tables, strict=True):
            n, (after, kinds) = tables[0][grams[scored]], (t[history[scored]] for t in tables[1:])
            smoothed = (n + kinds * likely) / np.maximum(after + kinds, 1)
            likely = np.where(after > 0, smoothed, likely)
            sums.append(np.bincount(owner, np.log(likely), minlength=len(texts)))
            history = np.append(np.uint64(0), grams[:-1])
        return np.stack(sums, axis=1)


@dataclass(frozen=True)
class _Table:
    """Numbers by key; 0 for a key that is not there."""

    keys: NDArray[np.uint64]
    values: NDArray[np.float64 | np.int64]

    def __getitem__(self, queries: NDArray[np.uint64]) -> NDArray[np.float64 | np.int64]:
        indices = np.searchsorted(self.keys, queries).clip(max=len(self.keys) - 1)
        return np.where(self.keys[indices] == queries, self.values[indices], 0)


def _keys(text: str) -> list[NDArray[np.uint64]]:
    """Number the n-grams that end at each character, for n = 1 … `ORDER`: alike ones alike (and,
    but for one chance in 2^64, no others)."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64) + np.uint64(1)
    keys = [codes]
    for _ in range(1, ORDER):
        before = np.append(np.uint64(0), keys[-1][:-1])
        keys.append(before * np.uint64(0x9E3779B97F4A7C15) + codes)
    return keys
