"""Evaluate models on tasks with the LM-Eval harness: on our suite (`evaluate_suite`), and on stock
tasks or your own tasks (`evaluate_tasks`). `CharacterLM` is the adapter between the harness and a
GPT.

A stock task is a task of the harness that a study names. Only tasks that score an existing text are
allowed; tasks that generate text are refused. The harness downloads the data of a task if they are
missing. Your own tasks come from `evaluation.include_path`.

The adapter is a subclass of `LM`, not of `TemplateLM`, because `TemplateLM` moves white space from
the end of a context to the continuation. In our suite, a line break is a character like any other.
"""

import contextlib
import glob
import io
import json
import logging
import math
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from itertools import groupby, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import numpy as np
import pandas as pd
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from lib.config.errors import ConfigError, suggest
from lib.config.paths import CHECKOUT, listed
from lib.config.schema import EvaluationConfig, stock_measures
from lib.config.yaml import Json
from lib.data.tasks import N_CHOICES
from lib.data.text import Corpus
from lib.train.model import GPT, KVCache

Pair = tuple[list[int], list[int]]
"""A context and its continuation, as ids; neither is empty."""


@torch.no_grad()
def score_pairs(model: GPT, pairs: list[Pair], batch_size: int) -> list[tuple[float, bool]]:
    """Score each continuation after its context. Return for each pair the sum of the
    log-probabilities of its characters (in nats), and whether each of them was the most likely one.

    The model reads the beginning that all contexts share (the solved examples of a few-shot prompt)
    only once. It also reads each context once, even if the context has many continuations.

    Raises ValueError if a pair is longer than `block_size`, not counting its last character. The
    last character is predicted but never read.
    """
    device = model.transformer.wte.weight.device
    by_context: dict[tuple[int, ...], list[int]] = defaultdict(list)  # → indices of pairs
    for i, (context, _) in enumerate(pairs):
        by_context[tuple(context)].append(i)
    contexts = sorted(by_context, key=len)

    # 1) Read the beginning that all contexts share, without the last character of any context.
    # `commonprefix` works on lists of ids as well as on paths.
    common = os.path.commonprefix([context[:-1] for context in contexts])  # noqa: RUF071
    shared = KVCache()
    if common:
        model.hidden(torch.tensor([common], device=device), shared)

    scores: dict[int, tuple[float, bool]] = {}
    for start in range(0, len(contexts), batch_size):
        batch = contexts[start : start + batch_size]
        cache = KVCache(shared)

        # 2) One row per context. The first context is the shortest, with m ids. From every context,
        # read the first m - 1 ids, except those that all contexts share.
        end = len(batch[0]) - 1
        if end > len(common):
            unread = [context[len(common) : end] for context in batch]
            model.hidden(torch.tensor(unread, device=device), cache)
            # From here on, one row per pair.
            cache.take([row for row, context in enumerate(batch) for _ in by_context[context]])

        # 3) One row per pair. Read the rest of its context, and its continuation without the last
        # character, which is only predicted. Rows are padded at the end, after all used positions.
        indices = [i for context in batch for i in by_context[context]]
        asked = [pairs[i] for i in indices]
        rests = [torch.tensor([*context, *choice][end:-1]) for context, choice in asked]
        hidden = model.hidden(pad_sequence(rests, batch_first=True).to(device), cache)  # (B, T, C)

        # 4) The last n positions of a row predict the n characters of its continuation.
        lengths = [len(choice) for _, choice in asked]
        predicting = [
            row[len(rest) - n : len(rest)]
            for row, rest, n in zip(hidden, rests, lengths, strict=True)
        ]
        targets = torch.tensor([target for _, choice in asked for target in choice], device=device)
        log = []
        greedy = []
        for logits, target in model.logits_in_parts(torch.cat(predicting), targets):
            log.append(-F.cross_entropy(logits, target, reduction="none"))
            greedy.append(logits.argmax(dim=-1) == target)
        log_of_pairs = torch.split(torch.cat(log).cpu(), lengths)
        greedy_of_pairs = torch.split(torch.cat(greedy).cpu(), lengths)
        for i, logs, hits in zip(indices, log_of_pairs, greedy_of_pairs, strict=True):
            scores[i] = float(logs.double().sum()), bool(hits.all())
    return [scores[i] for i in range(len(pairs))]


class CharacterLM(LM):  # type: ignore[misc]
    """A GPT and the vocabulary of its corpus, as a language model of the harness.

    A symbol that is not in the training part raises CorpusError.

    If a context is too long for `block_size`, its beginning is cut off, as in the harness's own
    adapter `HFLM`, and its question is added to `overflows`. How much is cut off depends on the
    length of each choice.
    """

    def __init__(self, model: GPT, corpus: Corpus, batch_size: int = 8) -> None:
        super().__init__()
        self.model = model
        self.corpus = corpus
        self.batch_size = batch_size
        self.overflows: set[tuple[str | None, int | None]] = set()
        """Questions with a shortened context: name of the task, and index of the question in it."""

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Score continuations. Return two values for each: the sum of its log-probabilities in
        nats, and whether greedy decoding gives the continuation.

        An empty context becomes a line break. Raises ValueError for a continuation that is empty
        or longer than `block_size`.
        """
        # The questions of a task come one after another, and share their solved examples.
        scores: list[tuple[float, bool]] = []
        for _, task in groupby(requests, key=lambda request: request.task_name):
            pairs = [self.pair(request) for request in task]
            scores += score_pairs(self.model, pairs, self.batch_size)
        return scores

    def pair(self, request: Instance) -> Pair:
        """Map a request to ids. If its context is too long, cut off the beginning. Raises
        ValueError as `loglikelihood` does."""
        context, choice = self.encode(*request.args)
        block_size = self.model.config.block_size
        if not 0 < len(choice) <= block_size:
            remedy = "change the task, or train with a larger one"
            if not choice:
                remedy = (
                    "it is empty, or part of the context's last token: end the context with a space"
                )
            raise ValueError(
                f"a continuation has {len(choice)} {self.corpus.unit}; it must have 1 to "
                f"{block_size} (model.block_size): {remedy}"
            )
        room = block_size + 1 - len(choice)  # + 1 because the last token is predicted, never read
        if len(context) > room:
            self.overflows.add((request.task_name, request.doc_id))
        return context[-room:], choice

    def encode(self, context: str, choice: str) -> Pair:
        """Map a context and its continuation to ids."""
        before = self.corpus.encode(context) if context else self.corpus.beginning
        return before.tolist(), self.corpus.encode(choice).tolist()

    loglikelihood_rolling = generate_until = None  # see OUTPUT_TYPES


class TokenLM(CharacterLM):
    """The adapter for stock tasks. It separates context and continuation as `TemplateLM` does, so
    that accuracies can be compared with published ones.

    White space at the end of the context moves to the continuation. Both are encoded as one text.
    If the context alone has n tokens, the first n tokens of that text are the context, and the rest
    is the continuation. A token that spans the boundary belongs to the context. If no token is left
    for the continuation, `pair` refuses it.
    """

    def encode(self, context: str, choice: str) -> Pair:
        before = self.corpus.encode(context.rstrip()).tolist()
        after = self.corpus.encode(context + choice)[len(before) :].tolist()
        return before or self.corpus.beginning.tolist(), after


OUTPUT_TYPES = ("multiple_choice", "loglikelihood")
"""Kinds of tasks that a model can be evaluated on. Other kinds generate texts, or score whole
texts."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the output of the harness: progress bars and logs."""
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    datasets.disable_progress_bars()
    with (
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        yield


def _as_named(files: Any) -> Any:
    """Escape the paths of existing files. `datasets` would read `[`, `*` and `?` in them as
    patterns, and open other files. Any other path is meant as a pattern, and stays unchanged.
    Raises ConfigError for a path that cannot be escaped."""
    if isinstance(files, dict):
        return {part: _as_named(of) for part, of in files.items()}
    if isinstance(files, list | tuple):
        return [_as_named(of) for of in files]
    if not Path(files).is_file():
        return files
    path = str(Path(files).resolve())
    if "::" in path:
        raise ConfigError(f"{path}: contains '::', which `datasets` cannot read; rename it")
    return glob.escape(path)


def evaluate_suite(
    model: GPT, corpus: Corpus, folder: Path, batch_size: int = 8
) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """Evaluate a model on every question of the suite that `lib.data.suite` wrote to `folder` for
    this corpus and `block_size`. Return

    - a row per task and number of shots: task, shots, n, accuracy, stderr (of the accuracy, over
      items), chance, normalised_accuracy (0 at chance, 1 if all answers are right) and brier
      (squared errors of the choices' probabilities, summed over choices; 0 is best);
    - a row per question: task, shots, item (its line in the task's file), choice (the likeliest, or
      the first of several equally likely ones) and correct;
    - the number of questions with a shortened context: 0, unless the suite was made for a larger
      `block_size`.
    """
    adapter = CharacterLM(model, corpus, batch_size)
    with quiet():
        tasks = _suite_tasks(folder)
        if not tasks:
            return pd.DataFrame(), pd.DataFrame(), 0
        # Standard errors of accuracies need no bootstrap. But with 0 bootstrap iterations, the
        # harness leaves the standard errors out. So we ask for one iteration. The harness's cache
        # of requests stays off, because it ignores the model.
        results = evaluate(lm=adapter, task_dict=tasks, bootstrap_iters=1)
    rows = []
    items = []
    for name, samples in results["samples"].items():
        task, shots = name.removesuffix("_shot").rsplit("_", 1)
        measures = results["results"][name]
        chance = 1 / N_CHOICES[task]
        accuracy = measures["acc,none"]
        rows.append(
            {
                "task": task,
                "shots": int(shots),
                "n": len(samples),
                "accuracy": accuracy,
                "stderr": measures["acc_stderr,none"],
                "chance": chance,
                "normalised_accuracy": (accuracy - chance) / (1 - chance),
                "brier": measures["brier_score,none"],
            }
        )
        items.append(_item_table(task, int(shots), samples))
    return pd.DataFrame(rows), pd.concat(items, ignore_index=True), len(adapter.overflows)


def _suite_tasks(folder: Path) -> dict[str, ConfigurableTask]:
    """Load the tasks of a suite in the order of its groups, zero-shot first.

    We read the questions ourselves: `datasets` would read the files' paths as patterns, and keep a
    copy of each file in the user's cache.
    """

    def read(data_files: dict[str, str], **_: Any) -> dict[str, datasets.Dataset]:
        return {part: _read_questions(folder / name) for part, name in data_files.items()}

    tasks = {}
    for group in ("macro_zero_shot", "macro_few_shot"):
        for name in _read_config(folder, group).get("task", []):
            config = _read_config(folder, name)
            tasks[name] = ConfigurableTask(config={**config, "custom_dataset": read})
    return tasks


def _read_config(folder: Path, name: str) -> Json:
    """Read a JSON file of the suite; {} if it does not exist."""
    file = folder / f"{name}.yaml"
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def _read_questions(file: Path) -> datasets.Dataset:
    lines = file.read_text("utf-8").split("\n")
    return datasets.Dataset.from_list([json.loads(line) for line in lines if line])


def _item_table(task: str, shots: int, samples: list[Json]) -> pd.DataFrame:
    """Return a row per question. `correct` is the harness's accuracy for the question. The column
    is bool if every accuracy is 0 or 1. Otherwise (as in `truthfulqa_mc2`) it has numbers."""
    rows = []
    for sample in sorted(samples, key=lambda sample: sample["doc_id"]):
        log = [score for score, _ in sample["filtered_resps"]]
        if "acc_mutual_info" in sample:
            log = log[: len(log) // 2]  # the second half has the scores of choices without context
        rows.append(
            {
                "task": task,
                "shots": shots,
                "item": sample["doc_id"],
                "choice": int(np.argmax(log)),
                "correct": float(sample.get("acc", math.nan)),
            }
        )
    table = pd.DataFrame(rows)
    return table.astype({"correct": bool}) if table["correct"].isin([0, 1]).all() else table


@quiet()
def require_tasks(
    config: EvaluationConfig, tested: Collection[str] = (), adapters: Collection[TokenLM] = ()
) -> list[str]:
    """Check before training that the model can be evaluated on all stock tasks. Return warnings
    about contexts that will lose their beginning.

    Raises ConfigError if the harness lacks a task, if the data of a task cannot be downloaded, if
    one of the adapters cannot encode a question, or if a measure in `tested` is provided by no
    task.
    """
    measures: list[str] = []
    lines: list[str] = []
    for name, task in _load(config)["tasks"].items():
        if task.OUTPUT_TYPE not in OUTPUT_TYPES or getattr(task, "MULTIMODAL", False):
            raise ConfigError(
                f"evaluation.tasks: {name}: it needs more than the likelihood of given texts; "
                "leave it out"
            )
        shots = sorted({_shots(task, number) for number in _numbers_of_shots(config)})
        if _is_judged(task):
            measures += stock_measures(name, shots)
        for number, adapter in product(shots, adapters):
            where = f"evaluation.tasks: {name}, {number}-shot"
            try:
                _begin(task, number)
                task.build_all_requests()
                adapter.overflows.clear()
                for request in task.instances:
                    adapter.pair(request)
            except ValueError as error:  # ours, or the harness's (too few examples for the shots)
                raise ConfigError(f"{where}: {' '.join(str(error).split())}") from None
            lost = len(adapter.overflows)
            if lost:
                block_size = adapter.model.config.block_size
                lines.append(
                    f"{where}: {lost} of {len(task.eval_docs)} contexts lose their beginning, "
                    f"because model.block_size is {block_size}"
                )
    for measure in tested:
        if measure not in measures:
            raise ConfigError(f"plan: in evaluation.tasks, {suggest(measure, measures)}")
    return lines


def _begin(task: Any, shots: int) -> None:
    """Set the number of solved examples that a task shows before each question. They are always the
    same ones."""
    task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(1234)  # the harness's own default


def evaluate_tasks(
    model: GPT, corpus: Corpus, config: EvaluationConfig, batch_size: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Evaluate a model on stock tasks, with each number of shots in `evaluation.shots`. If this
    list is empty, use each task's own number. Return

    - a row per task (or group) and metric: task, shots, metric, filter, value, stderr, n
      (questions), task_version, and truncated (the share of questions with a shortened context);
    - a row per question as in `evaluate_suite`, for the tasks that have an accuracy.
    """
    tables = []
    items = []
    for number in _numbers_of_shots(config):
        with quiet():
            adapter = TokenLM(model, corpus, batch_size)
            tasks = _load(config)
            shots = {name: _shots(task, number) for name, task in tasks["tasks"].items()}
            for name, task in tasks["tasks"].items():
                _begin(task, shots[name])
            results = evaluate(lm=adapter, task_dict=tasks, bootstrap_iters=1000)
        table = pd.DataFrame(_rows(results))
        shortened = Counter(task for task, _ in adapter.overflows)
        tables.append(table.assign(truncated=table["task"].map(shortened) / table["n"]))
        for name, task in tasks["tasks"].items():
            if _is_judged(task):
                items.append(_item_table(name, shots[name], results["samples"][name]))
    answers = pd.concat(items).drop_duplicates(ignore_index=True) if items else pd.DataFrame()
    return pd.concat(tables, ignore_index=True), answers


def _numbers_of_shots(config: EvaluationConfig) -> list[int | None]:
    """Return the numbers of shots to evaluate with. None stands for each task's own number."""
    return [*config.shots] or [None]


def _shots(task: Any, number: int | None) -> int:
    """Return the number of shots of a task: `number`, or the task's own number if `number` is
    None."""
    own = task.get_config("num_fewshot")
    if own == 0:  # the harness never shows examples in such a task
        return 0
    return int(own or 0) if number is None else number


def _is_judged(task: Any) -> bool:
    """Return whether a task has exactly one accuracy, and this is the mean over questions."""
    filters = task.get_config("filter_list") or [None]
    return task.aggregation().get("acc") is mean and len(filters) == 1


def _rows(results: Json) -> list[Json]:
    rows = []
    for name, measures in results["results"].items():
        for key, value in measures.items():
            metric, _, kind = key.partition(",")
            if not kind or metric.endswith("_stderr"):
                continue
            stderr = measures.get(f"{metric}_stderr,{kind}")
            rows.append(
                {
                    "task": name,
                    "shots": results["n-shot"].get(name),
                    "metric": metric,
                    "filter": kind,
                    "value": float(value),
                    "stderr": stderr if isinstance(stderr, float) else None,
                    "n": results["n-samples"].get(name, {}).get("effective"),
                    "task_version": str(results["versions"].get(name)),
                }
            )
    return rows


def _load(config: EvaluationConfig) -> Json:
    """Load tasks and their data. Raises ConfigError if that is impossible."""
    names = config.tasks
    manager = _manager(config.include_path)
    tasks = manager.all_tasks
    for name in names:
        if name not in tasks:
            said = suggest(name, tasks).partition("; there")[0]
            if config.include_path:
                said += f"; or its file in {config.include_path} is not the YAML of a task"
            raise ConfigError(f"evaluation.tasks: {said}")
    try:
        return dict(manager.load([task for name in names for task in _tasks(manager, name)]))
    except Exception as error:  # anything may come from the task's own code or the network
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(
            f"evaluation.tasks: {', '.join(names)} cannot be loaded: {reason}; download the data "
            "once with a network, correct your own files, or leave the tasks out"
        ) from None


def _tasks(manager: TaskManager, name: str) -> Iterable[Any]:
    """Load the tasks that a name stands for. The name may be a group, a task, or a tag of several
    tasks."""
    file = manager.task_index[name].yaml_path
    load = datasets.load_dataset

    def read(path: str, *more: Any, **options: Any) -> Any:
        if "data_files" in options:
            options["data_files"] = _as_named(options["data_files"])
        return load(path, *more, **options)

    # A user's own task may give the path of its data relative to its own file.
    folder = Path(file).parent if file else "."
    with contextlib.chdir(folder), patch.object(datasets, "load_dataset", read):
        loaded = manager.load([name])
    return [loaded["groups"][name]] if name in loaded["groups"] else loaded["tasks"].values()


@lru_cache(maxsize=1)
def _manager(include_path: str | None) -> TaskManager:
    """Index the harness's tasks (this takes seconds) and your own. Raises ConfigError if one of
    your own files is hidden, because `tasks_hash` does not cover hidden files."""
    # Keep the bootstrap from forking this process. A process with threads should not be forked.
    os.environ["DISABLE_MULTIPROC"] = "1"
    if not include_path:
        return TaskManager()
    own = CHECKOUT / include_path
    manager = TaskManager(include_path=own)
    visible = listed(own, "**/*.yaml")
    for entry in manager.task_index.values():
        file = entry.yaml_path
        if file and file.is_relative_to(own) and file not in visible:
            name = file.relative_to(own)
            raise ConfigError(f"evaluation.include_path: {name} is hidden; rename or remove it")
    return manager
