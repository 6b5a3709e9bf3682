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

from lib.data.describe import references
from lib.data.suite import prepare_suite
from lib.results import (
    INSTALL,
    RAW,
    STOCK,
    Execution,
    Origin,
    RunResult,
    has_harness,
    identity_fields,
    json_rows,
    measures_of,
    to_single_precision,
    window_table,
    write_raw,
)
from lib.run.cost import flops_per_token, peak_flops
from lib.run.evaluate import (
    Tempering,
    calibrate,
    inference_throughput,
    length_table,
    logit_quantiles,
    loss_by_position,
    norm_by_token_class,
    score,
)
from lib.run.machine import execution_environment
from lib.run.model import count_parameters, weights_digest
from lib.run.trainer import Run
from lib.study.io import nan_to_none, run_folder, sha256, write_json
from lib.study.study import Arm, Study
from lib.study.yaml import UserError


@dataclass
class Measurement:
    """Numbers and tables of one run, and the seconds that each part took."""

    measures: dict[str, float | None] = field(default_factory=dict)
    """Exact on the same machine and versions; empty for a diverged run."""
    throughput: dict[str, float] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    """tasks, temperatures, lengths, token_classes, logits; stock_tasks where they were asked."""
    raw: dict[str, pd.DataFrame] = field(default_factory=lambda: dict.fromkeys(RAW, pd.DataFrame()))
    """What measures are computed from, and a result's files hold: see `lib.results`."""
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


def measure(run: Run, suites: Path) -> Measurement:
    """Measure a trained run on held-out text. The task suite is found, or made, under `suites`.

    Of a diverged run only the training throughput is measured: its weights give no probabilities.
    Raises UserError for a run that was interrupted.
    """
    if not run.finished:
        raise UserError(f"training stopped at step {run.step}; train the run again, to its end")
    result, config, corpus = Measurement(), run.config, run.corpus
    trace, curve = to_single_precision(run.trace), to_single_precision(run.curve)
    result.raw |= {"trace": trace, "curve": curve}
    if config.evaluation.tasks:
        result.raw[STOCK] = pd.DataFrame()
    if "skipped" in trace and trace["skipped"].any():
        result.notes.append(f"fp16 overflowed: {trace['skipped'].sum()} updates were skipped")
    result.seconds["training"] = float(trace["seconds"].sum())
    result.seconds["snapshots"] = float(curve["seconds"].sum())
    result.throughput = _throughput(run, trace)
    if run.diverged_at is not None:
        result.notes.append(f"diverged at step {run.diverged_at}: nothing was measured")
        return result

    model, batch_size = run.model, run.machine.evaluation_batch_size
    with result.timed("perplexity"):
        n_dev = corpus.dev_length - 1
        tempering = Tempering(n_dev)
        scores = score(model, corpus.heldout, batch_size, tempering)
        positions = loss_by_position(scores, config.model.block_size)
        result.raw["positions"] = positions
        result.tables["lengths"] = length_table(positions)
    with result.timed("calibration"):
        generator = np.random.default_rng([run.provenance.seed, 0])
        calibration = calibrate(scores, tempering, generator)
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
    if config.evaluation.items_per_task == 0:
        result.notes.append("task suite left out: evaluation.items_per_task is 0")
    elif has_harness():
        _ask_suite(result, run, suites)
    else:
        result.notes.append(f"task suite left out: {INSTALL}")
    if config.evaluation.tasks and has_harness():
        _ask_stock_tasks(result, run)
    elif config.evaluation.tasks:
        result.notes.append(f"stock tasks left out: {INSTALL}")
    result.measures |= measures_of(result.raw) | calibration.measures
    return result


def _throughput(run: Run, trace: pd.DataFrame) -> dict[str, float]:
    """Tokens per second of training, which share of the devices' peak their arithmetic took, and
    the memory of one."""
    rate = float(trace["tokens"].iloc[-1]) / float(trace["seconds"].sum())
    needed = flops_per_token(run.config.model, run.corpus.vocab_size, count_parameters(run.model))
    device_name, precision = run.provenance.machine.device_name, run.config.training.precision
    peak = run.machine.processes * peak_flops(device_name, precision, run.machine.device)
    return {
        "training_tokens_per_second": rate,
        "model_flop_utilisation": rate * needed / peak,
        "peak_memory": run.peak_memory / 1e9,
    }


def _ask_suite(result: Measurement, run: Run, suites: Path) -> None:
    with warnings.catch_warnings(action="ignore"):  # of progress bars that nobody will see
        from lib.run.lm_eval import evaluate_suite  # imports lm_eval

    with result.timed("suite"):
        items, block_size = run.config.evaluation.items_per_task, run.config.model.block_size
        folder = prepare_suite(run.corpus, items, block_size, suites)
        suite = evaluate_suite(run.model, run.corpus, folder, run.machine.evaluation_batch_size)
        macro = ("macro_accuracy_zero_shot", "macro_accuracy_few_shot")  # None: no task fits
        result.measures |= {**dict.fromkeys(macro), "suite_overflows": suite.overflows}
        result.tables["tasks"] = suite.table
        result.raw["items"], result.suite_hash = suite.items, suite.suite_hash


def _ask_stock_tasks(result: Measurement, run: Run) -> None:
    from lib.run.lm_eval import evaluate_tasks

    with result.timed("stock tasks"):
        batch_size = run.machine.evaluation_batch_size
        tables = evaluate_tasks(run.model, run.corpus, run.config.evaluation, batch_size)
        result.tables["stock_tasks"], result.raw[STOCK] = tables


def write_result(study: Study, arm: Arm, run: Run, measured: Measurement) -> RunResult:
    """Write a run's raw files, and then, last, its result; return the result."""
    seed = run.provenance.seed
    folder = run_folder(study.name, arm.id, seed)
    paths = [write_raw(folder, name, table) for name, table in measured.raw.items()]
    executed = Execution(from_checkpoint=run.from_checkpoint, **execution_environment(run.machine))
    result = RunResult(
        **identity_fields(study, arm, seed),
        corpus_sha256=run.corpus.sha256,
        suite_hash=measured.suite_hash,
        status="completed" if run.diverged_at is None else "diverged",
        diverged_at=run.diverged_at,
        resumed_at=run.resumed_at,
        stretches=run.stretches,
        steps=run.step,
        tokens=run.rows[-1]["tokens"],
        parameters=count_parameters(run.model),
        initial_weights=run.initial_weights,
        batches=run.batches,
        final_weights=weights_digest(run.model, all_weights=True),
        measures=nan_to_none(measured.measures),
        tables={name: json_rows(table) for name, table in measured.tables.items()},
        references=references(run.corpus, arm.config.model.block_size),
        throughput=measured.throughput,
        seconds=measured.seconds,
        files={path.name: sha256(path) for path in paths},
        provenance=Origin(trained=run.provenance, executed=executed).model_dump(mode="json"),
    )
    write_json(folder / "result.json", result.model_dump(mode="json"))
    return result
