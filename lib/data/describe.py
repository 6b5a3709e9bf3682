"""Describe the texts of a study in numbers and tables: its corpora, its batches and its suites.
Also compute the losses of unigram and bigram models, to compare a network's loss with."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lib.config.files import nan_to_none
from lib.config.schema import GRAM, CorpusConfig
from lib.config.study import Study
from lib.config.yaml import Json
from lib.data.cache import cached
from lib.data.split import FEWEST
from lib.data.suite import made_of, prepare_suite
from lib.data.tasks import windows
from lib.data.text import MAX_SEARCHED, Corpus, load_corpus
from lib.data.tokens import TOKEN_CLASSES, Ids, token_class

MAX_PAIRS = 2**24
"""Most different pairs of tokens to count. With a larger vocabulary there is no bigram loss."""
SLICE = 2**22
"""Symbols to count at once, because a training part may be larger than memory."""


def corpora_of(study: Study) -> dict[str, Corpus]:
    """Load every corpus that the arms of a study train on. A key is the corpus's source, followed
    by the fields that differ from their defaults. Raises CorpusError as `load_corpus` does."""
    configs = dict.fromkeys(arm.config.corpus for arm in study.arms())
    return {_label(config): load_corpus(config) for config in configs}


def _label(config: CorpusConfig) -> str:
    label = config.source
    for name, value in config.model_dump(exclude_defaults=True, exclude={"source"}).items():
        label += f", {name}={value}"
    return label


def token_class_table(corpus: Corpus) -> pd.DataFrame:
    """Count characters, or tokens, per token class (rows) and part (columns). If a class does not
    occur in a part, its count there is missing."""
    classes = [token_class(symbol) for symbol in corpus.symbols]
    parts = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}
    counts = {part: symbol_counts(ids, corpus.vocab_size) for part, ids in parts.items()}
    table = pd.DataFrame(counts).groupby(classes).sum()
    table = table.reindex(pd.Index(TOKEN_CLASSES, name="token class"))
    table = table.where(table > 0)
    shares = (table / table.sum()).add_suffix(" share")
    return pd.concat([table.astype("Int64"), shares], axis=1)


def duplication_report(corpus: Corpus, gram: int = GRAM) -> pd.Series:
    """Compute the share of held-out lines (without blank ones), and of held-out substrings of
    `gram` characters, that also occur in the training part. NaN if there are no such lines or
    substrings, or if the corpus is too long to be searched."""
    train = ""
    heldout = ""
    if corpus.whole.n_characters <= MAX_SEARCHED:
        train = corpus.decode(corpus.train)
        heldout = corpus.decode(corpus.heldout)
    lines = pd.Series([line for line in heldout.splitlines() if line.strip()], dtype=object)
    found = lines.isin(train.splitlines())
    long = found[lines.str.len() >= gram]
    grams = pd.Series(windows(heldout, gram), dtype=object).isin(windows(train, gram))
    shares = {
        "lines found in train": found.mean(),
        f"lines of at least {gram} characters found in train": long.mean(),
        f"{gram}-character windows found in train": grams.mean(),
    }
    return pd.Series(shares, name="share of held-out")


def repetition(corpus: Corpus) -> str:
    """Return a warning if passages of the held-out part are also in the training part; "" if none
    are. Only the first `MAX_SEARCHED` tokens of the training part are searched.

    A passage ends at a blank line, as a document does; in a text without blank lines, at a line
    end. White space around passages is ignored.
    """
    text = corpus.decode(np.concatenate((corpus.dev, corpus.test)))
    end = "\n\n" if "\n\n" in text else "\n"
    passages = [passage.strip() for passage in text.split(end) if passage.strip()]
    train = corpus.decode(corpus.train[:MAX_SEARCHED])
    trained = {passage.strip() for passage in train.split(end)}
    n = sum(passage in trained for passage in passages)
    if n == 0:
        return ""
    said = f"{corpus.name}: {n} of {len(passages)} held-out passages are also in the training part"
    if len(corpus.train) > MAX_SEARCHED:
        said += f" (only its first {MAX_SEARCHED:,} {corpus.unit} were searched)"
    return said


UNLIKE = 0.3
"""The unigram loss of dev or test may exceed that of the training part by this many nats."""


def unlikeness(corpus: Corpus) -> str:
    """Return a warning if dev or test is another kind of text than the training part; else "".

    Each part is measured by its unigram loss: its loss under the symbol frequencies of the training
    part. The loss of dev or test must not exceed that of the training part by more than `UNLIKE`,
    and must not exceed the loss of a uniform guess.
    """
    train = corpus.train
    counts = symbol_counts(train, corpus.vocab_size)
    loss = -np.log((counts + 1) / (len(train) + corpus.vocab_size))
    own = float(loss @ counts) / len(train)
    for part in ("dev", "test"):
        found = float(loss[getattr(corpus, part)].mean())
        if found > min(own + UNLIKE, np.log(corpus.vocab_size)):
            return (
                f"{corpus.name}: {part}, which is held out, is another kind of text: its unigram "
                f"loss is {found:.2f} nats, and that of the training part {own:.2f}; mix the kinds "
                "of text, or give a folder with one file of each kind"
            )
    return ""


def warnings_of(corpus: Corpus) -> dict[str, str]:
    """Return the warnings `repetition` and `unlikeness` of a corpus, computed once and cached."""
    asked = [made_of(corpus, corpus.train), MAX_SEARCHED]

    def make(_: Path) -> Json:
        return {"unlikeness": unlikeness(corpus), "repetition": repetition(corpus)}

    return dict(cached("warnings", corpus.name, asked, make)[1])


def untrained(corpus: Corpus, block_size: int) -> str:
    """Return a warning if files of the training part are never trained on, because they are too
    short for a window of `block_size`; "" if there are none."""
    lengths = np.diff(corpus.ends["train"], prepend=0)
    short = int((lengths <= block_size).sum())
    if short == 0:
        return ""
    return (
        f"{corpus.name}: {short} of {len(lengths)} files are not trained on: they are shorter than "
        f"model.block_size {block_size} + 1; join them, or, if there are {FEWEST} files or "
        "more, use corpus.tokenizer bytes"
    )


def corpus_summary(corpus: Corpus) -> dict[str, object]:
    """Describe a corpus in numbers: identity, sizes, vocabulary, duplication."""
    symbols = corpus.symbols
    return {
        "corpus": corpus.name,
        "corpus_sha256": corpus.sha256,
        "characters": corpus.whole.n_characters,
        "symbols": symbols if isinstance(symbols, str) else len(symbols),
        "tokenizer_sha256": corpus.tokenizer.sha256,
        "train": len(corpus.train),
        "heldout": len(corpus.heldout),
        "dev": len(corpus.dev),
        "test": len(corpus.test),
        "held_out": corpus.held_out,
        "duplication": nan_to_none(duplication_report(corpus).to_dict()),
        **warnings_of(corpus),
    }


def sampling_table(study: Study, corpora: dict[str, Corpus]) -> pd.DataFrame:
    """Return how many times a run passes over the training part: a row for each corpus of
    `corpora_of` and each number of characters (or tokens) that arms train on."""
    budgets = [(_label(arm.config.corpus), arm.config.tokens) for arm in study.arms()]
    rows = []
    for name, drawn in dict.fromkeys(budgets):
        size = len(corpora[name].train)
        rows.append((name, size, drawn, drawn / size))
    columns = ["corpus", "characters in the training part", "characters drawn per run", "passes"]
    return pd.DataFrame(rows, columns=columns).set_index("corpus")


def suites_of(study: Study, corpora: dict[str, Corpus], suites: Path) -> dict[str, Json]:
    """Copy the suites of a study to folders in `suites`, one for each text and context length.
    Return folder name → description. `corpora` are those of the study."""
    configs = [arm.config for arm in study.arms()]
    sizes = dict.fromkeys((c.evaluation.items_per_task, c.model.block_size) for c in configs)
    described = {}
    for corpus in corpora.values():
        for items, block_size in sizes:
            folder, suite = prepare_suite(corpus, items, block_size)
            name = f"{corpus.name}-{block_size}-{suite['hash'][:12]}"
            shutil.rmtree(suites / name, ignore_errors=True)
            shutil.copytree(folder, suites / name, ignore=shutil.ignore_patterns("index.json"))
            described[name] = suite
    return described


# ---- losses without a network

SYNTHETIC = "bc3e66b4fb25b09f41c78ae498e032fc39865a15dfd3347e6fe1485652ab12a3"
"""SHA-256 of the synthetic text."""
SOURCE_LOSS = {
    16: 0.9005356202114454,
    32: 0.7873041486099794,
    64: 0.7276569040538964,
    128: 0.6953409433666945,
    256: 0.6788285239269224,
    512: 0.6704155088228798,
}
"""Block size → held-out loss (nats per character) of the grammar that wrote the synthetic text.
`papers/embedding-norm/synthetic_text.py` computes it. The grammar's entropy rate is 0.66643."""


def references(corpus: Corpus, block_size: int) -> dict[str, float]:
    """Return losses of simple models of a text, in nats per character (or token):

    - unigram_entropy: the entropy of the symbols of the training part. No model without context has
      a lower training loss;
    - unigram_loss and bigram_loss: held-out losses by counts in the training part, plus one each.
      There is a bigram_loss for up to 4,096 tokens;
    - uniform_loss: ln V;
    - source_loss, only for the synthetic text in characters: the held-out loss of the grammar that
      wrote it, in windows of `block_size`. No model has a lower one on average.

    Counting a long text takes a while, so it is counted once for all runs.
    """
    asked = [made_of(corpus, corpus.train), MAX_PAIRS]
    _, losses = cached("references", corpus.name, asked, lambda _: _gram_losses(corpus))
    is_synthetic = corpus.sha256 == SYNTHETIC and corpus.unit == "characters"
    if is_synthetic and block_size in SOURCE_LOSS:
        losses = losses | {"source_loss": SOURCE_LOSS[block_size]}
    return losses


def symbol_counts(ids: Ids, size: int) -> NDArray[np.int64]:
    """Count how often each of `size` symbols occurs in ids (n,), which may be larger than memory.
    Return the counts, (size,)."""
    counts = np.zeros(size, np.int64)
    for start in range(0, len(ids), SLICE):
        counts += np.bincount(ids[start : start + SLICE], minlength=size)
    return counts


def _gram_losses(corpus: Corpus) -> dict[str, float]:
    """Return those losses of `references` that follow from counts of symbols and of their pairs."""
    train = corpus.train
    before, predicted = (ids.numpy() for ids in corpus.predictions)
    n = corpus.vocab_size
    counts = symbol_counts(train, n)
    shares = counts[counts > 0] / len(train)
    unigram = np.log((counts + 1) / (len(train) + n))
    losses = {
        "unigram_entropy": float(-(shares * np.log(shares)).sum()),
        "unigram_loss": float(-unigram[predicted].mean()),
        "uniform_loss": float(np.log(n)),
    }
    if n * n <= MAX_PAIRS:
        pairs = np.ones((n, n), np.int64)  # counts plus one
        for start in range(0, len(train) - 1, SLICE):
            ids = train[start : start + SLICE + 1].astype(np.int64)  # and the first of the next one
            pairs += np.bincount(ids[:-1] * n + ids[1:], minlength=n * n).reshape(n, n)
        bigram = np.log(pairs / pairs.sum(1)[:, None])
        losses["bigram_loss"] = float(-bigram[before, predicted].mean())
    return losses
