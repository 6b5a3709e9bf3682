"""All that is measured of a trained model, in one call: what a training notebook shows and a
result keeps."""

import importlib.util
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from lib.data.corpus import Corpus
from lib.data.suite import prepare_suite
from lib.run.calibration import calibrate
from lib.run.diagnostics import logit_quantiles, norm_by_token_class
from lib.run.evaluation import (
    final_measures,
    heldout_measures,
    inference_throughput,
    length_table,
    loss_by_position,
    score,
)
from lib.run.model import count_parameters
from lib.run.origin import execution
from lib.run.training import Trained, weights_digest
from lib.study.config import Arm, Study
from lib.study.fields import RunConfig
from lib.study.paths import run_folder
from lib.study.provenance import Origin
from lib.study.record import RunResult, records, sha256, write_json


@dataclass
class Measurement:
    """Numbers and tables of one run, and the seconds that each part took."""

    measures: dict[str, float | None] = field(default_factory=dict)
    """Exact on the same machine and versions; empty for a diverged run."""
    throughput: dict[str, float] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    """tasks, reliability, temperatures, positions, lengths, token_classes, logits."""
    items: pd.DataFrame = field(default_factory=pd.DataFrame)
    """One row per question of the task suite that was asked."""
    suite_hash: str | None = None
    """Which suite was asked; None when none was."""
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What was not measured, and why."""

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start


def measure(
    trained: Trained, corpus: Corpus, config: RunConfig, suites: Path, seed: int
) -> Measurement:
    """Measure a trained run on held-out text. The task suite is found, or made, under `suites`.

    A diverged run has only its training throughput: its other numbers would describe ruins.
    """
    result = Measurement()
    trace = trained.trace
    result.seconds["training"] = float(trace["seconds"].sum())
    result.seconds["snapshots"] = float(trained.curve["seconds"].sum())
    tokens_per_second = float(trace["tokens"].iloc[-1]) / result.seconds["training"]
    result.throughput["training_tokens_per_second"] = tokens_per_second
    if trained.diverged_at is not None:
        result.notes.append(f"diverged at step {trained.diverged_at}: nothing was measured")
        return result

    model, batch_size = trained.model, trained.machine.evaluation_batch_size
    with result.timed("perplexity"):
        scores = score(model, corpus.heldout, batch_size)
        result.measures |= heldout_measures(scores, corpus.dev_length)
        result.measures |= final_measures(trace["grad_norm"].to_numpy())
        positions = loss_by_position(scores, config.model.block_size)
        result.tables |= {"positions": positions, "lengths": length_table(positions)}
    with result.timed("calibration"):
        generator = np.random.default_rng([seed, 0])
        calibration = calibrate(scores.logits, scores.target, corpus.dev_length - 1, generator)
        result.measures |= calibration.measures
        result.tables["reliability"] = calibration.reliability
        result.tables["temperatures"] = calibration.temperatures
    with result.timed("diagnostics"):
        result.tables["token_classes"] = norm_by_token_class(
            corpus, corpus.heldout[:-1], scores.embedding_norm
        )
        result.tables["logits"] = logit_quantiles(scores.logits)
        for name, size in (("_batch_1", 1), ("", batch_size)):
            rate = inference_throughput(model, corpus.heldout, size)
            result.throughput[f"inference_tokens_per_second{name}"] = rate
    _ask_suite(result, trained, corpus, config, suites)
    return result


def _ask_suite(
    result: Measurement, trained: Trained, corpus: Corpus, config: RunConfig, suites: Path
) -> None:
    if config.evaluation.items_per_task == 0:
        result.notes.append("task suite left out: evaluation.items_per_task is 0")
        return
    if importlib.util.find_spec("lm_eval") is None:
        result.notes.append("task suite left out: pip install lm_eval==0.4.13 to run it")
        return
    with warnings.catch_warnings(action="ignore"):  # of progress bars that nobody will see
        from lib.run.harness import evaluate_suite  # imports lm_eval, which a Kaggle image lacks

    with result.timed("suite"):
        items, block_size = config.evaluation.items_per_task, config.model.block_size
        folder = prepare_suite(corpus, items, block_size, suites)
        suite = evaluate_suite(trained.model, corpus, folder)
        result.measures["macro_accuracy_zero_shot"] = suite.macro_zero_shot
        result.measures["macro_accuracy_few_shot"] = suite.macro_few_shot
        result.measures["suite_overflows"] = suite.overflows
        result.tables["tasks"] = suite.table
        result.items, result.suite_hash = suite.items, suite.suite_hash


def write_result(
    study: Study, arm: Arm, seed: int, corpus: Corpus, trained: Trained, measured: Measurement
) -> RunResult:
    """Write a run's trace, curve and suite items, and then, last, its result; return the result."""
    folder = run_folder(study.name, arm.id, seed)
    tables = {"trace": trained.trace, "curve": trained.curve, "items": measured.items}
    files = {}
    for name, table in tables.items():
        path = folder / f"{name}.parquet"
        # Of numbers that hardly repeat, a dictionary only adds to the file.
        table.to_parquet(path, compression="zstd", use_dictionary=False)
        files[path.name] = sha256(path)
    executed = execution(trained.machine, trained.from_checkpoint)
    result = RunResult(
        study=study.name,
        study_hash=study.hash,
        arm=arm.id,
        baseline=arm.baseline,
        levels=arm.levels,
        seed=seed,
        variant=arm.variant,
        setting=arm.setting,
        config=arm.config.model_dump(exclude={"machine"}),
        corpus_sha256=corpus.sha256,
        suite_hash=measured.suite_hash,
        status="completed" if trained.diverged_at is None else "diverged",
        diverged_at=trained.diverged_at,
        resumed_at=trained.resumed_at,
        steps=len(trained.trace),
        tokens=int(trained.trace["tokens"].iloc[-1]),
        parameters=count_parameters(trained.model),
        initial_weights=trained.initial_weights,
        batches=trained.batches,
        final_weights=weights_digest(trained.model),
        measures=measured.measures,
        tables={name: records(table) for name, table in measured.tables.items()},
        throughput=measured.throughput,
        seconds=measured.seconds,
        files=files,
        provenance=Origin(trained=trained.provenance, executed=executed).model_dump(mode="json"),
    )
    write_json(folder / "result.json", result.model_dump(mode="json"))
    return result
