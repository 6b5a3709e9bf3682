"""What a study reads, in numbers and tables: its corpora, what is drawn of them, its suites."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.data.corpus import TOKEN_CLASSES, Corpus, load_corpus, token_class
from lib.data.suite_files import prepare_suite, read_suite
from lib.study.config import Study
from lib.study.constants import GRAM
from lib.study.fields import CorpusConfig, digest
from lib.study.record import finite


def corpora_of(study: Study) -> dict[str, Corpus]:
    """Load every corpus that arms of a study train on; CorpusError as for `load_corpus`. Each
    stands under its source, and whatever else is not the default."""
    configs = dict.fromkeys(arm.config.corpus for arm in study.arms())
    return {_label(config): load_corpus(config) for config in configs}


def _label(config: CorpusConfig) -> str:
    """Its source, and whatever else is not the default."""
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
    lines = pd.Series([line for line in heldout.splitlines() if line.strip()], dtype=object)
    grams = pd.Series([heldout[i : i + gram] for i in range(len(heldout) - gram + 1)], dtype=object)
    in_train = {train[i : i + gram] for i in range(len(train) - gram + 1)}
    known = lines.isin(train.splitlines())
    return pd.Series(
        {  # NaN where there is nothing to look for
            "lines found in train": known.mean(),
            f"lines of at least {gram} characters found in train": known[
                lines.str.len() >= gram
            ].mean(),
            f"{gram}-character windows found in train": grams.isin(in_train).mean(),
        },
        name="share of held-out",
    )


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
        "train_class_shares": finite(classes.to_dict()),
        "duplication": finite(duplication_report(corpus).to_dict()),
    }


def _vocabulary(corpus: Corpus) -> dict[str, object]:
    """The symbols of a text in characters; else how it was tokenized, without the list of files."""
    if not corpus.account:
        return {"symbols": corpus.symbols}
    left_out = ("shards", "tokenizer")
    account = {name: value for name, value in corpus.account.items() if name not in left_out}
    account["shards"] = digest([shard["sha256"] for shard in corpus.account["shards"]])
    return {"vocabulary": corpus.vocab_size, "tokenized": account}


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
