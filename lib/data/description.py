"""What a study reads, in numbers and tables: its corpora, what is drawn of them, its suites."""

from collections import Counter
from collections.abc import Iterable
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
    return ", ".join([config.source, *(f"{name}={_shown(value)}" for name, value in changed)])


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def token_class_table(corpus: Corpus) -> pd.DataFrame:
    """Count characters, or tokens, per token class (rows) and part (columns); classes not there
    are n/a."""
    classes = [token_class(symbol) for symbol in corpus.symbols]
    counts: dict[str, Counter[str]] = {}
    for part in ("train", "dev", "test"):
        counts[part] = Counter()
        for name, n in zip(classes, _occurrences(getattr(corpus, part), len(classes)), strict=True):
            if n:
                counts[part][name] += n
    table = pd.DataFrame(counts, index=pd.Index(TOKEN_CLASSES, name="token class"))
    shares = (table / table.sum()).add_suffix(" share")
    return pd.concat([table.astype("Int64"), shares], axis=1)


def _occurrences(ids: Any, n: int) -> list[int]:
    """Count each of `n` ids, block by block."""
    counts = np.zeros(n, np.int64)
    for start in range(0, len(ids), 2**20):
        counts += np.bincount(ids[start : start + 2**20].numpy(), minlength=n)
    return [int(count) for count in counts]


def duplication_report(corpus: Corpus, gram: int = GRAM) -> pd.Series:
    """Measure how much held-out text also stands in the training part, as shares of 1:
    non-blank lines found verbatim, and windows of `gram` characters found anywhere. Of a text that
    is too long to be held nothing is measured."""
    train = corpus.decode(corpus.train[:]) if corpus.text else ""
    heldout = corpus.decode(corpus.heldout) if corpus.text else ""
    known_lines = set(train.splitlines())
    lines = [line for line in heldout.splitlines() if line.strip()]
    known_grams = {train[i : i + gram] for i in range(len(train) - gram + 1)}
    grams = [heldout[i : i + gram] for i in range(len(heldout) - gram + 1)]
    long = [line for line in lines if len(line) >= gram]
    return pd.Series(
        {
            "lines found in train": _share(line in known_lines for line in lines),
            f"lines of at least {gram} characters found in train": _share(
                line in known_lines for line in long
            ),
            f"{gram}-character windows found in train": _share(g in known_grams for g in grams),
        },
        name="share of held-out",
    )


def _share(found: Iterable[bool]) -> float:
    """Share of what was found; NaN when there was nothing to look for."""
    values = list(found)
    return sum(values) / len(values) if values else float("nan")


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
    rows = []
    for name, tokens in dict.fromkeys(budgets):
        train = len(corpora[name].train)
        rows.append((name, train, tokens, tokens / train))
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
