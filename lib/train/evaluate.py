"""All that is measured of a trained model: what a training notebook shows and a result keeps.

One pass over held-out text gives the scores of every character, whether probabilities mean what
they say (ECE, Brier score, temperature), and logits; then the LM-Eval harness asks its tasks.
"""

import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lib import results
from lib.config.code import measure_files, require_unedited
from lib.config.io import nan_to_none, run_folder, sha256, write_json
from lib.config.study import Arm, Study
from lib.config.yaml import UserError
from lib.data.describe import references
from lib.data.suite import INSTALL, has_harness, prepare_suite
from lib.data.text import Corpus
from lib.data.tokens import TOKEN_CLASSES, token_class
from lib.train.diagnostics import evenly_spaced_windows
from lib.train.machine import execution_environment
from lib.train.model import GPT, count_parameters, weights_digest
from lib.train.trainer import Trainer

Array = NDArray[Any]
SAMPLED_POSITIONS = 512
"""Evenly spaced predictions whose logits are kept for quantiles."""
N_BINS = 15
"""Bins of Guo et al. 2017 (arXiv 1706.04599)."""
TEMPERATURES = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
INVERSE_TEMPERATURES = np.geomspace(1 / 20, 20, 27)
"""Between them the slope of the loss is interpolated, to 2e-5 of a temperature."""
NULL_REPETITIONS = 50


def per_character(logits: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Score predictions: logits (n, V) and right symbols (n,) to columns (n,), which a run's raw
    file `windows` holds the sums of.

    nll: negative log-likelihood of the right symbol, in nats. correct: whether it is the most
    likely one. brier: multi-class Brier score (Brier 1950), the squared distance between the
    probabilities and the right answer; 0 is perfect, 2 is certain and wrong.
    """
    log_probability = F.log_softmax(logits, dim=-1)
    probability = log_probability.exp()
    index = target[:, None]
    squares = probability.square().sum(dim=-1, dtype=torch.float64)
    return {
        "nll": -log_probability.gather(1, index)[:, 0].double(),
        "correct": logits.argmax(dim=-1) == target,
        "brier": squares - 2 * probability.gather(1, index)[:, 0] + 1,
    }


class Tempering:
    """Log-likelihood and confidence of test at several temperatures, one of them fitted on dev.

    It reads logits in the order of the text, each once. Dev comes first and leaves sums, so the
    temperature that minimises its loss (Guo et al. 2017, section 4.2) is known when test begins.
    """

    def __init__(self, n_dev: int) -> None:
        self.n_dev, self.n_read = n_dev, 0
        self.temperature = math.nan
        """The fitted one, once test has begun."""
        self._slopes = torch.zeros(2, len(INVERSE_TEMPERATURES), dtype=torch.float64)
        self._test: dict[float, list[Tensor]] = defaultdict(list)

    def read(self, logits: Tensor, target: Tensor) -> None:
        """Read the next predictions: logits (n, V) and right symbols (n,)."""
        dev = max(0, min(len(target), self.n_dev - self.n_read))
        self.n_read += len(target)
        below = logits - logits.amax(dim=-1, keepdim=True)  # the largest is 0
        right = below.gather(1, target[:, None])[:, 0].double()
        if dev:
            self._slopes = self._slopes.to(below.device) + _slopes(below[:dev], right[:dev])
        if dev == len(target):
            return
        if math.isnan(self.temperature):
            self.temperature = fitted_temperature(*self._slopes.cpu().numpy())
        for temperature in (*TEMPERATURES, self.temperature):
            total = (below[dev:] / temperature).exp().sum(dim=-1, dtype=torch.float64)
            log_likelihood = right[dev:] / temperature - total.log()
            self._test[temperature].append(torch.stack([log_likelihood, 1 / total]))

    def of_test(self) -> dict[float, Array]:
        """Return, by temperature, log-likelihood and confidence of each test prediction."""
        return {t: torch.cat(parts, dim=-1).cpu().numpy() for t, parts in self._test.items()}


def _slopes(below: Tensor, target_logit: Tensor) -> Tensor:
    """Sum the first and second derivative of each loss by log b, at each inverse temperature b,
    from logits below the largest, (n, V), and those of the right symbols, (n,); (2, b)."""
    columns = []
    for b in INVERSE_TEMPERATURES.tolist():
        weight = (b * below).exp()
        total = weight.sum(dim=-1, dtype=torch.float64)
        mean = (weight * below).sum(dim=-1, dtype=torch.float64) / total
        square = (weight * below.square()).sum(dim=-1, dtype=torch.float64) / total
        first = b * (mean - target_logit).sum()
        second = first + b * b * (square - mean.square()).sum()
        columns.append(torch.stack([first, second]))
    return torch.stack(columns, dim=1)


def fitted_temperature(first: Array, second: Array) -> float:
    """Return the temperature of the lowest loss, from the loss's derivatives by the logarithm of
    `INVERSE_TEMPERATURES`. In the inverse temperature the loss is convex, so its slope has one
    zero, or none between 1/20 and 20, and then one of these is returned."""
    from scipy.interpolate import CubicHermiteSpline  # half a second, spared to who trains alone
    from scipy.optimize import brentq

    log_b = np.log(INVERSE_TEMPERATURES)
    if first[0] > 0:
        return float(1 / INVERSE_TEMPERATURES[0])
    if first[-1] <= 0:
        return float(1 / INVERSE_TEMPERATURES[-1])
    slope = CubicHermiteSpline(log_b, first, second)
    i = int(np.argmax(first > 0))
    root = brentq(lambda x: float(slope(x)), log_b[i - 1], log_b[i], xtol=1e-12)
    return float(np.exp(-root))


@dataclass(frozen=True)
class Scores:
    """Predictions for a text of N characters; the first has no context, which leaves N - 1."""

    columns: dict[str, Array]
    """What `per_character` says, and embedding_norm, the L2 norm of the vector that enters block 1;
    (N - 1,) each."""
    confidence: Array
    """Probability of the most likely character; (N - 1,)."""
    largest_logit: Array
    """(N - 1,)"""
    sampled_logits: Array
    """Of evenly spaced predictions; (at most `SAMPLED_POSITIONS`, V)."""


@torch.no_grad()
def score(model: GPT, ids: Tensor, batch_size: int, tempering: Tempering | None = None) -> Scores:
    """Score every character of `ids` (N,) but the first, in adjacent windows of `block_size`.

    The windows do not overlap, so a character is predicted from at most `block_size` before it
    and the first of a window from one; the last window may be shorter. What is on the device stays
    there to the end, so that the host waits once, and once for `tempering`.
    """
    device = model.transformer.wte.weight.device
    ids = ids.to(device)
    block_size, n = model.config.block_size, len(ids) - 1
    sampled = torch.linspace(0, n - 1, min(n, SAMPLED_POSITIONS), dtype=torch.float64).long()
    n_full = n // block_size * block_size
    inputs = [*torch.split(ids[:n_full].view(-1, block_size), batch_size)]
    if n_full < n:
        inputs.append(ids[None, n_full:n])
    columns: dict[str, list[Tensor]] = defaultdict(list)
    start, samples = 0, []
    for x in inputs:  # (B, T)
        hidden = model.hidden(x).flatten(0, 1)
        targets = ids[start + 1 : start + 1 + len(hidden)]
        for logits, target in model.logits_in_parts(hidden, targets):
            in_part = sampled[(sampled >= start) & (sampled < start + len(logits))] - start
            samples.append(logits[in_part.to(device)])
            start += len(logits)
            top = logits.amax(dim=-1).double()
            total = logits.double().logsumexp(dim=-1)
            scored = {"confidence": (top - total).exp(), "largest_logit": top}
            for name, column in (scored | per_character(logits, target)).items():
                columns[name].append(column)
            if tempering:
                tempering.read(logits, target)
        norms = model.transformer.embed(x).norm(dim=-1)
        columns["embedding_norm"].append(norms.flatten().double())
    joined = {name: torch.cat(parts).cpu().numpy() for name, parts in columns.items()}
    confidence, largest = joined.pop("confidence"), joined.pop("largest_logit")
    return Scores(joined, confidence, largest, torch.cat(samples).double().cpu().numpy())


def loss_by_position(scores: Scores, block_size: int) -> pd.DataFrame:
    """Mean loss per length of context, over all whole windows of the text behind `scores`.

    Columns: context (how many characters a prediction could see, 1 … block_size) and position_loss
    (nats).
    """
    nll = scores.columns["nll"]
    windows = len(nll) // block_size
    losses = nll[: windows * block_size].reshape(windows, block_size)
    context = np.arange(1, block_size + 1)
    return pd.DataFrame({"context": context, "position_loss": losses.mean(axis=0)})


def length_table(by_position: pd.DataFrame) -> pd.DataFrame:
    """Loss (nats) in windows of only 16, 32, 64, … characters, up to and including the context: the
    mean over the heads of all windows."""
    full = len(by_position)
    lengths = [2**k for k in range(4, 31) if 2**k < full] + [full]
    losses = [by_position["position_loss"][:length].mean() for length in lengths]
    return pd.DataFrame({"length": lengths, "loss": losses, "perplexity": np.exp(losses)})


@torch.no_grad()
def inference_throughput(model: GPT, ids: Tensor, batch_size: int) -> float:
    """Characters per second of forward passes over `batch_size` full windows; the median pass."""
    windows = evenly_spaced_windows(ids, batch_size, model.config.block_size)
    windows = windows.to(model.transformer.wte.weight.device)
    targets, seconds = windows[:, 1:].flatten(), []
    for _ in range(1 + 5):  # the first pass warms up
        start = time.perf_counter()
        hidden = model.hidden(windows[:, :-1]).flatten(0, 1)
        for logits, _ in model.logits_in_parts(hidden, targets):
            logits[-1, -1].item()  # a number on the CPU ends the clock on every device
        seconds.append(time.perf_counter() - start)
    return len(targets) / float(np.median(seconds[1:]))


def norm_by_token_class(corpus: Corpus, ids: Tensor, norms: Array) -> pd.DataFrame:
    """Summarise embedding norms (N,) of the characters `ids` (N,) per token class: n, mean, sd and
    quartiles. A class that does not occur has n = 0 and no numbers."""
    classes = np.array([token_class(symbol) for symbol in corpus.symbols])[ids.numpy()]
    table = pd.DataFrame({"token_class": classes, "norm": norms})
    summary = table.groupby("token_class")["norm"].describe().drop(columns=["min", "max"])
    summary.columns = pd.Index(["n", "mean", "sd", "q25", "median", "q75"])
    summary = summary.reindex(list(TOKEN_CLASSES)).rename_axis("token_class").reset_index()
    return summary.assign(n=summary["n"].fillna(0).astype(int))


def logit_quantiles(scores: Scores) -> pd.DataFrame:
    """Describe the distribution of logits: quantiles over all those of a fixed sample of
    predictions, and of the largest one of every prediction."""
    probabilities = [0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0]
    table = pd.DataFrame({"quantile": probabilities})
    table["logit"] = np.quantile(scores.sampled_logits, probabilities)
    table["largest_logit"] = np.quantile(scores.largest_logit, probabilities)
    return table


def equal_mass_bins(confidence: Array, n_bins: int = N_BINS) -> Array:
    """Number the bin of each prediction (N,), each holding as many (± 1), by rising confidence."""
    bins = np.empty(len(confidence), dtype=np.int64)
    order = np.argsort(confidence, kind="stable")
    for number, members in enumerate(np.array_split(order, n_bins)):
        bins[members] = number
    return bins


def equal_width_bins(confidence: Array) -> Array:
    """Number the bin of each prediction (N,), bins being equal intervals of confidence, open to the
    left as in Guo et al. 2017: (0, 1/15], (1/15, 2/15], …"""
    bins: Array = np.ceil(confidence * N_BINS).astype(np.int64) - 1
    return bins.clip(0, N_BINS - 1)


def reliability(confidence: Array, correct: Array, bins: Array) -> pd.DataFrame:
    """Give one row per occupied bin: bin, n, and the sums of confidence and of correct
    predictions."""
    n = np.bincount(bins)
    table = pd.DataFrame({"bin": np.arange(len(n)), "n": n})
    table["confidence"] = np.bincount(bins, confidence)
    table["correct"] = np.bincount(bins, correct).astype(int)
    return table[n > 0].reset_index(drop=True)


def null_ece(confidence: Array, bins: Array, generator: np.random.Generator) -> float:
    """ECE that a *perfectly calibrated* predictor with these confidences would show at this n, on
    average: finite bins are noisy."""
    values = []
    for _ in range(NULL_REPETITIONS):
        correct = generator.random(len(confidence)) < confidence
        values.append(results.expected_calibration_error(reliability(confidence, correct, bins)))
    return float(np.mean(values))


def calibrate(
    scores: Scores, tempering: Tempering, generator: np.random.Generator
) -> tuple[dict[str, float], pd.DataFrame, pd.DataFrame]:
    """Measure calibration of predictions that `score` made, and `tempering` read. Return

    - measures that bins do not tell: ece_null over all held-out characters; temperature, fitted on
      dev; nll_test_tempered, the test loss at that temperature;
    - `reliability` by each of `lib.results.BINNINGS`, one below the other;
    - test at fixed temperatures and the fitted one: temperature, nll and ece (equal-mass bins).
    """
    correct, confidence = scores.columns["correct"], scores.confidence
    fitted, bins = tempering.temperature, equal_mass_bins(confidence)
    nll, in_test = {}, {}
    for t, (log, sure) in sorted(tempering.of_test().items()):
        nll[t] = -float(log.mean())
        in_test[t] = reliability(sure, correct[tempering.n_dev :], equal_mass_bins(sure))
    ece = [results.expected_calibration_error(table) for table in in_test.values()]
    temperatures = pd.DataFrame({"temperature": list(nll), "nll": list(nll.values()), "ece": ece})
    tables = [reliability(confidence, correct, of) for of in (bins, equal_width_bins(confidence))]
    tables += [in_test[1.0], in_test[fitted]]
    named = [t.assign(binning=name) for name, t in zip(results.BINNINGS, tables, strict=True)]
    null = null_ece(confidence, bins, generator)
    measures = {"ece_null": null, "temperature": fitted, "nll_test_tempered": nll[fitted]}
    return measures, pd.concat(named, ignore_index=True), temperatures


@dataclass
class Measurement:
    """Numbers and tables of one run, and the seconds that each part took."""

    measures: dict[str, float | None] = field(default_factory=dict)
    """Exact on the same machine and versions; empty for a diverged run."""
    throughput: dict[str, float] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    """tasks, temperatures, lengths, token_classes, logits; stock_tasks where they were asked."""
    raw: dict[str, pd.DataFrame] = field(default_factory=dict)
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
        self.seconds[part] = time.perf_counter() - start


def measure(run: Trainer) -> Measurement:
    """Measure a trained run on held-out text.

    Of a diverged run only the training throughput is measured: its weights give no probabilities.
    Raises UserError for a run that was interrupted.
    """
    if not run.finished:
        raise UserError(f"training stopped at step {run.step}; train the run again, to its end")
    result, config, corpus = Measurement(), run.config, run.corpus
    trace = results.to_single_precision(run.trace)
    curve = results.to_single_precision(run.curve)
    result.raw = dict.fromkeys(results.RAW, pd.DataFrame()) | {"trace": trace, "curve": curve}
    if config.evaluation.tasks:
        result.raw[results.STOCK] = pd.DataFrame()
    if skipped := sum(row.get("skipped", False) for row in run.rows):
        result.notes.append(f"fp16 overflowed: {skipped} updates were skipped")
    result.seconds["training"] = float(trace["seconds"].sum())
    result.seconds["snapshots"] = float(curve["seconds"].sum())
    rate = run.rows[-1]["tokens"] / result.seconds["training"]
    result.throughput["training_tokens_per_second"] = rate
    result.throughput["peak_memory"] = run.peak_memory / 1e9
    if run.diverged_at is not None:
        result.notes.append(f"diverged at step {run.diverged_at}: nothing was measured")
        return result

    model, block_size = run.model, config.model.block_size
    batch_size = run.machine.evaluation_batch_size
    with result.timed("perplexity"):
        tempering = Tempering(len(corpus.dev) - 1)
        scores = score(model, corpus.heldout, batch_size, tempering)
        result.raw["positions"] = loss_by_position(scores, block_size)
        result.tables["lengths"] = length_table(result.raw["positions"])
    with result.timed("calibration"):
        generator = np.random.default_rng([run.provenance.seed, 0])
        calibrated = calibrate(scores, tempering, generator)
        calibration, result.raw["bins"], result.tables["temperatures"] = calibrated
        columns = dict(scores.columns)
        if corpus.unit == "tokens":
            columns["characters"] = corpus.tokenizer.characters[corpus.heldout[1:].numpy()]
        result.raw["windows"] = results.window_table(columns, tempering.n_dev, block_size)
    with result.timed("diagnostics"):
        norms = scores.columns["embedding_norm"]
        classes = norm_by_token_class(corpus, corpus.heldout[:-1], norms)
        result.tables["token_classes"] = classes
        result.tables["logits"] = logit_quantiles(scores)
        for name, size in (("_batch_1", 1), ("", batch_size)):
            rate = inference_throughput(model, corpus.heldout, size)
            result.throughput[f"inference_tokens_per_second{name}"] = rate
    ask_tasks(result, run)
    result.measures |= results.measures_of(result.raw) | calibration
    return result


def ask_tasks(result: Measurement, run: Trainer) -> None:
    """Ask the suite and stock tasks, as far as they are wanted and the harness is installed."""
    evaluation, batch_size = run.config.evaluation, run.machine.evaluation_batch_size
    n_items = evaluation.items_per_task
    wanted = {"task suite": n_items != 0, "stock tasks": bool(evaluation.tasks)}
    if not wanted["task suite"]:
        result.notes.append("task suite left out: evaluation.items_per_task is 0")
    if not has_harness():
        result.notes += [f"{name} left out: {INSTALL}" for name in wanted if wanted[name]]
        return
    if wanted["task suite"]:
        from lib.train.lm_eval import evaluate_suite  # imports the harness

        with result.timed("suite"), tempfile.TemporaryDirectory() as temporary:
            size = run.config.model.block_size
            folder, suite = prepare_suite(run.corpus, n_items, size, Path(temporary))
            answers = evaluate_suite(run.model, run.corpus, folder, batch_size)
            result.tables["tasks"], result.raw["items"], overflows = answers
            result.suite_hash = suite["hash"]
            macro = ("macro_accuracy_zero_shot", "macro_accuracy_few_shot")  # None: no task fits
            result.measures |= {**dict.fromkeys(macro), "suite_overflows": overflows}
    if wanted["stock tasks"]:
        from lib.train.lm_eval import evaluate_tasks

        with result.timed("stock tasks"):
            tables = evaluate_tasks(run.model, run.corpus, evaluation, batch_size)
            result.tables["stock_tasks"], result.raw[results.STOCK] = tables


def write_result(study: Study, arm: Arm, run: Trainer, measured: Measurement) -> results.RunResult:
    """Write a run's raw files, and then, last, its result; return the result. UserError where the
    code of measures was edited since it was imported."""
    require_unedited(measure_files())
    seed = run.provenance.seed
    folder = run_folder(study.name, arm.id, seed)
    paths = [results.write_raw(folder, name, table) for name, table in measured.raw.items()]
    environment = execution_environment(run.machine)
    executed = results.Execution(from_checkpoint=run.from_checkpoint, **environment)
    origin = {"trained": run.provenance, "executed": executed}
    result = results.RunResult(
        **results.identity_fields(study, arm, seed),
        corpus_sha256=run.corpus.sha256,
        suite_hash=measured.suite_hash,
        status="completed" if run.diverged_at is None else "diverged",
        diverged_at=run.diverged_at,
        resumed_at=run.resumed_at,
        stretches=[results.Stretch.model_validate(stretch) for stretch in run.stretches],
        steps=run.step,
        tokens=run.rows[-1]["tokens"],
        parameters=count_parameters(run.model),
        initial_weights=run.initial_weights,
        batches=run.batches,
        final_weights=weights_digest(run.model, all_weights=True),
        measures=nan_to_none(measured.measures),
        tables={name: results.json_rows(table) for name, table in measured.tables.items()},
        references=references(run.corpus, arm.config.model.block_size),
        throughput=measured.throughput,
        seconds=measured.seconds,
        files={path.name: sha256(path) for path in paths},
        provenance={name: facts.model_dump(mode="json") for name, facts in origin.items()},
    )
    write_json(folder / "result.json", result.model_dump(mode="json"))
    return result
