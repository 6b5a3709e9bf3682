"""One function per figure: each takes tidy data and an `ax`, draws, and returns the `ax`.

Apply `STYLE` with `matplotlib.pyplot.rc_context(STYLE)`; nothing here touches global state.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lib.config import Study
from lib.results import MEASURES

STYLE: dict[str, Any] = {
    "figure.dpi": 110,
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

CURVE_LABELS = {
    "loss": "training loss (nats)",
    "dev_loss": "dev loss (nats)",
    "grad_norm": "gradient norm",
    "embedding_norm": "mean embedding norm",
    "second_moment_mean": "mean AdamW second moment",
}


def look(variants: list[str]) -> dict[str, dict[str, Any]]:
    """Give each variant its colour, dashes and marker, the same in every figure of the project."""
    unknown = [v for v in variants if v not in _LOOKS]
    spare = {v: _SPARE[i % len(_SPARE)] for i, v in enumerate(unknown)}
    looks = {v: _LOOKS.get(v) or spare[v] for v in variants}
    names = ("palette", "dashes", "markers")
    return {name: {v: looks[v][i] for v in variants} for i, name in enumerate(names)}


def trend(curves: pd.DataFrame, y: str, ax: Axes) -> Axes:
    """Draw `y` over steps: one line per variant (mean over seeds), band from lowest to highest."""
    variants = list(dict.fromkeys(curves["variant"]))
    styles = look(variants)
    sns.lineplot(
        curves,
        x="step",
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
    ax.set(xlabel="step", ylabel=CURVE_LABELS[y])
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


def run_curve(table: pd.DataFrame, y: str, ax: Axes) -> Axes:
    """Draw one run's `y` over steps."""
    ax.plot(table["step"], table[y], color="#0072B2", linewidth=1.1)
    ax.set(xlabel="step", ylabel=CURVE_LABELS[y])
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
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


def figure_title(study: Study, setting: str) -> str:
    """Say which study and setting a figure shows and over how many seeds."""
    return ", ".join(filter(None, (study.name, setting, f"n = {len(study.seeds)} seeds")))


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PDF and PNG, the same bytes for the same data; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    pdf, png = folder / f"{name}.pdf", folder / f"{name}.png"
    figure.savefig(pdf, metadata={"CreationDate": None})
    figure.savefig(png)
    return [pdf, png]
