"""One function per figure: each takes tidy data and an `ax`, draws, and returns the `ax`.

Apply `STYLE` with `matplotlib.pyplot.rc_context(STYLE)`; nothing here touches global state.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from IPython.display import Image as DisplayedImage
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from lib.config import Study
from lib.preregistration import load_plan, standing
from lib.results import MEASURES

STYLE: Any = {  # matplotlib types the keys of a style one by one
    "figure.dpi": 96,
    "savefig.dpi": 200,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.08,
    "pdf.fonttype": 42,
}

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
    "loss": "training loss (nats)",
    "dev_loss": "dev loss (nats)",
    "grad_norm": "gradient norm",
    "embedding_norm": "mean embedding norm",
    "second_moment_mean": "mean AdamW second moment",
    "embedding_cosine": "mean cosine, token embeddings",
    "input_cosine": "mean cosine, inputs of block 1",
    "logit_max": "largest logit",
    "logit_sd": "sd of logits",
    "context": "characters of context",
    "position_loss": "test and dev loss (nats)",
    "temperature": "softmax temperature",
    "nll": "test loss (nats)",
    "ece": "test ECE",
    "block": "blocks passed",
    "residual_norm": "residual norm",
}


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
    ax.set_xticks(positions, variants)
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
                linewidth=1.1, label=variant)  # fmt: skip
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
    offsets = np.linspace(-0.25, 0.25, len(variants)) if len(variants) > 1 else [0.0]
    for variant, offset in zip(variants, offsets, strict=True):
        part = labelled[labelled["variant"] == variant].groupby("label")["normalised_accuracy"]
        mean, low, high = (part.agg(how)[labels].to_numpy() for how in ("mean", "min", "max"))
        ax.errorbar(mean, np.arange(len(labels)) + offset, xerr=[mean - low, high - mean],
                    color=styles["palette"][variant], marker=styles["markers"][variant],
                    markersize=4, linewidth=1, linestyle="none", label=variant)  # fmt: skip
    ax.axvline(0, color="0.6", linewidth=0.8)
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()
    ax.set_xlabel("accuracy above chance (0 = guessing, 1 = all right)")
    ax.legend()
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
    ax.set_xticks(range(len(groups)), [group.replace("_", " ") for group in groups], rotation=45)
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


@contextmanager
def panels(
    name: str,
    study: Study,
    setting: str,
    folder: Path,
    n: int = 4,
    size: tuple[float, float] = (11, 2.6),
) -> Iterator[list[Axes]]:
    """Give `n` axes side by side to draw on; then title the figure, save it and show it."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, n, figsize=size, squeeze=False)
        yield list(axes[0])
        figure.suptitle(figure_title(study, setting))
        save(figure, folder, ",".join(filter(None, (name, setting))))
        show(figure)


def figure_title(study: Study, setting: str) -> str:
    """Say what a figure's study may claim, which it is, the setting and over how many seeds."""
    kind = standing(study, load_plan(study))
    parts = (f"{kind}: {study.name}", setting, f"n = {len(study.seeds)} seeds")
    return ", ".join(filter(None, parts))


def show(figure: Figure) -> None:
    """Show a figure in a notebook as a PNG of 128 colours, a third of the usual size: a record of
    many notebooks stays small."""
    full, small = BytesIO(), BytesIO()
    figure.savefig(full, format="png", dpi="figure")
    Image.open(full).convert("RGB").quantize(128).save(small, "png", optimize=True)
    display(DisplayedImage(small.getvalue(), width=int(figure.bbox.width)))
    plt.close(figure)  # or the notebook would show it again


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PDF and PNG, the same bytes for the same data; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    pdf, png = folder / f"{name}.pdf", folder / f"{name}.png"
    figure.savefig(pdf, metadata={"CreationDate": None})
    figure.savefig(png)
    return [pdf, png]
