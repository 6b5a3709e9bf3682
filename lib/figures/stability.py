"""Figures of stability: where runs are unstable, what it costs, and how it looks while it happens.

As in `lib.figures.training`, each function takes tidy data and an `ax`, draws, and returns the
`ax`. What counts as unstable is for `lib.analysis.stability` to say.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.figures.style import few_digits, variants
from lib.figures.training import LABELS
from lib.study.measures import MEASURES

FIRST_STEPS = 64
"""Where transients are."""


def stability_cells(cells: pd.DataFrame, x: str, ax: Axes) -> Axes:
    """Draw the share of unstable runs as a map of `row` and `column`, the darker the more: in each
    cell how many of how many, and below it their median severity (nats). A cell that is not judged
    holds a dash.

    `cells` is the table of `lib.analysis.stability.stability_map` with these two columns.
    """
    rows, columns = (list(dict.fromkeys(cells[name])) for name in ("row", "column"))
    share = cells.pivot(index="row", columns="column", values="share").loc[rows, columns]
    ax.pcolormesh(np.ma.masked_invalid(share.astype(float)), cmap="Greys", vmin=0, vmax=1.25,
                  edgecolors="0.6", linewidth=0.4)  # fmt: skip
    for cell in cells.to_dict("records"):
        text = "-"
        if cell["judged"]:
            text = f"{cell['unstable']:.0f}/{cell['judged']:.0f}\n{cell['median_severity']:.2g}"
        place = columns.index(cell["column"]) + 0.5, rows.index(cell["row"]) + 0.5
        ax.text(*place, text, ha="center", va="center", fontsize=7, linespacing=1.1,
                color="white" if cell["share"] > 0.74 else "black")  # fmt: skip
    turned = 45 if len(columns) > 5 else 0
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=turned)
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    ax.set_xlabel(x)
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.grid(visible=False)
    return ax


def trade_off(table: pd.DataFrame, measure: str, y: str, ax: Axes) -> Axes:
    """Draw stability against a measure: a mark per arm, hollow where none of its runs is unstable,
    and a thin line from each setting's first arm to its others. `y` is `share`, which brings its
    exact interval, or `median_severity`.

    `table` is that of `lib.analysis.trade_off.trade_off_table`.
    """
    table = table.dropna(subset=[measure, y])
    for _, arms in table.groupby("setting", sort=False):
        for other in arms.iloc[1:].to_dict("records"):
            ax.plot([arms[measure].iloc[0], other[measure]], [arms[y].iloc[0], other[y]],
                    color="0.75", linewidth=0.7, zorder=1)  # fmt: skip
    for look, arms in variants(table):
        if y == "share":
            error = np.abs(arms[["low", "high"]].to_numpy().T - arms["share"].to_numpy())
            ax.errorbar(arms[measure], arms[y], error, fmt="none", ecolor=look.colour,
                        elinewidth=0.9, capsize=2)  # fmt: skip
        faces = [look.colour if unstable else "white" for unstable in arms["unstable"]]
        ax.scatter(arms[measure], arms[y], s=22, marker=look.marker, facecolor=faces,
                   edgecolor=look.colour, linewidth=0.9, zorder=3)  # fmt: skip
        ax.plot([], [], color=look.colour, marker=look.marker, linestyle="none", markersize=4.5,
                label=look.label)  # fmt: skip
    if table[measure].max() > 3 * table[measure].min() > 0:
        ax.set_xscale("log")
        few_digits(ax.xaxis)
    if y == "median_severity" and (table[y] > 0).all():
        ax.set_yscale("log")
        few_digits(ax.yaxis)
    labels = {"share": "share of runs unstable", "median_severity": "median severity (nats)"}
    ax.set(xlabel=MEASURES[measure].title, ylabel=labels[y])
    return ax


def early_losses(trace: pd.DataFrame, rise: float, ax: Axes, of: str = "") -> Axes:
    """Draw the training loss of every run over its first steps, with a mark where it is first more
    than `rise` above its running minimum. A loss above 1.5 times the highest first one is cut off.
    `of` names the runs beside the axis."""
    first = trace[trace["step"] <= FIRST_STEPS]
    for look, part in variants(first):
        for i, (_, run) in enumerate(part.groupby(["arm", "seed"], sort=False)):
            loss = run["loss"]
            dashes = (0, look.dashes) if look.dashes else "-"
            ax.plot(run["step"], loss, color=look.colour, linewidth=0.8, linestyle=dashes,
                    alpha=0.75, label=None if i else look.label)  # fmt: skip
            risen = run[loss - loss.cummin() > rise].head(1)
            ax.plot(risen["step"], risen["loss"], color=look.colour, marker=look.marker,
                    markersize=5, markeredgecolor="white", markeredgewidth=0.5,
                    zorder=4)  # fmt: skip
    ceiling = 1.5 * first.loc[first["step"] == first["step"].min(), "loss"].max()
    if first["loss"].max() > ceiling:
        ax.set_ylim(first["loss"].min() - 0.2, ceiling)
    ax.set(xlabel=LABELS["step"], ylabel=f"{of}\n{LABELS['loss']}".strip())
    return ax
