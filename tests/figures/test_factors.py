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
    Scale,
    differences,
    dodged,
    efficiency,
    interaction,
    paired_seeds,
    scale_of,
    task_accuracies,
    tuning_curves,
)
from lib.study.fields import Level
from lib.study.variants import VARIANTS

RATE = "training.learning_rate"


@pytest.fixture
def ax() -> Iterator[Axes]:
    before = dict(mpl.rcParams)
    yield Figure().add_subplot()
    assert dict(mpl.rcParams) == before  # no function touches global state


@pytest.fixture
def scale() -> Scale:
    return scale_of(RATE, [1e-3, 1e-2, 1e-1])


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
    np.testing.assert_allclose(drawn(ax, "LayerNorm").get_ydata(), [22.0, 26.0, 40.0])
    band = ax.collections[2].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (21.0, 40.0)
    assert [text.get_text() for text in ax.texts] == ["2", "1"]
    places = {name: [dodged([0.1], scale, i, 2)[0]] for i, name in enumerate(["none", "layernorm"])}
    assert crosses(ax) == {VARIANTS[name].colour: x for name, x in places.items()}
    assert ax.get_xscale() == "log"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1e-3", "0.01", "0.1"]


def test_dodged_marks_stay_next_to_their_level(scale: Scale) -> None:
    middle = [dodged([1e-2], scale, i, 3)[0] for i in range(3)]
    assert middle[1] == pytest.approx(1e-2)
    assert middle[0] * middle[2] == pytest.approx(1e-4)
    categories = scale_of("corpus.source", ["a", "b"])
    np.testing.assert_allclose(dodged([0, 1], categories, 0, 2), [-0.0175, 0.9825])


def test_differences_draw_intervals_beside_zero_and_count_lost_pairs(
    ax: Axes, scale: Scale
) -> None:
    table = pd.DataFrame(
        {"variant": "layernorm", RATE: [1e-2, 1e-3, 1e-1], "mean_delta": [-5.0, 1.0, np.nan],
         "t_low": [-6.0, 0.5, np.nan], "t_high": [-4.0, 1.5, np.nan], "n_dropped": [0, 0, 2]}
    )  # fmt: skip
    differences(table, "perplexity", scale, ax)
    np.testing.assert_allclose(drawn(ax, "LayerNorm").get_ydata(), [1.0, -5.0, np.nan])
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


def test_tuning_curves_draw_mean_choice_and_every_run_by_how_it_ended(
    ax: Axes, scale: Scale
) -> None:
    losses = pd.DataFrame(
        {"variant": "none", "seed": [0, 1] * 3, RATE: np.repeat([1e-3, 1e-2, 1e-1], 2),
         "counted": [2.0, 2.2, 1.8, 1.6, 3.0, 4.0], "mean": np.repeat([2.1, 1.7, 3.5], 2),
         "transient": [False, False, True, False, False, True],
         "collapsed": [False] * 5 + [True], "diverged": False,
         "best_rate": 1e-2, "bracketed": True}
    )  # fmt: skip
    tuning_curves(losses, scale, ax)
    np.testing.assert_allclose(drawn(ax, "none").get_ydata(), [2.1, 1.7, 3.5])
    (star,) = [line for line in ax.lines if line.get_marker() == "*"]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == pytest.approx((1e-2, 1.7))
    assert to_rgb(star.get_markerfacecolor()) == to_rgb(VARIANTS["none"].colour)
    risen, calm = (marks.get_offsets()[:, 1].tolist() for marks in ax.collections)
    assert (risen, calm) == ([1.8], [2.0, 2.2, 1.6, 3.0])
    assert to_rgb(ax.collections[0].get_facecolor()[0]) == (1, 1, 1)
    assert crosses(ax) == {VARIANTS["none"].colour: [pytest.approx(0.1)]}
    assert ax.get_ylim() == pytest.approx((1.6 - 0.14, 3.0 + 0.28))  # the mean of 3.5 is cut
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1e-3", "0.01", "0.1"]


def test_a_choice_at_the_edge_of_the_grid_is_a_hollow_star(ax: Axes, scale: Scale) -> None:
    losses = pd.DataFrame(
        {"variant": "none", RATE: [1e-3, 1e-2, 1e-1], "counted": [1.0, 2.0, 3.0],
         "mean": [1.0, 2.0, 3.0], "transient": False, "collapsed": False, "diverged": False,
         "best_rate": 1e-3, "bracketed": False}
    )  # fmt: skip
    tuning_curves(losses, scale, ax)
    (star,) = [line for line in ax.lines if line.get_marker() == "*"]
    assert star.get_markerfacecolor() == "white"


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
    assert texts == ["none: 200", "LayerNorm: 150", "RMSNorm: never"]
    marks = {line.get_color(): line for line in ax.lines if line.get_marker() not in ("None", "")}
    assert list(marks[VARIANTS["layernorm"].colour].get_xdata()) == [150]
    assert list(marks[VARIANTS["layernorm"].colour].get_ydata()) == [2.0]
    dashed = [
        line for line in ax.lines if line.get_linestyle() == "--" and line.get_color() == "0.4"
    ]
    assert [list(line.get_ydata()) for line in dashed] == [[2.0, 2.0]]


def test_efficiency_without_a_completed_baseline_marks_nothing(ax: Axes) -> None:
    efficiency(curves("diverged"), ax)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["none: never", "LayerNorm: never", "RMSNorm: never"]


@pytest.fixture
def seeds() -> pd.DataFrame:
    values = {"none": [20.0, 22.0], "layernorm": [19.0, np.nan]}
    return pd.DataFrame(
        [
            {"variant": variant, "seed": seed, "perplexity": value}
            for variant, column in values.items()
            for seed, value in enumerate(column)
        ]
    )


def test_paired_seeds_draw_one_line_per_seed_and_gaps_for_diverged_runs(
    ax: Axes, seeds: pd.DataFrame
) -> None:
    assert paired_seeds(seeds, "perplexity", ax) is ax
    first, second, baseline, arm = (line.get_ydata() for line in ax.lines)
    assert (list(baseline), list(arm)) == ([21.0, 21.0], [19.0, 19.0])  # means
    assert list(first) == [20.0, 19.0]
    assert second[0] == 22.0
    assert np.isnan(second[1])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["none", "LayerNorm"]


def test_paired_seeds_draw_an_arm_without_any_completed_run(ax: Axes, seeds: pd.DataFrame) -> None:
    seeds.loc[seeds["variant"] == "layernorm", "perplexity"] = np.nan
    paired_seeds(seeds, "perplexity", ax)
    assert len(ax.get_xticklabels()) == 2


def test_task_accuracies_mark_each_variants_mean(ax: Axes) -> None:
    rows = [
        {"task": task, "shots": 0, "variant": variant, "normalised_accuracy": value}
        for task, variant, value in (("b_c", "none", 0.2), ("b_c", "none", 0.4), ("a", "none", 0.1))
    ]
    task_accuracies(pd.DataFrame(rows), ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a, 0-shot", "b c, 0-shot"]
    np.testing.assert_allclose(ax.containers[0].lines[0].get_xdata(), [0.1, 0.3])
