"""The course of a difference."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.analysis.effects import course_table, first_reached, token_ratios

COSINE = "gradient_cosine"


def test_each_row_is_a_paired_t_test_at_one_step() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 3, 4))
    curve = pd.DataFrame(
        {"arm": arm, "seed": seed, "step": 25 * step, COSINE: values[i, step, seed]}
        for i, arm in enumerate(("none", "layernorm"))
        for step in range(3)
        for seed in range(4)
    )
    table = course_table({"layernorm": "none"}, curve, COSINE, 0.05)
    assert list(table["steps"]) == [0, 25, 50]
    for step, found in enumerate(table.to_dict("records")):
        test = stats.ttest_rel(values[1, step], values[0, step])
        low, high = test.confidence_interval(0.95)
        expected = (test.pvalue, low, high)
        assert (found["t_p"], found["t_low"], found["t_high"]) == pytest.approx(expected)
    assert course_table({"layernorm": "none"}, curve, "dev_loss", 0.05).empty


def test_a_step_that_no_seed_reached_in_both_has_no_row() -> None:
    reached = [
        ("none", 0, 0),
        ("none", 1, 0),
        ("none", 0, 25),
        *(("layernorm", 1, s) for s in (0, 25)),
    ]
    curve = pd.DataFrame(reached, columns=["arm", "seed", "step"]).assign(**{COSINE: 0.5})
    assert course_table({"layernorm": "none"}, curve, COSINE, 0.05)["steps"].tolist() == [0]


STEPS = np.arange(0, 301, 25)


def loss_of(loss: object) -> pd.Series:
    return pd.Series(loss, index=STEPS)


def study(speed: dict[int, float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A straight fall from 4 nats, a hundredth a step; in `layernorm` at a speed of its own."""
    runs, curves = [], []
    for seed, factor in speed.items():
        for arm, rate in (("none", 1.0), ("layernorm", factor)):
            key = {"arm": arm, "baseline": "none", "seed": seed, "status": "completed"}
            runs.append(key | {"training.batch_size": 16, "model.block_size": 128})
            curves.append(pd.DataFrame(key | {"step": STEPS, "dev_loss": 4 - 0.01 * rate * STEPS}))
    return pd.DataFrame(runs), pd.concat(curves, ignore_index=True)


def test_the_step_is_interpolated_between_evaluations() -> None:
    assert first_reached(loss_of(4 - 0.01 * STEPS), 2.885) == pytest.approx(111.5)
    assert first_reached(loss_of(4 - 0.01 * STEPS), 4.5) == 0
    assert np.isnan(first_reached(loss_of(4 - 0.01 * STEPS), 0.5))


def test_the_first_crossing_counts() -> None:
    loss = 4 - 0.01 * STEPS
    loss[8:] = 3.9  # it rises again
    assert first_reached(loss_of(loss), 3.0) == pytest.approx(100)


def test_token_ratio_is_the_inverse_of_speed_and_its_interval_is_on_logarithms() -> None:
    speed = {0: 0.5, 1: 0.8, 2: 0.98}  # the last falls just short of the baseline's end
    row = token_ratios(*study(speed), 0.05).iloc[0]
    logs = -np.log(list(speed.values()))
    assert row["token_ratio"] == pytest.approx(np.exp(logs.mean()))
    interval = stats.ttest_1samp(logs, 0).confidence_interval()
    assert (row["t_low"], row["t_high"]) == pytest.approx(tuple(np.exp(interval)))
    assert (row["n"], row["reached"]) == (3, 0)


def test_steps_of_other_batches_count_by_their_tokens() -> None:
    runs, curve = study({0: 0.5, 1: 0.8})
    same = token_ratios(runs, curve, 0.05).iloc[0]["token_ratio"]
    runs.loc[runs["arm"] == "layernorm", "training.batch_size"] = 32
    other = token_ratios(runs, curve, 0.05).iloc[0]["token_ratio"]
    assert other == pytest.approx(2 * same)


def test_a_faster_arm_saves_tokens_and_reaches_the_baselines_loss() -> None:
    row = token_ratios(*study({0: 2.0, 1: 1.5}), 0.05).iloc[0]
    assert row["token_ratio"] == pytest.approx(np.sqrt(1 / 2.0 * 1 / 1.5))
    assert row["reached"] == 2


def test_a_diverged_run_leaves_its_pair_out() -> None:
    runs, curve = study({0: 2.0, 1: 1.5})
    runs.loc[(runs["arm"] == "layernorm") & (runs["seed"] == 0), "status"] = "diverged"
    assert token_ratios(runs, curve, 0.05).iloc[0]["n"] == 1


def test_a_pair_that_training_made_worse_is_left_out() -> None:
    row = token_ratios(*study({0: 2.0, 1: -0.5}), 0.05).iloc[0]
    assert row["n"] == 1
    assert row["token_ratio"] == pytest.approx(1 / 2.0)
