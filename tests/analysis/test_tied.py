import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.analysis.tied import tied_finding, tied_table
from lib.study.config import Arm
from tests.analysis.samples import design, noise, runs_of

STUDY = design(
    factors={
        "model.embedding_norm": ["none", "layernorm", "scale"],
        "model.tied": [True, False],
        "model.embedding_std": [0.02, 1.0],
    }
)


def loss(arm: Arm, seed: int) -> float:
    model = arm.config.model
    effect = 0.0 if model.embedding_norm == "none" else 0.3 if model.tied else 0.1
    high = 2.0 if model.tied and model.embedding_std == 1.0 else 0.0
    return 2.0 + effect + high + 0.01 * noise(seed, len(arm.id), model.tied)


@pytest.fixture
def runs() -> pd.DataFrame:
    return runs_of(STUDY, loss)


def test_the_difference_is_paired_over_seeds(runs: pd.DataFrame) -> None:
    table = tied_table(STUDY, runs, 0.05).set_index(["variant", "within"])
    assert len(table) == 4
    row = table.loc[("layernorm", "embedding_std=0.02")]
    losses = runs.pivot(index="seed", columns="arm", values="loss")
    end = ",embedding_std=0.02"
    tied, untied = (
        losses[f"layernorm,tied={t}{end}"] - losses[f"none,tied={t}{end}"]
        for t in ("true", "false")
    )
    for name, one, other in (
        ("tied", tied, 0 * tied),
        ("untied", untied, 0 * tied),
        ("difference", tied, untied),
    ):
        peer = stats.ttest_rel(one, other).confidence_interval()
        assert row[name] == pytest.approx((one - other).mean())
        assert (row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx((peer.low, peer.high))
    assert row["n"] == 3


def test_arms_above_the_unigram_loss_are_marked(runs: pd.DataFrame) -> None:
    finding = tied_finding(STUDY, runs, 0.05)
    table = finding.table.set_index(["variant", "within"])
    assert table.loc[("scale", "embedding_std=0.02"), "below_floor"] == ""
    arms = "none,tied=true,embedding_std=1, scale,tied=true,embedding_std=1"
    assert table.loc[("scale", "embedding_std=1"), "below_floor"] == arms
    marked = [text for text in finding.words if "Below the floor of a unigram model" in text]
    assert [text.partition(":")[0] for text in marked] == [
        "layernorm at embedding_std=1", "scale at embedding_std=1",
    ]  # fmt: skip


def test_a_diverged_run_drops_its_seed(runs: pd.DataFrame) -> None:
    runs.loc[
        (runs["arm"] == "scale,tied=false,embedding_std=0.02") & (runs["seed"] == 1), "loss"
    ] = np.nan
    table = tied_table(STUDY, runs, 0.05).set_index(["variant", "within"])
    assert table.loc[("scale", "embedding_std=0.02"), "n"] == 2


def test_a_variant_of_one_kind_of_output_has_no_difference() -> None:
    study = STUDY.model_copy(
        update={"exclude": [{"model.embedding_norm": "scale", "model.tied": False}]}
    )
    assert set(tied_table(study, runs_of(study, loss), 0.05)["variant"]) == {"layernorm"}
