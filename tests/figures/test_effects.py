from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from lib.figures.effects import dose_response, forest, tied_effects
from lib.study.variants import VARIANTS


@pytest.fixture
def ax() -> Iterator[Axes]:
    before = dict(mpl.rcParams)
    yield Figure().add_subplot()
    assert dict(mpl.rcParams) == before  # no function touches global state


def labelled(ax: Axes) -> dict[str, Any]:
    return {str(line.get_label()): line for line in ax.lines}


def test_forest_draws_marks_and_intervals_in_the_variants_colour(ax: Axes) -> None:
    table = pd.DataFrame(
        {"variant": ["layernorm", "scale"], "reference": ["none", "layernorm"], "family": "",
         "mean_delta": [-1.0, np.nan], "t_low": [-2.0, np.nan], "t_high": [0.5, np.nan],
         "margin": np.nan, "decided": True}
    )  # fmt: skip
    forest(table, "perplexity", ax)
    zero, mark, cross = ax.lines
    assert list(zero.get_xdata()) == [0, 0]
    assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([-1.0], [0])
    assert mark.get_color() == VARIANTS["layernorm"].colour
    (bar,) = ax.collections
    np.testing.assert_allclose(bar.get_segments()[0], [[-2.0, 0], [0.5, 0]])
    assert to_rgb(bar.get_color()[0]) == to_rgb(VARIANTS["layernorm"].colour)
    assert (cross.get_marker(), list(cross.get_ydata())) == ("x", [1])
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "LayerNorm - none", "scale - LayerNorm"
    ]  # fmt: skip
    assert ax.get_ylim() == (1.5, -0.5)  # the first on top


def test_tests_stand_under_their_family_and_only_equivalence_has_a_band(ax: Axes) -> None:
    table = pd.DataFrame(
        {"variant": ["layernorm", "rmsnorm"], "reference": ["none", "layernorm"],
         "family": ["primary", "equivalence"], "mean_delta": [1.0, 0.02], "t_low": [0.5, -0.05],
         "t_high": [1.5, 0.09], "margin": [np.nan, 0.1], "decided": [False, True]}
    )  # fmt: skip
    forest(table, "perplexity", ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "primary:", "LayerNorm - none", "equivalence:", "RMSNorm - LayerNorm"
    ]  # fmt: skip
    band = ax.collections[-1].get_paths()[0].vertices
    assert (band[:, 0].min(), band[:, 0].max()) == (-0.1, 0.1)
    assert (band[:, 1].min(), band[:, 1].max()) == (2.5, 3.5)
    _, undecided, decided = ax.lines
    assert undecided.get_markerfacecolor() == "white"
    assert decided.get_markerfacecolor() == VARIANTS["rmsnorm"].colour


def test_dose_and_response_share_one_axis_and_rescued_arms_are_hollow(ax: Axes) -> None:
    numbers = {"t_low": 0.0, "t_high": 0.3}
    rows = [
        {"layer": "none", "relative_rms": 0.0283, "branch_multiplier": 1.0, "mean_delta": 0.0},
        *(
            {"layer": layer, "relative_rms": x, "branch_multiplier": 1.0, "mean_delta": x / 10}
            | numbers
            for layer in ("scale", "rmsnorm")
            for x in (0.1, 1.0, 3.0)
        ),
        {"layer": "rmsnorm", "relative_rms": 0.0283, "branch_multiplier": 35.36,
         "mean_delta": 0.01} | numbers,
    ]  # fmt: skip
    dose_response(pd.DataFrame(rows), ax)
    lines = labelled(ax)
    np.testing.assert_allclose(lines["scale"].get_ydata(), [0.01, 0.1, 0.3])
    np.testing.assert_allclose(lines["RMSNorm"].get_ydata(), [0.01, 0.1, 0.3])
    assert list(lines["no layer"].get_ydata()) == [0.0]
    assert lines["RMSNorm, rescued"].get_markerfacecolor() == "white"
    assert lines["RMSNorm"].get_markerfacecolor() == VARIANTS["rmsnorm"].colour
    assert ax.get_xscale() == "log"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.028", "0.1", "1", "3"]


def test_tied_and_untied_effects_stand_side_by_side_and_a_floor_is_marked(ax: Axes) -> None:
    table = pd.DataFrame(
        {"variant": "layernorm", "within": ["embedding_std=0.02", "embedding_std=1"],
         "tied": [0.2, -0.4], "tied_low": [0.1, -0.5], "tied_high": [0.3, -0.3],
         "untied": [0.1, 0.0], "untied_low": 0.0, "untied_high": 0.2,
         "tied_floor": [False, True], "untied_floor": False}
    )  # fmt: skip
    tied_effects(table, ax)
    lines = labelled(ax)
    assert list(lines["tied output"].get_ydata()) == [0.2, -0.4]
    assert list(lines["untied output"].get_ydata()) == [0.1, 0.0]
    assert lines["untied output"].get_markerfacecolor() == "white"
    floors = [line for line in ax.lines if line.get_label() == "an arm above the unigram loss"]
    assert [list(line.get_ydata()) for line in floors] == [[-0.4]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.02", "1"]
    assert ax.get_xlabel() == "embedding std"
