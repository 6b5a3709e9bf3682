import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.analysis.ladder import BEST, ladder_findings, ladder_table
from lib.study.config import Arm, load_study
from tests.analysis.samples import noise, runs_of

STUDY = load_study("ladder")
FAVOURITE = {"none": 3e-3, "layernorm": 1e-2}


def loss(arm: Arm, seed: int) -> float:
    """An effect that shrinks with the width, at rates that suit each variant differently."""
    model, rate = arm.config.model, arm.config.training.learning_rate
    effect = 6.4 / model.n_embd if model.embedding_norm == "layernorm" else 0.0
    far = 0.1 * abs(np.log(rate / FAVOURITE[model.embedding_norm]))
    return 2.0 + effect + far + 0.001 * noise(seed, model.n_embd, len(model.embedding_norm))


@pytest.fixture
def runs() -> pd.DataFrame:
    return runs_of(STUDY, loss)


def test_every_width_reads_ten_characters_per_parameter() -> None:
    from lib.run.model import GPT, count_parameters

    for arm in STUDY.arms():
        training, model = arm.config.training, arm.config.model
        tokens = training.iterations * training.batch_size * model.block_size
        assert tokens / count_parameters(GPT(model, 65, None)) == pytest.approx(10, rel=0.002)
    assert len(list(STUDY.arms())) == 4 * 2 * 3


def test_the_effect_at_equal_rates_is_the_paired_t_test(runs: pd.DataFrame) -> None:
    table = ladder_table(STUDY, runs, 0.05)
    assert len(table) == 4 * (3 + 1)
    row = table.set_index(["rate", "model.n_embd"]).loc[("learning_rate=0.003", 64)]
    losses = runs.pivot(index="seed", columns="arm", values="loss")
    end = ",n_embd=64,iterations=1037,learning_rate=0.003"
    test = stats.ttest_rel(losses[f"layernorm{end}"], losses[f"none{end}"])
    interval = test.confidence_interval(0.95)
    assert row["mean_delta"] == pytest.approx(6.4 / 64 + 0.1 * np.log(10 / 3), abs=0.01)
    assert (row["t_low"], row["t_high"]) == pytest.approx((interval.low, interval.high))
    assert row["t_p"] == pytest.approx(test.pvalue)
    assert (row["tokens"], row["n"]) == (1037 * 16 * 128, 3)


def test_at_its_best_each_variant_has_the_rate_that_suits_it(runs: pd.DataFrame) -> None:
    table = ladder_table(STUDY, runs, 0.05)
    best = table[table["rate"] == BEST]
    assert set(best["own_rate"]) == {1e-2}
    assert set(best["rate_of_first"]) == {3e-3}
    assert best["mean_delta"].to_list() == pytest.approx(
        [6.4 / w for w in (32, 48, 64, 96)], abs=0.01
    )


def test_a_rate_at_which_a_run_diverged_is_not_chosen_and_its_pair_is_lost(
    runs: pd.DataFrame,
) -> None:
    arm = "layernorm,n_embd=32,iterations=279,learning_rate=0.01"
    runs.loc[(runs["arm"] == arm) & (runs["seed"] == 1), "loss"] = np.nan
    table = ladder_table(STUDY, runs, 0.05).set_index(["rate", "model.n_embd"])
    assert table.loc[("learning_rate=0.01", 32), ["n", "n_dropped"]].to_list() == [2, 1]
    assert table.loc[(BEST, 32), "own_rate"] == 3e-3
    assert table.loc[(BEST, 48), "own_rate"] == 1e-2


def test_the_words_give_every_width_and_no_trend(runs: pd.DataFrame) -> None:
    (finding,) = ladder_findings(STUDY, runs, 0.05)
    *points, flattering, edge = finding.words
    assert edge.startswith("4 of these 8 rates lie at the edge of the grid")  # LayerNorm's, all
    assert [text.partition(": ")[0] for text in points] == [
        "layernorm, learning_rate=0.001",
        "layernorm, learning_rate=0.003",
        "layernorm, learning_rate=0.01",
        f"layernorm, {BEST}",
    ]
    assert all(f" at {width}" in points[-1] for width in (32, 48, 64, 96))
    assert flattering.startswith(
        "Each at its own best rate: the runs that chose a rate are those reported at it, on the "
        "same seeds, which flatters both sides"
    )


def test_a_study_of_one_width_has_no_ladder() -> None:
    tuning = load_study("tuning")
    assert ladder_findings(tuning, runs_of(tuning, lambda arm, seed: 2.0), 0.05) == []
