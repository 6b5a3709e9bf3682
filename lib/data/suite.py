"""The character task suite: multiple-choice questions made of held-out text, and its files.

A question shows a continuation and some places in the text, and asks which place it follows.
Questions come in sets: the places are the same, and each is right once. So no place is likelier to
be right for what it says by itself; and as it is the same continuation that is scored at each
place, a model gains and loses nothing by a bias for some continuations.

Questions come from *test* and the solved examples of few-shot prompts from *dev*. The leakage
filter drops every line that also stands in the training part or shares a 24-gram with it, and
every place that does together with what follows it. The suite depends only on the corpus, its
tokenizer, the number of items, the block size and the names of the tasks: the same corpus gives
the same suite anywhere, whatever share of it is trained on.
"""

import hashlib
import importlib.util
import json
import math
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from filelock import FileLock
from numpy.typing import NDArray

from lib.data.tasks import N_CHOICES, RULES, Candidate, Lexicon, Passage
from lib.data.text import Corpus, TokenCorpus
from lib.study.code import git_state, measure_key
from lib.study.io import sha256, write_json
from lib.study.schema import GRAM, RunConfig, digest

INSTALL = "pip install lm_eval==0.4.13"
"""What brings the LM-Eval harness, which a stock image lacks."""
MIN_ITEMS = 50
"""A task with fewer questions is too noisy and is left out."""
MAX_SHOTS = 2
MAX_TRIES = 20
"""Unfinished sets that are tried for a place before it begins another."""
DELIMITER = "\n"
"""Stands after each solved example of a few-shot prompt."""
BASELINES = "choice_alone", "bigram", "five_gram"
"""What answers without a network, as `_baselines` says."""
ZERO_SHOT, FEW_SHOT = "macro_zero_shot", "macro_few_shot"


@dataclass(frozen=True)
class Item:
    """One question: which of `contexts` does `continuation` follow?"""

    continuation: str
    contexts: list[str]
    gold: int

    @property
    def text(self) -> str:
        """The right context and what follows it, as they stand in the corpus."""
        return self.contexts[self.gold] + self.continuation


@dataclass(frozen=True)
class Task:
    """The questions of one rule, set by set, in an order that was drawn once."""

    name: str
    items: list[Item]
    exemplars: list[Item]
    shots: list[int]
    """Solved examples before a question: 0, and the most of 1 and 2 that `block_size` holds."""

    @property
    def chance(self) -> float:
        """Accuracy of guessing, and of whatever looks at the contexts alone: each of a set is right
        once."""
        return 1 / N_CHOICES[self.name]


@dataclass(frozen=True)
class Suite:
    corpus_sha256: str
    block_size: int
    tasks: list[Task]
    left_out: dict[str, str]
    """Task, or task and number of shots, that is left out → why."""
    baselines: dict[str, dict[str, float]]
    """Task → the accuracy reached without a network, as `_baselines` says."""

    @property
    def hash(self) -> str:
        """SHA-256 of every question, example and number of shots."""
        return digest([asdict(task) for task in self.tasks])

    def table(self) -> pd.DataFrame:
        """Describe the suite: a row per task with its rule, items, shots, chance level, what is
        reached without a network, and the standard error of an accuracy at chance."""
        rows = [
            {
                "task": task.name,
                "items": len(task.items),
                "shots": ", ".join(map(str, task.shots)),
                "chance": task.chance,
                **self.baselines[task.name],
                "stderr": math.sqrt(task.chance * (1 - task.chance) / len(task.items)),
                "rule": " ".join((RULES[task.name].__doc__ or "").split()),
            }
            for task in self.tasks
        ]
        columns = ["task", "items", "shots", "chance", *BASELINES, "stderr", "rule"]
        return pd.DataFrame(rows, columns=columns)


# ---- what answers without a network

ORDER = 5
"""Characters of the longest n-grams that are counted."""


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


class LeakageFilter:
    """Tells whether a held-out text also stands in the training part."""

    def __init__(self, train: str) -> None:
        self._lines = set(train.split("\n"))
        self._grams = {train[i : i + GRAM] for i in range(len(train) - GRAM + 1)}

    def leaks(self, text: str) -> bool:
        """Tell whether `text` is a line of the training part, or shares a 24-gram with it."""
        grams = (text[i : i + GRAM] for i in range(len(text) - GRAM + 1))
        return text in self._lines or any(gram in self._grams for gram in grams)


def build_suite(corpus: Corpus, items_per_task: int | None, block_size: int) -> Suite:
    """Make the suite of a corpus for models that read `block_size` characters.

    `items_per_task` is the most questions of one task, in whole sets; None takes all there are, 0
    makes no suite. A smaller suite is the beginning of a larger one. Tasks for which the corpus or
    `block_size` is too small are left out by name, never shortened.
    """
    train, length = corpus.training_text, corpus.most_tokens
    reason = ""
    if items_per_task == 0:
        reason = "evaluation.items_per_task is 0"
    elif not train:
        reason = "the text is too long to be searched for what questions share with it"
    if reason:
        return Suite(corpus.sha256, block_size, [], {"all tasks": reason}, {})
    leakage, lexicon, ngrams = LeakageFilter(train), Lexicon(train), NGrams(train)
    dev, test = (_passages(corpus.decode(ids), leakage) for ids in (corpus.dev, corpus.test))
    tasks, left_out = [], {}
    for name, n_choices in N_CHOICES.items():
        items = _items(name, corpus, test, "test", lexicon, leakage)
        examples = _items(name, corpus, dev, "dev", lexicon, leakage)
        lengths = [length(item.text) for item in examples]
        typical = np.median(lengths) if examples else 0
        short = [item for item, n in zip(examples, lengths, strict=True) if n <= typical]
        exemplars = short[:MAX_SHOTS]
        if len(items) < MIN_ITEMS:
            left_out[name] = f"{len(items)} questions, {MIN_ITEMS} needed: give a longer text"
            continue
        if items_per_task is not None:
            items = items[: items_per_task // n_choices * n_choices]
        needed = [_longest_prompt(items, exemplars[:k], length) for k in range(len(exemplars) + 1)]
        fitting = [shots for shots, length in enumerate(needed) if length <= block_size]
        if not fitting:
            left_out[name] = _too_long(needed[0], block_size)
            continue
        for shots in range(max(fitting) + 1, MAX_SHOTS + 1):
            enough = shots < len(needed)
            cause = _too_long(needed[shots], block_size) if enough else "too few examples in dev"
            left_out[f"{name}, {shots}-shot"] = cause
        tasks.append(Task(name, items, exemplars, sorted({0, max(fitting)})))
    baselines = {task.name: _baselines(task.items, ngrams) for task in tasks}
    return Suite(corpus.sha256, block_size, tasks, left_out, baselines)


def _passages(text: str, leakage: LeakageFilter) -> list[Passage]:
    """Split a text at its blank lines. Speaker headers, lines that leak, and the first and last
    line, which the split may have cut, are not usable."""
    passages = []
    for block in text.split("\n\n"):
        if lines := [line for line in block.split("\n") if line.strip()]:
            usable = [not (line.endswith(":") or leakage.leaks(line)) for line in lines]
            passages.append(Passage(lines, usable))
    if passages:
        passages[0].usable[0] = passages[-1].usable[-1] = False
    return passages


def _items(
    name: str,
    corpus: Corpus,
    passages: list[Passage],
    part: str,
    lexicon: Lexicon,
    leakage: LeakageFilter,
) -> list[Item]:
    """Make all questions of a task, set by set: a question for each place of a set, about what
    follows there, and all places to choose from. Sets, places and questions are in random order."""
    key = hashlib.sha256(f"{corpus.sha256}/{name}/{part}".encode()).digest()
    generator = np.random.default_rng(int.from_bytes(key[:8], "big"))
    candidates: dict[str, Candidate] = {}
    for place in RULES[name](passages, lexicon):
        text = place.context + place.answer
        if place.context and lexicon.symbols.issuperset(text) and not leakage.leaks(text):
            candidates.setdefault(text, place)
    distinct = list(candidates.values())
    shuffled = [distinct[i] for i in generator.permutation(len(distinct))]
    items = []
    for chosen in _sets(shuffled, N_CHOICES[name]):
        contexts = [place.context for place in chosen]
        for gold in generator.permutation(len(chosen)).tolist():
            items.append(Item(chosen[gold].answer, contexts, gold))
    return items


def _sets(places: Iterable[Candidate], size: int) -> Iterator[list[Candidate]]:
    """Put places of one kind together, `size` at a time, so that what follows at one is right at no
    other. Those that find no company are left out."""
    waiting: dict[str, list[list[Candidate]]] = defaultdict(list)
    for place in places:
        started = waiting[place.kind]
        for members in started[:MAX_TRIES]:
            if all(_apart(place, other) for other in members):
                members.append(place)
                break
        else:
            members = [place]
            started.append(members)
        if len(members) == size:
            started.remove(members)
            yield members


def _apart(one: Candidate, other: Candidate) -> bool:
    """Tell whether what follows at one place is wrong at the other, and the other way round."""
    same = one.context == other.context or one.answer == other.answer
    return not (same or one.answer in other.fits or other.answer in one.fits)


def _baselines(items: list[Item], ngrams: NGrams) -> dict[str, float]:
    """Return the accuracy reached without a network: by a look at each context alone (its length,
    or how likely its characters are singly or in pairs; of these the one furthest from chance), and
    by the likelihood of the continuation after each context, from pairs and from five characters
    in the training part."""
    contexts = [context for item in items for context in item.contexts]
    continuations = [item.continuation for item in items for _ in item.contexts]
    alone = ngrams.scores([""] * len(contexts), contexts)
    after = ngrams.scores(contexts, continuations)
    lengths = np.array([*map(len, contexts)])
    gold = np.array([item.gold for item in items])

    def accuracy(scores: NDArray[np.float64 | np.int64]) -> float:
        return float((scores.reshape(len(items), -1).argmax(axis=1) == gold).mean())

    chance = 1 / len(items[0].contexts)
    by_context = [accuracy(scores) for scores in (lengths, alone[:, 0], alone[:, 1])]
    furthest = max(by_context, key=lambda reached: abs(reached - chance))
    accuracies = furthest, accuracy(after[:, 1]), accuracy(after[:, -1])
    return dict(zip(BASELINES, accuracies, strict=True))


Length = Callable[[str], int]
"""How many tokens a text takes at the most."""


def _longest_prompt(items: list[Item], exemplars: list[Item], length: Length) -> int:
    """Positions that the longest question takes; its last token is predicted, never read."""
    prefix = sum(length(exemplar.text) + len(DELIMITER) for exemplar in exemplars)
    longest = max(length(c) + length(item.continuation) for item in items for c in item.contexts)
    return prefix + longest - 1


def _too_long(needed: int, block_size: int) -> str:
    return f"its longest question takes {needed} characters and block_size is {block_size}"


# ---- as the LM-Eval harness reads it


def prepare_suite(corpus: Corpus, items: int | None, block_size: int, suites: Path) -> Path:
    """Return the folder below `suites` with the suite of this corpus, made if need be. Another text
    has another folder, and a suite that is whole and of this code is never written again: runs may
    be reading it. Another is named and made anew; corpus and code decide its questions."""
    size = "all" if items is None else str(items)
    size += "" if corpus.unit == "characters" else "-tokens"
    texts = corpus.training_text, corpus.decode(corpus.dev), corpus.decode(corpus.test)
    removed = isinstance(corpus, TokenCorpus) and corpus.metadata["removed"]
    if removed or "".join(texts) != corpus.text:
        size += f"-{digest(texts)[:8]}"  # what is left of the text, which the hash does not tell
    if code := git_state().get("code"):  # the folder is that of arms with other code, too
        size += f"-{code[:12]}"
    folder = suites / f"{corpus.name}-{corpus.sha256[:8]}-{block_size}-{size}"
    suites.mkdir(parents=True, exist_ok=True)
    with FileLock(suites / ".lock"):
        fault = _fault(folder)
        if fault and folder.exists():
            message = f"The suite in {folder.name} is {fault}. It is made anew."
            print(message, file=sys.stderr)
            shutil.rmtree(folder)
        if fault:
            write_suite(build_suite(corpus, items, block_size), folder)
    return folder


def _fault(folder: Path) -> str | None:
    """Say what is wrong with the suite in a folder; None when it is as this code writes it."""
    try:
        suite = read_suite(folder)
        files, code = suite["files"], suite.get("code")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "damaged (suite.json is missing or cannot be read)"
    for name, stated in files.items():
        if not (folder / name).is_file() or sha256(folder / name) != stated:
            return f"damaged ({name} is not as it was written)"
    return None if code == measure_key() else "of other code"


def suite_hash(corpus: Corpus, config: RunConfig, suites: Path) -> str | None:
    """Return the hash of the suite that a run will be asked, made below `suites` if need be; None
    when it will be asked none."""
    items = config.evaluation.items_per_task
    if items == 0:
        return None
    folder = prepare_suite(corpus, items, config.model.block_size, suites)
    return str(read_suite(folder)["hash"])


def read_suite(folder: Path) -> dict[str, Any]:
    """Read what `write_suite` wrote of a suite; ValueError when the folder holds none."""
    if not (folder / "suite.json").is_file():
        raise ValueError(f"{folder.name} holds no suite: write one with write_suite")
    content: dict[str, Any] = json.loads((folder / "suite.json").read_text("utf-8"))
    return content


def write_suite(suite: Suite, folder: Path) -> Path:
    """Write a suite as the LM-Eval harness reads it, and return `folder`.

    Per task: its items and exemplars as JSON lines and one YAML per number of shots. The groups
    average the tasks' accuracies, each task counting the same: `macro_zero_shot`, and
    `macro_few_shot` with each task at its largest number of shots. `suite.json`, written last,
    names the suite's hash, the digest of the code that made it and what was left out; a folder
    without it holds no suite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "suite.json").unlink(missing_ok=True)
    groups: dict[str, list[str]] = {ZERO_SHOT: [], FEW_SHOT: []}
    for task in suite.tasks:
        for part, items in (("test", task.items), ("dev", task.exemplars)):
            lines = (json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in items)
            (folder / f"{task.name}.{part}.jsonl").write_text("".join(lines), "utf-8")
        for shots in task.shots:
            name = f"{task.name}_{shots}_shot"
            groups[FEW_SHOT if shots else ZERO_SHOT].append(name)
            _write_yaml(folder / f"{name}.yaml", _task_yaml(name, task, shots))
    accuracy = {"metric": "acc", "aggregation": "mean", "weight_by_size": False}
    for group, members in groups.items():
        if members:
            content: dict[str, object] = {"group": group, "task": members}
            _write_yaml(folder / f"{group}.yaml", content | {"aggregate_metric_list": [accuracy]})
    described = {
        "hash": suite.hash,
        "corpus_sha256": suite.corpus_sha256,
        "block_size": suite.block_size,
        "groups": groups,
        "tasks": suite.table().to_dict("records"),
        "left_out": suite.left_out,
        "code": measure_key(),
        "files": {path.name: sha256(path) for path in sorted(folder.glob("[!.]*.*"))},
    }
    write_json(folder / "suite.json", described)
    return folder


def _task_yaml(name: str, task: Task, shots: int) -> dict[str, object]:
    files = {"test": f"{task.name}.test.jsonl"}
    if shots:
        files["dev"] = f"{task.name}.dev.jsonl"
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": files, "cache_dir": ".datasets"},
        "test_split": "test",
        **({"fewshot_split": "dev", "fewshot_config": {"sampler": "first_n"}} if shots else {}),
        "num_fewshot": shots,
        "output_type": "multiple_choice",
        # A whole number from doc_to_text: the harness takes the choices for contexts.
        "doc_to_text": "gold",
        "doc_to_choice": "contexts",
        "doc_to_target": "continuation",
        "target_delimiter": "",
        "fewshot_delimiter": DELIMITER,
        "metric_list": [
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
            {"metric": "brier_score", "aggregation": "brier_score", "higher_is_better": False},
        ],
    }


def _write_yaml(path: Path, content: dict[str, object]) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8")


def has_harness() -> bool:
    """Tell whether the LM-Eval harness, which asks the task suite, is installed."""
    return importlib.util.find_spec("lm_eval") is not None
