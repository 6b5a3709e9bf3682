import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from lib.analysis.effects import (
    leave_one_out,
    leave_one_out_finding,
    leave_one_task_out,
    paired_rows,
    ratio_interval,
    task_contrasts,
    task_finding,
)
from tests.analysis.samples import design, noise, runs_of

STUDY = design(factors={"model.embedding_norm": ["none", "layernorm"]}, seeds=[0, 1, 2, 3])
CONTRAST = pd.DataFrame([{"arm": "layernorm", "baseline": "none", "measure": "loss"}])


def with_deltas(*deltas: float) -> pd.DataFrame:
    return runs_of(STUDY, lambda arm, seed: 2.0 + (arm.id == "layernorm") * deltas[seed])


def test_a_row_gets_the_paired_t_test_of_its_two_arms() -> None:
    runs = with_deltas(0.1, 0.2, 0.4, 0.9)
    runs.loc[(runs["arm"] == "none") & (runs["seed"] == 3), "loss"] = np.nan  # it diverged
    pairs = pd.DataFrame([{"arm": "none", "baseline": "layernorm", "rms": 0.1}], index=[7])
    (row,) = paired_rows(pairs, runs, "loss").to_dict("records")
    peer = stats.ttest_1samp([-0.1, -0.2, -0.4], 0)
    assert (row["rms"], row["n"]) == (0.1, 3)
    assert (row["mean_delta"], row["t_p"]) == pytest.approx((-0.7 / 3, peer.pvalue))
    assert (row["t_low"], row["t_high"]) == pytest.approx(tuple(peer.confidence_interval()))


def test_every_seed_is_left_out_once() -> None:
    runs = with_deltas(0.1, 0.2, 0.3, 0.4)
    (row,) = leave_one_out(runs, CONTRAST).to_dict("records")
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
    by_seed = runs.pivot(index="seed", columns="arm")
    deltas = np.array(
        [by_seed[name, "layernorm"] - by_seed[name, "none"] for name in family["measure"]]
    )
    p = [stats.ttest_1samp(np.delete(deltas, i, axis=1), 0, axis=1).pvalue for i in range(4)]
    smaller, larger = np.min(p, axis=1), np.max(p, axis=1)  # Holm (1979) for two tests
    holm = np.where(
        p == smaller[:, None], 2 * smaller[:, None], np.maximum(larger, 2 * smaller)[:, None]
    )
    assert found == pytest.approx(np.minimum(holm, 1).max(axis=0))


def test_one_seed_that_makes_the_sign_is_found() -> None:
    table = leave_one_out(with_deltas(-0.01, -0.02, -0.01, 0.2), CONTRAST)
    assert table["sign_changes"].tolist() == [True]
    assert (
        leave_one_out_finding(table)
        .words[0]
        .endswith("with one of 4 seeds left out; its sign changes.")
    )


def test_fewer_than_three_pairs_have_nothing_to_leave_out() -> None:
    runs = with_deltas(0.1, 0.2, 0.3, 0.4)
    runs.loc[runs["seed"] > 1, "loss"] = np.nan
    assert leave_one_out(runs, CONTRAST).empty


MACRO = CONTRAST.assign(measure="macro_accuracy_zero_shot")


def answers(**gains: list[int]) -> pd.DataFrame:
    """Ten questions of each task, of which `layernorm` has so many more right than `none`, by
    seed."""
    return pd.DataFrame(
        [
            {"arm": arm, "seed": seed, "task": task, "shots": 0, "item": item}
            | {"correct": item < 3 + (arm == "layernorm") * gain}
            for arm in ("none", "layernorm")
            for task, by_seed in gains.items()
            for seed, gain in enumerate(by_seed)
            for item in range(10)
        ]
    )


def test_a_difference_that_is_one_tasks_vanishes_without_it() -> None:
    items = answers(bias=[6, 5, 6, 7], order=[0, 1, -1, 0], spelling=[-1, 0, 0, 0])
    (row,) = leave_one_task_out(items, MACRO, 0.05).to_dict("records")
    assert (row["n"], row["tasks"], row["task"]) == (4, 3, "bias")
    assert row["mean_delta"] == pytest.approx((24 + 0 - 1) / 120)
    found = row["lowest"], row["highest"]
    assert found == pytest.approx((-1 / 80, 24 / 80))  # without bias, and without spelling
    rest = [-0.05, 0.05, -0.05, 0.0]  # by seed, without bias
    assert row["without"] == pytest.approx(np.mean(rest))
    assert row["t_p"] == pytest.approx(stats.ttest_1samp(rest, 0).pvalue)
    assert row["sign_changes"]


def test_only_macro_accuracies_of_arms_that_were_asked_have_tasks_to_leave_out() -> None:
    items = answers(order=[1, 2], spelling=[2, 3])
    assert leave_one_task_out(items, CONTRAST, 0.05).empty
    assert leave_one_task_out(items.iloc[:0], MACRO, 0.05).empty
    assert leave_one_task_out(items[items["arm"] == "none"], MACRO, 0.05).empty
    assert leave_one_task_out(items, MACRO.assign(measure="macro_accuracy_few_shot"), 0.05).empty
    one = items[(items["arm"] == "none") | (items["seed"] == 0)]  # the other diverged
    (row,) = leave_one_task_out(one, MACRO, 0.05).to_dict("records")
    assert (row["n"], row["sign_changes"]) == (1, False)
    assert np.isnan(row["t_p"])


@given(st.integers(0, 2**32 - 1), st.integers(3, 12), st.floats(-2, 2))
def test_the_interval_holds_the_ratios_that_a_t_test_does_not_reject(
    seed: int, n: int, ratio: float
) -> None:
    rng = np.random.default_rng(seed)
    whole = rng.normal(5, 0.3, n)
    part = ratio * whole + rng.normal(0, 0.3, n)
    low, high = ratio_interval(part, whole)
    for end in (low, high):
        assert stats.ttest_1samp(part - end * whole, 0).pvalue == pytest.approx(0.05, abs=1e-6)
    assert low < part.mean() / whole.mean() < high


def test_a_whole_that_may_be_zero_gives_no_interval() -> None:
    assert np.isnan(ratio_interval([1.0, 1.1, 0.9], [0.1, -0.1, 0.05])).all()
    assert np.isnan(ratio_interval([1.0], [2.0])).all()


SUITE_STUDY = design(factors={"model.embedding_norm": ["none", "layernorm"]}, seeds=list(range(6)))
CHANCE = {("a", 0): 0.0, ("a", 2): -0.4, ("b", 0): 0.4, ("b", 2): 0.0}


def items() -> pd.DataFrame:
    rows = []
    for arm in ("none", "layernorm"):
        for seed in SUITE_STUDY.seeds:
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
    table = task_contrasts(runs_of(SUITE_STUDY, lambda *_: 2.0), answers, 0.05)
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
    twice = pd.concat([table, table.assign(arm="center")])  # in the order of the table
    arms = [line.partition(" ")[0] for line in task_finding(twice, 0.05).words[1:]]
    assert arms == ["layernorm", "center"]
    second = float(table["p_holm"].nsmallest(2).iloc[1])  # exactly the level: not below it
    assert "3 undecided" in task_finding(table, second).words[1]


def test_a_seed_that_diverged_in_one_arm_is_left_out() -> None:
    answers = items()
    answers = answers[(answers["arm"] == "none") | (answers["seed"] != 0)]
    table = task_contrasts(runs_of(SUITE_STUDY, lambda *_: 2.0), answers, 0.05)
    assert set(table["n"]) == {5}


def test_one_seed_gives_no_test_and_no_suite_no_table() -> None:
    answers = items()
    runs = runs_of(SUITE_STUDY, lambda *_: 2.0)
    table = task_contrasts(runs, answers[answers["seed"] == 0], 0.05)
    assert np.isnan(table["p_holm"]).all()
    assert task_finding(table, 0.05).words[1].endswith("0 undecided, 4 without a test.")
    assert task_contrasts(runs, answers.iloc[:0], 0.05).empty
    assert task_contrasts(runs, answers[answers["arm"] == "none"], 0.05).empty
