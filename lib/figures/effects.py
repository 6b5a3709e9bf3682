"""Figures of effects: paired differences with their intervals, beside no difference.

As in `lib.figures.training`, each function takes tidy data and an `ax`, draws, and returns the
`ax`.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.figures.style import in_lines, line, variants, widen
from lib.study.measures import MEASURES
from lib.study.variants import Variant, variant


def forest(table: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """Draw a measure's differences under one another: a mark at each `mean_delta`, a bar over its t
    interval (`t_low` to `t_high`), in the look of its `variant` and named by it and its
    `reference`. Rows stand under the name of their `family`; where it tests equivalence, its
    `margin` is a grey band. A row that is not `decided` is hollow; one without a number is a cross
    at the right edge."""
    ax.axvline(0, color="0.5", linewidth=0.8)
    names: list[str] = []
    for family, part in table.groupby("family", sort=False):
        if family != "":
            names.append(str(family) + ":")
        first, margin = len(names), part["margin"].iloc[0]
        for row in part.to_dict("records"):
            look, at = variant(row["variant"]), len(names)
            names.append(f"{look.label} - {variant(row['reference']).label}")
            if np.isfinite(row["mean_delta"]):
                ax.hlines(at, row["t_low"], row["t_high"], color=look.colour, linewidth=1.4)
                ax.plot(row["mean_delta"], at, markersize=5, **_mark(look, bool(row["decided"])))
            else:
                ax.plot(0.98, at, color=look.colour, marker="x", transform=ax.get_yaxis_transform())
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


def dose_response(dose: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the effect in nats against the initial RMS of the stream relative to its branches: a
    line per `layer` with t intervals; hollow, arms whose branches are multiplied too.

    `dose` is the table of `lib.analysis.dose.dose_table`; a row of the layer "none" is no layer.
    """
    ax.axhline(0, color="0.5", linewidth=0.8)
    for i, (layer, part) in enumerate(dose.groupby("layer", sort=False)):
        look, multiplied = variant(str(layer)), part["branch_multiplier"] != 1
        label = "no layer" if layer == "none" else look.label
        for rows, name in ((part[~multiplied], label), (part[multiplied], f"{label}, rescued")):
            if rows.empty:
                continue
            x, mean = rows["relative_rms"] * 1.06 ** (i - 1), rows["mean_delta"]
            filled = bool(rows["branch_multiplier"].iloc[0] == 1)
            style = line(look) | _mark(look, filled) | {"label": name, "linewidth": 1}
            ax.plot(x, mean, markersize=4.5, zorder=3, **style)
            error = np.abs(rows[["t_low", "t_high"]].to_numpy().T - mean.to_numpy())
            ax.errorbar(x, mean, error, fmt="none", ecolor=look.colour, elinewidth=0.9, capsize=2)
    ax.set_xscale("log")
    values = sorted(set(dose["relative_rms"].round(4)))
    apart = [x for x, before in zip(values, [0.0, *values], strict=False) if x > 1.2 * before]
    ax.set_xticks(apart, [f"{x:.2g}" for x in apart])
    ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    ax.set_xlabel("initial RMS of the stream, relative to its branches")
    ax.set_ylabel("Δ validation loss (nats)")
    return ax


def tied_effects(table: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the effect of one variant in nats in each setting (`within`), with its t interval: with
    a tied output filled, untied hollow. A grey square lies under a mark when one of its two arms
    ends above a unigram model (`tied_floor`, `untied_floor`).

    `table` is that of `lib.analysis.tied.tied_table` with these two columns.
    """
    ax.axhline(0, color="0.5", linewidth=0.8)
    ((look, rows),) = variants(table)
    places = np.arange(len(rows))
    for name, aside in (("tied", -0.08), ("untied", 0.08)):
        mean, floor = rows[name].to_numpy(), rows[f"{name}_floor"].to_numpy(dtype=bool)
        dashes: Any = "-" if name == "tied" else (0, (1.5, 1.5))
        style = _mark(look, name == "tied") | {"linestyle": dashes, "label": f"{name} output"}
        ax.plot(places + aside, mean, markersize=5, linewidth=1, zorder=3, **style)
        error = np.abs(rows[[f"{name}_low", f"{name}_high"]].to_numpy().T - mean)
        ax.errorbar(places + aside, mean, error, fmt="none", ecolor=look.colour, elinewidth=0.9,
                    capsize=2)  # fmt: skip
        if floor.any():
            ax.plot(places[floor] + aside, mean[floor], marker="s", markersize=11, color="0.8",
                    linestyle="none", zorder=1, label="an arm above the unigram loss")  # fmt: skip
    widen(ax, pd.concat([rows["tied"], rows["untied"]]))
    factors = {setting.partition("=")[0] for setting in rows["within"]}
    if len(factors) == 1 and "," not in "".join(rows["within"]):
        names = [setting.partition("=")[2] for setting in rows["within"]]
        ax.set_xlabel(factors.pop().replace("_", " "))
    else:
        names = [in_lines(setting) for setting in rows["within"]]
    ax.set_xticks(places, names)
    ax.set_xlim(-0.5, len(rows) - 0.5)
    ax.set_ylabel("Δ validation loss (nats)")
    return ax


def _mark(look: Variant, filled: bool) -> dict[str, Any]:
    return {
        "color": look.colour,
        "marker": look.marker,
        "markeredgecolor": look.colour,
        "markerfacecolor": look.colour if filled else "white",
    }
