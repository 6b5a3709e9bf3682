"""The character task suite: multiple-choice questions made of held-out text, and its files.

Questions come from *test* and the solved examples of few-shot prompts from *dev*. The leakage
filter drops every line that also stands in the training part or shares a 24-gram with it, and
every question whose context and answer do. The suite depends only on the corpus, its tokenizer, the
number of items, the block size and the names of the tasks: the same corpus gives the same suite
anywhere, whatever share of it is trained on.
"""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from lib.data.corpus import Corpus
from lib.data.tasks import N_CHOICES, RULES, Lexicon, Passage, Question
from lib.study.constants import GRAM
from lib.study.fields import digest

FEWEST_ITEMS = 50
"""A task with fewer questions is too noisy and is left out."""
MOST_SHOTS = 2
DELIMITER = "\n"
"""Stands after each solved example of a few-shot prompt."""
ZERO_SHOT, FEW_SHOT = "macro_zero_shot", "macro_few_shot"


@dataclass(frozen=True)
class Item:
    """One question: which of `choices` follows `context`? All choices are equally long."""

    context: str
    choices: list[str]
    gold: int


@dataclass(frozen=True)
class Task:
    """The questions of one rule, in an order that was drawn once."""

    name: str
    items: list[Item]
    exemplars: list[Item]
    shots: list[int]
    """Solved examples before a question: 0, and the most of 1 and 2 that `block_size` holds."""

    @property
    def chance(self) -> float:
        """Accuracy of guessing, and of a model that finds all choices equally likely: it is taken
        to choose the first, and the gold choice stands in each place equally often."""
        return 1 / N_CHOICES[self.name]


@dataclass(frozen=True)
class Suite:
    corpus_sha256: str
    block_size: int
    tasks: list[Task]
    left_out: dict[str, str]
    """Task, or task and number of shots, that is left out → why."""

    @property
    def hash(self) -> str:
        """SHA-256 of every question, example and number of shots."""
        return digest([asdict(task) for task in self.tasks])

    def table(self) -> pd.DataFrame:
        """Describe the suite: a row per task with its rule, items, shots and chance level."""
        rows = [
            {
                "task": task.name,
                "items": len(task.items),
                "shots": ", ".join(map(str, task.shots)),
                "chance": task.chance,
                "rule": " ".join((RULES[task.name].__doc__ or "").split()),
            }
            for task in self.tasks
        ]
        return pd.DataFrame(rows, columns=["task", "items", "shots", "chance", "rule"])


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

    `items_per_task` is the most questions of one task; None takes all there are, 0 makes no suite.
    A smaller suite is the beginning of a larger one. Tasks for which the corpus or `block_size` is
    too small are left out by name, never shortened.
    """
    if items_per_task == 0:
        return Suite(corpus.sha256, block_size, [], {"all tasks": "evaluation.items_per_task is 0"})
    train, length = corpus.training_text, corpus.most_tokens
    if not train:
        reason = "the text is too long to be searched for what questions share with it"
        return Suite(corpus.sha256, block_size, [], {"all tasks": reason})
    leakage, lexicon = LeakageFilter(train), Lexicon(train)
    dev, test = (_passages(corpus.decode(ids), leakage) for ids in (corpus.dev, corpus.test))
    tasks, left_out = [], {}
    for name in RULES:
        items = _items(name, corpus, test, "test", lexicon, leakage)[:items_per_task]
        examples = _items(name, corpus, dev, "dev", lexicon, leakage)
        lengths = [_length(item, length) for item in examples]
        typical = np.median(lengths) if examples else 0
        short = [item for item, n in zip(examples, lengths, strict=True) if n <= typical]
        exemplars = short[:MOST_SHOTS]
        if len(items) < FEWEST_ITEMS:
            left_out[name] = f"{len(items)} questions, {FEWEST_ITEMS} needed: give a longer text"
            continue
        needed = [_longest_prompt(items, exemplars[:k], length) for k in range(len(exemplars) + 1)]
        fitting = [shots for shots, length in enumerate(needed) if length <= block_size]
        if not fitting:
            left_out[name] = _too_long(needed[0], block_size)
            continue
        for shots in range(max(fitting) + 1, MOST_SHOTS + 1):
            enough = shots < len(needed)
            why = _too_long(needed[shots], block_size) if enough else "too few examples in dev"
            left_out[f"{name}, {shots}-shot"] = why
        tasks.append(Task(name, items, exemplars, sorted({0, max(fitting)})))
    return Suite(corpus.sha256, block_size, tasks, left_out)


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
    """Make all questions of a task, in random order, with the gold choice in each place equally
    often: among the first n questions, up to one round of places."""
    key = hashlib.sha256(f"{corpus.sha256}/{name}/{part}".encode()).digest()
    generator = np.random.default_rng(int.from_bytes(key[:8], "big"))
    n_choices = N_CHOICES[name]
    asked: dict[tuple[str, str], Question] = {}
    for question in RULES[name](passages, lexicon, generator):
        sound = _is_sound(question, n_choices, lexicon.symbols)
        if sound and not leakage.leaks(question.context + question.answer):
            asked.setdefault((question.context, question.answer), question)
    questions = list(asked.values())
    items = []
    places: list[int] = []
    for i in generator.permutation(len(questions)):
        places = places or generator.permutation(n_choices).tolist()
        question, gold = questions[i], places.pop()
        choices = [*question.distractors[:gold], question.answer, *question.distractors[gold:]]
        items.append(Item(question.context, choices, gold))
    return items


def _is_sound(question: Question, n_choices: int, symbols: set[str]) -> bool:
    """Tell whether a question has a context, enough choices, all different and equally long, and
    only symbols of the vocabulary (the training part may lack a capital, say)."""
    choices = [question.answer, *question.distractors]
    return (
        bool(question.context)
        and len(set(choices)) == len(choices) == n_choices
        and len(set(map(len, choices))) == 1
        and set(question.context).union(*choices) <= symbols
    )


Length = Callable[[str], int]
"""How many tokens a text takes at the most."""


def _length(item: Item, length: Length) -> int:
    return length(item.context) + length(item.choices[item.gold])


def _longest_prompt(items: list[Item], exemplars: list[Item], length: Length) -> int:
    """Positions that the longest question takes; its last token is predicted, never read."""
    before = sum(_length(exemplar, length) + len(DELIMITER) for exemplar in exemplars)
    return before + max(_length(item, length) for item in items) - 1


def _too_long(needed: int, block_size: int) -> str:
    return f"its longest question takes {needed} characters and block_size is {block_size}"
