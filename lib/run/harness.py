"""The adapter between a GPT and the LM-Eval harness, and the task suite run through it.

The adapter subclasses `LM`: `TemplateLM` would move white space from the end of a context to the
continuation, but here a line break is a character like any other.
"""

import contextlib
import io
import logging
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from lib.data.corpus import Corpus
from lib.data.suite import FEW_SHOT, ZERO_SHOT
from lib.data.suite_files import read_suite
from lib.run.model import GPT
from lib.run.scoring import Likelihood, Question, score_questions


class CharacterLM(LM):
    """A GPT and the vocabulary of its corpus, as a language model of the harness.

    It runs every task of the harness that asks for log-likelihoods. A symbol that is not in the
    training part raises CorpusError. A context too long for `block_size` loses its beginning and
    counts in `overflows`.
    """

    def __init__(self, model: GPT, corpus: Corpus, batch_size: int = 8) -> None:
        super().__init__()
        self.model, self.corpus, self.batch_size = model, corpus, batch_size
        self.overflows = 0
        """Number of continuations scored after a shortened context."""

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Score continuations: (summed log-probability in nats, whether greedy decoding gives it).

        An empty context becomes a line break. Raises ValueError for a continuation that is empty
        or longer than `block_size`.
        """
        scores: list[list[Likelihood]] = []
        groups = (list(group) for _, group in groupby(requests, key=_question_of))
        # Questions of one task share their solved examples.
        for _, task in groupby(groups, key=lambda group: group[0].task_name):
            questions = [self._question(group) for group in task]
            scores += score_questions(self.model, questions, self.batch_size)
        return [(each.log, each.greedy) for question in scores for each in question]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Score whole texts, each after a line break: summed log-probabilities in nats.

        Windows of `block_size` predict every character once; where the last one is shorter, it
        sees more of the characters before it.
        """
        results = []
        for request in requests:
            windows = get_rolling_token_windows(
                self._encode(request.args[0]),
                prefix_token=int(self.corpus.beginning),
                max_seq_len=self.model.config.block_size,
                context_len=1,
            )
            pairs = [make_disjoint_window(window) for window in windows]
            questions = [Question(context, [predicted]) for context, predicted in pairs]
            scores = score_questions(self.model, questions, self.batch_size)
            results.append(sum(choices[0].log for choices in scores))
        return results

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Not supported: raises NotImplementedError."""
        raise NotImplementedError(
            "CharacterLM scores texts and does not generate: choose tasks of output_type "
            "multiple_choice or loglikelihood, or sample with GPT.generate"
        )

    def _encode(self, text: str) -> list[int]:
        return self.corpus.encode(text).tolist()

    def _question(self, requests: list[Instance]) -> Question:
        """Encode the choices of one question, and shorten its context where it is too long."""
        text = requests[0].args[0]
        context = self._encode(text) if text else self.corpus.beginning.tolist()
        choices = [self._encode(request.args[1]) for request in requests]
        block_size = self.model.config.block_size
        for length in map(len, choices):
            if not 0 < length <= block_size:
                raise ValueError(
                    f"a continuation has {length} {self.corpus.unit}; it must have 1 to "
                    f"{block_size}, model.block_size: change the task, or train with a larger one"
                )
        question = Question(context, choices)
        if question.longest > block_size:
            self.overflows += len(choices)
            question = Question(context[question.longest - block_size :], choices)
        return question


def _question_of(request: Instance) -> tuple[str | None, int | None, str]:
    """Return the key that all choices of one question share."""
    return request.task_name, request.doc_id, request.args[0]


@dataclass(frozen=True)
class SuiteResult:
    """A model's results on the task suite."""

    suite_hash: str
    table: pd.DataFrame
    """A row per task and number of shots: task, shots, n, accuracy, stderr (of the accuracy, over
    items), chance, normalised_accuracy (0 at chance, 1 when all is right) and brier (squared errors
    of the choices' probabilities, summed over choices; 0 is best)."""
    macro_zero_shot: float | None
    """Mean accuracy over tasks, without solved examples; None when no task fits `block_size`."""
    macro_few_shot: float | None
    """Mean accuracy over tasks, each with the most solved examples that fit; or None."""
    items: pd.DataFrame
    """A row per question: task, shots, item (its place in the task's file), choice (the likeliest;
    the first of equals) and correct."""
    overflows: int
    """Continuations whose context was shortened; 0 for a suite built for this `block_size`."""
    seconds: float


def evaluate_suite(model: GPT, corpus: Corpus, folder: Path, batch_size: int = 8) -> SuiteResult:
    """Ask a model every question of the suite that `lib.data.suite_files` wrote to `folder`.

    Raises ValueError without a suite, and for one of another corpus or a longer `block_size`.
    """
    suite = read_suite(folder)
    if suite["corpus_sha256"] != corpus.sha256:
        raise ValueError(f"the suite in {folder.name} was made of another corpus: write a new one")
    if suite["block_size"] > model.config.block_size:
        raise ValueError(
            f"the suite in {folder.name} needs block_size {suite['block_size']} and the model has "
            f"{model.config.block_size}: write a suite for that"
        )
    start = time.perf_counter()
    adapter = CharacterLM(model, corpus, batch_size)
    groups = [group for group, members in suite["groups"].items() if members]
    results = _run(adapter, folder, groups) if groups else {"results": {}, "samples": {}}
    rows, items = [], []
    for name, samples in results["samples"].items():
        task, shots = name.removesuffix("_shot").rsplit("_", 1)
        measures, chance = results["results"][name], suite["chance"][task]
        rows.append(
            {
                "task": task,
                "shots": int(shots),
                "n": len(samples),
                "accuracy": measures["acc,none"],
                "stderr": measures["acc_stderr,none"],
                "chance": chance,
                "normalised_accuracy": (measures["acc,none"] - chance) / (1 - chance),
                "brier": measures["brier_score,none"],
            }
        )
        items.append(_item_table(task, int(shots), samples))
    zero_shot, few_shot = (
        results["results"].get(group, {}).get("acc,none") for group in (ZERO_SHOT, FEW_SHOT)
    )
    return SuiteResult(
        suite["hash"],
        pd.DataFrame(rows),
        zero_shot,
        few_shot,
        pd.concat(items, ignore_index=True) if items else pd.DataFrame(),
        adapter.overflows,
        time.perf_counter() - start,
    )


def _run(adapter: CharacterLM, folder: Path, groups: list[str]) -> dict[str, Any]:
    """Run groups of tasks without the harness's request cache, which cannot tell models apart.

    The harness's progress bars and logs stay out of notebooks.
    """
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    datasets.disable_progress_bars()
    # Task files name their data by relative paths, so that a suite can be moved.
    with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()):
        tasks = TaskManager(include_path=".", include_defaults=False).load(groups)
        # Accuracy's standard error needs no bootstrap, but 0 iterations would drop it too.
        results: dict[str, Any] = evaluate(lm=adapter, task_dict=tasks, bootstrap_iters=1)
    return results


def _item_table(task: str, shots: int, samples: list[dict[str, Any]]) -> pd.DataFrame:
    samples = sorted(samples, key=lambda sample: sample["doc_id"])
    log = np.array([[score for score, _ in sample["filtered_resps"]] for sample in samples])
    choice = log.argmax(axis=1)
    return pd.DataFrame(
        {
            "task": task,
            "shots": shots,
            "item": [sample["doc_id"] for sample in samples],
            "choice": choice,
            "correct": choice == np.array([sample["target"] for sample in samples]),
        }
    )
