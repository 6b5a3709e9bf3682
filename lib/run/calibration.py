"""Whether a model's probabilities mean what they say: ECE, Brier score, temperature."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from lib.study.raw import BINNINGS, expected_calibration_error

Floats = NDArray[np.floating]
N_BINS = 15
"""Bins of Guo et al. 2017 (arXiv 1706.04599)."""
TEMPERATURES = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
NULL_REPETITIONS = 50


@dataclass(frozen=True)
class Predictions:
    """What calibration needs of N predictions over V classes."""

    log_probability: Floats
    """Log-probability of every class; (N, V)."""
    target: NDArray[np.int64]
    """The right class; (N,)."""

    @classmethod
    def from_logits(
        cls, logits: Floats, target: NDArray[np.int64], temperature: float = 1.0
    ) -> "Predictions":
        return cls(log_softmax(logits / temperature, axis=-1), target)

    @property
    def confidence(self) -> Floats:
        """Probability of the most likely class; (N,)."""
        return np.asarray(np.exp(self.log_probability.max(axis=-1).astype(np.float64)))

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the most likely class is the right one; (N,)."""
        return np.asarray(self.log_probability.argmax(axis=-1) == self.target)

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood of the right class, in nats."""
        chosen = np.take_along_axis(self.log_probability, self.target[:, None], axis=-1)
        return -float(chosen.mean(dtype=np.float64))

    @property
    def brier(self) -> Floats:
        """Multi-class Brier score (Brier 1950): squared distance between the probability vector and
        the one-hot target; 0 is perfect, 2 is certain and wrong; (N,)."""
        probability = np.exp(self.log_probability)
        squares = (probability**2).sum(axis=-1, dtype=np.float64)
        chosen = np.take_along_axis(probability, self.target[:, None], axis=-1)[:, 0]
        return np.asarray(squares - 2 * chosen + 1)


def equal_mass_bins(confidence: Floats, n_bins: int = N_BINS) -> NDArray[np.int64]:
    """Number the bin of each prediction (N,), each holding as many (± 1), by rising confidence."""
    bins = np.empty(len(confidence), dtype=np.int64)
    order = np.argsort(confidence, kind="stable")
    for number, members in enumerate(np.array_split(order, n_bins)):
        bins[members] = number
    return bins


def equal_width_bins(confidence: Floats, n_bins: int = N_BINS) -> NDArray[np.int64]:
    """Number the bin of each prediction (N,), bins being equal intervals of confidence, open to the
    left as in Guo et al. 2017: (0, 1/15], (1/15, 2/15], …"""
    return np.clip(np.ceil(confidence * n_bins).astype(np.int64) - 1, 0, n_bins - 1)


def reliability(
    confidence: Floats, correct: NDArray[np.bool_], bins: NDArray[np.int64]
) -> pd.DataFrame:
    """One row per occupied bin: bin, n, and the sums of confidence and of correct predictions."""
    n = np.bincount(bins)
    sums = {"confidence": np.bincount(bins, confidence)}
    sums |= {"correct": np.bincount(bins, correct).astype(int)}
    table = pd.DataFrame({"bin": np.arange(len(n)), "n": n, **sums})
    return table[n > 0].reset_index(drop=True)


def null_ece(confidence: Floats, bins: NDArray[np.int64], generator: np.random.Generator) -> float:
    """ECE that a *perfectly calibrated* predictor with these confidences would show at this n, on
    average: finite bins are noisy."""
    values = []
    for _ in range(NULL_REPETITIONS):
        correct = generator.random(len(confidence)) < confidence
        values.append(expected_calibration_error(reliability(confidence, correct, bins)))
    return float(np.mean(values))


def fit_temperature(logits: Floats, target: NDArray[np.int64]) -> float:
    """Return the temperature that minimises the negative log-likelihood (Guo et al. 2017, §4.2).

    A single positive number divides all logits; fit it on dev, report it on test.
    """

    def loss(log_temperature: float) -> float:
        return Predictions.from_logits(logits, target, float(np.exp(log_temperature))).nll

    bounds = (np.log(0.05), np.log(20.0))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return float(np.exp(found.x))


def temperature_table(
    logits: Floats, target: NDArray[np.int64], temperatures: tuple[float, ...] = TEMPERATURES
) -> pd.DataFrame:
    """Negative log-likelihood and ECE (equal-mass bins) at each temperature, one row each."""
    rows = []
    for temperature in temperatures:
        nll = Predictions.from_logits(logits, target, temperature).nll
        ece = expected_calibration_error(_binned(logits, target, temperature))
        rows.append({"temperature": temperature, "nll": nll, "ece": ece})
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Calibration:
    """The calibration of one model."""

    measures: dict[str, float]
    """What its bins do not tell: ece_null over all held-out characters; temperature, fitted on dev;
    nll_test_tempered, the test loss at that temperature."""
    bins: pd.DataFrame
    """`reliability` by each of `lib.study.raw.BINNINGS`, one below the other."""
    temperatures: pd.DataFrame
    """Test, at fixed temperatures and the fitted one."""


def calibrate(
    logits: Floats, target: NDArray[np.int64], n_dev: int, generator: np.random.Generator
) -> Calibration:
    """Measure calibration from logits (N, V) and targets (N,), of which the first `n_dev` are dev's
    and the rest test's."""
    whole = Predictions.from_logits(logits, target)
    confidence, correct = whole.confidence, whole.correct
    masses = equal_mass_bins(confidence)
    fitted = fit_temperature(logits[:n_dev], target[:n_dev])
    temperatures = temperature_table(logits[n_dev:], target[n_dev:], (*TEMPERATURES, fitted))
    test = [_binned(logits[n_dev:], target[n_dev:], temperature) for temperature in (1.0, fitted)]
    tables = [
        reliability(confidence, correct, masses),
        reliability(confidence, correct, equal_width_bins(confidence)),
        *test,
    ]
    named = [t.assign(binning=name) for name, t in zip(BINNINGS, tables, strict=True)]
    measures = {
        "ece_null": null_ece(confidence, masses, generator),
        "temperature": fitted,
        "nll_test_tempered": float(temperatures["nll"].iloc[-1]),
    }
    ordered = temperatures.sort_values("temperature", ignore_index=True)
    return Calibration(measures, pd.concat(named, ignore_index=True), ordered)


def _binned(logits: Floats, target: NDArray[np.int64], temperature: float) -> pd.DataFrame:
    """Bin predictions at a temperature, each bin holding as many."""
    predictions = Predictions.from_logits(logits, target, temperature)
    confidence = predictions.confidence
    return reliability(confidence, predictions.correct, equal_mass_bins(confidence))
