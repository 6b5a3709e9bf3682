"""Calibration: are 80 % of the predictions with 80 % confidence right? And at which softmax
temperature would confidence and accuracy agree?
"""

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
"""`GPT.logits_in_parts`: hidden (N, C) and targets (N,) → logits (n, V) and targets (n,), a few
rows at a time."""
Rows = list[tuple[Tensor, Tensor]]
"""For each batch, inputs of the output projection (N, C) and targets (N,). Logits are computed
again whenever they are needed: with a vocabulary of 50,000 tokens, the logits of all batches take
gigabytes."""
N_BINS = 15
"""Number of bins, as in Guo et al. 2017 (arXiv 1706.04599)."""
TEMPERATURES = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
"""Temperatures that 02_train lists."""
FITTED_BETWEEN = (1 / 20, 20)
NULL_REPETITIONS = 50
"""`null_ece` draws right and wrong answers this many times."""


def fit_temperature(to_logits: ToLogits, rows: Rows) -> float:
    """Return the temperature within `FITTED_BETWEEN` that minimizes the loss of the predictions in
    `rows` (Guo et al. 2017, section 4.2). The loss is convex in the inverse temperature, so it has
    one minimum."""
    from scipy.optimize import minimize_scalar  # imported here because it is slow to import

    def loss(log_temperature: float) -> float:
        total = torch.zeros((), dtype=torch.float64)
        for hidden, targets in rows:
            for logits, target in to_logits(hidden, targets):
                # In float64: near the minimum, losses differ by less than float32 can resolve.
                tempered = logits.double() / math.exp(log_temperature)  # (n, V)
                total = total.to(logits.device) + F.cross_entropy(tempered, target, reduction="sum")
        return float(total)

    coldest, hottest = FITTED_BETWEEN
    bounds = (math.log(coldest), math.log(hottest))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-5})
    return math.exp(found.x)


def temper(
    to_logits: ToLogits, rows: Rows, temperatures: Iterable[float]
) -> dict[float, NDArray[np.float64]]:
    """Return a function that maps a temperature to an array (2, n). For each prediction, the array
    has the log-likelihood of the right symbol, and the confidence: the probability of the likeliest
    symbol."""
    found: dict[float, list[Tensor]] = {temperature: [] for temperature in temperatures}
    for hidden, targets in rows:
        for logits, target in to_logits(hidden, targets):
            shifted = logits - logits.amax(dim=-1, keepdim=True)  # (n, V); the largest is 0
            right = shifted.gather(1, target[:, None])[:, 0].double()  # (n,)
            for temperature, parts in found.items():
                # The denominator of the softmax, (n,). The largest numerator is exp(0) = 1.
                total = (shifted / temperature).exp().sum(dim=-1, dtype=torch.float64)
                parts.append(torch.stack([right / temperature - total.log(), 1 / total]))
    return {
        temperature: torch.cat(parts, dim=-1).cpu().numpy() for temperature, parts in found.items()
    }


def equal_mass_bins(confidence: Array, n_bins: int = N_BINS) -> NDArray[np.int64]:
    """Return the bin of each prediction, (N,). Bins are in order of confidence. All have the same
    number of predictions (± 1)."""
    bins = np.empty(len(confidence), dtype=np.int64)
    order = np.argsort(confidence, kind="stable")
    for number, members in enumerate(np.array_split(order, n_bins)):
        bins[members] = number
    return bins


def equal_width_bins(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin of each prediction, (N,). Bins are intervals of confidence, as in Guo et al.
    2017: (0, 1/15], (1/15, 2/15], …"""
    bins = np.ceil(confidence * N_BINS).astype(np.int64) - 1
    return bins.clip(0, N_BINS - 1)


def reliability(confidence: Array, correct: Array, bins: NDArray[np.int64]) -> pd.DataFrame:
    """Return a row for each bin that is not empty: bin, n, and the sums of `confidence` and of
    `correct` over the predictions in it."""
    n = np.bincount(bins)
    table = pd.DataFrame({"bin": np.arange(len(n)), "n": n})
    table["confidence"] = np.bincount(bins, confidence)  # bincount sums its weights
    table["correct"] = np.bincount(bins, correct).astype(int)
    return table[n > 0].reset_index(drop=True)


def null_ece(
    confidence: NDArray[np.float64], bins: NDArray[np.int64], generator: np.random.Generator
) -> float:
    """Return the mean ECE of a *perfectly calibrated* predictor with these confidences. It is above
    0, because in a bin of finite size, accuracy differs from confidence by chance."""
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
    """Measure the calibration of held-out predictions. `confidence` and `correct` are (N,), and
    `rows` are the inputs of these predictions. The first `n_dev` predictions are from dev, the
    others from test. Return

    - measures that cannot be computed from bins: ece_null over all held-out characters;
      temperature, fitted on dev; nll_test_tempered, the test loss at that temperature;
    - a table of bins: `reliability` for each of `lib.results.BINNINGS`;
    - a table for test at fixed temperatures and at the fitted one: temperature, nll and ece
      (equal-mass bins).
    """
    # Split the batches between dev and test.
    dev: Rows = []
    test: Rows = []
    n_before = 0
    for hidden, targets in rows:
        n_of_dev = n_dev - n_before  # in this batch and later ones
        if n_of_dev > 0:
            dev.append((hidden[:n_of_dev], targets[:n_of_dev]))
        if n_of_dev < len(targets):
            # Keep a batch whole if it has predictions from dev and from test. Those from dev are
            # dropped below.
            test.append((hidden, targets))
        n_before += len(targets)

    fitted = fit_temperature(to_logits, dev)
    n_test = len(correct) - n_dev
    of_test: dict[float, pd.DataFrame] = {}  # temperature → reliability on test
    nll: dict[float, float] = {}
    tempered = temper(to_logits, test, sorted({*TEMPERATURES, fitted}))
    for temperature, both in tempered.items():
        log_likelihood, sure = both[:, -n_test:]
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
