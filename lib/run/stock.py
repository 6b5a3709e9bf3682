"""Stock tasks of the LM-Eval harness: any of its tasks and groups by name, through our adapter.

Their definitions are the harness's own, and their data what it downloads, or has before.
"""

import json
import os
from functools import lru_cache
from importlib.metadata import distribution
from typing import Any

import pandas as pd
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from lib.data.corpus import Corpus
from lib.run.harness import CharacterLM, generation, quiet
from lib.run.model import GPT
from lib.study.errors import ConfigError, unknown

_DRAWS = 1000
"""Of the bootstrap, for metrics whose standard error has no formula."""
_SEED = 1234
"""Of the choice of solved examples: the harness's own default."""


class TokenLM(CharacterLM):
    """The adapter, writing context and continuation as the harness does for tokens of several
    characters: as one text, in which white space before the continuation belongs to it."""

    def _encode_question(
        self, context: str, choices: list[str]
    ) -> tuple[list[int], list[list[int]]]:
        before = self._encode(context.rstrip())
        after = [self._encode(context + choice)[len(before) :] for choice in choices]
        return before or self.corpus.beginning.tolist(), after


def require_tasks(names: list[str], block_size: int) -> None:
    """Raise ConfigError, in one line, for a task that the harness lacks, whose data cannot be had,
    or that this adapter cannot be asked."""
    for name, task in _load(names)["tasks"].items():
        try:
            if getattr(task, "MULTIMODAL", False) or getattr(task, "UNSAFE_CODE", False):
                raise ValueError("it shows pictures, or executes what a model writes")
            if task.OUTPUT_TYPE == "generate_until":
                generation(task.config.generation_kwargs, block_size)
        except ValueError as error:
            raise ConfigError(f"evaluation.tasks: {name}: {error}; leave it out") from None


def evaluate_tasks(
    model: GPT, corpus: Corpus, names: list[str], shots: list[int], batch_size: int
) -> pd.DataFrame:
    """Ask a model stock tasks, with each number of shots; without any, with each task's own.

    A row per task, group and metric: task, shots, metric, filter, value, stderr, n (questions),
    task_version, overflows (continuations of all tasks after a shortened context), harness (its
    version) and harness_commit (None for a release). `all tasks` is the mean of the tasks'
    accuracies, each counting the same.
    """
    tables = []
    numbers: list[int | None] = [*shots] or [None]
    for number in numbers:
        adapter, tasks = TokenLM(model, corpus, batch_size), _load(names)
        for task in tasks["tasks"].values():
            own = task.get_config("num_fewshot")
            if own is None or (number is not None and own != 0):  # a task's own 0 is meant
                task.set_config("num_fewshot", number or 0)
            task.set_fewshot_seed(_SEED)
        with quiet():
            results = evaluate(lm=adapter, task_dict=tasks, bootstrap_iters=_DRAWS)
        table = pd.DataFrame(_rows(results, list(tasks["tasks"])))
        tables.append(table.assign(overflows=adapter.overflows))
    return pd.concat(tables, ignore_index=True).assign(**_harness())


def _rows(results: dict[str, Any], tasks: list[str]) -> list[dict[str, Any]]:
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
    accuracies = [row for row in rows if row["metric"] == "acc" and row["task"] in tasks]
    if len(accuracies) > 1:
        mean = sum(row["value"] for row in accuracies) / len(accuracies)
        shots = {row["shots"] for row in accuracies}
        common = shots.pop() if len(shots) == 1 else None
        rows.append({"task": "all tasks", "shots": common, "metric": "acc", "value": mean})
    return rows


def _load(names: list[str]) -> dict[str, Any]:
    """Load tasks with their data. Raises ConfigError."""
    known = _manager().all_tasks
    for name in names:
        if name not in known:
            raise ConfigError(f"evaluation.tasks: {unknown(name, known).partition('; there')[0]}")
    try:
        with quiet():
            loaded = dict(_manager().load(names))
    except Exception as error:  # whatever a task's code and its host raise
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(
            f"evaluation.tasks: {', '.join(names)} cannot be had: {why}; download their data once "
            "where there is a network, or leave them out"
        ) from None
    return loaded


@lru_cache(maxsize=1)
def _manager() -> TaskManager:
    """Index the harness's tasks, which takes seconds."""
    # The bootstrap would else fork a kernel that holds threads.
    os.environ["DISABLE_MULTIPROC"] = "1"
    return TaskManager()


def _harness() -> dict[str, str | None]:
    """Name the harness's version, and its commit where it was installed from git (PEP 610)."""
    installed = distribution("lm_eval")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id")
    return {"harness": installed.version, "harness_commit": commit}
