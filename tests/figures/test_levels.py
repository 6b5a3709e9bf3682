import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lib.analysis.runs import ResultError, other_settings
from lib.figures import levels as factors
from lib.figures.levels import (
    baseline_contrasts,
    capped_losses,
    forest_table,
    scale_of,
)
from lib.study.config import Study
from lib.study.fields import Level
from tests.conftest import TINY

RATE = "training.learning_rate"


@pytest.fixture
def study() -> Study:
    levels = {"model.embedding_norm": ["none", "layernorm"], RATE: [1e-3, 1e-2]}
    levels |= {"training.gradient_clip": [None, 1.0]}
    return Study.model_validate(TINY | {"name": "tiny", "factors": levels, "seeds": [0, 1, 2]})


@pytest.fixture
def runs(study: Study) -> pd.DataFrame:
    """Perplexity 20 + seed for the baseline; the arm's is lower by 1 + seed / 10."""
    return pd.DataFrame(
        [
            {"arm": arm.id, "baseline": arm.baseline, "seed": seed, "status": "completed",
             "variant": arm.levels["model.embedding_norm"], **arm.levels,
             "perplexity": 20.0 + seed - (1 + seed / 10) * (arm.id != arm.baseline)}
            for arm in study.arms()
            for seed in study.seeds
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("levels", "kind"),
    [
        ([0.02, 0.1, 0.3, 1.0], "log"),
        ([1.0, 0.1], "log"),
        ([1, 4], "linear"),
        ([1, 2, 3, 4], "linear"),
        ([0, 10, 100], "linear"),
        (["a", "b"], "categorical"),
        ([None, 1.0], "categorical"),
        ([True, False], "categorical"),
    ],
)
def test_a_factors_axis_follows_from_its_levels(levels: list[Level], kind: str) -> None:
    scale = scale_of("model.n_layer", levels)
    assert scale.kind == kind
    if kind == "categorical":
        assert list(scale.positions.values()) == [0, 1]


def test_levels_find_their_place_even_when_pandas_wrote_none_as_nan() -> None:
    scale = scale_of("training.gradient_clip", [None, 1.0])
    assert list(scale.place(pd.Series([np.nan, 1.0, np.nan]))) == [0, 1, 0]


def test_other_settings_name_neither_the_variant_nor_the_factor(
    study: Study, runs: pd.DataFrame
) -> None:
    names = other_settings(runs, study, RATE)
    assert list(dict.fromkeys(names)) == ["gradient_clip=none", "gradient_clip=1"]
    one = study.model_copy(update={"factors": dict(list(study.factors.items())[:2])})
    assert set(other_settings(runs, one, RATE)) == {""}


def test_a_final_loss_counts_at_most_as_the_initial_one_and_a_diverged_run_as_just_that() -> None:
    runs = pd.DataFrame({"arm": "none", "variant": "none", "seed": [0, 1, 2]})
    runs["status"] = ["completed", "completed", "diverged"]
    rows = [(0, 4.0, 2.5), (1, 4.2, 9.0), (2, 4.1, 3.0)]
    curve = pd.DataFrame(
        [
            {"arm": "none", "seed": seed, "step": step, "dev_loss": loss}
            for seed, *losses in rows
            for step, loss in zip((100, 0), reversed(losses), strict=True)
        ]
    )
    table = capped_losses(runs, curve)
    assert list(table["initial_loss"]) == [4.0, 4.2, 4.1]
    assert list(table["final_loss"]) == [2.5, 4.2, 4.1]


def test_the_forests_table_comes_from_the_verdict(
    study: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(factors, "study_folder", lambda name: tmp_path / name)
    runs = pd.DataFrame({"arm": ["a", "b"], "variant": ["none", "scale"], "setting": "x=1"})
    with pytest.raises(ResultError, match="execute 03_analysis first"):
        forest_table(study, runs)
    row = {"arm": "b", "baseline": "a", "measure": "ece", "mean_delta": None, "t_low": None}
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/verdict.json").write_text(json.dumps({"contrasts": [row | {"t_high": 1}]}))
    (table,) = forest_table(study, runs).to_dict("records")
    assert (table["label"], table["variant"], table["setting"]) == ("scale - none", "scale", "x=1")
    assert np.isnan(table["mean_delta"])


def test_differences_are_those_of_the_analysis_to_an_arms_own_baseline(
    study: Study, runs: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(factors, "study_folder", lambda name: tmp_path)
    runs["setting"] = ""
    first, second = runs.drop_duplicates("arm").query("arm != baseline")["arm"].head(2)
    numbers = {"mean_delta": -1.1, "t_low": -1.3, "t_high": -0.9, "n_dropped": 1}
    rows = [
        {"arm": first, "baseline": baseline, "measure": measure} | numbers
        for measure in ("perplexity", "ece")
        for baseline in (runs.set_index("arm")["baseline"][first].iloc[0], second)
    ]
    (tmp_path / "verdict.json").write_text(json.dumps({"contrasts": rows}))
    (row,) = baseline_contrasts(study, runs, "perplexity").to_dict("records")
    assert (row["arm"], row["mean_delta"], row["n_dropped"]) == (first, -1.1, 1)
    assert row[RATE] == study.arm(first).levels[RATE]
