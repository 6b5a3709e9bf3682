"""Figures of how results depend on a study's factors. As in `lib.figures.training`, each function
takes tidy data and an `ax`, draws, and returns the `ax`; tables come from `lib.figures.levels`.

What has no number (a diverged run) stands as a cross at the edge, with how many there are.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.analysis.efficiency import first_reached
from lib.analysis.learning_rate import sensitivities
from lib.analysis.resampling import Floats
from lib.figures.levels import Scale
from lib.figures.training import LABELS, look, trajectory
from lib.study.measures import MEASURES

_BELOW: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
"""A legend where it covers nothing."""


def interaction(runs: pd.DataFrame, measure: str, scale: Scale, ax: Axes) -> Axes:
    """Draw a measure against a factor's levels: per variant a line through the means, a band from
    the lowest to the highest seed, and a point per seed."""
    for variant, aside, part, line in _variants(runs, scale):
        seeds, color = part.groupby("place")[measure], line["color"]
        x = aside(seeds.mean().index)
        ax.plot(x, seeds.mean(), label=variant, **line)
        ax.fill_between(x, seeds.min(), seeds.max(), color=color, alpha=0.15, linewidth=0)
        _points(ax, aside(part["place"]), part[measure], line)
        _count_at_the_top(ax, x, seeds.size() - seeds.count(), color)
    values = runs[measure].dropna()
    if (values > 0).all() and values.max() > 10 * values.min():
        ax.set_yscale("log")
    ax.set_ylabel(MEASURES[measure].label)
    return _factor_axis(scale, ax)


def differences(table: pd.DataFrame, measure: str, scale: Scale, ax: Axes) -> Axes:
    """Draw the mean paired difference to the baseline, with its t interval, against a factor's
    levels, beside the line of no difference. `table` is that of `baseline_contrasts` in
    `lib.figures.levels`; crosses count lost pairs."""
    ax.axhline(0, color="0.5", linewidth=0.8)
    for variant, aside, part, line in _variants(table, scale, before=1):  # there the baseline is
        x, mean = aside(part["place"]), part["mean_delta"].to_numpy()
        ax.plot(x, mean, label=variant, **line)
        error = np.abs(part[["t_low", "t_high"]].to_numpy().T - mean)
        ax.errorbar(x, mean, error, fmt="none", ecolor=line["color"], elinewidth=1, capsize=2)
        _count_at_the_top(ax, x, part["n_dropped"], line["color"])
    sizes = table["mean_delta"].abs()
    if sizes.max() > 30 * sizes.median():
        ax.set_yscale("symlog", linthresh=sizes.median())
    ax.set_ylabel(f"Δ {MEASURES[measure].label}\n(arm - baseline)")
    return _factor_axis(scale, ax)


def learning_rates(losses: pd.DataFrame, scale: Scale, ax: Axes) -> Axes:
    """Draw the final dev loss against the learning rate for one setting: a line per variant through
    the means, points for seeds, the initial loss dashed, and in the legend each variant's
    sensitivity S. `losses` is what `lib.figures.levels.capped_losses` gives, `scale` the rate's."""
    per_seed = sensitivities(losses.assign(within=""))
    sensitivity = per_seed.groupby("variant", sort=False)["sensitivity"].mean()
    for variant, aside, part, line in _variants(losses, scale):
        mean = part.groupby("place")["final_loss"].mean()
        ax.plot(aside(mean.index), mean, label=f"{variant}, S = {sensitivity[variant]:.3f}", **line)
        _points(ax, aside(part["place"]), part["final_loss"], line)
    ax.axhline(losses["initial_loss"].mean(), color="0.4", linewidth=0.9, linestyle="--",
               label="initial loss")  # fmt: skip
    ax.set_ylabel("min(final, initial) dev loss (nats)")
    ax.legend(**_BELOW)
    return _factor_axis(scale, ax)


def unstable_shares(judged: pd.DataFrame, scale: Scale, ax: Axes) -> Axes:
    """Draw the share of `unstable` runs at each learning rate, one line per variant."""
    for variant, aside, part, line in _variants(judged, scale):
        share = part.groupby("place")["unstable"].mean()
        ax.plot(aside(share.index), share, label=variant, clip_on=False, **line)
    ax.set(ylabel="share of unstable runs", ylim=(0, 1))
    return _factor_axis(scale, ax)


def forest(table: pd.DataFrame, ax: Axes) -> Axes:
    """Draw contrasts under one another: a mark at each `mean_delta`, a bar over its t interval
    (`t_low` to `t_high`), in its `variant`'s look, named by its `label`, beside the line of no
    difference. A contrast without a number is a cross at the right edge."""
    styles = look(list(dict.fromkeys(table["variant"])))
    ax.axvline(0, color="0.5", linewidth=0.8)
    for i, row in enumerate(table.to_dict("records")):
        color, marker = styles["palette"][row["variant"]], styles["markers"][row["variant"]]
        if np.isfinite(row["mean_delta"]):
            ax.hlines(i, row["t_low"], row["t_high"], color=color, linewidth=1.4)
            ax.plot(row["mean_delta"], i, color=color, marker=marker, markersize=5)
        else:
            ax.plot(0.98, i, color=color, marker="x", transform=ax.get_yaxis_transform())
    ax.set_yticks(range(len(table)), table["label"])
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    return ax


def efficiency(curves: pd.DataFrame, ax: Axes) -> Axes:
    """Draw dev loss against training tokens, a dashed line at the baseline's (the first variant's)
    mean final loss, and on it a mark where each variant's mean first reaches it; the legend says
    after how many tokens. Runs that diverged count for neither; without a baseline run that
    completed there is nothing to reach."""
    trajectory(curves, "dev_loss", ax, x="tokens")
    variants = list(dict.fromkeys(curves["variant"]))
    styles = look(variants)
    completed = curves[curves["status"] == "completed"]
    means = completed.pivot_table(index="tokens", columns="variant", values="dev_loss")
    target = float(means[variants[0]].iloc[-1]) if variants[0] in means else np.nan
    ax.axhline(target, color="0.4", linewidth=0.8, linestyle="--", zorder=1)
    handles, labels = ax.get_legend_handles_labels()
    reached = []
    for variant in labels:
        tokens = first_reached(means[variant], target) if variant in means else np.nan
        reached.append(f"{variant}: " + (f"{tokens:,.0f}" if np.isfinite(tokens) else "never"))
        color, marker = styles["palette"][variant], styles["markers"][variant]
        ax.plot(tokens, target, marker=marker, markersize=5, color=color, zorder=4)
    title = "tokens to the dashed line"
    ax.legend(handles, reached, title=title, title_fontsize=7.5, **_BELOW)
    return ax


def dodged(places: Any, scale: Scale, i: int, n: int) -> Floats:
    """Move the i-th of n variants a little aside, so that marks of one level do not overlap."""
    x, every = np.asarray(places, dtype=float), list(scale.positions.values())
    offset = 0.02 * (i - (n - 1) / 2)
    if scale.kind == "log":
        return np.asarray(x * (max(every) / min(every)) ** offset)
    return np.asarray(x + offset * (np.ptp(every) or 1.0))


def _variants(
    table: pd.DataFrame, scale: Scale, before: int = 0
) -> Iterator[tuple[str, Callable[[Any], Floats], pd.DataFrame, dict[str, Any]]]:
    """Give each variant, how its places are moved aside, its rows in the order of their `place` on
    the factor's axis, and its line as matplotlib's keywords."""
    variants = list(dict.fromkeys(table["variant"]))
    styles = look(variants)
    table = table.assign(place=scale.place(table[scale.factor])).sort_values("place")
    for i, variant in enumerate(variants):
        line = {
            "color": styles["palette"][variant],
            "dashes": styles["dashes"][variant] or (None, None),
            "marker": styles["markers"][variant],
            "markersize": 4,
            "linewidth": 1.2,
        }
        aside = partial(dodged, scale=scale, i=i + before, n=len(variants) + before)
        yield variant, aside, table[table["variant"] == variant], line


def _points(ax: Axes, x: Floats, y: pd.Series, line: dict[str, Any]) -> None:
    """Draw seeds as small, pale marks."""
    ax.scatter(x, y, s=7, color=line["color"], marker=line["marker"], alpha=0.5, linewidth=0)


def _count_at_the_top(ax: Axes, x: Floats, counts: pd.Series, color: str) -> None:
    across = ax.get_xaxis_transform()
    for place, count in zip(x, counts, strict=True):
        if count:
            ax.margins(y=0.2)  # room for the crosses
            ax.plot(place, 0.98, color=color, marker="x", markersize=5, transform=across)
            ax.annotate(str(count), (place, 0.94), xycoords=across, color=color, fontsize=6.5,
                        ha="center", va="top")  # fmt: skip


def _factor_axis(scale: Scale, ax: Axes) -> Axes:
    places = list(scale.positions.values())
    if scale.kind == "log":
        ax.set_xscale("log")
    names = [f"{x:g}" if isinstance(x, float) else str(x).lower() for x in scale.positions]
    ax.set_xticks(places, names)
    ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    name = scale.factor.rpartition(".")[2]
    ax.set_xlabel(LABELS.get(name, name.replace("_", " ")))
    (low,), (high,) = (dodged([edge(places)], scale, i, 8) for edge, i in ((min, 0), (max, 7)))
    ax.set_xlim(low, high)
    return ax
