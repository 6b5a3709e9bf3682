"""Figures of how results depend on a study's factors. As in `lib.figures`, each function takes tidy
data and an `ax`, draws, and returns the `ax`; the tables come from `lib.factors`.

What has no number (a diverged run) stands as a cross at the edge, with how many there are.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.factors import Scale, rate_sensitivities, tokens_to_reach
from lib.figures import LABELS, look, trajectory
from lib.results import MEASURES


def interaction(runs: pd.DataFrame, measure: str, scale: Scale, ax: Axes) -> Axes:
    """Draw a measure against a factor's levels: per variant a line through the means, a band from
    the lowest to the highest seed, and a point per seed."""
    variants = list(dict.fromkeys(runs["variant"]))
    styles = look(variants)
    table = runs.assign(place=scale.place(runs[scale.factor]))
    for i, variant in enumerate(variants):
        part = table[table["variant"] == variant]
        line = _line(styles, variant)
        color = line["color"]
        seeds = part.groupby("place")[measure]
        x = dodged(sorted(part["place"].unique()), scale, i, len(variants))
        ax.plot(x, seeds.mean(), label=variant, **line)
        ax.fill_between(x, seeds.min(), seeds.max(), color=color, alpha=0.15, linewidth=0)
        _points(ax, dodged(part["place"], scale, i, len(variants)), part[measure], line)
        _count_at_the_top(ax, x, seeds.size() - seeds.count(), color)
    values = runs[measure].dropna()
    if (values > 0).all() and values.max() > 10 * values.min():
        ax.set_yscale("log")
    ax.set_ylabel(MEASURES[measure].label)
    return _factor_axis(scale, ax)


def differences(table: pd.DataFrame, measure: str, scale: Scale, ax: Axes) -> Axes:
    """Draw the mean paired difference to the baseline, with its t interval, against a factor's
    levels, beside the line of no difference. `table` is that of `lib.factors.paired_differences`,
    a cross counts lost pairs."""
    variants = list(dict.fromkeys(table["variant"]))
    styles = look(variants)
    ax.axhline(0, color="0.5", linewidth=0.8)
    for i, variant in enumerate(variants):
        part = table[table["variant"] == variant]
        part = part.assign(place=scale.place(part[scale.factor])).sort_values("place")
        x = dodged(part["place"], scale, i + 1, len(variants) + 1)  # the baseline stands before
        line, mean = _line(styles, variant), part["mean_delta"].to_numpy()
        ax.plot(x, mean, label=variant, **line)
        error = np.abs(part[["t_low", "t_high"]].to_numpy().T - mean)
        ax.errorbar(x, mean, error, fmt="none", ecolor=line["color"], elinewidth=1, capsize=2)
        _count_at_the_top(ax, x, part["lost"], line["color"])
    sizes = table["mean_delta"].abs()
    if sizes.max() > 30 * sizes.median():
        ax.set_yscale("symlog", linthresh=sizes.median())
    ax.set_ylabel(f"Δ {MEASURES[measure].label}\n(arm - baseline)")
    return _factor_axis(scale, ax)


def learning_rates(losses: pd.DataFrame, rate: str, ax: Axes) -> Axes:
    """Draw the final dev loss against the learning rate (column `rate`) for one setting: a line per
    variant through the means, points for seeds, the initial loss dashed, and in the legend each
    variant's sensitivity S. `losses` is the table of `lib.factors.final_losses`."""
    variants = list(dict.fromkeys(losses["variant"]))
    styles, sensitivity = look(variants), rate_sensitivities(losses)
    for variant in variants:
        part = losses[losses["variant"] == variant]
        line = _line(styles, variant)
        mean = part.groupby(rate)["final_loss"].mean()
        ax.plot(mean.index, mean, label=f"{variant}, S = {sensitivity[variant]:.3f}", **line)
        _points(ax, part[rate], part["final_loss"], line)
    ax.axhline(losses["initial_loss"].mean(), color="0.4", linewidth=0.9, linestyle="--",
               label="initial loss")  # fmt: skip
    ax.set(xscale="log", xlabel="learning rate", ylabel="min(final, initial) dev loss (nats)")
    ax.legend()
    return ax


def unstable_shares(judged: pd.DataFrame, rate: str, ax: Axes) -> Axes:
    """Draw the share of `unstable` runs at each learning rate (column `rate`), one line per
    variant."""
    variants = list(dict.fromkeys(judged["variant"]))
    styles = look(variants)
    for variant in variants:
        share = judged[judged["variant"] == variant].groupby(rate)["unstable"].mean()
        ax.plot(share.index, share, label=variant, clip_on=False, **_line(styles, variant))
    ax.set(xscale="log", xlabel="learning rate", ylabel="share of unstable runs", ylim=(0, 1))
    return ax


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
    """Draw dev loss against training tokens, a line at the baseline's (the first variant's) mean
    final loss, and on it a mark where each variant's mean first reaches it; the legend says after
    how many tokens. Without a baseline that completed there is neither line nor mark."""
    trajectory(curves, "dev_loss", ax, x="tokens")
    variants = list(dict.fromkeys(curves["variant"]))
    styles = look(variants)
    completed = curves[curves["status"] == "completed"]
    means = completed.groupby(["variant", "tokens"])["dev_loss"].mean()
    ax.legend()
    if variants[0] not in means.index.get_level_values("variant"):
        return ax
    target = float(means[variants[0]].iloc[-1])
    ax.axhline(target, color="0.4", linewidth=0.8, linestyle="--", zorder=1)
    handles = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    labels = []
    for variant in variants:
        curve = means[variant] if variant in means.index.get_level_values("variant") else None
        tokens = np.nan if curve is None else tokens_to_reach(curve, target)
        reached = f"{tokens / 1e3:,.0f}k" if np.isfinite(tokens) else "never"
        labels.append(f"{variant}: {reached}")
        ax.plot(tokens, target, marker=styles["markers"][variant], markersize=5, zorder=4,
                color=styles["palette"][variant], linestyle="none")  # fmt: skip
    ax.legend([handles[variant] for variant in variants], labels, title="tokens to the dashed line",
              title_fontsize=7.5, alignment="left", loc="upper right")  # fmt: skip
    return ax


def dodged(places: "Sequence[float] | pd.Series", scale: Scale, i: int, n: int) -> np.ndarray:
    """Move the i-th of n variants a little aside, so that marks of one level do not overlap."""
    x = np.asarray(places, dtype=float)
    offset = 0.025 * (i - (n - 1) / 2)
    every = list(scale.positions.values())
    if scale.kind == "log":
        return np.asarray(x * (max(every) / min(every)) ** offset)
    return x + offset * (np.ptp(every) or 1.0)


def _line(styles: dict[str, dict[str, Any]], variant: str) -> dict[str, Any]:
    """A variant's line with marks, as matplotlib's keywords."""
    return {
        "color": styles["palette"][variant],
        "dashes": styles["dashes"][variant] or (None, None),
        "marker": styles["markers"][variant],
        "markersize": 4,
        "linewidth": 1.2,
    }


def _points(ax: Axes, x: "np.ndarray | pd.Series", y: pd.Series, line: dict[str, Any]) -> None:
    """Draw seeds as small, pale marks."""
    ax.scatter(x, y, s=7, color=line["color"], marker=line["marker"], alpha=0.5, linewidth=0)


def _count_at_the_top(ax: Axes, x: np.ndarray, counts: pd.Series, color: str) -> None:
    for place, count in zip(x, counts, strict=True):
        if count:
            across = ax.get_xaxis_transform()
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
    (low,), (high,) = (dodged([edge(places)], scale, i, 5) for edge, i in ((min, 0), (max, 4)))
    ax.set_xlim(low, high)
    return ax
