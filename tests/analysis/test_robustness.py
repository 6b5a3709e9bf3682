import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.analysis.robustness import (
    leave_one_out,
    leave_one_task_out,
    robustness_findings,
    task_left_out_finding,
    threshold_table,
)
from lib.analysis.stability import judge_runs
from lib.study.plan import INSTABILITY
from tests.analysis.samples import design, runs_of, trace_of

STUDY = design(factors={"model.embedding_norm": ["none", "layernorm"]}, seeds=[0, 1, 2, 3])
CONTRAST = pd.DataFrame([{"arm": "layernorm", "baseline": "none", "measure": "loss"}])


def with_deltas(*deltas: float) -> pd.DataFrame:
    return runs_of(STUDY, lambda arm, seed: 2.0 + (arm.id == "layernorm") * deltas[seed])


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
    left_out, _ = robustness_findings(table, pd.DataFrame(), INSTABILITY)
    assert left_out.words[0].endswith("with one of 4 seeds left out; its sign changes.")


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
    (words,) = task_left_out_finding(pd.DataFrame([row])).words
    assert "+0.1917 over 3 tasks; without bias -0.0125 [" in words
    assert words.endswith("between -0.0125 and +0.3000, its sign changes.")


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


def test_shares_by_other_rises_and_without_the_first_steps() -> None:
    runs = with_deltas(0, 0, 0, 0)
    rises = [0.3, 0.6, 1.2, 0.0]  # at step 30
    trace = trace_of(runs, lambda arm, seed: rises[seed] if arm == "none" else 0.0)
    late = (trace["arm"] == "none") & (trace["seed"] == 3) & (trace["step"] == 80)
    trace.loc[late, "loss"] += 0.7
    judged = judge_runs(runs, trace, INSTABILITY)
    table = threshold_table(trace, judged, INSTABILITY).set_index("arm")
    columns = ["rise_0.25", "rise_0.5", "rise_1", "after_step_64", "n"]
    assert table.loc["none", columns].tolist() == [1.0, 0.75, 0.25, 0.25, 4]
    assert table.loc["layernorm", columns].tolist() == [0.0, 0.0, 0.0, 0.0, 4]
    _, thresholds = robustness_findings(pd.DataFrame(), table.reset_index(), INSTABILITY)
    assert thresholds.words == [
        "none: unstable 100% at 0.25 nats, 75% at 0.5 nats, 25% at 1 nats, "
        "25% at 0.5 after step 64."
    ]


def test_a_diverged_run_is_unstable_by_every_definition_and_high_starts_are_left_out() -> None:
    runs = with_deltas(0, 0, 0, 0)
    runs.loc[0, "status"] = "diverged"
    trace = trace_of(runs)
    trace.loc[(trace["arm"] == "layernorm") & (trace["step"] == 1), "loss"] = 100.0
    table = threshold_table(trace, judge_runs(runs, trace, INSTABILITY), INSTABILITY)
    assert table["arm"].tolist() == ["none"]
    assert table[["rise_0.25", "rise_1", "after_step_64"]].to_numpy().tolist() == [[0.25] * 3]


def test_a_run_that_diverged_before_step_64_did_not_do_so_after_it() -> None:
    runs = with_deltas(0, 0, 0, 0)
    runs.loc[0, "status"] = "diverged"
    trace = trace_of(runs)
    cut = (trace["arm"] == runs.loc[0, "arm"]) & (trace["seed"] == runs.loc[0, "seed"])
    trace = trace[~cut | (trace["step"] <= 40)]
    table = threshold_table(trace, judge_runs(runs, trace, INSTABILITY), INSTABILITY)
    found = table.set_index("arm").loc[runs.loc[0, "arm"]]
    assert (found["rise_1"], found["after_step_64"]) == (0.25, 0.0)


def test_a_calm_study_says_so() -> None:
    runs = with_deltas(0, 0, 0, 0)
    trace = trace_of(runs)
    table = threshold_table(trace, judge_runs(runs, trace, INSTABILITY), INSTABILITY)
    _, thresholds = robustness_findings(pd.DataFrame(), table, INSTABILITY)
    assert thresholds.words == [
        "No run is unstable by any of these definitions, down to 0.25 nats."
    ]
