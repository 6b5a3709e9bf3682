from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lib.figures.factors import (
    differences,
    dodged,
    efficiency,
    forest,
    interaction,
    learning_rates,
    unstable_shares,
)
from lib.figures.levels import Scale, scale_of
from lib.figures.training import look

RATE = "training.learning_rate"
LOOK = look(["none", "layernorm"])


@pytest.fixture
def ax() -> Iterator[Axes]:
    before = dict(mpl.rcParams)
    yield Figure().add_subplot()
    assert dict(mpl.rcParams) == before  # no function touches global state


@pytest.fixture
def scale() -> Scale:
    return scale_of(RATE, [1e-3, 1e-2, 1e-1])


@pytest.fixture
def runs() -> pd.DataFrame:
    """Two variants × three rates × two seeds; at the highest rate the baseline diverged twice and
    the arm once."""
    values = {"none": [[20.0, 22.0], [30.0, 32.0], [np.nan, np.nan]]}
    values["layernorm"] = [[21.0, 23.0], [25.0, 27.0], [40.0, np.nan]]
    return pd.DataFrame(
        [
            {"variant": variant, "seed": seed, RATE: rate, "perplexity": value}
            for variant, rows in values.items()
            for rate, row in zip((1e-3, 1e-2, 1e-1), rows, strict=True)
            for seed, value in enumerate(row)
        ]
    )


def drawn(ax: Axes, label: str) -> Line2D:
    (line,) = [line for line in ax.lines if line.get_label() == label]
    return line


def crosses(ax: Axes) -> dict[str, list[float]]:
    """x of the crosses by colour."""
    found: dict[str, list[float]] = {}
    for line in ax.lines:
        if line.get_marker() == "x":
            found.setdefault(str(line.get_color()), []).extend(line.get_xdata())
    return found


def test_interaction_draws_means_range_and_seeds_and_counts_what_has_no_number(
    ax: Axes, runs: pd.DataFrame, scale: Scale
) -> None:
    assert interaction(runs, "perplexity", scale, ax) is ax
    np.testing.assert_allclose(drawn(ax, "none").get_ydata(), [21.0, 31.0, np.nan])
    np.testing.assert_allclose(drawn(ax, "layernorm").get_ydata(), [22.0, 26.0, 40.0])
    band = ax.collections[2].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (21.0, 40.0)
    assert [text.get_text() for text in ax.texts] == ["2", "1"]
    places = {name: [dodged([0.1], scale, i, 2)[0]] for i, name in enumerate(LOOK["palette"])}
    assert crosses(ax) == {LOOK["palette"][name]: x for name, x in places.items()}
    assert ax.get_xscale() == "log"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.001", "0.01", "0.1"]


def test_dodged_marks_stay_next_to_their_level(scale: Scale) -> None:
    middle = [dodged([1e-2], scale, i, 3)[0] for i in range(3)]
    assert middle[1] == pytest.approx(1e-2)
    assert middle[0] * middle[2] == pytest.approx(1e-4)
    categories = scale_of("corpus.source", ["a", "b"])
    np.testing.assert_allclose(dodged([0, 1], categories, 0, 2), [-0.01, 0.99])


def test_differences_draw_intervals_beside_zero_and_count_lost_pairs(
    ax: Axes, scale: Scale
) -> None:
    table = pd.DataFrame(
        {"variant": "layernorm", RATE: [1e-2, 1e-3, 1e-1], "mean_delta": [-5.0, 1.0, np.nan],
         "t_low": [-6.0, 0.5, np.nan], "t_high": [-4.0, 1.5, np.nan], "n_dropped": [0, 0, 2]}
    )  # fmt: skip
    differences(table, "perplexity", scale, ax)
    np.testing.assert_allclose(drawn(ax, "layernorm").get_ydata(), [1.0, -5.0, np.nan])
    (bars,) = ax.collections
    ends = [segment[:, 1] for segment in bars.get_segments()[:2]]
    np.testing.assert_allclose(ends, [[0.5, 1.5], [-6.0, -4.0]])
    assert list(ax.lines[0].get_ydata()) == [0, 0]
    assert [text.get_text() for text in ax.texts] == ["2"]
    assert ax.get_yscale() == "linear"


def test_differences_of_many_magnitudes_stay_readable(ax: Axes, scale: Scale) -> None:
    table = pd.DataFrame({"variant": "layernorm", RATE: [1e-3, 1e-2, 1e-1], "n_dropped": 0})
    table["mean_delta"] = table["t_low"] = table["t_high"] = [1.0, -2.0, 900.0]
    differences(table, "perplexity", scale, ax)
    assert ax.get_yscale() == "symlog"


def test_learning_rates_draw_mean_losses_the_initial_one_and_sensitivity(
    ax: Axes, scale: Scale
) -> None:
    losses = pd.DataFrame(
        {"variant": "none", "seed": [0, 1] * 3, RATE: np.repeat([1e-3, 1e-2, 1e-1], 2),
         "final_loss": [2.0, 2.0, 3.0, 2.0, 4.0, 4.0], "initial_loss": 4.0}
    )  # fmt: skip
    learning_rates(losses, scale, ax)
    line = drawn(ax, "none, S = 0.833")  # seeds: (0 + 1 + 2) / 3 and (0 + 0 + 2) / 3
    np.testing.assert_allclose(line.get_ydata(), [2.0, 2.5, 4.0])
    assert list(drawn(ax, "initial loss").get_ydata()) == [4.0, 4.0]
    assert ax.get_xscale() == "log"


def test_unstable_shares_are_those_of_the_seeds(ax: Axes, scale: Scale) -> None:
    judged = pd.DataFrame({"variant": "none", RATE: np.repeat([1e-3, 1e-2, 1e-1], 2)})
    judged["unstable"] = [False, False, True, False, True, True]
    unstable_shares(judged, scale, ax)
    np.testing.assert_allclose(drawn(ax, "none").get_ydata(), [0.0, 0.5, 1.0])


def test_forest_draws_marks_and_intervals_in_the_variants_colour(ax: Axes) -> None:
    table = pd.DataFrame(
        {"label": ["layernorm - none", "scale - none"], "variant": ["layernorm", "scale"],
         "mean_delta": [-1.0, np.nan], "t_low": [-2.0, np.nan], "t_high": [0.5, np.nan]}
    )  # fmt: skip
    forest(table, ax)
    zero, mark, cross = ax.lines
    assert list(zero.get_xdata()) == [0, 0]
    assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([-1.0], [0])
    assert mark.get_color() == LOOK["palette"]["layernorm"]
    (bar,) = ax.collections
    np.testing.assert_allclose(bar.get_segments()[0], [[-2.0, 0], [0.5, 0]])
    assert to_rgb(bar.get_color()[0]) == to_rgb(LOOK["palette"]["layernorm"])
    assert (cross.get_marker(), list(cross.get_ydata())) == ("x", [1])
    assert [label.get_text() for label in ax.get_yticklabels()] == list(table["label"])
    assert ax.get_ylim() == (1.5, -0.5)  # the first on top


def curves(status: str = "completed") -> pd.DataFrame:
    losses = {"none": [4.0, 3.0, 2.0], "layernorm": [4.0, 2.5, 1.5], "rmsnorm": [4.0, 3.5, 3.0]}
    return pd.DataFrame(
        [
            {"variant": variant, "arm": variant, "seed": 0, "step": step, "tokens": 100 * step,
             "dev_loss": loss, "status": status if variant == "none" else "completed"}
            for variant, values in losses.items()
            for step, loss in enumerate(values)
        ]
    )  # fmt: skip


def test_efficiency_marks_where_each_variant_reaches_the_baselines_final_loss(ax: Axes) -> None:
    efficiency(curves(), ax)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["none: 200", "layernorm: 150", "rmsnorm: never"]
    marks = {line.get_color(): line for line in ax.lines if line.get_marker() not in ("None", "")}
    assert list(marks[LOOK["palette"]["layernorm"]].get_xdata()) == [150]
    assert list(marks[LOOK["palette"]["layernorm"]].get_ydata()) == [2.0]
    dashed = [
        line for line in ax.lines if line.get_linestyle() == "--" and line.get_color() == "0.4"
    ]
    assert [list(line.get_ydata()) for line in dashed] == [[2.0, 2.0]]


def test_efficiency_without_a_completed_baseline_marks_nothing(ax: Axes) -> None:
    efficiency(curves("diverged"), ax)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["none: never", "layernorm: never", "rmsnorm: never"]
