"""Figures of how results depend on the variant and on the levels of the other factors.

As in `lib.figures.training`, each function takes tidy data and an `ax`, draws, and returns the
`ax`. Diverged runs have no number: a cross at the edge, with a count, stands for them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.analysis.efficiency import first_reached
from lib.figures.style import level_text, line, offsets, variants, widen
from lib.figures.training import trajectory
from lib.study.fields import Level
from lib.study.measures import MEASURES
from lib.study.variants import Variant, variant

_BELOW: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
"""A legend below the axes, where it covers nothing."""


@dataclass(frozen=True)
class Scale:
    """Where the levels of a factor stand on an axis."""

    factor: str
    kind: Literal["log", "linear", "categorical"]
    positions: dict[Level, float]
    """Level → place; for numbers, the number."""

    def place(self, levels: pd.Series) -> pd.Series:
        """Return the place of each row's level; pandas writes a level of None as NaN."""
        return levels.map(lambda level: self.positions[None if pd.isna(level) else level])


def scale_of(factor: str, levels: list[Level]) -> Scale:
    """Choose an axis for a factor's levels: categorical unless all are numbers; logarithmic when
    their ratios are more even than their differences (of two levels: when they differ tenfold)."""
    numbers = [x for x in levels if isinstance(x, int | float) and not isinstance(x, bool)]
    if len(numbers) < len(levels):
        return Scale(factor, "categorical", {level: float(i) for i, level in enumerate(levels)})
    ordered = np.sort(np.array(numbers, dtype=float))
    logarithmic = bool(ordered[0] > 0) and ordered[-1] >= 10 * ordered[0]
    if ordered[0] > 0 and len(ordered) > 2:
        gaps, ratios = np.diff(ordered), np.diff(np.log(ordered))
        logarithmic = ratios.max() / ratios.min() < gaps.max() / gaps.min()
    kind: Literal["log", "linear"] = "log" if logarithmic else "linear"
    return Scale(factor, kind, {level: float(level) for level in numbers})


def paired_seeds(runs: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """Draw one line per seed across variants, so that paired changes show as slopes, and each
    variant's mean as a bar. Diverged runs are gaps."""
    looks = [look for look, _ in variants(runs)]
    table = runs.pivot(index="seed", columns="variant", values=measure)[runs["variant"].unique()]
    places = np.arange(len(looks))
    ax.plot(places, table.to_numpy().T, color="0.7", linewidth=0.8, zorder=1)
    for place, look, (_, values) in zip(places, looks, table.items(), strict=True):
        ax.scatter([place] * len(values), values, s=18, color=look.colour, marker=look.marker,
                   zorder=2)  # fmt: skip
        ax.plot(place + np.array([-0.25, 0.25]), [values.mean()] * 2, color=look.colour,
                linewidth=2.2, zorder=3)  # fmt: skip
    turned: Any = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(places, [look.label for look in looks], **turned if len(looks) > 3 else {})
    ax.set_xlim(-0.5, len(looks) - 0.5)
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


def efficiency(curves: pd.DataFrame, ax: Axes) -> Axes:
    """Draw dev loss against training tokens, a dashed line at the baseline's (the first variant's)
    mean final loss, and on it a mark where each variant's mean first reaches it; the legend says
    after how many tokens. Runs that diverged count for neither; without a baseline run that
    completed there is nothing to reach."""
    trajectory(curves, "dev_loss", ax, x="tokens")
    completed = curves[curves["status"] == "completed"]
    means = completed.pivot_table(index="tokens", columns="variant", values="dev_loss")
    baseline = curves["variant"].iloc[0]
    target = float(means[baseline].iloc[-1]) if baseline in means else np.nan
    ax.axhline(target, color="0.4", linewidth=0.8, linestyle="--", zorder=1)
    handles, _ = ax.get_legend_handles_labels()
    reached = []
    for name in dict.fromkeys(curves["variant"]):
        look = variant(name)
        tokens = first_reached(means[name], target) if name in means else np.nan
        reached.append(f"{look.label}: " + (f"{tokens:,.0f}" if np.isfinite(tokens) else "never"))
        ax.plot(tokens, target, marker=look.marker, markersize=5, color=look.colour, zorder=4)
    title = "tokens to the dashed line"
    ax.legend(handles, reached, title=title, title_fontsize=7.5, **_BELOW)
    return ax


def interaction(runs: pd.DataFrame, measure: str, scale: Scale, ax: Axes) -> Axes:
    """Draw a measure against a factor's levels: per variant a line through the means, a band from
    the lowest to the highest seed, and a point per seed."""
    for look, aside, part in _placed(runs, scale):
        seeds = part.groupby("place")[measure]
        x = aside(seeds.mean().index)
        ax.plot(x, seeds.mean(), **_marked(look))
        ax.fill_between(x, seeds.min(), seeds.max(), color=look.colour, alpha=0.15, linewidth=0)
        _points(ax, aside(part["place"]), part[measure], look)
        _count_at_the_top(ax, x, seeds.size() - seeds.count(), look)
    values = runs[measure].dropna()
    if (values > 0).all() and values.max() > 10 * values.min():
        ax.set_yscale("log")
    ax.set_ylabel(MEASURES[measure].label)
    return _factor_axis(scale, ax)


def differences(table: pd.DataFrame, measure: str, scale: Scale, ax: Axes) -> Axes:
    """Draw the mean paired difference to the baseline, with its t interval, against a factor's
    levels, beside the line of no difference. `table` holds contrasts with each arm's own baseline
    as the analysis wrote them; crosses count lost pairs."""
    ax.axhline(0, color="0.5", linewidth=0.8)
    for look, aside, part in _placed(table, scale, before=1):  # there the baseline is
        x, mean = aside(part["place"]), part["mean_delta"].to_numpy()
        ax.plot(x, mean, **_marked(look))
        error = np.abs(part[["t_low", "t_high"]].to_numpy().T - mean)
        ax.errorbar(x, mean, error, fmt="none", ecolor=look.colour, elinewidth=1, capsize=2)
        _count_at_the_top(ax, x, part["n_dropped"], look)
    widen(ax, pd.concat([table["mean_delta"], table["t_low"], table["t_high"]]))
    ax.set_ylabel(f"Δ {MEASURES[measure].label}\n(arm - baseline)")
    return _factor_axis(scale, ax)


def tuning_curves(losses: pd.DataFrame, scale: Scale, ax: Axes) -> Axes:
    """Draw the final dev loss against the learning rate: a line per variant through the means, with
    a star at the chosen rate (hollow: at the edge of the grid), and a mark per run, hollow after a
    transient. A run that collapsed or diverged counts as its initial loss, and is a cross at the
    top, which may cut the lines.

    `losses` is the table of `lib.analysis.learning_rate.counted_losses` with `mean`, `best_rate`
    and `bracketed` as the analysis wrote them.
    """
    for look, aside, part in _placed(losses, scale):
        means = part.drop_duplicates("place").set_index("place")["mean"]
        ax.plot(aside(means.index), means, **line(look) | {"linewidth": 1})
        failed = part["collapsed"] | part["diverged"]
        risen, calm = part["transient"] & ~failed, ~part["transient"] & ~failed
        plain: Any = {"s": 13, "marker": look.marker, "edgecolor": look.colour, "zorder": 3}
        hollow, filled = plain | {"facecolor": "white"}, plain | {"facecolor": look.colour}
        for runs, style in ((risen, hollow), (calm, filled)):
            ax.scatter(aside(part.loc[runs, "place"]), part.loc[runs, "counted"], **style)
        lost = failed.groupby(part["place"]).sum()
        _count_at_the_top(ax, aside(lost.index), lost, look)
        best, inside = part["best_rate"].iloc[0], part["bracketed"].iloc[0]
        ax.plot(aside(best), means[best], marker="*", markersize=11, markeredgecolor="black",
                markerfacecolor=look.colour if inside else "white", markeredgewidth=0.7,
                linestyle="none", zorder=4)  # fmt: skip
    ended = losses.loc[~(losses["collapsed"] | losses["diverged"]), "counted"]
    room = 0.1 * np.ptp(ended) if len(ended) > 1 else 0.1
    ax.set_ylim(ended.min() - room, ended.max() + 2 * room)
    ax.set_ylabel("final dev loss (nats)")
    return _factor_axis(scale, ax)


def dodged(places: Any, scale: Scale, i: int, n: int) -> Any:
    """Move the i-th of n variants a little aside, so that marks of one level do not overlap."""
    share = min(0.035, 0.7 / n / len(scale.positions)) * (i - (n - 1) / 2)
    return _moved(places, scale, share)


def _moved(places: Any, scale: Scale, share: float) -> Any:
    """Move places by a share of the axis between its first and its last level."""
    x, every = np.asarray(places, dtype=float), list(scale.positions.values())
    if scale.kind == "log":
        return x * (max(every) / min(every)) ** share
    return x + share * (np.ptp(every) or 1.0)


def _placed(
    table: pd.DataFrame, scale: Scale, before: int = 0
) -> Iterator[tuple[Variant, Callable[[Any], Any], pd.DataFrame]]:
    """Give each variant, how its places are moved aside, and its rows in the order of their `place`
    on the factor's axis."""
    n = table["variant"].nunique() + before
    table = table.assign(place=scale.place(table[scale.factor]))
    for i, (look, part) in enumerate(variants(table), before):
        yield look, partial(dodged, scale=scale, i=i, n=n), part.sort_values("place")


def _marked(look: Variant) -> dict[str, Any]:
    return line(look) | {"marker": look.marker, "markersize": 4}


def _points(ax: Axes, x: Any, y: pd.Series, look: Variant) -> None:
    """Draw seeds as small, pale marks."""
    ax.scatter(x, y, s=7, color=look.colour, marker=look.marker, alpha=0.5, linewidth=0)


def _count_at_the_top(ax: Axes, x: Any, counts: pd.Series, look: Variant) -> None:
    across = ax.get_xaxis_transform()
    for place, count in zip(x, counts, strict=True):
        if count:
            ax.margins(y=0.2)  # room for the crosses
            ax.plot(place, 0.98, color=look.colour, marker="x", markersize=5, transform=across)
            ax.annotate(str(count), (place, 0.94), xycoords=across, color=look.colour, fontsize=7,
                        ha="center", va="top")  # fmt: skip


def _factor_axis(scale: Scale, ax: Axes) -> Axes:
    places = list(scale.positions.values())
    if scale.kind == "log":
        ax.set_xscale("log")
    ax.set_xticks(places, [level_text(level) for level in scale.positions])
    ax.tick_params(axis="x", rotation=45 if len(places) > 5 else 0)
    ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    ax.set_xlabel(scale.factor.rpartition(".")[2].replace("_", " "))
    ax.set_xlim(_moved(min(places), scale, -0.07), _moved(max(places), scale, 0.07))
    return ax
