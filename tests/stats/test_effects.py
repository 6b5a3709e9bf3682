import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from lib.stats.effects import leave_one_out, leave_one_task_out, task_contrasts
from tests.stats.samples import runs_of, two_arms

CONTRAST = pd.DataFrame([{"arm": "layernorm", "baseline": "none", "measure": "loss"}])
MACRO = CONTRAST.assign(measure="macro_accuracy_zero_shot")


def with_deltas(*deltas: float) -> pd.DataFrame:
    return runs_of(two_arms(4), lambda arm, seed: 2.0 + (arm.id == "layernorm") * deltas[seed])


def test_every_seed_is_left_out_once() -> None:
    (row,) = leave_one_out(with_deltas(0.1, 0.2, 0.3, 0.4), CONTRAST).to_dict("records")
    assert (row["n"], row["sign_changes"]) == (4, False)
    found = row["mean_delta"], row["lowest"], row["highest"]
    assert found == pytest.approx((0.25, 0.2, 0.3))  # without 0.4, and without 0.1
    without = [[0.2, 0.3, 0.4], [0.1, 0.3, 0.4], [0.1, 0.2, 0.4], [0.1, 0.2, 0.3]]
    peers = [stats.ttest_1samp(rest, 0).pvalue for rest in without]
    assert row["largest_p"] == pytest.approx(max(peers))


def test_a_family_is_adjusted_anew_without_each_seed() -> None:
    runs = with_deltas(0.1, 0.2, 0.3, 0.4)
    runs["perplexity"] = runs["loss"] + np.tile([0.0, 0.01, 0.03, -0.02], 2) * (
        runs["arm"] == "layernorm"
    )
    family = pd.concat([CONTRAST, CONTRAST.assign(measure="perplexity")]).assign(family="primary")
    found = leave_one_out(runs, family)["largest_p"].to_numpy()
    values = runs.pivot(index="seed", columns="arm")
    deltas = np.array([values[m, "layernorm"] - values[m, "none"] for m in family["measure"]])
    p = [stats.ttest_1samp(np.delete(deltas, i, axis=1), 0, axis=1).pvalue for i in range(4)]
    adjusted = [multipletests(both, method="holm")[1] for both in p]
    assert found == pytest.approx(np.max(adjusted, axis=0))


def test_one_seed_that_makes_the_sign_is_found() -> None:
    table = leave_one_out(with_deltas(-0.01, -0.02, -0.01, 0.2), CONTRAST)
    assert table["sign_changes"].tolist() == [True]


def answers(gains: dict[tuple[str, int], list[int]]) -> pd.DataFrame:
    """Ten questions of each task and number of shots, of which `layernorm` has so many more right
    than `none`, by seed."""
    return pd.DataFrame(
        [
            {"arm": arm, "seed": seed, "task": task, "shots": shots, "item": item}
            | {"correct": item < 3 + (arm == "layernorm") * gain}
            for arm in ("none", "layernorm")
            for (task, shots), by_seed in gains.items()
            for seed, gain in enumerate(by_seed)
            for item in range(10)
        ]
    )


def test_a_difference_that_is_one_tasks_vanishes_without_it() -> None:
    gains = {("bias", 0): [6, 5, 6, 7], ("order", 0): [0, 1, -1, 0], ("spelling", 0): [-1, 0, 0, 0]}
    items = answers(gains)
    (row,) = leave_one_task_out(items, MACRO, 0.05).to_dict("records")
    assert (row["n"], row["tasks"], row["task"]) == (4, 3, "bias")
    assert row["mean_delta"] == pytest.approx((24 + 0 - 1) / 120)
    found = row["lowest"], row["highest"]
    assert found == pytest.approx((-1 / 80, 24 / 80))  # without bias, and without spelling
    rest = [-0.05, 0.05, -0.05, 0.0]  # by seed, without bias
    assert row["without"] == pytest.approx(np.mean(rest))
    assert row["t_p"] == pytest.approx(stats.ttest_1samp(rest, 0).pvalue)
    assert row["sign_changes"]


def test_tasks_are_tested_one_by_one_and_p_is_adjusted_over_tasks_and_shots() -> None:
    gains = {("a", 0): [1, 0, 0, 2], ("a", 2): [-1, 2, 1, 0], ("b", 0): [3, 4, 2, 3]}
    asked, runs = answers(gains), runs_of(two_arms(4), lambda *_: 2.0)
    table = task_contrasts(runs, asked, 0.05)
    accuracy = asked.groupby(["arm", "task", "shots", "seed"])["correct"].mean()
    peers = [
        stats.ttest_rel(accuracy["layernorm", task, shots], accuracy["none", task, shots]).pvalue
        for task, shots in gains
    ]
    assert list(zip(table["task"], table["shots"], strict=True)) == list(gains)
    assert table["t_p"].tolist() == pytest.approx(peers)
    assert table["p_holm"].tolist() == pytest.approx(multipletests(peers, method="holm")[1])
    lost = asked[(asked["arm"] == "none") | (asked["seed"] != 0)]  # that run diverged
    assert set(task_contrasts(runs, lost, 0.05)["n"]) == {3}
    assert np.isnan(task_contrasts(runs, asked[asked["seed"] == 0], 0.05)["p_holm"]).all()
    assert task_contrasts(runs, asked.iloc[:0], 0.05).empty
    assert task_contrasts(runs, asked[asked["arm"] == "none"], 0.05).empty
