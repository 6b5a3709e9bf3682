"""Whether a model's probabilities mean what they say: ECE, Brier score, temperature."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from lib.study.raw import BINNINGS, expected_calibration_error

Floats = NDArray[np.floating]
Batches = Callable[[], Iterable[tuple[Floats, NDArray[np.int64]]]]
"""What yields logits (n, V) and right classes (n,), batch by batch, whenever it is called."""
N_BINS = 15
"""Bins of Guo et al. 2017 (arXiv 1706.04599)."""
TEMPERATURES = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
NULL_REPETITIONS = 50


@dataclass(frozen=True)
class Predictions:
    """What calibration needs of N predictions."""

    log_likelihood: Floats
    """Log-probability of the right class; (N,)."""
    confidence: Floats
    """Probability of the most likely class; (N,)."""
    correct: NDArray[np.bool_]
    """Whether the most likely class is the right one; (N,)."""

    @classmethod
    def of(cls, batches: Batches, temperature: float = 1.0) -> "Predictions":
        parts = [
            (
                _chosen(log_probability, target),
                np.exp(log_probability.max(axis=-1).astype(np.float64)),
                log_probability.argmax(axis=-1) == target,
            )
            for log_probability, target in _log_probabilities(batches, temperature)
        ]
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood of the right class, in nats."""
        return -float(self.log_likelihood.mean(dtype=np.float64))


def _log_probabilities(
    batches: Batches, temperature: float
) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
    """Yield log-probabilities (n, V) at a temperature, and targets (n,)."""
    for logits, target in batches():
        yield log_softmax(logits / temperature, axis=-1), target


def _chosen(log_probability: Floats, target: NDArray[np.int64]) -> Floats:
    """Pick the log-probability of the right class; (n,)."""
    return np.take_along_axis(log_probability, target[:, None], axis=-1)[:, 0]


def brier(log_probability: Floats, target: NDArray[np.int64]) -> Floats:
    """Multi-class Brier score (Brier 1950) of log-probabilities (n, V): squared distance between
    the probability vector and the one-hot target; 0 is perfect, 2 is certain and wrong; (n,)."""
    probability = np.exp(log_probability)
    squares = (probability**2).sum(axis=-1, dtype=np.float64)
    return np.asarray(squares - 2 * _chosen(probability, target) + 1)


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


def fit_temperature(batches: Batches) -> float:
    """Return the temperature that minimises the negative log-likelihood (Guo et al. 2017, §4.2).

    A single positive number divides all logits; fit it on dev, report it on test.
    """

    def loss(log_temperature: float) -> float:
        tempered = _log_probabilities(batches, float(np.exp(log_temperature)))
        chosen = np.concatenate([_chosen(*part) for part in tempered])
        return -float(chosen.mean(dtype=np.float64))

    bounds = (np.log(0.05), np.log(20.0))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return float(np.exp(found.x))


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
    batches: Callable[[int, int], Iterable[tuple[Floats, NDArray[np.int64]]]],
    n: int,
    n_dev: int,
    generator: np.random.Generator,
) -> Calibration:
    """Measure calibration of `n` predictions, of which the first `n_dev` are dev's and the rest
    test's. `batches` yields the logits and targets from one prediction up to another."""
    whole = Predictions.of(partial(batches, 0, n))
    masses = equal_mass_bins(whole.confidence)
    fitted = fit_temperature(partial(batches, 0, n_dev))
    test = {t: Predictions.of(partial(batches, n_dev, n), t) for t in (*TEMPERATURES, fitted)}
    tables = [
        reliability(whole.confidence, whole.correct, masses),
        reliability(whole.confidence, whole.correct, equal_width_bins(whole.confidence)),
        *(_binned(test[temperature]) for temperature in (1.0, fitted)),
    ]
    named = [t.assign(binning=name) for name, t in zip(BINNINGS, tables, strict=True)]
    measures = {
        "ece_null": null_ece(whole.confidence, masses, generator),
        "temperature": fitted,
        "nll_test_tempered": test[fitted].nll,
    }
    temperatures = temperature_table(test).sort_values("temperature", ignore_index=True)
    return Calibration(measures, pd.concat(named, ignore_index=True), temperatures)


def temperature_table(predictions: dict[float, Predictions]) -> pd.DataFrame:
    """Negative log-likelihood and ECE (equal-mass bins) at each temperature, one row each."""
    return pd.DataFrame(
        {"temperature": t, "nll": of.nll, "ece": expected_calibration_error(_binned(of))}
        for t, of in predictions.items()
    )


def _binned(predictions: Predictions) -> pd.DataFrame:
    """Bin predictions, each bin holding as many."""
    masses = equal_mass_bins(predictions.confidence)
    return reliability(predictions.confidence, predictions.correct, masses)
