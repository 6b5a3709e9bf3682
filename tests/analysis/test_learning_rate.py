import numpy as np
import pandas as pd
import pytest

from lib.analysis.learning_rate import (
    RATE,
    best_rate_table,
    final_losses,
    rate_findings,
    rate_table,
)
from lib.analysis.runs import other_settings
from lib.study.config import Study
from tests.conftest import TINY

RATES = [1e-3, 1e-2, 1e-1]
# Final dev loss per rate of seed 0; seeds add a little, and 4 nats is where all begin.
FINAL = {"none": [2.0, 3.0, np.nan], "layernorm": [2.1, 2.1, 2.2], "rmsnorm": [2.0, 9.0, 3.0]}
EXTRA = {0: 0.0, 1: 0.1, 2: 0.3}


@pytest.fixture
def study() -> Study:
    factors = {"model.embedding_norm": list(FINAL), "training.learning_rate": RATES}
    return Study.model_validate(TINY | {"name": "s", "factors": factors, "seeds": list(EXTRA)})


@pytest.fixture
def tables(study: Study) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Runs, dev curves and stability; the later steps come first, as order must not matter."""
    runs, curve = [], []
    for arm in study.arms():
        variant, rate = arm.levels["model.embedding_norm"], arm.levels["training.learning_rate"]
        for seed, extra in EXTRA.items():
            final = FINAL[str(variant)][RATES.index(float(str(rate)))]
            final += extra if variant == "none" else 0.5 * extra
            status = "diverged" if np.isnan(final) else "completed"
            key = {"arm": arm.id, "variant": variant, "seed": seed}
            runs.append(
                key
                | {"status": status, "training.learning_rate": rate, "unstable": np.nan}
                | {"perplexity_dev": np.exp(final), "perplexity_test": np.exp(final) + 1}
            )
            curve += [key | {"step": 12, "dev_loss": 7.0 if np.isnan(final) else final}]
            curve += [key | {"step": 0, "dev_loss": 4.0}]
    table = pd.DataFrame(runs)
    diverged = table["status"] == "diverged"
    stability = table[["arm", "seed"]].assign(
        unstable=diverged.astype(float), transient=False, collapsed=False, diverged=diverged
    )
    return table, pd.DataFrame(curve), stability


def with_settings(study: Study, runs: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    losses = final_losses(runs, curve)
    return losses.assign(within=other_settings(losses, study, RATE))


def test_the_rate_is_chosen_by_final_dev_loss(
    study: Study, tables: tuple[pd.DataFrame, ...]
) -> None:
    runs, curve, stability = tables
    # On test another rate would be better: it must not be looked at when choosing.
    other = (runs["variant"] == "none") & (runs["training.learning_rate"] == 1e-2)
    runs.loc[other, "perplexity_test"] = 1.0
    losses = with_settings(study, runs, curve)
    table = best_rate_table(rate_table(losses, stability)).set_index("variant")
    assert table["best_rate"].to_dict() == {"none": 1e-3, "layernorm": 1e-3, "rmsnorm": 1e-3}
    assert table.loc["none", "dev_loss"] == pytest.approx(2.0 + np.mean(list(EXTRA.values())))


def test_a_run_that_diverged_or_collapsed_counts_as_its_initial_loss(
    study: Study, tables: tuple[pd.DataFrame, ...]
) -> None:
    runs, curve, stability = tables
    losses = with_settings(study, runs, curve)
    means = rate_table(losses, stability).set_index(["variant", RATE])["dev_loss"]
    assert means["none", 1e-1] == 4.0  # all three diverged
    assert means["layernorm", 1e-2] == pytest.approx(2.1 + (0.0 + 0.05 + 0.15) / 3)
    one = (runs["variant"] == "layernorm") & (runs[RATE] == 1e-2) & (runs["seed"] == 1)
    collapsed = stability.assign(collapsed=one)
    again = rate_table(losses, collapsed).set_index(["variant", RATE])
    assert again.loc[("layernorm", 1e-2), "dev_loss"] == pytest.approx((2.1 + 4.0 + 2.25) / 3)
    assert again.loc[("layernorm", 1e-2), "collapsed_runs"] == 1


def test_a_transient_excludes_nothing_and_is_counted(
    study: Study, tables: tuple[pd.DataFrame, ...]
) -> None:
    runs, curve, stability = tables
    losses = with_settings(study, runs, curve)
    calm = rate_table(losses, stability)
    shaky = rate_table(losses, stability.assign(transient=True, unstable=1.0))
    assert calm["dev_loss"].tolist() == shaky["dev_loss"].tolist()
    assert set(shaky["transient_runs"]) == {len(EXTRA)}


def test_the_edge_of_the_grid_is_named(study: Study, tables: tuple[pd.DataFrame, ...]) -> None:
    runs, curve, stability = tables
    middle = (curve["variant"] == "layernorm") & curve["arm"].str.endswith("=0.01")
    curve.loc[middle & (curve["step"] > 0), "dev_loss"] = 1.5
    losses = with_settings(study, runs, curve)
    rates, best = rate_findings(losses, stability)
    assert best.table.set_index("variant")["bracketed"].to_dict() == {
        "none": False, "layernorm": True, "rmsnorm": False,
    }  # fmt: skip
    none, layernorm, _, chosen = best.words
    assert "none: best at 0.001 (at the edge of the grid: not bracketed)" in none
    assert layernorm == (
        "layernorm: best at 0.01 (inside the grid) with a mean final dev loss of 1.500 nats over 3 "
        "runs, of which 0 have a transient."
    )
    assert chosen.startswith("The runs that chose a rate cannot report at it")
    assert len(rates.table) == 9
