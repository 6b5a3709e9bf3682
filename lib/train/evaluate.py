"""Measure a trained model: all numbers that 02_train shows and writes to `result.json`.

One pass over the held-out text scores every character: loss, accuracy, Brier score, calibration,
norms and logits. Then the LM-Eval harness evaluates the model on its tasks. Start reading at
`measure`.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lib import results
from lib.config.errors import UserError
from lib.config.files import nan_to_none
from lib.config.provenance import measure_files, require_unedited
from lib.config.study import Arm
from lib.config.yaml import Json
from lib.data.describe import references
from lib.data.suite import INSTALL, has_harness, prepare_suite
from lib.data.text import Corpus, evenly_spaced_windows
from lib.data.tokens import TOKEN_CLASSES, token_class
from lib.train.calibration import Rows, calibrate
from lib.train.machine import execution_environment
from lib.train.model import GPT, count_parameters, weights_digest
from lib.train.trainer import Trainer

Array = NDArray[Any]
SAMPLED_PREDICTIONS = 512
"""Quantiles of logits are computed from about this many predictions."""


def per_character(logits: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Score predictions, given their logits (n, V) and the right symbols (n,). Return columns, (n,)
    each. The raw file `windows` of a run has sums of these columns.

    - nll: negative log-likelihood of the right symbol, in nats;
    - correct: whether the right symbol is the most likely one;
    - brier: multi-class Brier score (Brier 1950), the squared distance between the probabilities
      and the one-hot right answer. 0 is perfect, 2 is certain and wrong.
    """
    log_probability = F.log_softmax(logits, dim=-1)  # (n, V)
    probability = log_probability.exp()
    index = target[:, None]  # (n, 1)
    squares = probability.square().sum(dim=-1, dtype=torch.float64)  # (n,)
    return {
        "nll": -log_probability.gather(1, index)[:, 0].double(),
        "correct": logits.argmax(dim=-1) == target,
        # Σ (p - y)² = Σ p² - 2 p_right + 1, where y is one-hot
        "brier": squares - 2 * probability.gather(1, index)[:, 0] + 1,
    }


@torch.no_grad()
def score(model: GPT, texts: Sequence[Tensor], batch_size: int) -> tuple[pd.DataFrame, Rows]:
    """Predict every character of each text (n,), except the first one. Return

    - a row per prediction: the columns of `per_character`; confidence (the probability of the most
      likely character); embedding_norm (the L2 norm of the vector that enters block 1); text (the
      index of its text in `texts`);
    - inputs of the output projection and targets. `GPT.logits_in_parts` computes the logits from
      them again.

    A text is cut into adjacent windows of `block_size`; the last one may be shorter. So the first
    prediction in a window sees one character, and the last one sees `block_size` characters.
    """
    device = model.transformer.wte.weight.device
    columns: dict[str, list[Tensor]] = defaultdict(
        list
    )  # on the device, so that the host waits once
    rows: Rows = []
    for text in texts:
        for x, targets in _batches(text.to(device), batch_size, model.config.block_size):
            hidden = model.hidden(x).flatten(0, 1)  # x: (B, T), targets: (B · T,)
            for logits, target in model.logits_in_parts(hidden, targets):
                top = logits.amax(dim=-1).double()
                columns["confidence"].append((top - logits.double().logsumexp(dim=-1)).exp())
                for name, column in per_character(logits, target).items():
                    columns[name].append(column)
            rows.append((hidden, targets))
            norms = model.transformer.embed(x).norm(dim=-1)
            columns["embedding_norm"].append(norms.flatten().double())
    joined = {name: torch.cat(parts).cpu().numpy() for name, parts in columns.items()}
    text_of = np.repeat(np.arange(len(texts)), [len(text) - 1 for text in texts])
    return pd.DataFrame(joined | {"text": text_of}), rows


def _batches(text: Tensor, batch_size: int, block_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut a text (n,) into adjacent windows. Yield them in batches: inputs (B, T) and targets
    (B · T,). If the last window is shorter, it is a batch by itself."""
    inputs, targets = text[:-1], text[1:]
    whole = len(inputs) // block_size * block_size
    for start in range(0, whole, batch_size * block_size):
        end = min(start + batch_size * block_size, whole)
        yield inputs[start:end].view(-1, block_size), targets[start:end]
    if whole < len(inputs):
        yield inputs[None, whole:], targets[whole:]  # (1, rest)


def loss_by_position(scores: pd.DataFrame, block_size: int) -> pd.DataFrame:
    """Average the loss over all full windows, by length of context.

    Columns: context (the number of characters that a prediction could see, 1 … block_size) and
    position_loss (in nats).
    """
    windows = []
    for _, nll in scores.groupby("text")["nll"]:
        n_full = len(nll) // block_size * block_size  # leave out the shorter window at the end
        windows.append(nll[:n_full])
    losses = pd.concat(windows).to_numpy().reshape(-1, block_size)  # (windows, T)
    context = np.arange(1, block_size + 1)
    return pd.DataFrame({"context": context, "position_loss": losses.mean(axis=0)})


def length_table(by_position: pd.DataFrame) -> pd.DataFrame:
    """Return the loss (in nats) with contexts of at most 16, 32, 64, … characters. It is the mean
    over the first 16, 32, 64, … positions of all windows."""
    full = len(by_position)
    lengths = [2**k for k in range(4, 31) if 2**k < full] + [full]
    losses = [by_position["position_loss"][:length].mean() for length in lengths]
    return pd.DataFrame({"length": lengths, "loss": losses, "perplexity": np.exp(losses)})


@torch.no_grad()
def inference_throughput(model: GPT, windows: Tensor) -> float:
    """Time forward passes over windows (B, T + 1). Return the characters per second of the median
    pass."""
    windows = windows.to(model.transformer.wte.weight.device)
    targets = windows[:, 1:].flatten()
    seconds = []
    for _ in range(1 + 5):  # the first pass warms up
        start = time.perf_counter()
        hidden = model.hidden(windows[:, :-1]).flatten(0, 1)
        for logits, _ in model.logits_in_parts(hidden, targets):
            logits[-1, -1].item()  # wait for the device
        seconds.append(time.perf_counter() - start)
    return len(targets) / float(np.median(seconds[1:]))


def norm_by_token_class(corpus: Corpus, ids: Tensor, norms: Array) -> pd.DataFrame:
    """Summarise the embedding norms (N,) of tokens `ids` (N,) per token class: n, mean, sd and
    quartiles. A class that does not occur has n = 0 and no other numbers."""
    classes = np.array([token_class(symbol) for symbol in corpus.symbols])[ids.numpy()]
    table = pd.DataFrame({"token_class": classes, "norm": norms})
    summary = table.groupby("token_class")["norm"].describe().drop(columns=["min", "max"])
    summary.columns = pd.Index(["n", "mean", "sd", "q25", "median", "q75"])
    summary = summary.reindex(list(TOKEN_CLASSES)).rename_axis("token_class").reset_index()
    return summary.assign(n=summary["n"].fillna(0).astype(int))


@torch.no_grad()
def logit_quantiles(model: GPT, rows: Rows) -> pd.DataFrame:
    """Return quantiles of all logits, and of the largest logit of each prediction. Use about
    `SAMPLED_PREDICTIONS` of the predictions that `score` made, evenly spaced."""
    step = max(1, sum(len(targets) for _, targets in rows) // SAMPLED_PREDICTIONS)
    parts = []
    for hidden, targets in rows:
        parts += [part for part, _ in model.logits_in_parts(hidden[::step], targets[::step])]
    logits = torch.cat(parts)  # (n, V)
    quantiles = [0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0]
    all_logits = logits.flatten().cpu().numpy()
    largest = logits.amax(dim=-1).cpu().numpy()
    return pd.DataFrame(
        {
            "quantile": quantiles,
            "logit": np.quantile(all_logits, quantiles),
            "largest_logit": np.quantile(largest, quantiles),
        }
    )


@dataclass
class Measurement:
    """Numbers and tables of one run, and the seconds that each part took."""

    measures: dict[str, float | None] = field(default_factory=dict)
    """The measures of a run. They are bit-identical if the run is repeated on the same machine with
    the same versions. Empty for a diverged run."""
    throughput: dict[str, float] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    """tasks, temperatures, lengths, token_classes, logits; and stock_tasks if the study has any."""
    raw: dict[str, pd.DataFrame] = field(default_factory=dict)
    """Raw tables, for files next to the result. `lib.results` computes the measures from them."""
    suite_hash: str | None = None
    """Hash of the suite that the model was evaluated on; None if there was no suite."""
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Sentences on what was not measured, and why."""

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[part] = time.perf_counter() - start


def measure(run: Trainer) -> Measurement:
    """Measure a trained run on held-out text.

    For a diverged run, measure only the training throughput, because its weights give no
    probabilities. Raises UserError for a run that was interrupted.
    """
    if not run.finished:
        raise UserError(f"training stopped at step {run.step}; train the run to its end")
    result = Measurement()
    config = run.config
    corpus = run.corpus
    trace = results.to_single_precision(run.trace)
    curve = results.to_single_precision(run.curve)
    # A table stays empty if it is not measured below (diverged run, no harness).
    result.raw = dict.fromkeys(results.RAW, pd.DataFrame())
    result.raw |= {"trace": trace, "curve": curve}
    if config.evaluation.tasks:
        result.raw[results.STOCK] = pd.DataFrame()
    skipped = sum(row.get("skipped", False) for row in run.rows)  # the column exists only with fp16
    if skipped:
        result.notes.append(f"fp16 overflowed: {skipped} updates were skipped")
    result.seconds["training"] = float(trace["seconds"].sum())
    result.seconds["snapshots"] = float(curve["seconds"].sum())
    speed = run.rows[-1]["tokens"] / result.seconds["training"]
    result.throughput["training_tokens_per_second"] = speed
    result.throughput["peak_memory"] = run.peak_memory / 1e9
    if run.diverged_at is not None:
        result.notes.append(f"diverged at step {run.diverged_at}: nothing was measured")
        return result

    model = run.model
    block_size = config.model.block_size
    batch_size = run.machine.evaluation_batch_size
    with result.timed("perplexity"):
        # Number of predictions in dev. The first character of each dev text is not predicted.
        n_dev = len(corpus.dev) - len(corpus.ends["dev"])
        scores, rows = score(model, corpus.heldout_texts, batch_size)
        before, predicted = corpus.predictions
        result.raw["positions"] = loss_by_position(scores, block_size)
        result.tables["lengths"] = length_table(result.raw["positions"])
    with result.timed("calibration"):
        generator = np.random.default_rng([run.provenance.seed, 0])
        calibration, result.raw["bins"], result.tables["temperatures"] = calibrate(
            scores["confidence"].to_numpy(),
            scores["correct"].to_numpy(),
            model.logits_in_parts,
            rows,
            n_dev,
            generator,
        )
        columns = scores.drop(columns=["confidence", "text"])
        if corpus.unit == "tokens":
            columns["characters"] = corpus.tokenizer.characters[predicted.numpy()]
        result.raw["windows"] = results.window_table(columns, n_dev, block_size)
    with result.timed("diagnostics"):
        norms = scores["embedding_norm"].to_numpy()
        result.tables["token_classes"] = norm_by_token_class(corpus, before, norms)
        result.tables["logits"] = logit_quantiles(model, rows)
        for name, n in {"_batch_1": 1, "": batch_size}.items():
            windows = evenly_spaced_windows(corpus.dev, corpus.ends["dev"], n, block_size)
            speed = inference_throughput(model, windows)
            result.throughput[f"inference_tokens_per_second{name}"] = speed
    ask_tasks(result, run)
    result.measures |= results.measures_of(result.raw) | calibration
    return result


def ask_tasks(result: Measurement, run: Trainer) -> None:
    """Evaluate the model on the suite and on stock tasks, if the study has them and the harness is
    installed. Add the answers to `result`."""
    evaluation = run.config.evaluation
    wants_suite = evaluation.items_per_task != 0
    wants_stock_tasks = bool(evaluation.tasks)
    if not wants_suite:
        result.notes.append("task suite left out: evaluation.items_per_task is 0")
    if not has_harness():
        if wants_suite:
            result.notes.append(f"task suite left out: {INSTALL}")
        if wants_stock_tasks:
            result.notes.append(f"stock tasks left out: {INSTALL}")
        return
    batch_size = run.machine.evaluation_batch_size
    if wants_suite:
        from lib.train.lm_eval import evaluate_suite  # takes a second: it imports the harness

        with result.timed("suite"):
            block_size = run.config.model.block_size
            folder, suite = prepare_suite(run.corpus, evaluation.items_per_task, block_size)
            tasks, items, overflows = evaluate_suite(run.model, run.corpus, folder, batch_size)
        result.tables["tasks"] = tasks
        result.raw["items"] = items
        result.suite_hash = suite["hash"]
        # The first two stay None if the text or `block_size` is too small for every task.
        result.measures["macro_accuracy_zero_shot"] = None
        result.measures["macro_accuracy_few_shot"] = None
        result.measures["suite_overflows"] = overflows
    if wants_stock_tasks:
        from lib.train.lm_eval import evaluate_tasks

        with result.timed("stock tasks"):
            tables = evaluate_tasks(run.model, run.corpus, evaluation, batch_size)
        result.tables["stock_tasks"], result.raw[results.STOCK] = tables


def facts_of(arm: Arm, run: Trainer, measured: Measurement) -> Json:
    """Return the fields of a run's result, without its identity and files: how it trained, what was
    measured, with which code, and on which machine. Raises UserError if the code that measures was
    edited after it was imported."""
    require_unedited(measure_files())
    executed = results.Execution(
        from_checkpoint=run.from_checkpoint, **execution_environment(run.machine)
    )
    return {
        "corpus_sha256": run.corpus.sha256,
        "suite_hash": measured.suite_hash,
        "status": "completed" if run.diverged_at is None else "diverged",
        "diverged_at": run.diverged_at,
        "resumed_at": run.resumed_at,
        "stretches": run.stretches,
        "steps": run.step,
        "tokens": run.rows[-1]["tokens"],
        "parameters": count_parameters(run.model),
        "initial_weights": run.initial_weights,
        "batches": run.batches,
        "final_weights": weights_digest(run.model, all_weights=True),
        "measures": nan_to_none(measured.measures),
        "tables": {name: results.json_rows(table) for name, table in measured.tables.items()},
        "references": references(run.corpus, arm.config.model.block_size),
        "throughput": measured.throughput,
        "seconds": measured.seconds,
        "provenance": {
            "trained": run.provenance.model_dump(mode="json"),
            "executed": executed.model_dump(mode="json"),
        },
    }
