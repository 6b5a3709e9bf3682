"""One function per figure: each takes tidy data and an `ax`, draws, and returns the `ax`.

Nothing here touches global state. `lib.figures.style` lays several of them out on one sheet.
"""

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator

from lib.analysis.runs import first_point, last_point
from lib.study.measures import MEASURES

# Okabe & Ito's colours, dark to light, with a dash pattern and a marker that survive greyscale.
_LOOKS = {
    "none": ("#000000", "", "o"),
    "layernorm": ("#0072B2", (5, 1.5), "s"),
    "rmsnorm": ("#D55E00", (1.5, 1.5), "^"),
    "center": ("#009E73", (5, 1.5, 1, 1.5), "D"),
    "scale": ("#CC79A7", (3, 1, 1, 1, 1, 1), "v"),
    "grad_shrink": ("#E69F00", (8, 2), "P"),
}
_SPARE = [("#56B4E9", (2, 1), "X"), ("#999999", (6, 1), "*"), ("#5D3A9B", (4, 3), "h")]

LABELS = {
    "step": "step",
    "tokens": "training tokens",
    "loss": "training loss (nats)",
    "dev_loss": "dev loss (nats)",
    "grad_norm": "gradient norm",
    "embedding_norm": "embedding norm",
    "second_moment_mean": "second moment",
    "embedding_cosine": "cosine, embeddings",
    "input_cosine": "cosine, block 1 inputs",
    "logit_max": "largest logit",
    "logit_sd": "sd of logits",
    "context": "characters of context",
    "position_loss": "held-out loss (nats)",
    "temperature": "softmax temperature",
    "nll": "test loss (nats)",
    "ece": "test ECE",
    "block": "blocks passed",
    "residual_norm": "residual norm",
}

_MAGNITUDES = ("dev_loss", "grad_norm", "embedding_norm", "second_moment_mean")
"""May span orders of magnitude."""


def look(variants: list[str]) -> dict[str, dict[str, Any]]:
    """Give each variant its colour, dashes and marker, the same in every figure of the project."""
    unknown = [v for v in variants if v not in _LOOKS]
    spare = {v: _SPARE[i % len(_SPARE)] for i, v in enumerate(unknown)}
    looks = {v: _LOOKS.get(v) or spare[v] for v in variants}
    names = ("palette", "dashes", "markers")
    return {name: {v: looks[v][i] for v in variants} for i, name in enumerate(names)}


def trend(curves: pd.DataFrame, y: str, ax: Axes, x: str = "step") -> Axes:
    """Draw `y` over `x`: one line per variant (mean over seeds), band from lowest to highest."""
    variants = list(dict.fromkeys(curves["variant"]))
    styles = look(variants)
    sns.lineplot(
        curves,
        x=x,
        y=y,
        hue="variant",
        style="variant",
        palette=styles["palette"],
        dashes=styles["dashes"],
        errorbar=("pi", 100),
        err_kws={"alpha": 0.15, "linewidth": 0},
        linewidth=1.3,
        ax=ax,
    )
    ax.set(xlabel=LABELS[x], ylabel=LABELS[y])
    ax.legend(title=None)
    return ax


def trajectory(curves: pd.DataFrame, y: str, ax: Axes, x: str = "step") -> Axes:
    """Draw a trend of runs whose rows hold their `status`: a line is the mean of the runs still
    training, and a cross marks where a diverged run ended. A loss far above its initial value is
    cut off; tokens, and magnitudes that span more than fivefold, stand on a logarithmic axis."""
    curves = curves[np.isfinite(curves[y])]
    initial = curves.loc[curves["step"] == curves["step"].min(), y].mean()
    ceiling = 1.1 * initial if y == "dev_loss" else np.inf
    if x == "tokens":
        curves = curves[curves[x] > 0]
    visible = curves.loc[curves[y] <= ceiling, y]
    low, high = np.nanmin([visible.min(), initial]), visible.max()
    logarithmic = y in _MAGNITUDES and high > 5 * visible[visible > 0].min()
    if logarithmic:
        curves = curves[curves[y] > 0]
    trend(curves, y, ax, x)  # before the scales: on a logarithmic axis it draws a geometric mean
    if logarithmic:
        ax.set_yscale("log", subs=[])
    if logarithmic and y in ("dev_loss", "embedding_norm"):  # too few powers of ten to read
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
    if x == "tokens":
        ax.set_xscale("log", subs=[])
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    if len(visible) < len(curves):
        bottom = low / 1.1 if logarithmic else low - 0.05 * (ceiling - low)
        ax.set_ylim(bottom, ceiling)
        ax.set_ylabel(f"{LABELS[y]},\ncut at 1.1 × initial")
    diverged = curves[curves["status"] == "diverged"].sort_values("step")
    ends = diverged.groupby(["variant", "arm", "seed"], sort=False).tail(1)
    palette = look(list(dict.fromkeys(curves["variant"])))["palette"]
    ax.scatter(ends[x], ends[y].clip(upper=ceiling), s=28, marker="x", linewidth=1.4, zorder=4,
               color=[palette[variant] for variant in ends["variant"]], clip_on=False)  # fmt: skip
    return ax


def paired_seeds(runs: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """Draw one line per seed across variants, so that paired changes show as slopes, and each
    variant's mean as a bar. Diverged runs are gaps."""
    variants = list(dict.fromkeys(runs["variant"]))
    styles = look(variants)
    table = runs.pivot(index="variant", columns="seed", values=measure).loc[variants]
    positions = np.arange(len(variants))
    ax.plot(positions, table.to_numpy(), color="0.7", linewidth=0.8, zorder=1)
    for position, variant in zip(positions, variants, strict=True):
        values = table.loc[variant].to_numpy()
        color, marker = styles["palette"][variant], styles["markers"][variant]
        ax.scatter([position] * len(values), values, s=18, color=color, marker=marker, zorder=2)
        if np.isfinite(values).any():
            edges = (position - 0.25, position + 0.25)
            ax.hlines(np.nanmean(values), *edges, color=color, linewidth=2.2, zorder=3)
    ax.set_xticks(positions, variants, rotation=30 if len(variants) > 4 else 0)
    ax.set_xlim(-0.5, len(variants) - 0.5)
    ax.set_ylabel(MEASURES[measure].label)
    ax.grid(visible=False, axis="x")
    return ax


def reliability_diagram(table: pd.DataFrame, ax: Axes) -> Axes:
    """Draw accuracy over confidence per bin, one line per variant (mean over seeds), beside the
    diagonal of perfect calibration."""
    variants = list(dict.fromkeys(table["variant"]))
    styles = look(variants)
    for variant in variants:
        bins = table[table["variant"] == variant].groupby("bin")[["confidence", "accuracy"]].mean()
        color, marker = styles["palette"][variant], styles["markers"][variant]
        ax.plot(bins["confidence"], bins["accuracy"], color=color, marker=marker, markersize=3,
                linewidth=1.1, dashes=styles["dashes"][variant] or (None, None),
                label=variant)  # fmt: skip
    ax.axline((0, 0), slope=1, color="0.6", linewidth=0.8, zorder=0)
    ax.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    ax.legend()
    return ax


def task_accuracies(tasks: pd.DataFrame, ax: Axes) -> Axes:
    """Draw accuracy normalised to chance (0: guessing, 1: all right) per task and shots: a mark
    per variant (mean over seeds), a bar from the lowest to the highest seed."""
    variants = list(dict.fromkeys(tasks["variant"]))
    styles = look(variants)
    labelled = tasks.assign(
        label=tasks["task"].str.replace("_", " ") + ", " + tasks["shots"].astype(str) + "-shot"
    )
    labels = list(dict.fromkeys(labelled.sort_values(["shots", "task"])["label"]))
    offsets = np.linspace(-0.3, 0.3, len(variants)) if len(variants) > 1 else [0.0]
    for variant, offset in zip(variants, offsets, strict=True):
        part = labelled[labelled["variant"] == variant].groupby("label")["normalised_accuracy"]
        mean, low, high = (part.agg(how)[labels].to_numpy() for how in ("mean", "min", "max"))
        ax.errorbar(mean, np.arange(len(labels)) + offset, xerr=[mean - low, high - mean],
                    color=styles["palette"][variant], marker=styles["markers"][variant],
                    markersize=4, linewidth=1, linestyle="none", label=variant)  # fmt: skip
    ax.axvline(0, color="0.6", linewidth=0.8)
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()
    ax.set_xlabel("above chance (1 = all right)")
    ax.legend()
    return ax


def residual_norms(curve: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the residual stream's norm over the blocks passed: after training (band: lowest to
    highest seed), and before it as a thin, pale line."""
    first, last = (
        point(curve, "residual_norm_", "block")
        .rename(columns={"value": "residual_norm"})
        .astype({"block": int})
        for point in (first_point, last_point)
    )
    trend(last, "residual_norm", ax, x="block").set_yscale("log")
    palette = look(list(dict.fromkeys(curve["variant"])))["palette"]
    for variant, part in first.groupby("variant", sort=False):
        means = part.groupby("block")["residual_norm"].mean()
        ax.plot(means.index, means, color=palette[str(variant)], linewidth=0.6, alpha=0.6)
    return ax


def group_values(values: pd.DataFrame, ylabel: str, ax: Axes) -> Axes:
    """Draw a `value` per `group` on a logarithmic axis: a mark per variant and seed."""
    variants = list(dict.fromkeys(values["variant"]))
    styles = look(variants)
    groups = list(dict.fromkeys(values["group"]))
    offsets = np.linspace(-0.2, 0.2, len(variants)) if len(variants) > 1 else [0.0]
    for variant, offset in zip(variants, offsets, strict=True):
        part = values[values["variant"] == variant]
        places = [groups.index(group) + offset for group in part["group"]]
        ax.scatter(places, part["value"], s=14, color=styles["palette"][variant],
                   marker=styles["markers"][variant], label=variant)  # fmt: skip
    names = [group.replace("_", " ") for group in groups]
    ax.set_xticks(range(len(groups)), names, rotation=40, ha="right", rotation_mode="anchor")
    ax.set(yscale="log", ylabel=ylabel)
    ax.legend()
    return ax


def symbol_counts(counts: pd.Series, ax: Axes) -> Axes:
    """Draw how often each symbol occurs, most frequent first; white space is shown escaped."""
    ordered = counts.sort_values(ascending=False)
    names = [
        "␣" if symbol == " " else symbol if symbol.isprintable() else repr(symbol)[1:-1]
        for symbol in ordered.index
    ]
    ax.bar(range(len(names)), ordered.to_numpy(), color="#0072B2")
    ax.set_xticks(range(len(names)), [name.replace("$", r"\$") for name in names], fontsize=7)
    ax.set_xlim(-0.7, len(names) - 0.3)
    ax.set(yscale="log", ylabel="occurrences")
    ax.grid(visible=False, axis="x")
    return ax
