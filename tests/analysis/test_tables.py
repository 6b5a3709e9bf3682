import pandas as pd
import pytest
from numpy.random import default_rng

from lib.analysis.paired import contrast_table
from lib.analysis.runs import read_table, tidy
from lib.analysis.tables import (
    by_arm,
    contrast_overview,
    contrast_summary,
    delta_table,
    provenance_table,
    result_table,
    run_takeaway,
    summary_table,
    takeaway,
    task_table,
    time_table,
)
from lib.study.study import Study
from tests.samples import sample_runs


@pytest.fixture
def runs(tiny_study: Study) -> pd.DataFrame:
    return tidy(sample_runs(tiny_study))


def test_summary_gives_mean_and_sample_standard_deviation(runs: pd.DataFrame) -> None:
    table = summary_table(runs)
    assert table.index.tolist() == ["none", "layernorm"]
    assert table.loc["none", "validation perplexity"] == "21.000 ± 1.414"  # sqrt(2)
    assert table.loc["layernorm", "validation perplexity"] == "19.500 ± 0.707"
    assert table["diverged"].tolist() == ["0", "0"]


def test_diverged_runs_are_counted_and_not_averaged(runs: pd.DataFrame) -> None:
    runs.loc[0, ["status", "perplexity"]] = ["diverged", float("nan")]
    row = summary_table(runs).loc["none"]
    assert (row["runs"], row["diverged"]) == ("2", "1")
    assert row["validation perplexity"] == "22.000 ± n/a"


def test_unstable_runs_are_a_share_in_which_diverged_ones_count(runs: pd.DataFrame) -> None:
    runs["unstable"] = [1.0, 0.0, 0.0, 0.0]
    runs.loc[0, ["status", "perplexity"]] = ["diverged", float("nan")]
    shares = summary_table(runs)["unstable runs, as a share"]
    assert shares.to_dict() == {"none": "0.50", "layernorm": "0.00"}


def test_a_measure_that_no_run_has_is_left_out_and_one_that_some_have_is_not(
    runs: pd.DataFrame,
) -> None:
    name = "macro accuracy, zero-shot"
    runs["macro_accuracy_zero_shot"] = [None] * 4
    assert name not in summary_table(runs)
    runs["macro_accuracy_zero_shot"] = [0.5, 0.6, None, None]
    assert summary_table(runs)[name].to_dict() == {"none": "0.5500 ± 0.0707", "layernorm": "n/a"}


def test_deltas_are_paired_by_seed(runs: pd.DataFrame) -> None:
    row = delta_table(runs, "perplexity").loc["layernorm"]
    assert row[["seed 0", "seed 1", "mean"]].tolist() == [-1.0, -2.0, -1.5]
    assert row["sd"] == pytest.approx(0.5**0.5)


def test_a_diverged_baseline_leaves_its_seed_out(runs: pd.DataFrame) -> None:
    runs.loc[0, "perplexity"] = float("nan")
    row = delta_table(runs, "perplexity").loc["layernorm"]
    assert pd.isna(row["seed 0"])
    assert row["mean"] == -2.0


def test_deltas_stay_within_the_other_factors() -> None:
    runs = pd.DataFrame(
        [
            {"arm": f"{norm},{std}", "baseline": f"none,{std}", "seed": 0, "perplexity": value}
            for (norm, std), value in {
                ("none", "a"): 10.0, ("none", "b"): 20.0,
                ("layernorm", "a"): 11.0, ("layernorm", "b"): 25.0,
            }.items()
        ]
    )  # fmt: skip
    assert delta_table(runs, "perplexity")["mean"].to_dict() == {
        "layernorm,a": 1.0,
        "layernorm,b": 5.0,
    }


def test_takeaway_counts_seeds_in_the_measures_own_direction(runs: pd.DataFrame) -> None:
    assert takeaway(runs) == (
        "layernorm: validation perplexity better than its baseline for 2 of 2 seeds, "
        "mean change -1.500."
    )
    runs["accuracy"] = [0.2, 0.2, 0.3, 0.1]
    assert "better than its baseline for 1 of 2 seeds" in takeaway(runs, "accuracy")


def test_a_study_of_one_arm_has_nothing_to_compare(runs: pd.DataFrame) -> None:
    assert takeaway(runs[runs["arm"] == "none"]) == "One arm: nothing to compare."


def test_provenance_shows_every_value_that_occurs(tiny_study: Study) -> None:
    runs = sample_runs(tiny_study)
    other = runs[0].model_copy(
        update={"provenance": runs[0].provenance | {"git_commit": "b" * 40}, "resumed_at": [5]}
    )
    column = provenance_table([other, *runs[1:]]).iloc[:, 0]
    assert column["git commit"] == f"{'b' * 12}, {'a' * 12}"
    assert column["device"] == "cpu"
    assert column["runs resumed after a stop"] == "1"


def test_time_table_adds_up(tiny_study: Study) -> None:
    table = time_table(sample_runs(tiny_study))
    assert table.loc["training"].tolist() == [6.0, 1.5]


def test_tasks_near_chance_are_said_to_be(tiny_study: Study) -> None:
    tasks = read_table(sample_runs(tiny_study), "tasks")  # baseline .55, chance .5, error .05
    row = task_table(tasks).loc[("spelling", 0)]
    assert row[""] == "near chance"
    assert row["none"] == "0.550 ± 0.071"
    tasks["accuracy"] += 0.06
    assert task_table(tasks).loc[("spelling", 0), ""] == ""


def test_what_is_reached_without_a_network_stands_beside_chance_where_results_say_it(
    tiny_study: Study,
) -> None:
    tasks = read_table(sample_runs(tiny_study), "tasks")
    assert "five_gram" not in task_table(tasks)
    tasks = tasks.assign(choice_alone=0.5, bigram=0.51, five_gram=0.7)
    row = task_table(tasks).loc[("spelling", 0)]
    assert row[["chance", "choice_alone", "bigram", "five_gram"]].tolist() == [0.5, 0.5, 0.51, 0.7]


def test_a_class_that_no_corpus_holds_is_not_available(tiny_study: Study) -> None:
    table = by_arm(read_table(sample_runs(tiny_study), "token_classes"), ["token_class"], "mean", 1)
    assert table.loc["alphabetic"].tolist() == ["1.5 ± 0.7", "1.5 ± 0.7"]
    assert table.loc["numeric"].tolist() == ["n/a", "n/a"]


def test_calibration_stands_beside_its_null(runs: pd.DataFrame) -> None:
    runs["ece"], runs["ece_null"] = [0.02, 0.04, 0.02, 0.02], 0.01
    table = summary_table(runs, "calibration").T
    assert table.loc["expected calibration error", "none"] == "0.0300 ± 0.0141"
    assert table.loc["ECE of a perfectly calibrated model", "layernorm"] == "0.0100 ± 0.0000"


def test_a_run_is_told_in_one_sentence(tiny_study: Study) -> None:
    run = sample_runs(tiny_study)[0]
    assert run_takeaway(run) == (
        "none, seed 0, after 12 steps (768 tokens): validation perplexity 20.000, "
        "next-token accuracy 0.2500."
    )
    diverged = run.model_copy(update={"status": "diverged", "diverged_at": 7})
    assert run_takeaway(diverged) == "none, seed 0 diverged at step 7: nothing was measured."


def test_a_study_of_one_arm_has_no_contrasts_to_write(runs: pd.DataFrame) -> None:
    one = contrast_table(runs[runs["arm"] == "none"], ["perplexity"], default_rng(0))
    assert one.empty
    assert contrast_overview(one).empty
    assert contrast_summary(one, runs) == []


def test_a_run_is_listed_with_the_measures_that_it_has(tiny_study: Study) -> None:
    result = sample_runs(tiny_study)[0]
    rows = result_table(result).squeeze()
    assert rows["validation perplexity"] == f"{result.measures['perplexity']:.3f}"
    assert not [name for name in rows.index if "macro" in name]  # the sample was asked no task


def test_a_run_is_listed_beside_its_baseline_but_for_speeds(tiny_study: Study) -> None:
    result = sample_runs(tiny_study)[0].model_copy(
        update={"throughput": {"training_tokens_per_second": 9.0}}
    )
    baseline = result.model_copy(update={"arm": "other", "measures": {"perplexity": 21.5}})
    table = result_table(result, baseline)
    assert list(table) == ["this run", "other"]
    assert table.loc["validation perplexity"].tolist() == ["20.000", "21.500"]
    assert table.loc["next-token accuracy"].tolist() == ["0.2500", "n/a"]
    assert table.loc["training speed (tokens/s)"].tolist() == ["9", "n/a"]
