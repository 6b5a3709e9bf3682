"""What can be predicted of a text without a network: losses to read a model's loss against."""

import numpy as np

from lib.data import synthetic
from lib.data.corpus import Corpus


def references(corpus: Corpus, block_size: int) -> dict[str, float]:
    """Losses of a text, in nats per character:

    unigram_entropy (of the training part: the least training loss without any context),
    unigram_loss and bigram_loss (of the held-out part by counts of the training part, one added to
    each), uniform_loss (ln V), and source_loss where the text's source is known: the held-out loss
    of the source itself in windows of `block_size`, below which no model comes on average.
    """
    train, heldout, n = corpus.train.numpy(), corpus.heldout.numpy(), corpus.vocab_size
    counts = np.bincount(train, minlength=n)
    shares = counts[counts > 0] / len(train)
    pairs = np.bincount(train[:-1] * n + train[1:], minlength=n * n).reshape(n, n) + 1
    unigram, bigram = np.log((counts + 1) / (len(train) + n)), np.log(pairs / pairs.sum(1)[:, None])
    found = {
        "unigram_entropy": float(-(shares * np.log(shares)).sum()),
        "unigram_loss": float(-unigram[heldout[1:]].mean()),
        "bigram_loss": float(-bigram[heldout[:-1], heldout[1:]].mean()),
        "uniform_loss": float(np.log(n)),
    }
    if corpus.sha256 == synthetic.SHA256:
        nll = synthetic.play().nll(corpus.decode(corpus.heldout), block_size)
        found["source_loss"] = float(nll.mean())
    return found
