"""The character task suite: multiple-choice questions made of held-out text, and its files.

Questions come from *test* and the solved examples of few-shot prompts from *dev*. The leakage
filter drops every line that also stands in the training part or shares a 24-gram with it, and
every question whose context and answer do. The suite depends only on the corpus and the names of
the tasks: the same corpus gives the same suite anywhere, whatever share of it is trained on.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from filelock import FileLock

from lib.data.corpus import Corpus
from lib.data.tasks import N_CHOICES, RULES, Lexicon, Passage, Question
from lib.study.constants import GRAM
from lib.study.fields import RunConfig, digest

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


def prepare_suite(corpus: Corpus, items: int | None, block_size: int, suites: Path) -> Path:
    """Return the folder below `suites` with the suite of this corpus, made if need be. Another text
    has another folder, and what was written once is never written again: runs may be reading it."""
    folder = suites / f"{corpus.name}-{corpus.sha256[:8]}-{block_size}-{items or 'all'}"
    suites.mkdir(parents=True, exist_ok=True)
    with FileLock(suites / ".lock"):
        if not (folder / "suite.json").is_file():  # written last
            write_suite(build_suite(corpus, items, block_size), folder)
    return folder


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
        raise ValueError(f"{folder.name} holds no suite: write one with lib.data.suite.write_suite")
    content: dict[str, Any] = json.loads((folder / "suite.json").read_text("utf-8"))
    return content


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
    train = corpus.text[: len(corpus.text) - len(corpus.heldout)]  # whatever share is trained on
    leakage, lexicon = LeakageFilter(train), Lexicon(train)
    dev, test = (_passages(corpus.decode(ids), leakage) for ids in (corpus.dev, corpus.test))
    tasks, left_out = [], {}
    for name in RULES:
        items = _items(name, corpus, test, "test", lexicon, leakage)[:items_per_task]
        examples = _items(name, corpus, dev, "dev", lexicon, leakage)
        typical = np.median([_length(item) for item in examples]) if examples else 0
        exemplars = [item for item in examples if _length(item) <= typical][:MOST_SHOTS]
        if len(items) < FEWEST_ITEMS:
            left_out[name] = f"{len(items)} questions, {FEWEST_ITEMS} needed: give a longer text"
            continue
        needed = [_longest_prompt(items, exemplars[:k]) for k in range(len(exemplars) + 1)]
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
        sound = _is_sound(question, n_choices, set(corpus.symbols))
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


def _length(item: Item) -> int:
    return len(item.context) + len(item.choices[item.gold])


def _longest_prompt(items: list[Item], exemplars: list[Item]) -> int:
    """Positions that the longest question takes; its last character is predicted, never read."""
    before = sum(_length(exemplar) + len(DELIMITER) for exemplar in exemplars)
    return before + max(map(_length, items)) - 1


def _too_long(needed: int, block_size: int) -> str:
    return f"its longest question takes {needed} characters and block_size is {block_size}"


def write_suite(suite: Suite, folder: Path) -> Path:
    """Write a suite as the LM-Eval harness reads it, and return `folder`.

    Per task: its items and exemplars as JSON lines and one YAML per number of shots. The groups
    average the tasks' accuracies, each task counting the same: `macro_zero_shot`, and
    `macro_few_shot` with each task at its largest number of shots. `suite.json`, written last,
    names the suite's hash and what was left out; a folder without it holds no suite.
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
        "chance": {task.name: task.chance for task in suite.tasks},
        "tasks": suite.table().to_dict("records"),
        "left_out": suite.left_out,
    }
    (folder / "suite.json").write_text(json.dumps(described, indent=1) + "\n", "utf-8")
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
        "doc_to_text": "context",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "target_delimiter": "",
        "fewshot_delimiter": DELIMITER,
        "metric_list": [
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
            {"metric": "brier_score", "aggregation": "brier_score", "higher_is_better": False},
        ],
    }


def _write_yaml(path: Path, content: dict[str, object]) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8")
