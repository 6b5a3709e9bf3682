"""All that is measured of a trained model, in one call: what a training notebook shows and a
result keeps."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from lib.data.corpus import Corpus
from lib.data.references import references
from lib.data.suite import prepare_suite
from lib.run.cost import flops_per_token, peak_flops
from lib.run.evaluation import (
    Tempering,
    calibrate,
    inference_throughput,
    length_table,
    logit_quantiles,
    loss_by_position,
    norm_by_token_class,
    score,
)
from lib.run.model import count_parameters
from lib.run.optional import INSTALL, has_harness
from lib.run.origin import execution
from lib.run.trained import Trained, weights_digest
from lib.study.config import Arm, Study
from lib.study.fields import RunConfig
from lib.study.files import finite, sha256, write_json
from lib.study.paths import run_folder
from lib.study.provenance import Origin
from lib.study.raw import RAW, measures_of, single, window_table, write_raw
from lib.study.result import RunResult, records


@dataclass
class Measurement:
    """Numbers and tables of one run, and the seconds that each part took."""

    measures: dict[str, float | None] = field(default_factory=dict)
    """Exact on the same machine and versions; empty for a diverged run."""
    throughput: dict[str, float] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    """tasks, temperatures, lengths, token_classes, logits; stock_tasks where they were asked."""
    raw: dict[str, pd.DataFrame] = field(default_factory=lambda: dict.fromkeys(RAW, pd.DataFrame()))
    """What measures are computed from, and a result's files hold: see `lib.study.raw`."""
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

    Of a diverged run only the training throughput is measured: its weights give no probabilities.
    """
    result = Measurement()
    trace, curve = single(trained.trace), single(trained.curve)
    result.raw |= {"trace": trace, "curve": curve}
    if "skipped" in trace and trace["skipped"].any():
        result.notes.append(f"fp16 overflowed: {trace['skipped'].sum()} updates were skipped")
    result.seconds["training"] = float(trace["seconds"].sum())
    result.seconds["snapshots"] = float(curve["seconds"].sum())
    tokens_per_second = float(trace["tokens"].iloc[-1]) / result.seconds["training"]
    result.throughput["training_tokens_per_second"] = tokens_per_second
    result.throughput |= _utilisation(trained, corpus, config, tokens_per_second)
    if trained.diverged_at is not None:
        result.notes.append(f"diverged at step {trained.diverged_at}: nothing was measured")
        return result

    model, batch_size = trained.model, trained.machine.evaluation_batch_size
    with result.timed("perplexity"):
        n_dev = corpus.dev_length - 1
        tempering = Tempering(n_dev)
        scores = score(model, corpus.heldout, batch_size, tempering)
        positions = loss_by_position(scores, config.model.block_size)
        result.raw["positions"] = positions
        result.tables["lengths"] = length_table(positions)
    with result.timed("calibration"):
        calibration = calibrate(scores, tempering, np.random.default_rng([seed, 0]))
        result.raw["bins"] = calibration.bins
        result.tables["temperatures"] = calibration.temperatures
        columns = dict(scores.columns)
        if corpus.unit == "tokens":
            columns["characters"] = corpus.tokenizer.characters[corpus.heldout[1:].numpy()]
        result.raw["windows"] = window_table(columns, n_dev, config.model.block_size)
    with result.timed("diagnostics"):
        result.tables["token_classes"] = norm_by_token_class(
            corpus, corpus.heldout[:-1], scores.columns["embedding_norm"]
        )
        result.tables["logits"] = logit_quantiles(scores)
        for name, size in (("_batch_1", 1), ("", batch_size)):
            rate = inference_throughput(model, corpus.heldout, size)
            result.throughput[f"inference_tokens_per_second{name}"] = rate
    suite, tasks = config.evaluation.items_per_task != 0, bool(config.evaluation.tasks)
    if not suite:
        result.notes.append("task suite left out: evaluation.items_per_task is 0")
    if has_harness():
        if suite:
            _ask_suite(result, trained, corpus, config, suites)
        if tasks:
            _ask_stock_tasks(result, trained, corpus, config)
    else:
        asked = ["task suite"] * suite + ["stock tasks"] * tasks
        result.notes += [f"{name} left out: {INSTALL}" for name in asked]
    result.measures |= measures_of(result.raw) | calibration.measures
    return result


def _utilisation(
    trained: Trained, corpus: Corpus, config: RunConfig, tokens_per_second: float
) -> dict[str, float]:
    """Share of the devices' peak that the model's arithmetic took, and the memory of one."""
    parameters = count_parameters(trained.model)
    needed = tokens_per_second * flops_per_token(config.model, corpus.vocab_size, parameters)
    machine, account = trained.machine, trained.provenance.machine
    peak = peak_flops(account.device_name, config.training.precision, machine.device)
    return {
        "model_flop_utilisation": needed / (peak * machine.processes),
        "peak_memory": trained.peak_memory / 1e9,
    }


def _ask_suite(
    result: Measurement, trained: Trained, corpus: Corpus, config: RunConfig, suites: Path
) -> None:
    with warnings.catch_warnings(action="ignore"):  # of progress bars that nobody will see
        from lib.run.harness import evaluate_suite  # imports lm_eval

    with result.timed("suite"):
        items, block_size = config.evaluation.items_per_task, config.model.block_size
        folder = prepare_suite(corpus, items, block_size, suites)
        batch_size = trained.machine.evaluation_batch_size
        suite = evaluate_suite(trained.model, corpus, folder, batch_size)
        macro = ("macro_accuracy_zero_shot", "macro_accuracy_few_shot")  # None: no task fits
        result.measures |= {**dict.fromkeys(macro), "suite_overflows": suite.overflows}
        result.tables["tasks"] = suite.table
        result.raw["items"], result.suite_hash = suite.items, suite.suite_hash


def _ask_stock_tasks(
    result: Measurement, trained: Trained, corpus: Corpus, config: RunConfig
) -> None:
    from lib.run.stock import evaluate_tasks

    with result.timed("stock tasks"):
        names, shots = config.evaluation.tasks, config.evaluation.shots
        batch_size = trained.machine.evaluation_batch_size
        result.tables["stock_tasks"] = evaluate_tasks(
            trained.model, corpus, names, shots, batch_size
        )


def write_result(
    study: Study, arm: Arm, seed: int, corpus: Corpus, trained: Trained, measured: Measurement
) -> RunResult:
    """Write a run's raw files, and then, last, its result; return the result."""
    folder = run_folder(study.name, arm.id, seed)
    paths = [write_raw(folder, name, table) for name, table in measured.raw.items()]
    files = {path.name: sha256(path) for path in paths}
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
        stretches=trained.stretches,
        steps=len(trained.trace),
        tokens=int(trained.trace["tokens"].iloc[-1]),
        parameters=count_parameters(trained.model),
        initial_weights=trained.initial_weights,
        batches=trained.batches,
        final_weights=weights_digest(trained.model, whole=True),
        measures=finite(measured.measures),
        tables={name: records(table) for name, table in measured.tables.items()},
        references=references(corpus, arm.config.model.block_size),
        throughput=measured.throughput,
        seconds=measured.seconds,
        files=files,
        provenance=Origin(trained=trained.provenance, executed=executed).model_dump(mode="json"),
    )
    write_json(folder / "result.json", result.model_dump(mode="json"))
    return result
