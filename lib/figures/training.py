"""Figures of runs: what they read, how they train, and what training makes of a model.

Each function takes tidy data and an `ax`, draws, and returns the `ax`; none touches global state.
Those at the end lay out what 01_data and 02_train show.
"""

import math
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, NullLocator

from lib.analysis.runs import melt_columns
from lib.figures.style import STYLE, Variant, line, looks, offsets, show, small_png, variants, widen
from lib.study.metrics import MEASURES
from lib.study.study import Arm

LABELS = {
    "step": "step",
    "loss": "training loss (nats)",
    "dev_loss": "dev loss (nats)",
    "grad_norm": "gradient norm",
    "gradient_cosine": "cosine between gradients",
    "embedding_norm": "embedding norm",
    "second_moment_mean": "second moment",
    "embedding_cosine": "cosine, embeddings",
    "input_cosine": "cosine, block 1 inputs",
    "logit_sd": "sd of logits",
    "context": "characters of context",
    "position_loss": "held-out loss (nats)",
    "temperature": "softmax temperature",
    "nll": "test loss (nats)",
    "ece": MEASURES["ece_test"].label,
    "block": "blocks passed",
    "residual_norm": "residual norm",
}
"""Columns of a run's trace, curve and tables → their axes."""

_MAGNITUDES = ("dev_loss", "grad_norm", "embedding_norm", "second_moment_mean")
"""Columns that may span orders of magnitude."""


_MAX_POINTS = 200
"""As many as a line of a figure can show; more take only space."""


def trend(curves: pd.DataFrame, y: str, ax: Axes, x: str = "step") -> Axes:
    """Draw `y` over `x`: one line per variant (mean over seeds), band from lowest to highest. Of
    long trainings, neighbouring steps are taken together: a block's mean, lowest and highest."""
    styles = looks(curves)
    palette = {look.label: look.colour for look in styles.values()}
    values = np.unique(curves[x])
    block = np.searchsorted(values, curves[x]) // max(1, math.ceil(len(values) / _MAX_POINTS))
    sns.lineplot(
        curves.assign(
            **{x: curves[x].groupby(block).transform("max")},
            variant=curves["variant"].astype(str).map(lambda name: styles[name].label),
        ),
        x=x,
        y=y,
        hue="variant",
        style="variant",
        hue_order=[*palette],
        style_order=[*palette],
        palette=palette,
        dashes={look.label: look.dashes for look in styles.values()},
        errorbar=("pi", 100),
        err_kws={"alpha": 0.15, "linewidth": 0},
        linewidth=1.3,
        ax=ax,
    )
    ax.legend(title=None)
    ax.set(xlabel=LABELS[x], ylabel=LABELS[y])
    return ax


def trajectory(curves: pd.DataFrame, y: str, ax: Axes) -> Axes:
    """Draw a trend of runs whose rows hold their `status`: a line is the mean of the runs still
    training, and a cross marks where a diverged run ended. A loss far above its initial value is
    cut off; magnitudes that span more than fivefold stand on a logarithmic axis."""
    curves = curves[np.isfinite(curves[y])]
    initial = curves.loc[curves["step"] == curves["step"].min(), y].mean()
    ceiling = 1.1 * initial if y == "dev_loss" else np.inf
    visible = curves.loc[curves[y] <= ceiling, y]
    low, high = np.nanmin([visible.min(), initial]), visible.max()
    logarithmic = y in _MAGNITUDES and high > 5 * visible[visible > 0].min()
    if logarithmic:
        curves = curves[curves[y] > 0]
    trend(curves, y, ax)  # before the scale: on a logarithmic axis it draws a geometric mean
    if logarithmic:
        ax.set_yscale("log", subs=[])
        if y in ("dev_loss", "embedding_norm"):
            _few_powers(ax)
    if len(visible) < len(curves):
        ax.set_ylim(low / 1.1 if logarithmic else low - 0.05 * (ceiling - low), ceiling)
        ax.set_ylabel(f"{LABELS[y]},\ncut at 1.1 × initial")
    if y == "dev_loss":
        reference_lines(curves, ax)
    diverged = curves[curves["status"] == "diverged"].sort_values("step")
    ends, styles = diverged.drop_duplicates(["arm", "seed"], keep="last"), looks(curves)
    ax.scatter(ends["step"], ends[y].clip(upper=ceiling), s=28, marker="x", linewidth=1.4, zorder=4,
               color=[styles[name].colour for name in ends["variant"]], clip_on=False)  # fmt: skip
    return ax


def _few_powers(ax: Axes) -> None:
    """Number a logarithmic axis that spans too few powers of ten to be read by them alone."""
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(NullLocator())


_REFERENCES = {
    "unigram_loss": "unigram",
    "bigram_loss": "bigram",
    "source_loss": "the text's source",
}
"""Losses of the text, and how their lines are labelled."""


_HALO = [withStroke(linewidth=2, foreground="white")]


def reference_lines(curves: pd.DataFrame, ax: Axes) -> None:
    """Draw those losses of the text that a table has a column of as labelled lines. A label stands
    above its line, at the end where the curves are below it or at the start, where they are not
    yet."""
    end = curves[curves["step"] == curves["step"].max()]["dev_loss"].max()
    for name, label in _REFERENCES.items():
        loss = curves[name].mean() if name in curves else np.nan
        if np.isfinite(loss):
            x, ha = (0.99, "right") if end < loss else (0.01, "left")
            ax.axhline(loss, color="0.35", linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)
            ax.text(x, loss, label, transform=ax.get_yaxis_transform(), fontsize=7, ha=ha,
                    va="bottom", color="0.25", clip_on=True, path_effects=_HALO)  # fmt: skip


def difference(curves: pd.DataFrame, y: str, ax: Axes) -> Axes:
    """Draw how far `y` is from that of the run's `baseline` with the same seed at the same step: a
    line per variant (mean over seeds), band from lowest to highest, beside zero."""
    keys = ["seed", "step"]
    values = curves.set_index(["arm", *keys])[y]
    arms = curves[curves["arm"] != curves["baseline"]]
    baseline = values.reindex(pd.MultiIndex.from_frame(arms[["baseline", *keys]])).to_numpy()
    deltas = arms.assign(**{y: arms[y] - baseline}).dropna(subset=y)
    ax.axhline(0, color="0.5", linewidth=0.8)
    trend(deltas, y, ax)
    widen(ax, deltas[y])
    ax.set_ylabel(f"Δ {LABELS[y]}")
    return ax


def residual_norms(curve: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the residual stream's norm over the blocks passed: after training (band: lowest to
    highest seed), and before it as a thin, pale line."""
    first, last = (
        melt_columns(curve, "residual_norm_", "block", end)
        .rename(columns={"value": "residual_norm"})
        .astype({"block": int})
        for end in ("min", "max")
    )
    trend(last, "residual_norm", ax, x="block").set_yscale("log")
    for look, part in variants(first):
        means = part.groupby("block")["residual_norm"].mean()
        ax.plot(means.index, means, color=look.colour, linewidth=0.6, alpha=0.6)
    return ax


def second_moments(curve: pd.DataFrame, ax: Axes) -> Axes:
    """Draw AdamW's second moment at the last step, per part of the model, on a logarithmic axis: a
    mark per variant and seed."""
    values = melt_columns(curve, "second_moment_", "group")
    groups = list(dict.fromkeys(values["group"]))
    for (look, part), offset in zip(variants(values), offsets(values, 0.4), strict=True):
        positions = [groups.index(group) + offset for group in part["group"]]
        ax.scatter(positions, part["value"], s=14, color=look.colour, marker=look.marker,
                   label=look.label)  # fmt: skip
    names = [group.replace("_", " ") for group in groups]
    ax.set_xticks(range(len(groups)), names, rotation=40, ha="right", rotation_mode="anchor")
    ax.set(yscale="log", ylabel="second moment")
    return ax


def reliability_diagram(table: pd.DataFrame, ax: Axes) -> Axes:
    """Draw accuracy over confidence in the bins of equal mass of a run's raw file `bins`, one line
    per variant (mean over seeds), beside the diagonal of perfect calibration."""
    for look, part in variants(table[table["binning"] == "equal_mass"]):
        means = part[["confidence", "correct"]].div(part["n"], axis=0).groupby(part["bin"]).mean()
        ax.plot(
            means["confidence"], means["correct"], marker=look.marker, markersize=3, **line(look)
        )
    ax.axline((0, 0), slope=1, color="0.6", linewidth=0.8, zorder=0)
    ax.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    return ax


def symbol_counts(counts: pd.Series, ax: Axes) -> Axes:
    """Draw how often each symbol occurs, most frequent first; white space is shown escaped."""
    ordered = counts.sort_values(ascending=False)
    names = [
        "␣" if symbol == " " else symbol if symbol.isprintable() else repr(symbol)[1:-1]
        for symbol in ordered.index
    ]
    ax.bar(range(len(names)), ordered.to_numpy(), color="0.4")
    ax.set_xticks(range(len(names)), [name.replace("$", r"\$") for name in names], fontsize=7)
    ax.set_xlim(-0.7, len(names) - 0.3)
    ax.set(yscale="log", ylabel="occurrences")
    ax.grid(visible=False, axis="x")
    return ax


def show_symbols(text: str) -> None:
    """Show how often each symbol of a text occurs."""
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(9, 2.4))
        symbol_counts(pd.Series(list(text)).value_counts(), ax)
        show(figure)


_OF_A_RUN = STYLE | {"axes.grid": False}


def show_training(trace: pd.DataFrame, curve: pd.DataFrame, arm: Arm) -> None:
    """Show how training went: loss, gradient norm, second moment, embeddings, logits over steps."""
    tables = dict.fromkeys(("loss", "grad_norm", "second_moment_mean"), trace)
    measured = ("dev_loss", "embedding_cosine", "input_cosine", "embedding_norm", "logit_sd")
    tables |= dict.fromkeys(measured, curve)
    with plt.rc_context(_OF_A_RUN):
        figure, axes = plt.subplots(2, 4, figsize=(9.6, 4))
        for (y, table), ax in zip(tables.items(), axes.flat, strict=True):
            trend(table.assign(variant=arm.variant), y, ax)
        _show_run(figure)


def show_measurement(tables: dict[str, pd.DataFrame], arm: Arm) -> None:
    """Show what was measured of the trained model, from its tables and raw files: calibration,
    temperature, loss by context, the residual stream and second moments; of a diverged one, only
    the last two."""
    tables = {name: table.assign(variant=arm.variant) for name, table in tables.items()}
    curve = tables["curve"].assign(arm=arm.id, setting=arm.setting, seed=0)
    measured = not tables["bins"].empty
    with plt.rc_context(_OF_A_RUN):
        n = 5 if measured else 2
        figure, axes = plt.subplots(1, n, figsize=(1.92 * n, 2.2))
        if measured:
            reliability_diagram(tables["bins"], axes[0])
            trend(tables["temperatures"], "nll", axes[1], x="temperature")
            trend(tables["positions"], "position_loss", axes[2], x="context")
        residual_norms(curve, axes[-2])
        second_moments(curve, axes[-1])
        _show_run(figure)


def _show_run(figure: Figure) -> None:
    """Show a figure of one run, whose one variant needs no legend, in few colours: a record holds
    hundreds of them."""
    for ax in figure.axes:
        if legend := ax.get_legend():
            legend.remove()
    show(figure, colours=8)


_ON_A_SCREEN = STYLE | {"font.size": 9.5, "legend.fontsize": 9, "axes.titlesize": 10}
LiveTables = dict[str, pd.DataFrame]
"""A run's `trace` and `curve` so far."""


def live_picture(
    runs: dict[str, LiveTables],
    looks: list[Variant],
    total: int,
    standing: str,
    warnings: list[str],
) -> tuple[bytes, int]:
    """Draw a run that trains for `total` steps, and paler the finished one beside it, by name: loss
    (on dev as points, in training as a thin line) and gradient norm. Return a PNG and its width on
    a screen. How far it is stands above, then what is to be warned of."""
    with plt.rc_context(_ON_A_SCREEN):
        figure, axes = plt.subplots(1, 2, figsize=(9.4, 3.6), width_ratios=(5, 3))
        layers = zip(runs.items(), looks, (1.0, 0.5), strict=False)
        for (name, tables), look, alpha in [*layers][::-1]:  # what trains lies above
            trace, curve = tables["trace"], tables["curve"]
            style: dict[str, Any] = {"color": look.colour, "zorder": 2 + alpha}
            for ax, y in zip(axes, ("loss", "grad_norm"), strict=True):
                ax.plot(trace["step"], trace[y], linewidth=0.9, alpha=0.5 * alpha**2, **style)
            axes[1].lines[-1].set_alpha(0.8 * alpha**2)
            if len(curve):
                axes[0].plot(curve["step"], curve["dev_loss"], marker=look.marker, markersize=4,
                             linewidth=1.8, alpha=alpha, label=name, **style)  # fmt: skip
        axes[0].set(xlabel="step", ylabel="loss (nats)", xlim=(0, total))
        axes[1].set(xlabel="step", ylabel="gradient norm", xlim=(0, total))
        if any((tables["trace"]["grad_norm"] > 0).any() for tables in runs.values()):
            axes[1].set_yscale("log")  # which an axis without a value cannot have
            _few_powers(axes[1])
        if axes[0].lines:
            _cut_explosions(axes[0])
        if axes[0].get_legend_handles_labels()[0]:
            axes[0].legend(title="on dev (thin: in training)", title_fontsize=8, alignment="left")
        axes[0].set_title(f"{standing}\n{_dev_loss_text(runs)}".strip(), loc="left")
        if warnings:
            figure.suptitle("\n".join(warnings), x=0.01, ha="left", color="#B00020", fontsize=10.5)
        png, width = small_png(figure, "figure"), int(figure.bbox.width)
        plt.close(figure)
        return png, width


def _cut_explosions(ax: Axes) -> None:
    """Leave out what is far above the initial loss, so that the rest can be read."""
    values = [np.asarray(line.get_ydata(), float) for line in ax.lines]
    finite = [part[np.isfinite(part)] for part in values]
    first = max((part[0] for part in finite if len(part)), default=np.inf)
    if max((part.max() for part in finite if len(part)), default=0) > 1.5 * first:
        ax.set_ylim(top=1.5 * first)


def _dev_loss_text(runs: dict[str, LiveTables]) -> str:
    """Say the first run's last dev loss; beside another, how far apart they are where both were
    last measured, if that is not before the first step."""
    (_, own), *others = runs.items()
    if own["curve"].empty:
        return ""
    mine = own["curve"].set_index("step")["dev_loss"]
    for name, other in others:
        curve = other["curve"].reindex(columns=["step", "dev_loss"])  # it may hold no evaluation
        deltas = (mine - curve.set_index("step")["dev_loss"]).dropna()
        if step := max(deltas.index, default=0):
            return f"dev loss {mine[step]:.3f} at step {step}, {deltas[step]:+.3f} against {name}"
    return f"dev loss {mine.iloc[-1]:.3f}"
