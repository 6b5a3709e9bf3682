"""What a study reads, in numbers and tables: its corpora, what is drawn of them, its suites, and
what can be predicted of a text without a network, to read a model against."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lib.data.sources import KNOWN
from lib.data.suite import prepare_suite, read_suite
from lib.data.text import TOKEN_CLASSES, Corpus, TokenCorpus, load_corpus, token_class
from lib.study.io import nan_to_none
from lib.study.schema import GRAM, CorpusConfig, digest
from lib.study.study import Study


def corpora_of(study: Study) -> dict[str, Corpus]:
    """Load every corpus that arms of a study train on; CorpusError as for `load_corpus`. Each
    stands under its source, and whatever else is not the default."""
    configs = dict.fromkeys(arm.config.corpus for arm in study.arms())
    return {_label(config): load_corpus(config) for config in configs}


def _label(config: CorpusConfig) -> str:
    """Name a corpus by its source, and by whatever else is not the default."""
    changed = config.model_dump(exclude_defaults=True, exclude={"source", "sources"}).items()
    values = {name: f"{v:g}" if isinstance(v, float) else str(v) for name, v in changed}
    return ", ".join([config.source, *(f"{name}={value}" for name, value in values.items())])


def token_class_table(corpus: Corpus) -> pd.DataFrame:
    """Count characters, or tokens, per token class (rows) and part (columns); classes not there
    are n/a."""
    classes = [token_class(symbol) for symbol in corpus.symbols]
    counts = {}
    for part in ("train", "dev", "test"):
        occurrences = np.zeros(corpus.vocab_size, np.int64)
        ids = getattr(corpus, part)
        for start in range(0, len(ids), 2**20):
            occurrences += np.bincount(ids[start : start + 2**20], minlength=corpus.vocab_size)
        counts[part] = pd.Series(occurrences).groupby(classes).sum()
    table = pd.DataFrame(counts, pd.Index(TOKEN_CLASSES, name="token class"))
    table = table.where(table > 0)
    shares = (table / table.sum()).add_suffix(" share")
    return pd.concat([table.astype("Int64"), shares], axis=1)


def duplication_report(corpus: Corpus, gram: int = GRAM) -> pd.Series:
    """Measure how much held-out text also stands in the training part, as shares of 1:
    non-blank lines found verbatim, and windows of `gram` characters found anywhere. Of a text that
    is too long to be held nothing is measured."""
    train = corpus.decode(corpus.train[:]) if corpus.text else ""
    heldout = corpus.decode(corpus.heldout) if corpus.text else ""
    train_lines, windows = set(train.splitlines()), set(_windows(train, gram))
    lines = [line for line in heldout.splitlines() if line.strip()]
    in_train = {
        "lines": [line in train_lines for line in lines],
        f"lines of at least {gram} characters": [x in train_lines for x in lines if len(x) >= gram],
        f"{gram}-character windows": [window in windows for window in _windows(heldout, gram)],
    }
    shares = {
        f"{unit} found in train": pd.Series(x, dtype=float).mean() for unit, x in in_train.items()
    }
    return pd.Series(shares, name="share of held-out")  # NaN where there is nothing to look for


def _windows(text: str, length: int) -> list[str]:
    return [text[i : i + length] for i in range(len(text) - length + 1)]


def corpus_summary(corpus: Corpus) -> dict[str, object]:
    """Describe a corpus in numbers: identity, sizes, vocabulary, classes, duplication."""
    classes = token_class_table(corpus)["train share"]
    return {
        "corpus": corpus.name,
        "corpus_sha256": corpus.sha256,
        "characters": corpus.n_characters,
        **_vocabulary(corpus),
        "train": len(corpus.train),
        "heldout": len(corpus.heldout),
        "dev": len(corpus.dev),
        "test": len(corpus.test),
        "train_class_shares": nan_to_none(classes.to_dict()),
        "duplication": nan_to_none(duplication_report(corpus).to_dict()),
    }


def _vocabulary(corpus: Corpus) -> dict[str, object]:
    """Describe the symbols of a text in characters, or else how it was tokenized, without the list
    of files."""
    if not isinstance(corpus, TokenCorpus):
        return {"symbols": corpus.symbols}
    shards = digest([shard["sha256"] for shard in corpus.metadata["shards"]])
    tokenized = {k: v for k, v in corpus.metadata.items() if k not in ("shards", "tokenizer")}
    return {"vocabulary": corpus.vocab_size, "tokenized": tokenized | {"shards": shards}}


def sampling_table(study: Study, corpora: dict[str, Corpus]) -> pd.DataFrame:
    """Say how much of the training part the characters, or tokens, that a run draws amount to: one
    row per corpus of `corpora_of` and budget of the study's arms."""
    budgets = [
        (_label(c.corpus), c.training.iterations * c.training.batch_size * c.model.block_size)
        for c in (arm.config for arm in study.arms())
    ]
    trains = {name: len(corpus.train) for name, corpus in corpora.items()}
    rows = [(name, trains[name], n, n / trains[name]) for name, n in dict.fromkeys(budgets)]
    columns = ["corpus", "characters in the training part", "characters drawn per run", "passes"]
    return pd.DataFrame(rows, columns=columns).set_index("corpus")


def suites_of(study: Study, corpora: dict[str, Corpus], suites: Path) -> dict[str, dict[str, Any]]:
    """Prepare the suites of all arms of a study below `suites`, one per text and context length,
    and read them: folder's name → content. `corpora` are those of the study."""
    sizes = dict.fromkeys(
        (arm.config.evaluation.items_per_task, arm.config.model.block_size) for arm in study.arms()
    )
    folders = [prepare_suite(c, *size, suites) for c in corpora.values() for size in sizes]
    return {folder.name: read_suite(folder) for folder in folders}


def data_summary(summaries: dict[str, Any], suites: dict[str, Any]) -> dict[str, Any]:
    """Put a study's corpora and suites together: the one and its suite, or all by name."""
    if len(summaries) == len(suites) == 1:
        return {**next(iter(summaries.values())), "suite": next(iter(suites.values()))}
    return {"corpora": summaries, "suites": suites}


# ---- what is known of a text without a network

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
