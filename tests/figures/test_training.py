import dataclasses

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from lib.config.study import load_study
from lib.figures import training as draw
from lib.figures.style import VARIANTS
from lib.record.archive import Record
from lib.results import read_raw


@pytest.fixture
def curves():
    return pd.DataFrame(
        [
            {"variant": variant, "seed": seed, "step": step, "dev_loss": 4.0 - step + seed}
            for variant in ("none", "layernorm", "rmsnorm")
            for seed in (0, 1)
            for step in (0, 1, 2)
        ]
    )


def test_trend_draws_the_mean_over_seeds_and_the_full_range(ax, curves):
    assert draw.trend(curves, "dev_loss", ax) is ax
    lines = [line for line in ax.lines if len(line.get_xdata())]
    assert len(lines) == 3
    np.testing.assert_allclose(lines[0].get_ydata(), [4.5, 3.5, 2.5])
    assert lines[1].get_color() == VARIANTS["layernorm"].colour
    assert lines[1].get_linestyle() == "--"
    band = ax.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (2.0, 5.0)


@pytest.fixture
def training():
    """Two seeds of one variant; the second diverges after step 2, far above where it began."""
    losses = {0: [4.0, 3.0, 2.0, 2.0], 1: [4.0, 5.0, 90.0, np.nan]}
    return pd.DataFrame(
        [
            {"variant": "layernorm", "arm": "layernorm", "setting": "", "seed": seed, "step": step,
             "tokens": 100 * step, "dev_loss": loss, "grad_norm": loss,
             "status": "diverged" if seed else "completed"}
            for seed, values in losses.items()
            for step, loss in enumerate(values)
        ]
    )  # fmt: skip


def test_trend_takes_neighbouring_steps_of_a_long_training_together(ax):
    steps = np.arange(1, 501)
    curves = pd.DataFrame({"variant": "none", "step": steps, "loss": np.where(steps == 8, 9.0, 2)})
    draw.trend(curves, "loss", ax)
    x, mean = ax.lines[0].get_data()
    assert list(x) == [*range(3, 500, 3), 500]
    assert list(mean[:4]) == pytest.approx([2, 2, (2 + 9 + 2) / 3, 2])
    band = ax.collections[0].get_paths()[0].vertices
    assert band[band[:, 0] == 9][:, 1].max() == 9  # a rise of one step is still seen


def test_a_trajectory_marks_where_a_run_ended_and_cuts_nothing(ax, training):
    assert draw.trajectory(training, "dev_loss", ax) is ax
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [4.0, 4.0, 46.0, 2.0])
    cross = ax.collections[-1]
    np.testing.assert_allclose(cross.get_offsets(), [[2, 90.0]])
    assert to_rgb(cross.get_edgecolor()[0]) == to_rgb(VARIANTS["layernorm"].colour)
    low, high = ax.get_ylim()
    assert low < 2.0 < 90.0 < high
    ax.get_figure().canvas.draw()
    written = [label.get_text() for label in ax.get_yticklabels() if label.get_text()]
    assert "10" in written  # plain numbers on a logarithmic axis
    assert ax.get_yscale() == "log"
    assert all(float(at).is_integer() for at in ax.get_xticks())  # steps


def test_dev_loss_has_reference_lines_and_other_columns_have_none(ax, training):
    known = training.assign(unigram_loss=3.35, bigram_loss=2.48, source_loss=np.nan)
    draw.trajectory(known, "dev_loss", ax)
    known = {line.get_gid(): line.get_ydata()[0] for line in ax.lines if line.get_gid()}
    assert [*known] == ["unigram", "bigram"]
    levels = [*known.values()]
    np.testing.assert_allclose(levels, [3.35, 2.48])
    other = Figure().add_subplot()
    draw.trajectory(training, "grad_norm", other)
    assert not [line for line in other.lines if line.get_gid()]


def test_a_difference_is_paired_by_seed_and_step_and_a_baseline_has_none(ax):
    losses = {"none": [[4.0, 3.0], [5.0, 3.5]], "layernorm": [[4.0, 3.5], [5.5, 3.5]]}
    curves = pd.DataFrame(
        [
            {"variant": arm, "arm": arm, "baseline": "none", "seed": seed, "step": step,
             "dev_loss": loss}
            for arm, seeds in losses.items()
            for seed, values in enumerate(seeds)
            for step, loss in enumerate(values)
        ]
    )  # fmt: skip
    draw.difference(curves, "dev_loss", ax)
    zero, mean = (line for line in ax.lines if len(line.get_xdata()))
    assert list(zero.get_ydata()) == [0, 0]
    np.testing.assert_allclose(mean.get_ydata(), [0.25, 0.25])  # (0 + 0.5) / 2, (0.5 + 0) / 2
    assert mean.get_color() == VARIANTS["layernorm"].colour
    assert ax.get_ylabel() == "Δ dev loss (nats)"


def test_residual_norms_are_drawn_before_and_after_training(ax, training):
    curve = training.assign(residual_norm_0=1.0, residual_norm_1=training["step"] + 1.0)
    draw.residual_norms(curve, ax)
    after, before = (line for line in ax.lines if len(line.get_xdata()))
    assert (list(after.get_ydata()), list(before.get_ydata())) == ([1.0, 4.0], [1.0, 1.0])
    assert list(after.get_xdata()) == [0, 1]


@pytest.mark.slow  # reads the record
@pytest.mark.parametrize(("levels", "panels"), [({"training.schedule": "constant"}, 4), (None, 8)])
def test_training_is_shown_with_embeddings_if_a_factor_is_about_them(levels, panels, shown):
    record = Record("example")
    run = record.runs[0]
    arm = load_study("example").arm(run["arm"])
    if levels:
        arm = dataclasses.replace(arm, levels=levels)
    raw = read_raw(record.raw_folder(run["arm"], run["seed"]))
    trace, curve = raw["trace"], raw["curve"]
    draw.show_training(trace, curve, arm)
    (figure,) = shown
    assert len(figure.axes) == panels
    assert len(draw.small_png(figure, 8)) < 12_000  # bytes: a record holds hundreds
    assert not any(ax.get_legend() for ax in figure.axes)
    for ax, name in zip(figure.axes[3::4], ("dev_loss", "logit_sd"), strict=False):
        (line,) = [line for line in ax.lines if len(line.get_xdata()) == len(curve)]
        np.testing.assert_allclose(line.get_ydata(), curve[name])


@pytest.mark.slow
@pytest.mark.parametrize(("measured", "n_panels"), [(True, 5), (False, 2)])
def test_measurement_is_shown_in_a_row_without_legends(measured, n_panels, shown):
    record = Record("example")
    run = record.runs[0]
    tables = read_raw(record.raw_folder(run["arm"], run["seed"]))
    tables["temperatures"] = pd.DataFrame(run["tables"]["temperatures"])
    if not measured:  # as of a run that diverged
        tables |= dict.fromkeys(("bins", "positions", "temperatures"), pd.DataFrame())
    draw.show_measurement(tables, load_study("example").arm(run["arm"]))
    (figure,) = shown
    assert len(figure.axes) == n_panels
    assert all(ax.has_data() and not ax.get_legend() for ax in figure.axes)


def test_reliability_diagram_draws_the_mean_over_seeds_beside_the_diagonal(ax):
    table = pd.DataFrame(
        {"variant": "none", "seed": [0, 1], "bin": 3, "n": [10, 20], "confidence": [4, 12]}
        | {"correct": [3, 6], "binning": "equal_mass"}
    )
    other = table.assign(binning="equal_width", correct=0)
    draw.reliability_diagram(pd.concat([table, other]), ax)
    assert (ax.lines[0].get_xdata()[0], ax.lines[0].get_ydata()[0]) == (0.5, pytest.approx(0.3))
    assert len(ax.lines) == 2


def test_second_moments_are_drawn_per_part_of_the_model(ax, training):
    one = training[training["seed"] == 0]
    moments = {"second_moment_attn": one["dev_loss"], "second_moment_emb_norm": 1e-5}
    draw.second_moments(one.assign(**moments), ax)
    (marks,) = ax.collections
    np.testing.assert_allclose(marks.get_offsets(), [[0, 2.0], [1, 1e-5]])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["attn", "emb norm"]
    assert ax.get_yscale() == "log"


def test_symbols_are_shown_readably_most_frequent_first(shown):
    draw.show_symbols("  \n a\n  \n$\n \n aa")
    (ax,) = shown[0].axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["␣", r"\n", "a", r"\$"]
    assert [bar.get_height() for bar in ax.patches] == [7, 5, 3, 1]


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_run_in_training_is_drawn_beside_its_baseline_at_any_time(evaluated, monkeypatch):
    figures = []
    monkeypatch.setattr(draw, "small_png", lambda figure: figures.append(figure) or b"PNG")
    steps = np.arange(1, 5)
    trace = pd.DataFrame({"step": steps, "loss": [4.0, 90.0, 3.0, 2.0], "grad_norm": 1.0 / steps})
    curve = pd.DataFrame({"step": [0, 4], "dev_loss": [4.2, 2.5]})
    run = {"trace": trace if evaluated else trace[:0], "curve": curve if evaluated else curve[:0]}
    runs = {"layernorm": run, "none": {"trace": trace, "curve": curve}}
    pair = [VARIANTS["layernorm"], VARIANTS["none"]]
    png, width = draw.live_picture(runs, pair, 10, "step 4 of 10", ["Warning: a rise"])
    assert (png, width) == (b"PNG", 940)
    left, right = figures[0].axes
    assert left.get_xlim() == right.get_xlim() == (0, 10)
    assert left.get_title("left") == "step 4 of 10\nWarning: a rise"
    names = [text.get_text() for text in left.get_legend().get_texts()]
    assert names == ["layernorm", "none"]
    own, other = (line for line in left.lines if line.get_label() in names)
    assert list(own.get_ydata()) == ([4.2, 2.5] if evaluated else [])
    assert own.get_alpha() > other.get_alpha()
    assert left.get_ylim()[1] > 90.0  # an explosion is shown
