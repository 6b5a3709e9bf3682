"""Figures of effects: how results depend on the variant and on the levels of the other factors.

As in `lib.figures.training`, each function takes tidy data and an `ax`, draws, and returns the
`ax`. Diverged runs have no number: a cross at the edge, with a count, stands for them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.config.contrasts import level_name
from lib.config.metrics import MEASURES
from lib.config.schema import Level
from lib.figures.style import VARIANTS, Variant, aside, line, spread, table_looks, ticks


def forest(table: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """Draw differences in a measure under one another, the first on top: a mark at `mean_delta`
    and a bar over its t interval, named by `label`. What is not `decided` is hollow; a row without
    a number is a cross at the edge."""
    ax.axvline(0, color="0.5", linewidth=0.8)
    for y, row in enumerate(table.to_dict("records")):
        if np.isfinite(row["mean_delta"]):
            ax.hlines(y, row["t_low"], row["t_high"], color="black", linewidth=1.2)
            ax.plot(
                row["mean_delta"], y, markersize=5, **mark(VARIANTS["none"], filled=row["decided"])
            )
        else:
            ax.plot(0.98, y, "kx", transform=ax.get_yaxis_transform())
    ax.set_yticks(range(len(table)), table["label"])
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.locator_params(axis="x", nbins=5)
    ax.set_xlabel(f"Δ {MEASURES[measure].title}")
    ax.grid(visible=False, axis="y")
    return ax


def paired_seeds(runs: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """Draw one line per seed across variants, so that paired changes show as slopes, and each
    variant's mean as a bar. Diverged runs are gaps."""
    styles = table_looks(runs)
    table = runs.pivot(index="seed", columns="variant", values=measure)[[*styles]]
    ax.plot(range(len(styles)), table.to_numpy().T, color="0.7", linewidth=0.8, zorder=1)
    for x, (name, look) in enumerate(styles.items()):
        values = table[name]
        ax.scatter([x] * len(values), values, s=18, color=look.colour, marker=look.marker, zorder=2)
        mean = values.mean()
        ax.plot([x - 0.25, x + 0.25], [mean, mean], color=look.colour, linewidth=2.2, zorder=3)
    ticks(ax, [look.label for look in styles.values()])
    ax.set_xlim(-0.5, len(styles) - 0.5)
    ax.set_ylabel(MEASURES[measure].label)
    ax.grid(visible=False, axis="x")
    return ax


def task_accuracies(tasks: pd.DataFrame, ax: Axes) -> Axes:
    """Draw accuracy normalised to chance (0: guessing, 1: all right) per task and shots: a mark
    per variant (mean over seeds), a bar from the lowest to the highest seed."""
    from seaborn import pointplot  # a second, which 03 need not wait for

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
    ax.legend().remove()  # that of the figure stands below it
    ax.axvline(0, color="0.6", linewidth=0.8)
    ax.set(xlabel="above chance (1 = all right)", ylabel="")
    return ax


def interaction(
    runs: pd.DataFrame, measure: str, factor: str, levels: Sequence[Level], ax: Axes
) -> Axes:
    """Draw a measure against the levels of a factor, evenly spaced: per variant a line through the
    means, a band from the lowest to the highest seed, and a point per seed."""
    for look, offset, part in by_level(runs, factor, levels):
        seeds = part.groupby("place")[measure]
        x = seeds.mean().index + offset
        ax.plot(x, seeds.mean(), marker=look.marker, markersize=4, **line(look))
        ax.fill_between(x, seeds.min(), seeds.max(), color=look.colour, alpha=0.15, linewidth=0)
        at = part["place"] + offset
        ax.plot(at, part[measure], look.marker, color=look.colour, markersize=2.5, alpha=0.5)
        count_lost(ax, x, seeds.size() - seeds.count(), look)
    spread(ax, runs[measure].dropna())
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
    """Yield each variant, how far its marks stand aside, and its rows by their `place`:
    which of the levels theirs is. Pandas writes a level of None as NaN."""
    order = list(levels)
    table = table.assign(place=[order.index(None if pd.isna(x) else x) for x in table[factor]])
    for look, offset, part in aside(table, min(0.6, 0.06 * table["variant"].nunique())):
        yield look, offset, part.sort_values("place", kind="stable")


def count_lost(ax: Axes, x: Any, counts: pd.Series, look: Variant) -> None:
    """Draw a cross, and how many runs it stands for, at the top of an axis."""
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
    """Write a factor and its levels on the x axis."""
    ticks(ax, [level_name("", level).removeprefix("=") for level in levels])
    ax.set_xlabel(factor.rpartition(".")[2].replace("_", " "))
    ax.set_xlim(-0.4, len(levels) - 0.6)
    return ax


def mark(look: Variant, *, filled: bool) -> dict[str, Any]:
    """Return a variant's mark, filled or hollow, as matplotlib's keywords."""
    face = look.colour if filled else "white"
    return {"color": look.colour, "marker": look.marker, "markerfacecolor": face}
