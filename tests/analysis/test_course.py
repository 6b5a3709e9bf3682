"""The course of a difference, and its sentence."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.analysis.course import COSINE, cosine_finding, course_table, in_words, phases


def row(step: int, mean: float, low: float | None, high: float | None) -> dict[str, object]:
    return {"steps": step, "mean_delta": mean, "t_low": low, "t_high": high}


COURSE = [
    row(0, -0.2, -0.3, -0.1), row(25, 0.1, -0.1, 0.3), row(50, 0.2, 0.1, 0.3),
    row(75, -0.1, -0.2, -0.01), row(100, -0.1, None, None),
]  # fmt: skip


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


def test_neighbours_of_one_sign_are_a_phase() -> None:
    found = [(p["sign"], p["first"], p["last"], p["clear"]) for p in phases(COURSE)]
    assert found == [("lower", 0, 0, 1), ("higher", 25, 50, 1), ("lower", 75, 100, 1)]
    assert phases([row(0, 0.0, None, None)])[0]["sign"] == "equal"
    assert phases([]) == []


def test_what_begins_alike_is_equal_to_it() -> None:
    same = [row(0, 0.0, 0.0, 0.0), row(25, 0.1, 0.05, 0.15)]
    assert in_words(same, "that of none") == (
        "equal to that of none at step 0 (its interval excludes zero at 0 of 1 checkpoints) and "
        "higher at step 25 (1 of 1)"
    )


def test_the_sentence_names_every_phase() -> None:
    assert in_words(COURSE, "that of none") == (
        "lower than that of none at step 0 (its interval excludes zero at 1 of 1 checkpoints), "
        "higher from step 25 to 50 (1 of 2) and lower from step 75 to 100 (1 of 2)"
    )


def test_runs_that_did_not_measure_it_give_nothing() -> None:
    runs = pd.DataFrame({"arm": ["none", "layernorm"], "baseline": ["none", "none"]})
    empty = cosine_finding(runs, pd.DataFrame({"arm": [], "seed": [], "step": []}), 0.05)
    assert empty.table.empty
    assert empty.words == []
