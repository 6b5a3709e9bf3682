"""Calibration: do probabilities mean what they say? Which temperature would mend them?"""

import math
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lib import results

Array = NDArray[np.generic]
ToLogits = Callable[[Tensor, Tensor], Iterable[tuple[Tensor, Tensor]]]
"""As `GPT.logits_in_parts`: rows (N, C) and the symbols that follow them (N,) → parts of their
logits (n, V) and symbols (n,)."""
Rows = list[tuple[Tensor, Tensor]]
"""Rows that logits are made of, and the right symbols, a batch at a time. Logits themselves would
be gigabytes with 50,000 tokens."""
N_BINS = 15
"""Bins of Guo et al. 2017 (arXiv 1706.04599)."""
TEMPERATURES = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
FITTED_BETWEEN = (1 / 20, 20)
NULL_REPETITIONS = 50


def fit_temperature(to_logits: ToLogits, rows: Rows) -> float:
    """Return the temperature of the lowest loss on some rows (Guo et al. 2017, section 4.2),
    searched in `FITTED_BETWEEN`. In the inverse temperature the loss is convex, so it has one
    minimum."""
    from scipy.optimize import minimize_scalar  # takes a while, spared to who trains alone

    def loss(log_temperature: float) -> float:
        total = torch.zeros((), dtype=torch.float64)
        for hidden, targets in rows:
            for logits, target in to_logits(hidden, targets):
                # In float64, because rounding would hide the bottom of a flat minimum.
                tempered = logits.double() / math.exp(log_temperature)
                total = total.to(logits.device) + F.cross_entropy(tempered, target, reduction="sum")
        return float(total)

    coldest, hottest = FITTED_BETWEEN
    bounds = (math.log(coldest), math.log(hottest))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-5})
    return math.exp(found.x)


def temper(
    to_logits: ToLogits, rows: Rows, temperatures: Iterable[float]
) -> dict[float, NDArray[np.float64]]:
    """Return, by temperature, log-likelihood and confidence of each prediction, (2, n)."""
    found: dict[float, list[Tensor]] = {temperature: [] for temperature in temperatures}
    for hidden, targets in rows:
        for logits, target in to_logits(hidden, targets):
            below = logits - logits.amax(dim=-1, keepdim=True)  # the largest is 0
            right = below.gather(1, target[:, None])[:, 0].double()
            for temperature, parts in found.items():
                total = (below / temperature).exp().sum(dim=-1, dtype=torch.float64)
                parts.append(torch.stack([right / temperature - total.log(), 1 / total]))
    return {of: torch.cat(parts, dim=-1).cpu().numpy() for of, parts in found.items()}


def equal_mass_bins(confidence: Array, n_bins: int = N_BINS) -> NDArray[np.int64]:
    """Return the bin of each prediction (N,): by rising confidence, each holds as many (± 1)."""
    bins = np.empty(len(confidence), dtype=np.int64)
    order = np.argsort(confidence, kind="stable")
    for number, members in enumerate(np.array_split(order, n_bins)):
        bins[members] = number
    return bins


def equal_width_bins(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin of each prediction (N,): equal intervals of confidence, open to the left as in
    Guo et al. 2017: (0, 1/15], (1/15, 2/15], …"""
    bins = np.ceil(confidence * N_BINS).astype(np.int64) - 1
    return bins.clip(0, N_BINS - 1)


def reliability(confidence: Array, correct: Array, bins: NDArray[np.int64]) -> pd.DataFrame:
    """Return one row per occupied bin: bin, n, and the sums of confidence and of correct
    predictions."""
    n = np.bincount(bins)
    table = pd.DataFrame({"bin": np.arange(len(n)), "n": n})
    table["confidence"] = np.bincount(bins, confidence)
    table["correct"] = np.bincount(bins, correct).astype(int)
    return table[n > 0].reset_index(drop=True)


def null_ece(
    confidence: NDArray[np.float64], bins: NDArray[np.int64], generator: np.random.Generator
) -> float:
    """Return the ECE that a *perfectly calibrated* predictor with these confidences would show on
    average: finite bins are noisy."""
    values = []
    for _ in range(NULL_REPETITIONS):
        correct = generator.random(len(confidence)) < confidence
        values.append(results.expected_calibration_error(reliability(confidence, correct, bins)))
    return float(np.mean(values))


@torch.no_grad()
def calibrate(
    confidence: NDArray[np.float64],
    correct: NDArray[np.bool_],
    to_logits: ToLogits,
    rows: Rows,
    n_dev: int,
    generator: np.random.Generator,
) -> tuple[dict[str, float], pd.DataFrame, pd.DataFrame]:
    """Measure calibration of held-out predictions, (N,) each, that were made of `rows`. The first
    `n_dev` are dev's. Return

    - measures that bins do not tell: ece_null over all held-out characters; temperature, fitted on
      dev; nll_test_tempered, the test loss at that temperature;
    - `reliability` by each of `lib.results.BINNINGS`, one below the other;
    - test at fixed temperatures and the fitted one: temperature, nll and ece (equal-mass bins).
    """
    dev: Rows = []
    test: Rows = []
    before = 0
    for hidden, targets in rows:
        left = n_dev - before
        if left > 0:
            dev.append((hidden[:left], targets[:left]))
        if left < len(targets):
            test.append((hidden, targets))  # of a batch that begins in dev all is read
        before += len(targets)
    fitted = fit_temperature(to_logits, dev)
    n_test = len(correct) - n_dev
    of_test: dict[float, pd.DataFrame] = {}  # by temperature
    nll: dict[float, float] = {}
    tempered = temper(to_logits, test, sorted({*TEMPERATURES, fitted}))
    for temperature, of_rows in tempered.items():
        log_likelihood, sure = of_rows[:, -n_test:]
        nll[temperature] = -float(log_likelihood.mean())
        of_test[temperature] = reliability(sure, correct[n_dev:], equal_mass_bins(sure))
    temperatures = pd.DataFrame(
        {
            "temperature": list(nll),
            "nll": list(nll.values()),
            "ece": [results.expected_calibration_error(table) for table in of_test.values()],
        }
    )

    equal_mass = equal_mass_bins(confidence)
    tables = {
        "equal_mass": reliability(confidence, correct, equal_mass),
        "equal_width": reliability(confidence, correct, equal_width_bins(confidence)),
        "test": of_test[1.0],
        "test_tempered": of_test[fitted],
    }
    binned = [tables[name].assign(binning=name) for name in results.BINNINGS]
    measures = {
        "ece_null": null_ece(confidence, equal_mass, generator),
        "temperature": fitted,
        "nll_test_tempered": nll[fitted],
    }
    return measures, pd.concat(binned, ignore_index=True), temperatures
