"""Figures of effects: how results depend on the variant and on the levels of the other factors.

Each function takes tidy data and an `ax`, draws on the `ax`, and returns it. Diverged runs have no
number to draw, so a cross at the edge counts them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.config.contrasts import level_name
from lib.config.metrics import MEASURES
from lib.config.schema import Level
from lib.figures.style import Variant, dodged, line, log_if_wide, name_ticks, table_looks

WORSE, BETTER, NEITHER = "#B2182B", "#2166AC", "0.3"
"""Colours of differences."""


def forest(table: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """Draw a forest plot of differences in a measure, with the first row on top.

    Each row has a mark at `mean_delta` and a bar over the t interval, its `label` at the left, and
    its `value` at the right. A mark is filled if `decided`, else hollow. It is red if `gain` is
    negative, and blue if it is positive. A row without a number gets a cross at the edge.
    """
    ax.axvline(0, color="0.5", linewidth=0.8)
    across = ax.get_yaxis_transform()
    for y, row in enumerate(table.to_dict("records")):
        colour = BETTER if row["gain"] > 0 else WORSE if row["gain"] < 0 else NEITHER
        if np.isfinite(row["mean_delta"]):
            ax.hlines(y, row["t_low"], row["t_high"], color=colour, linewidth=1.5)
            face = colour if row["decided"] else "white"
            ax.plot(row["mean_delta"], y, "o", color=colour, markersize=5, markerfacecolor=face)
        else:
            ax.plot(0.98, y, "kx", transform=across)
        ax.text(1.02, y, row["value"], color=colour, va="center", transform=across)
    ax.set_yticks(range(len(table)), table["label"])
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.locator_params(axis="x", nbins=5)
    better = MEASURES[measure].better
    ax.set_xlabel(f"Δ {MEASURES[measure].title}" + (f", {better} is better" if better else ""))
    ax.grid(visible=False, axis="y")
    return ax


def paired_seeds(runs: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """Draw one line per seed across variants, and a bar at the mean of each variant. So paired
    differences show as slopes. A diverged run leaves a gap."""
    styles = table_looks(runs)
    table = runs.pivot(index="seed", columns="variant", values=measure)[[*styles]]
    ax.plot(range(len(styles)), table.to_numpy().T, color="0.7", linewidth=0.8, zorder=1)
    for x, (name, look) in enumerate(styles.items()):
        values = table[name]
        ax.scatter([x] * len(values), values, s=18, color=look.colour, marker=look.marker, zorder=2)
        mean = values.mean()
        ax.plot([x - 0.25, x + 0.25], [mean, mean], color=look.colour, linewidth=2.2, zorder=3)
    name_ticks(ax, [look.label for look in styles.values()])
    ax.set_xlim(-0.5, len(styles) - 0.5)
    ax.set_ylabel(MEASURES[measure].label)
    ax.grid(visible=False, axis="x")
    return ax


def task_accuracies(tasks: pd.DataFrame, ax: Axes) -> Axes:
    """Draw accuracy per task and number of shots, normalised to chance (0 is guessing, 1 is all
    correct). Each variant has a mark at its mean over seeds, and a bar from the lowest to the
    highest seed."""
    from seaborn import pointplot  # takes a second to import, and only this figure needs it

    names = tasks["task"].str.replace("_", " ") + ", " + tasks["shots"].astype(str) + "-shot"
    looks = table_looks(tasks)
    labels = tasks["variant"].astype(str).map({name: look.label for name, look in looks.items()})
    pointplot(
        tasks.assign(task=names, variant=labels).sort_values(["shots", "task"]),
        x="normalised_accuracy",
        y="task",
        hue="variant",
        hue_order=[look.label for look in looks.values()],
        palette=[look.colour for look in looks.values()],
        markers=[look.marker for look in looks.values()],
        errorbar=("pi", 100),
        dodge=0.5 if len(looks) > 1 else False,
        linestyle="none",
        markersize=4,
        err_kws={"linewidth": 1},
        ax=ax,
    )
    ax.legend().remove()  # the figure has one for all panels
    ax.axvline(0, color="0.6", linewidth=0.8)
    ax.set(xlabel="above chance (1 = all right)", ylabel="")
    return ax


def interaction(
    runs: pd.DataFrame, measure: str, factor: str, levels: Sequence[Level], ax: Axes
) -> Axes:
    """Draw a measure over the levels of a factor, which are evenly spaced. Each variant has a line
    through its means, a band from the lowest to the highest seed, and a point per seed."""
    for look, offset, part in by_level(runs, factor, levels):
        seeds = part.groupby("place")[measure]
        x = seeds.mean().index + offset
        ax.plot(x, seeds.mean(), marker=look.marker, markersize=4, **line(look))
        ax.fill_between(x, seeds.min(), seeds.max(), color=look.colour, alpha=0.15, linewidth=0)
        at = part["place"] + offset
        ax.plot(at, part[measure], look.marker, color=look.colour, markersize=2.5, alpha=0.5)
        count_lost(ax, x, seeds.size() - seeds.count(), look)
    log_if_wide(ax, runs[measure].dropna())
    ax.set_ylabel(MEASURES[measure].label)
    return factor_axis(factor, levels, ax)


def differences(
    table: pd.DataFrame, measure: str, factor: str, levels: Sequence[Level], ax: Axes
) -> Axes:
    """Draw the mean paired difference from the baseline, with its t interval, over the levels of a
    factor. A line marks zero. `table` has the contrasts of 03_analysis, each between an arm and its
    own baseline. Crosses count pairs that were dropped because a run diverged."""
    ax.axhline(0, color="0.5", linewidth=0.8, gid="baseline")
    for look, offset, part in by_level(table, factor, levels):
        x = part["place"] + offset
        mean = part["mean_delta"].to_numpy()
        ax.plot(x, mean, marker=look.marker, markersize=4, **line(look))
        error = np.abs(part[["t_low", "t_high"]].to_numpy().T - mean)
        ax.errorbar(x, mean, error, fmt="none", ecolor=look.colour, elinewidth=1, capsize=2)
        count_lost(ax, x, part["n_dropped"], look)
    ax.set_ylabel(f"Δ {MEASURES[measure].label}")
    return factor_axis(factor, levels, ax)


def by_level(
    table: pd.DataFrame, factor: str, levels: Sequence[Level]
) -> Iterator[tuple[Variant, float, pd.DataFrame]]:
    """Yield each variant's look, the offset of its marks, and its rows. The rows have a new column
    `place`, the index of their level in `levels`, and are sorted by it."""
    order = list(levels)
    own = [None if pd.isna(level) else level for level in table[factor]]  # pandas made NaN of None
    table = table.assign(place=[order.index(level) for level in own])
    for look, offset, part in dodged(table, min(0.6, 0.06 * table["variant"].nunique())):
        yield look, offset, part.sort_values("place", kind="stable")


def count_lost(ax: Axes, x: Any, counts: pd.Series, look: Variant) -> None:
    """Draw a cross at the top of the axes, with a count, at each x where runs were lost."""
    across = ax.get_xaxis_transform()
    for at, count in zip(x, counts, strict=True):
        if count:
            ax.margins(y=0.2)  # room for the crosses
            ax.plot(at, 0.98, color=look.colour, marker="x", markersize=5, transform=across)
            ax.annotate(
                str(count),
                (at, 0.94),
                xycoords=across,
                color=look.colour,
                fontsize=7,
                ha="center",
                va="top",
            )


def factor_axis(factor: str, levels: Sequence[Level], ax: Axes) -> Axes:
    """Label the x axis with a factor and its levels."""
    name_ticks(ax, [level_name("", level).removeprefix("=") for level in levels])
    ax.set_xlabel(factor.rpartition(".")[2].replace("_", " "))
    ax.set_xlim(-0.4, len(levels) - 0.6)
    return ax


def mark(look: Variant, *, filled: bool) -> dict[str, Any]:
    """Return matplotlib's keywords for a variant's mark, filled or hollow."""
    face = look.colour if filled else "white"
    return {"color": look.colour, "marker": look.marker, "markerfacecolor": face}
