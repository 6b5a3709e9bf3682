"""Figures of runs: their text, their training, and the trained model.

Each function takes tidy data and an `ax`, draws on the `ax`, and returns it. None touches global
state. The functions named `show_…` lay out whole figures for 01_data and 02_train.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.config.metrics import MEASURES
from lib.config.study import Arm
from lib.figures.style import (
    STYLE,
    Variant,
    dodged,
    line,
    log_if_wide,
    name_ticks,
    show,
    small_png,
    variants,
)
from lib.stats.runs import melt_columns

LABELS = {
    "loss": "training loss (nats)",
    "dev_loss": "dev loss (nats)",
    "grad_norm": "gradient norm",
    "gradient_cosine": "cosine between gradients",
    "input_cosine": "cosine, block 1 inputs",
    "second_moment_mean": "second moment",
    "context": "characters of context",
    "position_loss": MEASURES["loss"].title,
    "temperature": "softmax temperature",
    "nll": "test loss (nats)",
    "ece": MEASURES["ece_test"].label,
    "block": "blocks passed",
}
"""Column of a run's trace, curve or tables → the label of its axis."""


def label(column: str) -> str:
    """Return the label of a column's axis: that in `LABELS`, or else the column's name."""
    return LABELS.get(column, column.replace("_", " "))


def of_embeddings(fields: Iterable[str]) -> bool:
    """Return whether one of these parameters concerns the embeddings."""
    names = [field.rpartition(".")[2] for field in fields]
    return any(re.match("embedding|position|tied|n_embd", name) for name in names)


def thinned(steps: pd.Series) -> pd.Series:
    """Group the steps of a long training into about 200 blocks, because a line can show no more.
    Return for each step the last step of its block."""
    values = np.unique(steps)
    block = np.searchsorted(values, steps) // max(1, math.ceil(len(values) / 200))
    return steps.groupby(block).transform("max")


def trend(curves: pd.DataFrame, y: str, ax: Axes, x: str = "step") -> Axes:
    """Draw `y` over `x`. Each variant has a line through its means over seeds, and a band from the
    lowest to the highest seed. Many steps are `thinned` first."""
    for look, part in variants(curves.assign(block=thinned(curves[x]))):
        seeds = part.groupby("block")[y].agg(["mean", "min", "max"])
        ax.plot(seeds.index, seeds["mean"], **line(look))
        ax.fill_between(
            seeds.index, seeds["min"], seeds["max"], color=look.colour, alpha=0.15, linewidth=0
        )
    if pd.api.types.is_integer_dtype(curves[x]):
        ax.locator_params(axis="x", integer=True)
    ax.set(xlabel=label(x), ylabel=label(y))
    return ax


def trajectory(curves: pd.DataFrame, y: str, ax: Axes) -> Axes:
    """Draw the `trend` of training curves; `status` is a column of `curves`. A line is the mean of
    the runs that have not diverged yet. A cross marks the point at which a run diverged."""
    curves = curves[np.isfinite(curves[y])]
    trend(curves, y, ax)
    if y == "dev_loss":
        reference_lines(curves, ax)
    if "cosine" not in y:
        log_if_wide(ax, curves[y])
    diverged = curves[curves["status"] == "diverged"].sort_values("step")
    for look, part in variants(diverged.drop_duplicates(["arm", "seed"], keep="last")):
        ax.scatter(
            part["step"], part[y], s=28, color=look.colour, marker="x", zorder=4, clip_on=False
        )
    return ax


def reference_lines(curves: pd.DataFrame, ax: Axes) -> None:
    """Draw the losses of simple models of the text as dotted lines, if `curves` has them (columns
    such as `bigram_loss`). `facets` labels these lines at the right."""
    for name in ("unigram", "bigram", "source"):
        loss = curves.get(f"{name}_loss", pd.Series(np.nan)).mean()
        if np.isfinite(loss):
            ax.axhline(loss, color="0.35", linewidth=0.7, linestyle=":", zorder=1, gid=name)


def difference(curves: pd.DataFrame, y: str, ax: Axes) -> Axes:
    """Draw the `trend` of paired differences in `y`: each run minus its baseline's run with the
    same seed, step by step. A line marks zero."""
    keys = ["seed", "step"]
    values = curves.set_index(["arm", *keys])[y]
    arms = curves[curves["arm"] != curves["baseline"]]
    baseline = values.reindex(pd.MultiIndex.from_frame(arms[["baseline", *keys]])).to_numpy()
    deltas = arms.assign(**{y: arms[y] - baseline}).dropna(subset=y)
    ax.axhline(0, color="0.5", linewidth=0.8, gid="baseline")
    trend(deltas, y, ax)
    ax.set_ylabel(f"Δ {label(y)}")
    return ax


def residual_norms(curve: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the norm of the residual stream after each block: a `trend` for the trained models, and
    a thin, pale line for the mean before training."""
    first = melt_columns(curve, "residual_norm_", "block", "min").astype({"block": int})
    last = melt_columns(curve, "residual_norm_", "block").astype({"block": int})
    trend(last.rename(columns={"value": "residual_norm"}), "residual_norm", ax, x="block")
    log_if_wide(ax, pd.concat([first["value"], last["value"]]))
    for look, part in variants(first):
        means = part.groupby("block")["value"].mean()
        ax.plot(means.index, means, color=look.colour, linewidth=0.6, alpha=0.6)
    return ax


def second_moments(curve: pd.DataFrame, ax: Axes) -> Axes:
    """Draw AdamW's second moment at the last step, for each part of the model, with a mark per
    variant and seed."""
    values = melt_columns(curve, "second_moment_", "group")
    groups = list(values["group"].unique())
    for look, offset, part in dodged(values, 0.4):
        x = part["group"].map(groups.index) + offset
        ax.scatter(x, part["value"], s=14, color=look.colour, marker=look.marker, label=look.label)
    name_ticks(ax, [group.replace("_", " ") for group in groups])
    log_if_wide(ax, values["value"])
    ax.set_ylabel("second moment")
    return ax


def reliability_diagram(table: pd.DataFrame, ax: Axes) -> Axes:
    """Draw accuracy over confidence, with a line per variant (mean over seeds) and the diagonal of
    perfect calibration. `table` is the raw file `bins` of all runs; bins of equal mass are used."""
    for look, part in variants(table[table["binning"] == "equal_mass"]):
        means = part[["confidence", "correct"]].div(part["n"], axis=0).groupby(part["bin"]).mean()
        ax.plot(
            means["confidence"], means["correct"], marker=look.marker, markersize=3, **line(look)
        )
    ax.axline((0, 0), slope=1, color="0.6", linewidth=0.8, zorder=0)
    ax.set(xlabel="confidence", ylabel="accuracy")
    return ax


def show_symbols(text: str) -> None:
    """Show how often each character of a text occurs, most frequent first. White space is
    escaped."""
    counts = pd.Series(list(text)).value_counts()
    names = ["␣" if s == " " else repr(s)[1:-1].replace("$", r"\$") for s in counts.index]
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(9, 2.4))
        ax.bar(range(len(names)), counts, color="0.4")
        ax.set_xticks(range(len(names)), names, fontsize=7)
        ax.set(yscale="log", ylabel="occurrences", xlim=(-0.7, len(names) - 0.3))
        ax.grid(visible=False, axis="x")
        show(figure)


# A record has hundreds of these figures, so they must be small. Letters of 8.64 points are 12
# pixels high, and readable without antialiasing. Its greys would take a quarter of the file.
_RUN_STYLE = STYLE | {"axes.grid": False, "font.size": 8.64, "text.antialiased": False}


def show_training(trace: pd.DataFrame, curve: pd.DataFrame, arm: Arm) -> None:
    """Show how training went: loss, gradient norm and second moment. If the arm's levels concern
    embeddings, also show embeddings and logits."""
    tables = {
        "loss": trace,
        "grad_norm": trace,
        "second_moment_mean": trace,
        "dev_loss": curve,
    }
    if of_embeddings(arm.levels):
        tables |= {
            "embedding_cosine": curve,
            "input_cosine": curve,
            "embedding_norm": curve,
            "logit_sd": curve,
        }
    with plt.rc_context(_RUN_STYLE):
        n = len(tables) // 4
        figure, axes = plt.subplots(n, 4, figsize=(9.6, 2 * n))
        for (y, table), ax in zip(tables.items(), axes.flat, strict=True):
            trend(table.assign(variant=arm.variant), y, ax)
        show(figure, colours=8)


def show_measurement(tables: dict[str, pd.DataFrame], arm: Arm) -> None:
    """Show the measurements of a trained model, given its tables and raw files: calibration, loss
    by temperature and by context, residual norms and second moments. If the run diverged, show only
    the last two."""
    run: Any = {"variant": arm.variant, "arm": arm.id, "setting": arm.setting, "seed": 0}
    tables = {name: table.assign(**run) for name, table in tables.items()}
    measured = not tables["bins"].empty
    with plt.rc_context(_RUN_STYLE):
        n = 5 if measured else 2
        figure, axes = plt.subplots(1, n, figsize=(1.92 * n, 2.2))
        if measured:
            reliability_diagram(tables["bins"], axes[0])
            trend(tables["temperatures"], "nll", axes[1], x="temperature")
            trend(tables["positions"], "position_loss", axes[2], x="context")
        residual_norms(tables["curve"], axes[-2])
        second_moments(tables["curve"], axes[-1])
        show(figure, colours=8)


def live_picture(
    runs: dict[str, dict[str, pd.DataFrame]],
    looks: Sequence[Variant],
    total: int,
    standing: str,
    warnings: Sequence[str] = (),
) -> tuple[bytes, int]:
    """Draw the loss and gradient norm of a run during its training of `total` steps. Draw a
    finished run in paler colours, to compare. Return a PNG and its width on a screen.

    `runs` maps labels to the tables `trace` and `curve`, the training run first. Dev loss is drawn
    as points, training loss as a thin line. `standing` (how far the run is) and `warnings` are
    written above the plots.
    """
    with plt.rc_context(STYLE | {"font.size": 9.5, "legend.fontsize": 9, "axes.titlesize": 10}):
        figure, axes = plt.subplots(1, 2, figsize=(9.4, 3.6), width_ratios=(5, 3))
        for (name, tables), look, alpha in zip(runs.items(), looks, (1.0, 0.5), strict=False):
            trace = tables["trace"]
            curve = tables["curve"]
            style: Any = {"color": look.colour, "zorder": 2 + alpha}
            axes[0].plot(trace["step"], trace["loss"], linewidth=0.9, alpha=0.5 * alpha, **style)
            axes[1].plot(trace["step"], trace["grad_norm"], linewidth=0.9, alpha=alpha, **style)
            axes[0].plot(
                curve["step"],
                curve["dev_loss"],
                marker=look.marker,
                markersize=4,
                linewidth=1.8,
                alpha=alpha,
                label=name,
                clip_on=False,
                **style,
            )
        traces = pd.concat(tables["trace"].dropna() for tables in runs.values())
        log_if_wide(axes[0], traces["loss"])
        log_if_wide(axes[1], traces["grad_norm"])
        axes[0].set(xlabel="step", ylabel="loss (nats)", xlim=(0, total))
        axes[1].set(xlabel="step", ylabel="gradient norm", xlim=(0, total))
        axes[0].legend(title="dev loss (thin: training loss)", title_fontsize=8)
        colour = "#B00020" if warnings else "black"
        axes[0].set_title("\n".join([standing, *warnings]), loc="left", color=colour)
        png = small_png(figure)
        plt.close(figure)
        return png, int(figure.bbox.width)
