import numpy as np
import pandas as pd
import pytest

from lib.figures.effects import (
    BETTER,
    WORSE,
    differences,
    forest,
    interaction,
    paired_seeds,
    task_accuracies,
)
from lib.figures.style import VARIANTS

RATE = "training.learning_rate"
RATES = [1e-3, 1e-2, 1e-1]


def test_forest_draws_marks_and_intervals_with_their_values_and_what_is_undecided_is_hollow(ax):
    table = pd.DataFrame(
        {"label": ["costs", "helps", "none"], "mean_delta": [-1.0, 0.5, np.nan],
         "t_low": [-2.0, -1.0, np.nan], "t_high": [-0.5, 2.0, np.nan],
         "decided": [True, False, False], "gain": [1.0, -0.5, np.nan],
         "value": ["-1.0 [-2.0, -0.5]", "+0.5", "n/a"]}
    )  # fmt: skip
    forest(table, "loss", ax)
    zero, decided, undecided, cross = ax.lines
    assert list(zero.get_xdata()) == [0, 0]
    assert [(list(m.get_xdata()), list(m.get_ydata())) for m in (decided, undecided)] == [
        ([-1.0], [0]), ([0.5], [1])
    ]  # fmt: skip
    assert [m.get_markerfacecolor() for m in (decided, undecided)] == [BETTER, "white"]
    assert [m.get_color() for m in (decided, undecided)] == [BETTER, WORSE]
    assert [text.get_text() for text in ax.texts] == [*table["value"]]
    assert ax.get_xlabel() == "Δ held-out loss (nats), lower is better"
    assert (cross.get_marker(), list(cross.get_ydata())) == ("x", [2])
    np.testing.assert_allclose(ax.collections[0].get_segments()[0], [[-2.0, 0], [-0.5, 0]])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["costs", "helps", "none"]
    assert ax.get_ylim() == (2.5, -0.5)  # the first on top


@pytest.fixture
def runs():
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


def drawn(ax, label):
    (line,) = [line for line in ax.lines if line.get_label() == label]
    return line


def crosses(ax):
    """x of the crosses by colour."""
    found = {}
    for line in ax.lines:
        if line.get_marker() == "x":
            found.setdefault(str(line.get_color()), []).extend(line.get_xdata())
    return found


def test_interaction_draws_means_range_and_seeds_and_counts_what_has_no_number(ax, runs):
    assert interaction(runs, "perplexity", RATE, RATES, ax) is ax
    np.testing.assert_allclose(drawn(ax, "no layer").get_ydata(), [21.0, 31.0, np.nan])
    np.testing.assert_allclose(drawn(ax, "LayerNorm").get_ydata(), [22.0, 26.0, 40.0])
    band = ax.collections[1].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (21.0, 40.0)
    points = [line for line in ax.lines if line.get_marker() == "s" and line.get_alpha()]
    np.testing.assert_allclose(points[0].get_ydata(), [21, 23, 25, 27, 40, np.nan])
    assert [text.get_text() for text in ax.texts] == ["2", "1"]
    places = {"none": [2 - 0.06], "layernorm": [2 + 0.06]}  # side by side at the third level
    assert crosses(ax) == {VARIANTS[name].colour: pytest.approx(x) for name, x in places.items()}
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.001", "0.01", "0.1"]


def test_differences_draw_intervals_beside_zero_and_count_lost_pairs(ax):
    table = pd.DataFrame(
        {"variant": "layernorm", RATE: [1e-2, 1e-3, 1e-1], "mean_delta": [-5.0, 1.0, np.nan],
         "t_low": [-6.0, 0.5, np.nan], "t_high": [-4.0, 1.5, np.nan], "n_dropped": [0, 0, 2]}
    )  # fmt: skip
    differences(table, "perplexity", RATE, RATES, ax)
    np.testing.assert_allclose(drawn(ax, "LayerNorm").get_ydata(), [1.0, -5.0, np.nan])
    (bars,) = ax.collections
    ends = [segment[:, 1] for segment in bars.get_segments()[:2]]
    np.testing.assert_allclose(ends, [[0.5, 1.5], [-6.0, -4.0]])
    assert list(ax.lines[0].get_ydata()) == [0, 0]
    assert [text.get_text() for text in ax.texts] == ["2"]
    assert ax.get_yscale() == "linear"


def test_paired_seeds_draw_one_line_per_seed_and_gaps_for_diverged_runs(ax, runs):
    seeds = runs[runs[RATE] == 1e-2].replace({"perplexity": {27.0: np.nan}})
    assert paired_seeds(seeds, "perplexity", ax) is ax
    first, second, baseline, arm = (line.get_ydata() for line in ax.lines)
    assert (list(baseline), list(arm)) == ([31.0, 31.0], [25.0, 25.0])  # means
    assert list(first) == [30.0, 25.0]
    assert second[0] == 32.0
    assert np.isnan(second[1])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["no layer", "LayerNorm"]


def test_task_accuracies_mark_each_variants_mean_and_its_seeds_range(ax):
    rows = [
        {"task": task, "shots": 0, "variant": variant, "normalised_accuracy": value}
        for task, variant, value in (("b_c", "none", 0.2), ("b_c", "none", 0.4), ("a", "none", 0.1))
    ]
    for panel in (ax, ax.figure.add_subplot(sharey=ax)):  # as in a row of settings
        task_accuracies(pd.DataFrame(rows), panel)
    assert ax.yaxis_inverted()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a, 0-shot", "b c, 0-shot"]
    means, *ranges = (line.get_xdata() for line in ax.lines if len(line.get_xdata()) == 2)
    np.testing.assert_allclose(means, [0.1, 0.3])
    assert [0.2, 0.4] in [list(ends) for ends in ranges]
    assert ax.get_legend() is None
