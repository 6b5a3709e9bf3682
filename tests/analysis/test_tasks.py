import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from lib.analysis.tasks import task_contrasts, task_finding
from tests.analysis.samples import design, noise, runs_of

STUDY = design(factors={"model.embedding_norm": ["none", "layernorm"]}, seeds=list(range(6)))
CHANCE = {("a", 0): 0.0, ("a", 2): -0.4, ("b", 0): 0.4, ("b", 2): 0.0}


def items() -> pd.DataFrame:
    rows = []
    for arm in ("none", "layernorm"):
        for seed in STUDY.seeds:
            for (task, shots), shift in CHANCE.items():
                limit = -shift if arm == "layernorm" else 0.0
                rows += [
                    {"arm": arm, "seed": seed, "task": task, "shots": shots, "item": item}
                    | {"correct": noise(seed, item, shots, ord(task), len(arm)) > limit * 2}
                    for item in range(60)
                ]
    return pd.DataFrame(rows)


def test_p_is_adjusted_over_the_tasks_and_shots_of_a_contrast() -> None:
    answers = items()
    table = task_contrasts(runs_of(STUDY, lambda *_: 2.0), answers, 0.05)
    accuracy = answers.groupby(["arm", "task", "shots", "seed"])["correct"].mean()
    peers = [
        stats.ttest_rel(accuracy["layernorm", task, shots], accuracy["none", task, shots]).pvalue
        for task, shots in zip(table["task"], table["shots"], strict=True)
    ]
    assert list(zip(table["task"], table["shots"], strict=True)) == list(CHANCE)
    assert table["t_p"].tolist() == pytest.approx(peers)
    assert table["p_holm"].tolist() == pytest.approx(multipletests(peers, method="holm")[1])
    words = task_finding(table, 0.05).words
    assert words[1] == (
        "layernorm - none: lower in 1, higher in 1 of 4 tasks × shots; 2 undecided, "
        "0 without a test."
    )
    second = float(table["p_holm"].nsmallest(2).iloc[1])  # exactly the level: not below it
    assert "3 undecided" in task_finding(table, second).words[1]


def test_a_seed_that_diverged_in_one_arm_is_left_out() -> None:
    answers = items()
    answers = answers[(answers["arm"] == "none") | (answers["seed"] != 0)]
    table = task_contrasts(runs_of(STUDY, lambda *_: 2.0), answers, 0.05)
    assert set(table["n"]) == {5}


def test_one_seed_gives_no_test_and_no_suite_no_table() -> None:
    answers = items()
    runs = runs_of(STUDY, lambda *_: 2.0)
    table = task_contrasts(runs, answers[answers["seed"] == 0], 0.05)
    assert np.isnan(table["p_holm"]).all()
    assert task_finding(table, 0.05).words[1].endswith("0 undecided, 4 without a test.")
    assert task_contrasts(runs, answers.iloc[:0], 0.05).empty
    assert task_contrasts(runs, answers[answers["arm"] == "none"], 0.05).empty
