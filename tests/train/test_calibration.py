import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.metrics import brier_score_loss, log_loss

from lib.record.archive import Record
from lib.results import expected_calibration_error
from lib.train import calibration
from lib.train.evaluate import per_character


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def sample(rng, n=2000, classes=7, scale=1.5):
    """Return logits, and targets drawn from them: a perfectly calibrated predictor."""
    logits = rng.normal(scale=scale, size=(n, classes))
    drawn = rng.random(n)[:, None] > softmax(logits, axis=-1).cumsum(axis=-1)
    return logits, np.minimum(drawn.sum(axis=-1), classes - 1)


def batches(logits, target, size):
    parts = (torch.split(torch.from_numpy(part), size) for part in (logits, target))
    return [*zip(*parts, strict=True)]


def as_they_are(logits, target):
    return [(logits, target)]


def calibrated(logits, target, n_dev, size=10_000):
    """Calibrate given predictions."""
    scored = [per_character(*part) for part in batches(logits, target, size)]
    columns = {name: torch.cat([part[name] for part in scored]).numpy() for name in scored[0]}
    confidence = softmax(logits.astype(float), axis=-1).max(axis=-1)
    rows, generator = batches(logits, target, size), np.random.default_rng(0)
    return calibration.calibrate(
        confidence, columns["correct"], as_they_are, rows, n_dev, generator
    )


def test_ece_by_width_is_torchmetrics(rng):
    from torchmetrics.functional.classification import multiclass_calibration_error  # takes seconds

    logits, target = sample(rng)
    probability = softmax(2 * logits, axis=-1)  # overconfident
    confidence, correct = probability.max(axis=-1), probability.argmax(axis=-1) == target
    assert confidence.max() < 1  # torchmetrics drops its bin
    table = calibration.reliability(confidence, correct, calibration.equal_width_bins(confidence))
    given = torch.tensor(probability), torch.tensor(target)
    peer = multiclass_calibration_error(*given, num_classes=7, n_bins=15)
    assert expected_calibration_error(table) == pytest.approx(float(peer), abs=1e-6)


def test_ece_of_a_hand_made_case():
    confidence = np.array([0.5, 0.6, 0.8, 0.9])
    correct = np.array([False, True, True, True])
    table = calibration.reliability(confidence, correct, calibration.equal_mass_bins(confidence, 2))
    found = table[["confidence", "correct", "n"]].to_numpy()
    assert found == pytest.approx(np.array([[1.1, 1, 2], [1.7, 2, 2]]))
    assert expected_calibration_error(table) == pytest.approx((0.05 + 0.15) / 2)


def test_equal_mass_bins_hold_as_many_and_rise_in_confidence(rng):
    confidence = rng.random(1000)
    bins = calibration.equal_mass_bins(confidence)
    assert set(np.bincount(bins)) == {66, 67}
    for lower, higher in zip(range(14), range(1, 15), strict=True):
        assert confidence[bins == lower].max() <= confidence[bins == higher].min()


def test_brier_and_nll_are_scikit_learns(rng):
    logits, target = sample(rng)
    probability = softmax(logits, axis=-1)
    one_hot = np.eye(7)[target]
    by_class = [brier_score_loss(one_hot[:, k], probability[:, k]) for k in range(7)]
    scored = per_character(torch.from_numpy(logits), torch.from_numpy(target))
    assert float(scored["brier"].mean()) == pytest.approx(sum(by_class), rel=1e-9)
    assert float(scored["nll"].mean()) == pytest.approx(log_loss(target, probability), rel=1e-9)
    assert (scored["correct"].numpy() == (probability.argmax(axis=-1) == target)).all()


def test_null_ece_is_that_of_a_calibrated_coin(rng):
    """15 bins of n/15 fair coins: each gap is half-normal with sd sqrt(.25 / (n/15))."""
    n = 6000
    confidence = np.full(n, 0.5)
    expected = np.sqrt(0.25 / (n / 15)) * np.sqrt(2 / np.pi)
    found = calibration.null_ece(confidence, calibration.equal_mass_bins(confidence), rng)
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("sharpness", [0.07, 0.5, 1.0, 3.0, 12.0])
def test_the_fitted_temperature_is_scipys(sharpness, rng):
    """The minimum of scikit-learn's log loss on dev, found by another search."""
    logits, target = sample(rng, n=4000)
    logits *= sharpness
    fitted = calibrated(logits, target, 3000, size=301)[0]["temperature"]

    def loss(log_temperature):
        return log_loss(target[:3000], softmax(logits[:3000] / np.exp(log_temperature), axis=-1))

    best = minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9})
    assert fitted == pytest.approx(np.exp(best.x), rel=1e-5)
    assert fitted == pytest.approx(sharpness, rel=0.1)


@pytest.mark.parametrize(("right", "expected"), [(True, 1 / 20), (False, 20.0)])
def test_a_temperature_without_an_optimum_is_the_last_one_tried(right, expected):
    logits = torch.tensor([[1.0, 0.5]] * 4)
    target = np.full(4, 0 if right else 1)
    found = calibration.fit_temperature(as_they_are, batches(logits.numpy(), target, 2))
    assert found == pytest.approx(expected, rel=1e-4)


def test_test_is_reported_at_each_temperature(rng):
    logits, target = sample(rng, n=4000)
    logits[2000:] *= 5  # the best temperature of test differs from that of dev
    measures, _, temperatures = calibrated(logits, target, 2000)
    fitted = measures["temperature"]
    assert fitted == pytest.approx(1.0, abs=0.15)
    assert temperatures["temperature"].is_monotonic_increasing
    run = Record("example").runs[0]  # whose grid later runs must have, to stand beside it
    recorded = {row["temperature"] for row in run["tables"]["temperatures"]}
    recorded -= {run["measures"]["temperature"]}
    assert {*temperatures["temperature"]} == recorded | {fitted}
    for temperature, nll, ece in temperatures.to_numpy():
        probability = softmax(logits[2000:] / temperature, axis=-1)
        confidence = probability.max(axis=-1)
        correct = probability.argmax(axis=-1) == target[2000:]
        table = calibration.reliability(
            confidence, correct, calibration.equal_mass_bins(confidence)
        )
        log = log_softmax(logits[2000:] / temperature, axis=-1)
        assert nll == pytest.approx(-log[np.arange(2000), target[2000:]].mean(), rel=1e-9)
        assert ece == pytest.approx(expected_calibration_error(table), abs=1e-9)


def test_batches_change_nothing(rng):
    logits, target = sample(rng, n=3000, classes=65)
    at_once, streamed = (calibrated(logits, target, 1301, size) for size in (3000, 7))
    assert streamed[0] == pytest.approx(at_once[0], rel=1e-9)
    counts = ["bin", "n", "correct", "binning"]
    assert streamed[1][counts].equals(at_once[1][counts])
    np.testing.assert_allclose(streamed[2], at_once[2], rtol=1e-9)
