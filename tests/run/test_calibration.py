from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from sklearn.metrics import brier_score_loss, log_loss

from lib.run.calibration import (
    Calibration,
    Predictions,
    brier,
    calibrate,
    equal_mass_bins,
    equal_width_bins,
    fit_temperature,
    null_ece,
    reliability,
    temperature_table,
)
from lib.study.raw import expected_calibration_error


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def held(
    logits: np.ndarray, target: np.ndarray, size: int | None = None
) -> Callable[..., list[tuple[np.ndarray, np.ndarray]]]:
    """What yields logits and targets from one prediction up to another, perhaps in batches."""

    def batches(start: int = 0, stop: int | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
        parts = logits[start:stop], target[start:stop]
        cuts = range(size, len(parts[0]), size) if size else []
        return list(zip(*(np.split(part, cuts) for part in parts), strict=True))

    return batches


def sample(rng: np.random.Generator, n: int = 2000, classes: int = 7, scale: float = 1.5):
    """Logits, and targets drawn from them: a perfectly calibrated predictor."""
    logits = rng.normal(scale=scale, size=(n, classes))
    drawn = rng.random(n)[:, None] > softmax(logits, axis=-1).cumsum(axis=-1)
    return logits, np.minimum(drawn.sum(axis=-1), classes - 1)


def test_ece_by_width_is_torchmetrics(rng):
    from torchmetrics.functional.classification import multiclass_calibration_error  # takes seconds

    logits, target = sample(rng)
    logits *= 2  # overconfident
    predictions = Predictions.of(held(logits, target))
    assert predictions.confidence.max() < 1  # whose bin torchmetrics drops
    table = reliability(
        predictions.confidence, predictions.correct, equal_width_bins(predictions.confidence)
    )
    peer = multiclass_calibration_error(
        torch.tensor(softmax(logits, axis=-1)), torch.tensor(target), num_classes=7, n_bins=15
    )
    assert expected_calibration_error(table) == pytest.approx(float(peer), abs=1e-6)


def test_ece_of_a_hand_made_case():
    confidence = np.array([0.5, 0.6, 0.8, 0.9])
    correct = np.array([False, True, True, True])
    table = reliability(confidence, correct, equal_mass_bins(confidence, 2))
    assert table[["confidence", "correct", "n"]].to_numpy().tolist() == [
        [1.1, 1, 2],
        [pytest.approx(1.7), 2, 2],
    ]
    assert expected_calibration_error(table) == pytest.approx((0.05 + 0.15) / 2)


def test_certain_and_right_has_no_error_and_certain_and_wrong_all():
    certain = np.ones(10)
    for correct, error in ((True, 0.0), (False, 1.0)):
        for bins in (equal_mass_bins(certain), equal_width_bins(certain)):
            table = reliability(certain, np.full(10, correct), bins)
            assert expected_calibration_error(table) == error


def test_equal_mass_bins_hold_as_many_and_rise_in_confidence(rng):
    confidence = rng.random(1000)
    bins = equal_mass_bins(confidence)
    assert set(np.bincount(bins)) == {66, 67}
    for lower, higher in zip(range(14), range(1, 15), strict=True):
        assert confidence[bins == lower].max() <= confidence[bins == higher].min()


@pytest.mark.parametrize(
    ("confidence", "bin_"), [(0.0, 0), (0.2, 0), (0.21, 1), (0.4, 1), (0.99, 4), (1.0, 4)]
)
def test_equal_width_bins_are_open_to_the_left(confidence, bin_):
    assert equal_width_bins(np.array([confidence]), 5).tolist() == [bin_]


def test_brier_and_nll_are_scikit_learns(rng):
    logits, target = sample(rng)
    predictions = Predictions.of(held(logits, target))
    probability = softmax(logits, axis=-1)
    one_hot = np.eye(7)[target]
    by_class = [brier_score_loss(one_hot[:, k], probability[:, k]) for k in range(7)]
    score = brier(np.log(probability), target).mean()
    assert score == pytest.approx(sum(by_class), rel=1e-9)
    assert predictions.nll == pytest.approx(log_loss(target, probability), rel=1e-9)


@pytest.mark.parametrize(
    ("probability", "expected"), [([1, 0], 0.0), ([0, 1], 2.0), ([0.5, 0.5], 0.5)]
)
def test_brier_of_hand_made_cases(probability, expected):
    with np.errstate(divide="ignore"):
        log_probability = np.log(np.array([probability], dtype=float))
    assert brier(log_probability, np.array([0])).tolist() == pytest.approx([expected])


def test_null_ece_is_that_of_a_calibrated_coin(rng):
    """15 bins of n/15 fair coins: each gap is half-normal with sd sqrt(.25 / (n/15))."""
    n = 6000
    confidence = np.full(n, 0.5)
    expected = np.sqrt(0.25 / (n / 15)) * np.sqrt(2 / np.pi)
    assert null_ece(confidence, equal_mass_bins(confidence), rng) == pytest.approx(
        expected, rel=0.1
    )


def test_a_calibrated_predictor_shows_its_null_and_a_sharpened_one_more(rng):
    logits, target = sample(rng, n=5000)
    honest, sharpened = (calibrate(held(k * logits, target), 5000, 2500, rng) for k in (1, 3))

    def ece(of: Calibration, binning: str) -> float:
        return expected_calibration_error(of.bins[of.bins["binning"] == binning])

    for binning in ("equal_mass", "equal_width"):
        assert ece(honest, binning) < 2 * honest.measures["ece_null"]
        assert ece(sharpened, binning) > 10 * sharpened.measures["ece_null"]
    assert ece(sharpened, "test_tempered") < ece(sharpened, "test") / 5


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_fitted_temperature_undoes_a_known_one(temperature, rng):
    logits, target = sample(rng, n=20_000)
    assert fit_temperature(held(logits * temperature, target)) == pytest.approx(
        temperature, rel=0.05
    )


def test_the_fitted_temperature_has_the_lowest_nll_of_a_fine_grid(rng):
    logits, target = sample(rng, scale=4.0)
    batches = held(2 * logits, target)
    fitted = fit_temperature(batches)
    grid = temperature_table({t: Predictions.of(batches, t) for t in np.geomspace(0.1, 10, 60)})
    assert Predictions.of(batches, fitted).nll <= grid["nll"].min() + 1e-9


def test_temperature_is_fitted_on_dev_and_reported_on_test(rng):
    logits, target = sample(rng, n=4000)
    logits[2000:] *= 5  # test asks for another temperature than dev
    result = calibrate(held(logits, target), 4000, 2000, rng)
    assert result.measures["temperature"] == pytest.approx(1.0, abs=0.15)
    test = held(logits[2000:], target[2000:])
    tempered = Predictions.of(test, result.measures["temperature"])
    assert result.measures["nll_test_tempered"] == pytest.approx(tempered.nll)
    assert result.temperatures["temperature"].is_monotonic_increasing


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_batches_change_no_bit_of_what_all_logits_at_once_give(size, rng):
    logits, target = sample(rng, n=3000, classes=65)
    logits = logits.astype(np.float32)
    at_once, streamed = (
        calibrate(held(logits, target, each), 3000, 1301, np.random.default_rng(0))
        for each in (None, size)
    )
    assert streamed.measures == at_once.measures
    assert streamed.bins.equals(at_once.bins)
    assert streamed.temperatures.equals(at_once.temperatures)
    scores = np.concatenate(
        [brier(log_softmax(part, axis=-1), y) for part, y in held(logits, target, size)()]
    )
    assert (scores == brier(log_softmax(logits, axis=-1), target)).all()
    log = np.take_along_axis(log_softmax(logits, axis=-1), target[:, None], axis=-1)
    tested = at_once.temperatures.set_index("temperature").loc[1.0]
    assert tested["nll"] == -float(log[1301:].mean(dtype=np.float64))
