"""Figures of effects: how results depend on the variant and on the levels of the other factors.

As in `lib.figures.training`, each function takes tidy data and an `ax`, draws, and returns the
`ax`. Diverged runs have no number: a cross at the edge, with a count, stands for them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.figures.style import Variant, level_text, line, looks, offsets, variant, variants, widen
from lib.study.metrics import MEASURES
from lib.study.schema import Level

LETTERS = 27
"""How many have room below a panel that is a third of a page wide."""


def forest(table: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """Draw a measure's differences under one another: a mark at each `mean_delta`, a bar over its t
    interval (`t_low` to `t_high`), in the look of its `variant` and named by it and its
    `reference`. Rows stand under the name of their `family`; where it tests equivalence, its
    `margin` is a grey band. A row that is not `decided` is hollow; one without a number is a cross
    at the right edge."""
    ax.axvline(0, color="0.5", linewidth=0.8)
    names: list[str] = []
    styles = looks(table)
    for family, part in table.groupby("family", sort=False):
        if family != "":
            names.append(str(family) + ":")
        first, margin = len(names), part["margin"].iloc[0]
        for row in part.to_dict("records"):
            look, y = styles[row["variant"]], len(names)
            names.append(f"{look.label} - {variant(row['reference']).label}")
            if np.isfinite(row["mean_delta"]):
                ax.hlines(y, row["t_low"], row["t_high"], color=look.colour, linewidth=1.4)
                ax.plot(row["mean_delta"], y, markersize=5, **mark(look, bool(row["decided"])))
            else:
                ax.plot(0.98, y, color=look.colour, marker="x", transform=ax.get_yaxis_transform())
        if np.isfinite(margin):
            ax.fill_betweenx([first - 0.5, len(names) - 0.5], -margin, margin, color="0.88",
                             linewidth=0, zorder=0)  # fmt: skip
    ax.set_yticks(range(len(names)), names)
    for label in ax.get_yticklabels():
        label.set_fontstyle("italic" if label.get_text().endswith(":") else "normal")
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel(f"Δ {MEASURES[measure].title}")
    ax.grid(visible=False, axis="y")
    return ax


def paired_seeds(runs: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """Draw one line per seed across variants, so that paired changes show as slopes, and each
    variant's mean as a bar. Diverged runs are gaps. Levels of one field stand as their values, and
    the axis has its name."""
    styles = looks(runs)
    table = runs.pivot(index="seed", columns="variant", values=measure)[[*styles]]
    positions = np.arange(len(styles))
    ax.plot(positions, table.to_numpy().T, color="0.7", linewidth=0.8, zorder=1)
    for x, (name, look) in enumerate(styles.items()):
        values = table[name]
        ax.scatter([x] * len(values), values, s=18, color=look.colour, marker=look.marker,
                   zorder=2)  # fmt: skip
        ax.plot(x + np.array([-0.25, 0.25]), [values.mean()] * 2, color=look.colour,
                linewidth=2.2, zorder=3)  # fmt: skip
    turned: Any = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    labels = [look.label for look in styles.values()]
    fields = {label.rpartition("=")[0] for label in labels}
    if len(fields) == 1 and fields != {""}:  # weight_decay=0, weight_decay=0.1
        ax.set_xlabel(fields.pop().replace("_", " "))
        labels = [label.rpartition("=")[2] for label in labels]
    crowded = len(labels) * max(map(len, labels)) > LETTERS
    ax.set_xticks(positions, labels, **turned if crowded else {})
    ax.set_xlim(-0.5, len(styles) - 0.5)
    ax.set_ylabel(MEASURES[measure].label)
    ax.grid(visible=False, axis="x")
    return ax


def task_accuracies(tasks: pd.DataFrame, ax: Axes) -> Axes:
    """Draw accuracy normalised to chance (0: guessing, 1: all right) per task and shots: a mark
    per variant (mean over seeds), a bar from the lowest to the highest seed."""
    tasks = tasks.sort_values(["shots", "task"], kind="stable")
    names = tasks["task"].str.replace("_", " ") + ", " + tasks["shots"].astype(str) + "-shot"
    labels = list(dict.fromkeys(names))
    tasks = tasks.assign(label=names).sort_index()
    for (look, part), offset in zip(variants(tasks), offsets(tasks, 0.6), strict=True):
        seeds = part.groupby("label")["normalised_accuracy"].agg(["mean", "min", "max"])
        mean, low, high = seeds.loc[labels].to_numpy().T
        ax.errorbar(mean, np.arange(len(labels)) + offset, xerr=[mean - low, high - mean],
                    color=look.colour, marker=look.marker, markersize=4, linewidth=1,
                    linestyle="none", label=look.label)  # fmt: skip
    ax.axvline(0, color="0.6", linewidth=0.8)
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlabel("above chance (1 = all right)")
    return ax


def interaction(
    runs: pd.DataFrame, measure: str, factor: str, levels: Sequence[Level], ax: Axes
) -> Axes:
    """Draw a measure against the levels of a factor, evenly spaced: per variant a line through the
    means, a band from the lowest to the highest seed, and a point per seed."""
    for look, offset, part in by_level(runs, factor, levels):
        seeds = part.groupby("place")[measure]
        x = seeds.mean().index + offset
        ax.plot(x, seeds.mean(), **line(look) | {"marker": look.marker, "markersize": 4})
        ax.fill_between(x, seeds.min(), seeds.max(), color=look.colour, alpha=0.15, linewidth=0)
        ax.scatter(part["place"] + offset, part[measure], s=7, color=look.colour, alpha=0.5,
                   marker=look.marker, linewidth=0)  # fmt: skip
        count_lost(ax, x, seeds.size() - seeds.count(), look)
    values = runs[measure].dropna()
    if (values > 0).all() and values.max() > 10 * values.min():
        ax.set_yscale("log")
    ax.set_ylabel(MEASURES[measure].label)
    return factor_axis(factor, levels, ax)


def differences(
    table: pd.DataFrame, measure: str, factor: str, levels: Sequence[Level], ax: Axes
) -> Axes:
    """Draw the mean paired difference to the baseline, with its t interval, against the levels of a
    factor, beside the line of no difference. `table` holds contrasts with each arm's own baseline
    as the analysis wrote them; crosses count lost pairs."""
    ax.axhline(0, color="0.5", linewidth=0.8)
    for look, offset, part in by_level(table, factor, levels):
        x, mean = part["place"] + offset, part["mean_delta"].to_numpy()
        ax.plot(x, mean, **line(look) | {"marker": look.marker, "markersize": 4})
        error = np.abs(part[["t_low", "t_high"]].to_numpy().T - mean)
        ax.errorbar(x, mean, error, fmt="none", ecolor=look.colour, elinewidth=1, capsize=2)
        count_lost(ax, x, part["n_dropped"], look)
    widen(ax, pd.concat([table["mean_delta"], table["t_low"], table["t_high"]]))
    ax.set_ylabel(f"Δ {MEASURES[measure].label}\n(arm - baseline)")
    return factor_axis(factor, levels, ax)


def by_level(
    table: pd.DataFrame, factor: str, levels: Sequence[Level]
) -> Iterator[tuple[Variant, float, pd.DataFrame]]:
    """Give each variant, how far its marks stand aside, and its rows in the order of their `place`:
    which of the levels theirs is. Pandas writes a level of None as NaN."""
    order = list(levels)
    positions = [order.index(None if pd.isna(x) else x) for x in table[factor]]
    table = table.assign(place=positions)
    all_offsets = offsets(table, 0.06 * table["variant"].nunique())
    for (look, part), offset in zip(variants(table), all_offsets, strict=True):
        yield look, float(offset), part.sort_values("place", kind="stable")


def count_lost(ax: Axes, x: Any, counts: pd.Series, look: Variant) -> None:
    """Draw a cross, and how many runs it stands for, at the top of an axis."""
    across = ax.get_xaxis_transform()
    for at, count in zip(x, counts, strict=True):
        if count:
            ax.margins(y=0.2)  # room for the crosses
            ax.plot(at, 0.98, color=look.colour, marker="x", markersize=5, transform=across)
            ax.annotate(str(count), (at, 0.94), xycoords=across, color=look.colour, fontsize=7,
                        ha="center", va="top")  # fmt: skip


def factor_axis(factor: str, levels: Sequence[Level], ax: Axes) -> Axes:
    """Name a factor and its levels on the x axis."""
    ax.set_xticks(range(len(levels)), [level_text(level) for level in levels])
    ax.tick_params(axis="x", rotation=45 if len(levels) > 5 else 0)
    ax.set_xlabel(factor.rpartition(".")[2].replace("_", " "))
    ax.set_xlim(-0.4, len(levels) - 0.6)
    return ax


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
        position = columns.index(cell["column"]) + 0.5, rows.index(cell["row"]) + 0.5
        ax.text(*position, text, ha="center", va="center", fontsize=7, linespacing=1.1,
                color="white" if cell["share"] > 0.74 else "black")  # fmt: skip
    turned = 45 if len(columns) > 5 else 0
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=turned)
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    ax.set_xlabel(x)
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.grid(visible=False)
    return ax


def mark(look: Variant, filled: bool) -> dict[str, Any]:
    """Write a variant's mark, filled or hollow, as matplotlib's keywords."""
    return {
        "color": look.colour,
        "marker": look.marker,
        "markeredgecolor": look.colour,
        "markerfacecolor": look.colour if filled else "white",
    }
