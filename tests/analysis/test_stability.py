import numpy as np
import pandas as pd
import pytest

from lib.analysis.stability import is_unstable, spikes, unstable_runs


def falling(n: int = 300, seed: int = 0) -> pd.Series:
    """A loss that falls as in training, with the noise of batches."""
    noise = np.random.default_rng(seed).normal(scale=0.03, size=n)
    return pd.Series(2.4 + 1.8 * np.exp(-np.arange(n) / 40) + noise)


@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_only_falls_has_no_spike(seed: int) -> None:
    assert spikes(falling(seed=seed), 64, 6.0) == []


@pytest.mark.parametrize("step", [120, 200, 300])
def test_a_planted_spike_is_found_where_it_is(step: int) -> None:
    loss = falling()
    loss[step - 1] += 3.0
    assert spikes(loss, 64, 6.0) == [step]


def test_a_drop_is_no_spike() -> None:
    loss = falling()
    loss[150] -= 1.0
    assert spikes(loss, 64, 6.0) == []


def test_the_first_window_is_not_judged() -> None:
    loss = falling()
    loss[63] += 5.0
    assert spikes(loss, 64, 6.0) == []


def test_the_threshold_is_in_standard_deviations_of_the_window_before() -> None:
    before = pd.Series([1.0, 3.0] * 4)  # mean 2, sd sqrt(8/7)
    limit = 2.0 + 6.0 * np.sqrt(8 / 7)
    for value, found in ((limit - 0.01, []), (limit + 0.01, [9])):
        assert spikes(pd.concat([before, pd.Series([value])], ignore_index=True), 8, 6.0) == found


def test_a_loss_that_is_not_finite_is_a_spike() -> None:
    loss = falling()
    loss[299] = np.nan
    assert spikes(loss, 64, 6.0) == [300]


def test_instability_is_divergence_a_spike_or_an_end_above_the_beginning() -> None:
    assert not is_unstable(falling(), False, 64, 6.0)
    assert is_unstable(falling(), True, 64, 6.0)
    rising = falling()[::-1].reset_index(drop=True)
    assert spikes(rising, 64, 12.0) == []
    assert is_unstable(rising, False, 64, 12.0)


def test_every_run_is_judged_by_its_own_trace() -> None:
    spiky = falling()
    spiky[200] += 3.0
    trace = pd.concat(
        pd.DataFrame({"arm": arm, "seed": 0, "loss": loss})
        for arm, loss in (("calm", falling()), ("spiky", spiky))
    )
    runs = pd.DataFrame({"arm": ["calm", "spiky"], "seed": 0, "status": "completed"})
    table = unstable_runs(runs, trace, 64, 6.0).set_index("arm")
    assert table["unstable"].to_dict() == {"calm": False, "spiky": True}
    assert table["spikes"].to_dict() == {"calm": 0, "spiky": 1}
