"""The suite: multiple-choice questions made from held-out text, and their files.

A question shows a continuation and two or four places in the text. It asks which place the
continuation follows. A model answers with the place that makes the continuation likeliest.

Two biases could give a model points for nothing. First, some places look right by themselves. So
questions come in sets: all questions of a set show the same places, and each place is right in one
of them. Second, some continuations are likely anywhere. So all choices of a question have the same
continuation.

Questions come from *test*. The solved examples of few-shot prompts come from *dev*. The leakage
filter drops a line if it is also in the training part, or shares 24 characters in a row with it. It
drops a place if that is true of the place and its continuation together.

The suite depends only on the corpus, its tokenizer, the number of items, the block size and the
names of the tasks. So the same corpus gives the same suite everywhere, even if only a fraction of
it is trained on.
"""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from lib.config.provenance import imported_code
from lib.config.schema import digest
from lib.config.yaml import Json
from lib.data.cache import cached
from lib.data.tasks import N_CHOICES, RULES, Candidate, Lexicon, Line
from lib.data.text import Corpus
from lib.data.tokens import Ids

INSTALL = "pip install lm_eval==0.4.13"
"""Command that installs the LM-Eval harness, which Kaggle's images lack."""
MIN_ITEMS = 50
"""A task with fewer questions is too noisy and is left out."""
MAX_SHOTS = 2
MAX_TRIES = 20
"""A place is tried in this many unfinished sets before it starts a new one."""
DELIMITER = "\n"
"""Text after each solved example of a few-shot prompt."""


@dataclass(frozen=True)
class Item:
    """One question: which of `contexts` does `continuation` follow?"""

    continuation: str
    contexts: list[str]
    gold: int

    @property
    def text(self) -> str:
        """The right context with the continuation, as in the corpus."""
        return self.contexts[self.gold] + self.continuation


@dataclass(frozen=True)
class Task:
    """The questions of one rule, set by set, in a fixed random order."""

    name: str
    items: list[Item]
    exemplars: list[Item]
    shots: list[int]
    """Numbers of solved examples to ask with: 0, and 1 or 2 (as many as fit into `block_size`)."""


@dataclass(frozen=True)
class Suite:
    tasks: list[Task] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Task, or task with a number of shots → why it is left out."""

    @property
    def hash(self) -> str:
        """SHA-256 of every question, example and number of shots."""
        return digest([asdict(task) for task in self.tasks])


def build_suite(corpus: Corpus, items_per_task: int | None, block_size: int) -> Suite:
    """Make the suite of a corpus for models that read `block_size` characters.

    `items_per_task` is the largest number of questions per task. None takes all questions, 0 makes
    no suite. Sets stay whole, and a smaller suite is the beginning of a larger one.

    If the corpus or `block_size` is too small for a task, the task is left out and named in
    `left_out`. Contexts are never shortened.
    """
    suite = Suite()
    train = corpus.training_text
    if items_per_task == 0:
        suite.left_out["all tasks"] = "evaluation.items_per_task is 0"
        return suite
    if not train:
        suite.left_out["all tasks"] = "the training part is too long to search for leaks"
        return suite
    lexicon = Lexicon(train)
    dev = _usable_lines(corpus.decode(corpus.dev), lexicon)
    test = _usable_lines(corpus.decode(corpus.test), lexicon)
    for name, n_choices in N_CHOICES.items():
        key = f"{corpus.sha256}/{name}"
        items = _items(name, f"{key}/test", test, lexicon)
        examples = _items(name, f"{key}/dev", dev, lexicon)
        if len(items) < MIN_ITEMS:
            suite.left_out[name] = f"{len(items)} questions, {MIN_ITEMS} needed: give a longer text"
            continue
        if items_per_task is not None:
            items = items[: items_per_task // n_choices * n_choices]
        # Use only examples up to the median length: long ones leave no room for a question.
        typical = np.median([_length(corpus, item.text) for item in examples] or [0])
        short = [item for item in examples if _length(corpus, item.text) <= typical]
        exemplars = short[:MAX_SHOTS]
        needed = _prompt_lengths(corpus, items, exemplars)  # with 0, 1, … shots, increasing
        shots = sum(length <= block_size for length in needed) - 1  # -1: no question fits
        for number in range(shots + 1, MAX_SHOTS + 1):
            reason = "too few examples in dev"
            if number < len(needed):
                reason = f"its longest prompt needs {needed[number]}, block_size is {block_size}"
            suite.left_out[f"{name}, {number}-shot" if number else name] = reason
        if shots >= 0:
            suite.tasks.append(Task(name, items, exemplars, sorted({0, shots})))
    return suite


def _usable_lines(text: str, lexicon: Lexicon) -> list[Line]:
    """List the lines of a text that questions may show. Leave out names of speakers ("ROMEO:"),
    lines that leak, and the first and last line, which the split may have cut. Blank lines separate
    passages."""
    lines = [line for line in text.split("\n") if not line or line.strip()]
    full = [i for i, line in enumerate(lines) if line]
    inner = [i for i in full[1:-1] if not lines[i].endswith(":")]
    usable = [i for i in inner if not lexicon.leaks(lines[i])]
    is_usable = set(usable)
    lines.append("")  # what follows the last line
    return [Line(lines[i], lines[i + 1], i + 1 in is_usable) for i in usable]


def _items(name: str, seed: str, lines: list[Line], lexicon: Lexicon) -> list[Item]:
    """Make all questions of a task, set by set. A set of n places gives n questions, one for the
    continuation of each place: after which of the n places does it come? Sets, places and questions
    are in random order."""
    key = hashlib.sha256(seed.encode()).digest()
    generator = np.random.default_rng(int.from_bytes(key[:8], "big"))
    candidates: dict[str, Candidate] = {}
    for place in RULES[name](lines, lexicon):
        text = place.context + place.answer
        if place.context and lexicon.symbols.issuperset(text) and not lexicon.leaks(text):
            candidates.setdefault(text, place)
    distinct = list(candidates.values())
    shuffled = [distinct[i] for i in generator.permutation(len(distinct))]
    return [
        Item(places[gold].answer, [place.context for place in places], gold)
        for places in _sets(shuffled, N_CHOICES[name])
        for gold in generator.permutation(len(places)).tolist()
    ]


def _sets(places: Iterable[Candidate], size: int) -> Iterator[list[Candidate]]:
    """Group places of one kind into sets of `size`, so that the continuation of each place is wrong
    at all other places. If a set never fills up, its places are left out."""
    unfinished: dict[str, list[list[Candidate]]] = defaultdict(list)  # by kind
    for place in places:
        started = unfinished[place.kind]
        fitting = (
            members
            for members in started[:MAX_TRIES]
            if all(_apart(place, member) for member in members)
        )
        members = next(fitting, [])
        if not members:  # a new set
            started.append(members)
        members.append(place)
        if len(members) == size:
            started.remove(members)
            yield members


def _apart(one: Candidate, other: Candidate) -> bool:
    """Return whether the continuation of each place is wrong at the other one."""
    same = one.context == other.context or one.answer == other.answer
    return not (same or one.answer in other.fits or other.answer in one.fits)


def _length(corpus: Corpus, text: str) -> int:
    """Return the most tokens that a text can take: its number of characters, or with any other
    tokenizer its number of bytes. So the suite does not depend on the merges that a tokenizer has
    learned."""
    return len(text) if corpus.unit == "characters" else len(text.encode())


def _prompt_lengths(corpus: Corpus, items: list[Item], exemplars: list[Item]) -> list[int]:
    """Count the positions that the longest question needs after 0, 1, … solved examples. The last
    token of a question needs none, because it is predicted and never read."""
    texts = {context + item.continuation for item in items for context in item.contexts}
    longest = max(_length(corpus, text) for text in texts)
    before = [_length(corpus, example.text + DELIMITER) for example in exemplars]
    return list(accumulate(before, initial=longest - 1))


# ---- files for the LM-Eval harness


def has_harness() -> bool:
    """Return whether the LM-Eval harness is installed. (Importing it would take seconds.)"""
    return find_spec("lm_eval") is not None


def made_of(corpus: Corpus, train: Ids) -> list[Any]:
    """Return the key of everything computed from a corpus: its text, its tokenizer, the length of
    each part (of the training part, the length of `train`), and the code."""
    code = {
        name: sha256
        for name, sha256 in imported_code().items()
        if name.startswith("lib/data/") or name == "lib/config/schema.py"
    }
    lengths = [len(train), len(corpus.dev), len(corpus.test)]
    return [corpus.sha256, corpus.tokenizer.sha256, corpus.unit, lengths, code]


def prepare_suite(corpus: Corpus, items: int | None, block_size: int) -> tuple[Path, Json]:
    """Return the folder of a corpus's suite, in the harness's format, and a description of it. The
    suite is built once, and all runs read it."""

    def make(folder: Path) -> Json:
        return _write_suite(build_suite(corpus, items, block_size), folder)

    # All of the training part is searched for leaks, even if only a fraction is trained on.
    asked = [made_of(corpus, corpus.whole.parts["train"]), items, block_size]
    folder, described = cached("suites", corpus.name, asked, make)
    return folder, described | {"corpus_sha256": corpus.sha256, "block_size": block_size}


def _write_suite(suite: Suite, folder: Path) -> Json:
    """Write a suite to a folder, and describe it.

    Each task has its items and exemplars as JSON lines, and one YAML file per number of shots. Two
    groups average the tasks' accuracies, with equal weight for each task: `macro_zero_shot`, and
    `macro_few_shot` with each task at its largest number of shots.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    files: dict[str, Json] = {}
    for task in suite.tasks:
        for part, asked in (("test", task.items), ("dev", task.exemplars)):
            lines = (json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in asked)
            (folder / f"{task.name}.{part}.jsonl").write_text("".join(lines), "utf-8")
        for shots in task.shots:
            name = f"{task.name}_{shots}_shot"
            groups["macro_few_shot" if shots else "macro_zero_shot"].append(name)
            files[name] = _harness_task(name, task, shots)
    accuracy = {"metric": "acc", "aggregation": "mean", "weight_by_size": False}
    for group, members in groups.items():
        files[group] = {"group": group, "task": members, "aggregate_metric_list": [accuracy]}
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(json.dumps(content, indent=1), "utf-8")  # JSON is YAML
    return {
        "hash": suite.hash,
        "tasks": [_described(task) for task in suite.tasks],
        "left_out": suite.left_out,
    }


def _described(task: Task) -> Json:
    """Describe a task: its rule, items, shots, chance level, and the standard error of an accuracy
    at chance."""
    chance = 1 / N_CHOICES[task.name]
    return {
        "task": task.name,
        "items": len(task.items),
        "shots": ", ".join(map(str, task.shots)),
        "chance": chance,
        "stderr": math.sqrt(chance * (1 - chance) / len(task.items)),
        "rule": " ".join((RULES[task.name].__doc__ or "").split()),
    }


def _harness_task(name: str, task: Task, shots: int) -> Json:
    files = {"test": f"{task.name}.test.jsonl", "dev": f"{task.name}.dev.jsonl"}
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": files},
        "test_split": "test",
        "fewshot_split": "dev",
        "fewshot_config": {"sampler": "first_n"},
        "num_fewshot": shots,
        "output_type": "multiple_choice",
        # `gold` is a whole number, so the harness takes the choices for contexts.
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
