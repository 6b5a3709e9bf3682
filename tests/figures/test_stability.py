from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from lib.figures.stability import early_losses, stability_cells, trade_off


@pytest.fixture
def ax() -> Iterator[Axes]:
    before = dict(mpl.rcParams)
    yield Figure().add_subplot()
    assert dict(mpl.rcParams) == before  # no function touches global state


def test_a_map_says_in_each_cell_how_many_are_unstable_and_how_much(ax: Axes) -> None:
    cells = pd.DataFrame(
        {"row": ["constant", "constant", "cosine", "cosine"], "column": ["1e-3", "0.01"] * 2,
         "share": [0.0, 1.0, 2 / 3, np.nan], "judged": [3, 3, 3, 0], "unstable": [0, 3, 2, 0],
         "median_severity": [0.123, 2.0, 0.4, np.nan]}
    )  # fmt: skip
    stability_cells(cells, "learning rate", ax)
    texts = {text.get_position(): text for text in ax.texts}
    assert texts[0.5, 0.5].get_text() == "0/3\n0.12"
    assert texts[1.5, 0.5].get_text() == "3/3\n2"
    assert texts[0.5, 1.5].get_text() == "2/3\n0.4"
    assert texts[1.5, 1.5].get_text() == "-"
    # Text and its cell can be told apart: at least half of the way from black to white.
    (mesh,) = ax.collections
    greys = mesh.to_rgba(mesh.get_array()).reshape(-1, 4)[:, 0]
    for text, grey in zip(ax.texts[:3], greys[:3], strict=True):
        assert abs(to_rgb(text.get_color())[0] - grey) > 0.5
    assert greys[1] < greys[2] < greys[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["constant", "cosine"]
    assert ax.yaxis_inverted()


def test_a_trade_off_marks_every_arm_and_joins_it_with_its_settings_first(ax: Axes) -> None:
    table = pd.DataFrame(
        {"arm": list("abcd"), "variant": ["none", "layernorm"] * 2, "setting": ["x", "x", "y", "y"],
         "perplexity": [11.0, 12.0, 13.0, 14.0], "median_severity": [2.0, 0.1, 1.0, 0.2],
         "unstable": [3, 0, 1, 1]}
    )  # fmt: skip
    trade_off(table, "perplexity", "median_severity", ax)
    joins = [tuple(line.get_xdata()) for line in ax.lines if line.get_color() == "0.75"]
    assert joins == [(11.0, 12.0), (13.0, 14.0)]
    _, layer = ax.collections
    np.testing.assert_allclose(layer.get_offsets(), [[12.0, 0.1], [14.0, 0.2]])
    assert to_rgb(layer.get_facecolor()[0]) == (1, 1, 1)  # none of its runs is unstable
    assert to_rgb(layer.get_facecolor()[1]) != (1, 1, 1)
    assert (ax.get_yscale(), ax.get_ylabel()) == ("log", "median severity (nats)")


def test_shares_of_unstable_runs_bring_their_exact_interval(ax: Axes) -> None:
    table = pd.DataFrame(
        {"arm": ["a"], "variant": "none", "setting": "", "perplexity": [11.0], "share": [0.5],
         "low": [0.2], "high": [0.9], "unstable": [1]}
    )  # fmt: skip
    trade_off(table, "perplexity", "share", ax)
    bars, _ = ax.collections
    np.testing.assert_allclose(bars.get_segments()[0], [[11.0, 0.2], [11.0, 0.9]])


def test_early_losses_mark_the_first_step_of_a_transient_and_stop_at_step_64(ax: Axes) -> None:
    calm, risen = np.linspace(4.0, 3.0, 80), np.linspace(4.0, 3.0, 80)
    risen[20:30] += 0.7
    trace = pd.concat(
        [
            pd.DataFrame({"arm": "none", "variant": "none", "seed": seed, "loss": loss})
            .assign(step=np.arange(1, 81))
            for seed, loss in enumerate((calm, risen))
        ]
    )  # fmt: skip
    early_losses(trace, 0.5, ax)
    marks = [line for line in ax.lines if line.get_marker() not in ("None", "")]
    assert [line.get_xdata().tolist() for line in marks] == [[], [21]]
    assert max(ax.lines[0].get_xdata()) == 64
