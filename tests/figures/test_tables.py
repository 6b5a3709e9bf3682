from pathlib import Path

import numpy as np
import pytest

from tests.figures.samples import GRID, RATE, analysed, shown_as, with_findings


def test_tests_are_drawn_by_measure_with_the_plans_margin_where_they_ask_for_equivalence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {"mean_delta": 0.02, "t_low": -0.01, "t_high": 0.05}
    tests = [
        {"family": family, "test": test, "arm": arm, "baseline": baseline, "measure": measure,
         "answer": answer} | numbers
        for measure in ("perplexity", "macro_accuracy_zero_shot")
        for family, test, arm, baseline, answer in (
            ("primary", "t", "layernorm", "none", "undecided"),
            ("equivalence", "equivalence", "layernorm", "rmsnorm", "no difference beyond ± 0.1"),
        )
    ]  # fmt: skip
    figures = with_findings("confirmatory-2", tmp_path, monkeypatch, tests=tests)
    table = figures.tests
    assert table["decided"].tolist() == [False, True] * 2
    np.testing.assert_array_equal(table["margin"], [np.nan, 0.1, np.nan, 0.01])
    figure = shown_as("effects", figures, monkeypatch)
    assert [ax.get_xlabel() for ax in figure.axes] == [
        "Δ validation perplexity", "Δ macro accuracy, zero-shot"
    ]  # fmt: skip
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["primary:", "LayerNorm - none", "equivalence:", "LayerNorm - RMSNorm"]


def test_contrasts_know_their_variants_their_levels_and_their_own_baseline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    grid = analysed(GRID, tmp_path, monkeypatch)
    table = grid.contrasts.set_index(["arm", "baseline", "measure"])
    row = table.loc["layernorm,learning_rate=0.01", "none,learning_rate=0.01", "perplexity"]
    assert (row["variant"], row["reference"], row[RATE]) == ("layernorm", "none", 0.01)
    assert row["setting"] == "learning_rate=0.01"
    assert row["own"]
    assert np.isnan(row["t_high"])
    assert not table.loc["none,learning_rate=0.01", "none,learning_rate=0.001", "ece"]["own"]
