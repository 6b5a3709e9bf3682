from pathlib import Path

import numpy as np
import pytest

from lib.study.config import load_study
from tests.figures.samples import shown_as, with_findings


def test_doses_stand_beside_no_layer_at_its_own_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dose = [
        {"arm": f"scale,rms={rms:g}", "baseline": "none", "layer": "scale", "setting": "",
         "rms": rms, "branch_multiplier": 1.0, "relative_rms": rms, "mean_delta": 0.1,
         "t_low": 0.0, "t_high": 0.2}
        for rms in (0.1, 1.0, 3.0)
    ]  # fmt: skip
    figures = with_findings("dose", tmp_path, monkeypatch, dose=dose)
    (ax,) = shown_as("dose", figures, monkeypatch).axes
    (none,) = [line for line in ax.lines if line.get_label() == "no layer"]
    # The made-up embedding norm at step 0 is 4 + 0.1 × seed; its RMS is that over the root of 128.
    norm = 4 + 0.1 * np.mean(figures.study.seeds)
    assert none.get_xdata()[0] == pytest.approx(norm / 128**0.5 / 1.06)  # moved aside a little
    assert "6 of 13 variants" in next(figures.applicable()).words


def test_a_tied_effect_is_marked_when_one_of_its_two_arms_is_above_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = {"tied": 0.1, "tied_low": 0.0, "tied_high": 0.2}
    sides |= {"untied": 0.1, "untied_low": 0.0, "untied_high": 0.2}
    high = "none,tied=true,embedding_std=1, layernorm,tied=true,embedding_std=1"
    tied = [
        {"variant": "layernorm", "within": f"embedding_std={std}", "below_floor": floor} | sides
        for std, floor in (("0.02", ""), ("0.1", ""), ("1", high))
    ]
    figures = with_findings("tied", tmp_path, monkeypatch, tied=tied)
    (ax,) = shown_as("tied", figures, monkeypatch).axes
    floors = [line for line in ax.lines if line.get_label() == "an arm above the unigram loss"]
    assert [line.get_xdata().tolist() for line in floors] == [[2 - 0.08]]  # the tied one


def test_a_ladder_has_a_panel_per_rate_and_the_widths_at_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = load_study("ladder").factors["model.n_embd"]
    rates = ["learning_rate=0.001", "each at its own best rate"]
    ladder = [
        {"variant": "layernorm", "rate": rate, "model.n_embd": width, "n_dropped": 0,
         "mean_delta": 6.4 / width, "t_low": 0.0, "t_high": 0.2}
        for rate in rates
        for width in widths
    ]  # fmt: skip
    figures = with_findings("ladder", tmp_path, monkeypatch, ladder=ladder)
    first, second = shown_as("ladder", figures, monkeypatch).axes
    for ax in (first, second):
        assert [float(label.get_text()) for label in ax.get_xticklabels()] == widths
        effect = max(ax.lines, key=lambda line: len(line.get_xdata()))
        assert effect.get_ydata() == pytest.approx([6.4 / width for width in widths])
