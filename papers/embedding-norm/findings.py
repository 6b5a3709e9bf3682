# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,-all
#     formats: ipynb,py:percent
#     notebook_metadata_filter: kernelspec,jupytext,-jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Findings
# What only this paper asks of its recorded studies. Everything is computed here, from the results
# and raw files in `record/`, and written to `findings.json`, which `paper.md` quotes, and to
# `figures/findings/`. `./run_all.sh paper` executes this notebook; `verify` does so once more and
# compares. Differences are paired over seeds; intervals are *t* intervals unless said
# otherwise, and nothing here is a planned test.

# %%
import sys

sys.path += ["../.."]

# %%
import re
from itertools import product
from math import inf, isfinite
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import display
from scipy import stats

from lib.analysis.effects import (
    course_table,
    paired_rows,
    pooled_contrasts,
    ratio_interval,
    seed_differences,
    token_ratios,
)
from lib.analysis.paired import t_test
from lib.analysis.runs import other_settings, own_baselines, available_measures
from lib.analysis.stability import stability_map
from lib.analysis.tables import mean_and_sd, readable
from lib.figures.effects import (
    by_level,
    count_lost,
    differences,
    factor_axis,
    interaction,
    mark,
)
from lib.figures.style import facets, line, variant, variants
from lib.figures.training import LABELS, difference, reference_lines, trend
from lib.publish.findings import RecordedStudy, recorded
from lib.record.archive import Record
from lib.study.study import arm_id
from lib.study.yaml import read_yaml
from lib.study.metrics import ACCURACIES, MAIN, MEASURES, measures_in
from lib.results import largest_rise
from lib.study.io import write_json
from lib.results import json_rows

FIGURES = Path("figures/findings")
found = {}


def keep(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """Keep a table for the paper, and show it."""
    found[name] = json_rows(table)
    return readable(table, 4)


main, dose, tied = recorded("confirmatory-2"), recorded("dose"), recorded("tied")

# %% [markdown]
# ## The identity in one figure
# Dev loss, and its difference from no layer, over the steps of `confirmatory-2`. A point is a seed
# at the last step. Lines that end nearer to each other than a line is wide share a label. Look for
# two bundles: the variants that train alike, and `rescued` on the line of no layer.

# %%
CALLED = {"none": "no layer", "scale": "multiplier"}
LINE_WIDTH, LINE_HEIGHT = line(variant("none"))["linewidth"], 9  # points


def bundles(ends: dict[str, float], nearer: float) -> list[list[str]]:
    """Put together the variants whose lines end nearer than `nearer` to the one below, from the
    lowest up; within a bundle as in `ends`."""
    found, last = [], -inf
    for name in sorted(ends, key=ends.__getitem__):
        if ends[name] - last >= nearer:
            found.append([])
        found[-1].append(name)
        last = ends[name]
    return [sorted(names, key=list(ends).index) for names in found]


def label_ends(ends: dict[str, float], ax, x: float) -> None:
    """Name lines at `x`, in widths of the axis, no name over another."""
    (_, low), (_, high) = ax.transData.transform([(0, y) for y in ax.get_ylim()])
    per_point = np.ptp(ax.get_ylim()) / (high - low) * ax.figure.dpi / 72
    free_above = -inf
    for names in bundles(ends, LINE_WIDTH * per_point):
        half = len(names) * LINE_HEIGHT * per_point / 2
        place = max(np.mean([ends[name] for name in names]), free_above + half)
        colour = variant(names[0]).colour if len(names) == 1 else "black"
        text = " =\n".join(CALLED.get(name, variant(name).label) for name in names)
        ax.text(x, place, text, transform=ax.get_yaxis_transform(), va="center", color=colour,
                fontsize=7.5, linespacing=1.1)  # fmt: skip
        free_above = place + half


def seeds_at_end(curves: pd.DataFrame, y: str, ax) -> None:
    """Draw a point per seed at the last step, and name the lines that end there."""
    last = curves[curves["step"] == curves["step"].max()]
    across, place = ax.get_yaxis_transform(), 1.0
    for look, part in variants(last):
        place += 0.02
        ax.scatter([place] * len(part), part[y], s=5, color=look.colour, linewidth=0, clip_on=False,
                   transform=across)  # fmt: skip
    label_ends(last.groupby("variant", sort=False)[y].mean().to_dict(), ax, place + 0.03)


def opening(study: RecordedStudy, left, right) -> None:
    """Draw the dev loss, and its difference from no layer with the same seed."""
    columns = ["arm", "seed", "variant", "baseline", "unigram_loss", "bigram_loss"]
    curves = study.record.joined("curve").merge(study.runs[columns])
    trend(curves, "dev_loss", left)
    difference(curves, "dev_loss", right)
    reference_lines(curves, left)
    own = curves[curves["arm"] == curves["baseline"]].set_index(["seed", "step"])["dev_loss"]
    at = pd.MultiIndex.from_frame(curves[["seed", "step"]])
    apart = curves.assign(dev_loss=curves["dev_loss"] - own.reindex(at).to_numpy())
    for ax, part in ((left, curves), (right, apart)):
        ax.get_legend().remove()
        for drawn in ax.get_lines():
            drawn.set_label("_")
        ax.set_xlim(0, part["step"].max())
        seeds_at_end(part, "dev_loss", ax)
    right.set_ylabel(f"Δ {LABELS['dev_loss']}")


with facets("opening", FIGURES, ["loss", "difference"], [""], height=2.1) as axes:
    opening(main, axes["loss", ""], axes["difference", ""])

# %% [markdown]
# ## Which step accounts for how much
# LayerNorm is reached from the bare embeddings in three steps, each of which a variant takes: a
# fixed scale, normalization to that scale with a gain, and centring with a bias. Their differences
# add up to the whole. The share of the whole has Fieller's interval; it has none where the whole is
# not told from zero. Look for a step that accounts for all of it.

# %%
STEPS = {
    "fixed scale": ("scale", "none"),
    "normalization and gain": ("rmsnorm", "scale"),
    "centring and bias": ("layernorm", "rmsnorm"),
}


def step_shares(study: RecordedStudy, measures: list[str]) -> pd.DataFrame:
    """The effect of each step in each measure, and its share of LayerNorm's whole effect; a seed
    that diverged in one variant is left out of all."""
    rows = []
    for measure in measures:
        values = study.runs.pivot(index="seed", columns="variant", values=measure)
        values = values[["none", "scale", "rmsnorm", "layernorm"]].dropna()
        whole = values["layernorm"] - values["none"]
        for step, (with_it, without) in STEPS.items():
            effect = values[with_it] - values[without]
            low, high = ratio_interval(effect, whole, study.alpha)
            rows.append(
                {"ingredient": step, "contrast": f"{with_it} - {without}", "measure": measure}
                | {"n": len(values), "effect": effect.mean(), "whole": whole.mean()}
                | {"share": effect.mean() / whole.mean(), "low": low, "high": high}
            )
    return pd.DataFrame(rows)


keep("mechanism", step_shares(main, available_measures(measures_in("mechanism"), main.runs)))

# %% [markdown]
# ## Dose and response
# Every reader of the stream normalizes it, so its length counts only relative to what the branches
# add: multiplying the embeddings by *s* is dividing every branch by *s*. So each arm is placed by
# the initial RMS of its stream, divided by the multiplier of its branches. Look for one curve,
# whatever layer sets the length.


# %%
def streams(study: RecordedStudy) -> pd.DataFrame:
    """The arms whose layer sets the stream's initial RMS, each with that RMS."""
    rows = []
    for arm in study.design.arms():
        model = arm.config.model
        if arm.id != arm.baseline and model.embedding_norm in ("layernorm", "rmsnorm", "scale"):
            rows.append(
                {"arm": arm.id, "baseline": arm.baseline, "layer": model.embedding_norm}
                | {"rms": model.embedding_rms, "branch_multiplier": model.branch_multiplier}
                | {"relative_rms": model.embedding_rms / model.branch_multiplier}
            )
    return pd.DataFrame(rows)


response = paired_rows(streams(dose), dose.runs, "loss", dose.alpha).sort_values(
    ["layer", "relative_rms"], ignore_index=True
)
keep("dose", response)

# %% [markdown]
# Normalization proper is what RMSNorm does beyond a multiplier that starts the stream alike: their
# difference in loss (nats), at each length. Look for intervals without zero.


# %%
def layers_apart(study: RecordedStudy) -> pd.DataFrame:
    """RMSNorm - multiplier in loss, where both start the stream alike."""
    keys = ["rms", "branch_multiplier", "relative_rms"]
    rms, scale = (streams(study).query("layer == @name") for name in ("rmsnorm", "scale"))
    pairs = rms[["arm", *keys]].merge(scale[["arm", *keys]].rename(columns={"arm": "baseline"}))
    table = paired_rows(pairs, study.runs, "loss", study.alpha)
    return table.assign(study=study.design.name).sort_values("relative_rms", ignore_index=True)


keep("layers_apart", pd.concat([layers_apart(main), layers_apart(dose)], ignore_index=True))


# %%
def dose_response(table, runs, ax):
    """The difference in loss to no layer against the initial RMS of the stream relative to its
    branches, a point per seed beside it; hollow, arms whose branches are multiplied too."""
    ax.axhline(0, color="0.5", linewidth=0.8)
    for i, (layer, part) in enumerate(table.groupby("layer", sort=False)):
        look, multiplied = variant(layer), part["branch_multiplier"] != 1
        label = "no layer" if layer == "none" else look.label
        for rows, name in ((part[~multiplied], label), (part[multiplied], f"{label}, rescued")):
            if len(rows):
                x, mean = rows["relative_rms"] * 1.1 ** (i - 2), rows["mean_delta"]
                style = line(look) | mark(look, rows["branch_multiplier"].iloc[0] == 1)
                style |= {"label": name, "linewidth": 1, "markersize": 4.5, "zorder": 3}
                ax.plot(x, mean, **style)
                error = np.abs(rows[["t_low", "t_high"]].to_numpy().T - mean.to_numpy())
                ax.errorbar(x, mean, error, fmt="none", ecolor=look.colour, elinewidth=0.9,
                            capsize=2)  # fmt: skip
                for place, row in zip(x, rows.to_dict("records"), strict=True):
                    if layer != "none":
                        seeds = seed_differences(runs, "loss", row["arm"], row["baseline"])
                        ax.scatter([place * 1.05] * len(seeds), seeds, s=4, color=look.colour,
                                   alpha=0.6, linewidth=0, zorder=2)  # fmt: skip
    ax.set_xscale("log")
    values = sorted(set(table["relative_rms"].round(4)))
    apart = [x for x, before in zip(values, [0.0, *values], strict=False) if x > 1.2 * before]
    ax.set_xticks(apart, [f"{x:.2g}" for x in apart])
    ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    ax.set_xlabel("initial RMS of the stream, relative to its branches")
    ax.set_ylabel("Δ validation loss (nats)")


curve, bare = dose.record.joined("curve"), response["baseline"].iloc[0]
start = curve[(curve["step"] == 0) & (curve["arm"] == bare)]["embedding_norm"].mean()
width = dose.design.arm(bare).config.model.n_embd
none = {"layer": "none", "relative_rms": start / width**0.5, "branch_multiplier": 1.0}
placed = pd.concat([pd.DataFrame([none | {"mean_delta": 0.0}]), response], ignore_index=True)
with facets("dose", FIGURES, ["dose"], [""], height=2.4) as axes:
    dose_response(placed, dose.runs, axes["dose", ""])

# %% [markdown]
# ## Tied output
# The effect on the loss (nats) with a tied and with an untied output, and the difference of the
# two. Arms named at the right end, on average, above the loss of a unigram model: their differences
# say little.


# %%
def tied_effects(study: RecordedStudy) -> pd.DataFrame:
    """A row per variant and setting of the other factors."""
    rows = []
    runs = study.runs.assign(within=other_settings(study.runs, study.design, "model.tied"))
    for within, part in runs.groupby("within", sort=False):
        losses, floor = part.groupby("arm")["loss"].mean(), part["unigram_loss"].mean()
        arms = part.drop_duplicates("arm").set_index(["variant", "model.tied"])
        for name in list(dict.fromkeys(part["variant"]))[1:]:
            pairs = [arms.loc[(name, tied), ["arm", "baseline"]].tolist() for tied in (True, False)]
            deltas = [seed_differences(part, "loss", *pair) for pair in pairs]
            row = {"variant": name, "within": within}
            for key, values in zip(
                ("tied", "untied", "difference"), [*deltas, deltas[0] - deltas[1]], strict=True
            ):
                test = t_test(values.dropna(), study.alpha)
                row |= {key: test.mean_delta, f"{key}_low": test.t_low, f"{key}_high": test.t_high}
                row["n"] = test.n
            high = [arm for pair in pairs for arm in reversed(pair) if losses[arm] > floor]
            rows.append(row | {"below_floor": ", ".join(high)})
    return pd.DataFrame(rows)


keep("tied", tied_effects(tied))

# %% [markdown]
# ## The course of smoothness
# The difference in the cosine between the gradients of two parts of dev, at each evaluation. Look
# for when its sign turns.

# %%
cosine = course_table(
    own_baselines(main.runs), main.record.joined("curve"), "gradient_cosine", main.alpha
)
keep("cosine_course", cosine)

# %% [markdown]
# ## Rates of one's own
# The rate with the lowest mean final dev loss, per variant of `tuning`: a run that diverged or
# collapsed counts as its initial loss. Look whether the grid brackets it. The runs that choose a
# rate cannot report at it: that takes other seeds. Of `recipe` the rate and the schedule, by the
# rule that the plan `trained` states: of means within 0.005 nats the lowest rate. `recipe-check`
# asks in one seed and more steps what the best of its neighbouring rates gains.

# %%
RATE = "training.learning_rate"
FACTS = ["transient", "collapsed", "diverged"]


def final_losses(study: RecordedStudy) -> pd.DataFrame:
    """Each run with its final dev loss (nats) as it counts."""
    ends = study.record.joined("curve").sort_values("step").groupby(["arm", "seed"])["dev_loss"]
    ends = ends.agg(initial="first", final="last").reset_index()
    stability = pd.DataFrame(study.verdict["stability"])[["arm", "seed", *FACTS]]
    runs = study.runs.drop(columns=["unstable"]).merge(ends).merge(stability)
    failed = runs["diverged"] | runs["collapsed"]
    return runs.assign(counted=runs["final"].mask(failed, runs["initial"]))


def best_rates(losses: pd.DataFrame, settings=(RATE,), tie: float = 0.0) -> pd.DataFrame:
    """Per variant the settings with the lowest mean final dev loss, and what the runs at them did.
    Of means within `tie` nats of the lowest, those with the lowest rate."""
    cells = losses.groupby(["variant", *settings], sort=False)
    rates = cells.agg(
        n=("seed", "size"), dev_loss=("counted", "mean"), **{f"{x}_runs": (x, "sum") for x in FACTS}
    ).reset_index()
    lowest = rates.groupby("variant", sort=False)["dev_loss"].transform("min")
    tied = rates[rates["dev_loss"] <= lowest + tie]
    best = tied.loc[tied.groupby("variant", sort=False)[RATE].idxmin()]
    inside = best[RATE].between(rates[RATE].min(), rates[RATE].max(), inclusive="neither")
    return best.rename(columns={RATE: "best_rate"}).assign(bracketed=inside)


tuning = recorded("tuning")
losses = final_losses(tuning)
best = best_rates(losses)
keep("best_rates", best)

recipe = recorded("recipe")
RATIO = "training.final_learning_rate_ratio"
chosen = best_rates(final_losses(recipe), (RATE, RATIO), tie=0.005)
keep("best_recipes", chosen.rename(columns={RATIO: "final_ratio"}))

check = final_losses(recorded("recipe-check")).merge(chosen[["variant", "best_rate"]])
is_best = check[RATE] == check["best_rate"]
at_best = check[is_best].groupby("variant", sort=False)["counted"].min()
beside = check[~is_best].groupby("variant", sort=False)["counted"].min()
losses_at = {"dev_loss": at_best, "neighbours": beside, "gain": at_best - beside}
keep("recipe_check", pd.DataFrame(losses_at).reset_index())


# %%
def tuning_curves(losses, best, levels, ax):
    """The final dev loss against the rate: a line through the means, a star at the chosen rate
    (hollow: at the edge of the grid), a mark per run, hollow after a transient. A run that
    collapsed or diverged is a cross at the top."""
    for (look, aside, part), row in zip(
        by_level(losses, RATE, levels), best.to_dict("records"), strict=True
    ):
        means = part.groupby("place")["counted"].mean()
        ax.plot(means.index + aside, means, **line(look) | {"linewidth": 1})
        failed = part["collapsed"] | part["diverged"]
        for rows, face in (
            (part[part["transient"] & ~failed], "white"),
            (part[~part["transient"] & ~failed], look.colour),
        ):
            ax.scatter(rows["place"] + aside, rows["counted"], s=13, marker=look.marker,
                       edgecolor=look.colour, facecolor=face, zorder=3)  # fmt: skip
        lost = failed.groupby(part["place"]).sum()
        count_lost(ax, lost.index + aside, lost, look)
        chosen = levels.index(row["best_rate"])
        ax.plot(chosen + aside, means[chosen], marker="*", markersize=11, markeredgecolor="black",
                markerfacecolor=look.colour if row["bracketed"] else "white", linestyle="none",
                markeredgewidth=0.7, zorder=4)  # fmt: skip
    ended = losses.loc[~(losses["collapsed"] | losses["diverged"]), "counted"]
    room = 0.1 * np.ptp(ended)
    ax.set_ylim(ended.min() - room, ended.max() + 2 * room)
    ax.set_ylabel("final dev loss (nats)")
    factor_axis(RATE, levels, ax)


rates = tuning.design.factors[RATE]
pairs = losses.drop_duplicates("arm").query("arm != baseline")[["arm", "baseline", "variant", RATE]]
deltas = paired_rows(pairs.reset_index(drop=True), tuning.runs, "loss", tuning.alpha)
deltas["n_dropped"] = len(tuning.design.seeds) - deltas["n"]
with facets("learning-rate", FIGURES, ["loss", "differences"], [""], height=2.2) as axes:
    tuning_curves(losses, best, rates, axes["loss", ""])
    differences(deltas, "loss", RATE, rates, axes["differences", ""])

# %% [markdown]
# ## A schedule in place of the layer
# The loss (nats) of `tuned` without the layer, which has warm-up and decay, less that of each arm
# of `turn` with it, at a high constant rate. The seeds are others, so nothing is paired: the
# intervals are Welch's. Look whether both lie below zero.


# %%
def schedule_instead(scheduled: RecordedStudy, constant: RecordedStudy) -> pd.DataFrame:
    """The loss without a layer in one study less that of each arm with LayerNorm in another."""
    bare = scheduled.runs.query("arm == baseline")["loss"]
    rows = []
    for arm, part in constant.runs.query("variant == 'layernorm'").groupby("arm", sort=False):
        apart = bare.mean() - part["loss"].mean()
        test = stats.ttest_ind(bare, part["loss"], equal_var=False)
        low, high = test.confidence_interval(1 - constant.alpha)
        rows.append({"arm": arm, "mean_delta": apart, "t_low": low, "t_high": high})
    return pd.DataFrame(rows)


keep("schedule", schedule_instead(recorded("tuned"), recorded("turn")))

# %% [markdown]
# ## Other definitions of instability
# The share of runs of `stability-confirm` that rise by more than 0.25, 0.5 and 1 nats above their
# running minimum, or diverge; and by more than the plan's rise when the first 64 steps are not
# looked at. Look whether the answer hangs on the definition.

# %%
RISES, EARLY = (0.25, 0.5, 1.0), 64


def thresholds(study: RecordedStudy) -> pd.DataFrame:
    """The share of unstable runs of each judged arm by each definition."""
    trace = {
        key: part["loss"].to_numpy()
        for key, part in study.record.joined("trace").groupby(["arm", "seed"])
    }
    rows = []
    for run in study.verdict["stability"]:
        if run["judged"]:
            loss = trace[run["arm"], run["seed"]]
            rises = {f"rise_{rise:g}": largest_rise(loss) > rise for rise in RISES}
            late = largest_rise(loss[EARLY:]) > (study.plan.instability.rise or inf)
            row = {name: run["diverged"] or high for name, high in rises.items()}
            row[f"after_step_{EARLY}"] = late or (run["diverged"] and len(loss) > EARLY)
            rows.append({"arm": run["arm"]} | row)
    arms = pd.DataFrame(rows).groupby("arm", sort=False)
    return arms.mean().reset_index().assign(n=arms.size().to_numpy())


confirm = recorded("stability-confirm")
keep("thresholds", thresholds(confirm))

# %% [markdown]
# ## Stability against quality
# Share of unstable runs of each arm with its exact interval, the median of their largest rises
# (nats), and the means of what it costs. In the figure, down is calmer; a thin line leads from the
# baseline to the other arms.

# %%
judged = stability_map(confirm.runs, pd.DataFrame(confirm.verdict["stability"]), confirm.alpha)
quality = available_measures([MAIN, *ACCURACIES[1:]], confirm.runs)
means = confirm.runs.groupby("arm", sort=False)[quality].mean()
columns = ["arm", "variant", "n", "judged", "unstable", "share", "low", "high", "median_severity"]
trade_off = judged[columns].join(means, on="arm")
keep("trade_off", trade_off)

# %%
with facets("trade-off", FIGURES, quality, [""], height=2.2) as axes:
    for (measure, _), ax in axes.items():
        for x, y in zip(trade_off[measure][1:], trade_off["share"][1:], strict=True):
            ax.plot([trade_off[measure][0], x], [trade_off["share"][0], y], color="0.75",
                    linewidth=0.7, zorder=1)  # fmt: skip
        for look, row in variants(trade_off):
            error = np.abs(row[["low", "high"]].to_numpy().T - row["share"].to_numpy())
            ax.errorbar(row[measure], row["share"], error, capsize=2, linestyle="none",
                        label=look.label, **mark(look, True))  # fmt: skip
        ax.set(xlabel=MEASURES[measure].title, ylabel="share of runs unstable")

# %% [markdown]
# ## Tokens and budgets
# At a constant rate every point of a dev curve is the end of a shorter budget. First the tokens
# needed for the loss that both reach, relative to the baseline's (below 1: the arm saves tokens);
# then the difference in dev loss (nats) at shorter budgets.

# %%
BUDGETS = (100, 150, 300, 600, 1000, 2000)
curve = main.record.joined("curve")
budgets = course_table(
    own_baselines(main.runs), curve[curve["step"].isin(BUDGETS)], "dev_loss", main.alpha
)
display(keep("token_ratios", token_ratios(main.runs, curve, main.alpha)))
keep("budgets", budgets)

# %% [markdown]
# The same over the course of `horizon-2`, whose rate warms up for 200 steps and decays over 2,000.
# Look whether the difference is smaller than in `tuned` at the end only, or at step 300 already.

# %%
longer = recorded("horizon-2")
curve = longer.record.joined("curve")
of_budgets = curve[curve["step"].isin(BUDGETS)]
keep("longer", course_table(own_baselines(longer.runs), of_budgets, "dev_loss", longer.alpha))

# %% [markdown]
# ## Above the source of a text
# On the generated text of `texts`: how many nats the loss lies above that of the text's own source.


# %%
def above_source(study: RecordedStudy) -> pd.DataFrame:
    """Mean nats above the source, per arm, with the interval of one sample."""
    rows = []
    for arm, part in study.runs.groupby("arm", sort=False):
        test = t_test((part["loss"] - part["source_loss"]).dropna(), study.alpha)
        rows.append(
            {"arm": arm, "variant": part["variant"].iloc[0], "setting": part["setting"].iloc[0]}
            | {"n": test.n, "nats_above_source": test.mean_delta}
            | {"t_low": test.t_low, "t_high": test.t_high}
        )
    return pd.DataFrame(rows)


keep("above_source", above_source(recorded("texts")))

# %% [markdown]
# ## A ladder of widths
# The difference in loss (nats) by width, at equal rates and with each side at its own best. The
# runs that choose a rate are those reported at it, which flatters both sides. Widths differ in
# steps, too.

# %%
WIDTH, BEST = "model.n_embd", "each at its own best rate"


def ladder_effects(study: RecordedStudy) -> pd.DataFrame:
    """A row per variant, rate (the last: each its own best) and width; a rate at which a run
    diverged is not taken as the best."""
    mean = study.runs.groupby("arm")["loss"].agg(lambda values: values.mean(skipna=False))
    first_rows = study.runs.drop_duplicates("arm")
    arms = first_rows.set_index(["variant", WIDTH, RATE])["arm"].to_dict()
    first, *others = dict.fromkeys(study.runs["variant"])
    rates = study.design.factors[RATE]

    def best(name, width):
        at = {rate: mean[arms[name, width, rate]] for rate in rates}
        return min(rates, key=lambda rate: at[rate] if isfinite(at[rate]) else inf)

    rows = []
    for name, rate, width in product(others, [*rates, None], study.design.factors[WIDTH]):
        own, of_first = (rate or best(each, width) for each in (name, first))
        rows.append(
            {"arm": arms[name, width, own], "baseline": arms[first, width, of_first]}
            | {"variant": name, "rate": arm_id({RATE: rate}) if rate else BEST, WIDTH: width}
            | {"own_rate": own, "rate_of_first": of_first}
        )
    table = paired_rows(pd.DataFrame(rows), study.runs, "loss", study.alpha)
    return table.assign(n_dropped=len(study.design.seeds) - table["n"])


ladder = recorded("ladder")
by_width = ladder_effects(ladder)
keep("ladder", by_width)

# %%
panels = list(dict.fromkeys(by_width["rate"]))
with facets("ladder", FIGURES, ["loss"], panels, height=2.2) as axes:
    for (_, rate), ax in axes.items():
        part = by_width[by_width["rate"] == rate]
        differences(part, "loss", WIDTH, ladder.design.factors[WIDTH], ax)

# %% [markdown]
# ## A delay or a level
# What `when` shows, once it is recorded: the loss, and its difference from no layer, against the
# number of steps, each the end of its own decay. A point is a seed; grey is the margin of the plan,
# dashed the loss at which it calls a model trained. Look whether the difference reaches the grey.

# %%
BUDGET, TRAINED = "training.iterations", r"at most ([\d.]+) nats"


def budget_effects(study: RecordedStudy) -> pd.DataFrame:
    """The difference in loss to no layer: a row per variant and number of steps."""
    arms = study.runs.drop_duplicates("arm").query("arm != baseline")
    pairs = arms[["arm", "baseline", "variant", BUDGET]].reset_index(drop=True)
    table = paired_rows(pairs, study.runs, "loss", study.alpha)
    return table.assign(n_dropped=len(study.design.seeds) - table["n"])


def trained_at_most(plan) -> float:
    """The baseline's loss (nats) at which the plan calls a model trained."""
    return float(re.search(TRAINED, plan.procedures["trained"])[1])


def loss_by_budget(study: RecordedStudy, levels, ax) -> None:
    """Draw the loss against the number of steps, of the variants that were run for each."""
    every = study.runs.groupby("variant")[BUDGET].transform("nunique") == len(levels)
    interaction(study.runs[every], "loss", BUDGET, levels, ax)
    known = study.runs[["bigram_loss"]].assign(step=0, dev_loss=study.runs["loss"])
    reference_lines(known, ax)
    ax.margins(y=0.12)  # room for their labels
    bar = trained_at_most(study.plan)
    ax.axhline(bar, color="0.35", linewidth=0.7, linestyle="--", zorder=1)
    ax.text(0.01, bar, "trained", transform=ax.get_yaxis_transform(), fontsize=7, va="bottom")


def effects_by_budget(table: pd.DataFrame, study: RecordedStudy, levels, ax) -> None:
    """Draw the difference to no layer with its interval, a point per seed beside it."""
    margin = study.plan.smallest_effect_of_interest["loss"]
    ax.axhspan(-margin, margin, color="0.9", linewidth=0, zorder=0)
    differences(table, "loss", BUDGET, levels, ax)
    for drawn in ax.lines:  # nothing is claimed of numbers of steps that were not run
        if drawn.get_marker() != "None" and len(drawn.get_xdata()) < len(levels):
            drawn.set_linestyle("none")
    for look, aside, part in by_level(table, BUDGET, levels):
        for row in part.to_dict("records"):
            seeds = seed_differences(study.runs, "loss", row["arm"], row["baseline"])
            ax.scatter([row["place"] + aside + 0.07] * len(seeds), seeds, s=5, color=look.colour,
                       alpha=0.7, linewidth=0)  # fmt: skip


def draw_budgets(study: RecordedStudy) -> pd.DataFrame:
    """Draw both panels; return what the right one shows."""
    table, levels = budget_effects(study), study.design.factors[BUDGET]
    with facets("when", FIGURES, ["loss", "differences"], [""], height=2.1) as axes:
        loss_by_budget(study, levels, axes["loss", ""])
        effects_by_budget(table, study, levels, axes["differences", ""])
        for ax in axes.values():
            ax.set_xlabel("steps")
    return table


if Record("when").verdict_file.is_file():
    display(keep("when", draw_budgets(recorded("when"))))

# %% [markdown]
# ## What the layer reads, and how positions come in
# What `where` shows, once it is recorded: the difference in loss (nats) to no layer where the layer
# reads the sum of tokens and learned positions, the tokens alone, or tokens whose positions come in
# by rotation. Then what the layer adds to the loss elsewhere, less what it adds on the sum, paired
# over seeds. Look whether that is below zero.


# %%
def place_effects(study: RecordedStudy) -> pd.DataFrame:
    """The difference in loss to no layer, a row per place: sum, token or rotary."""
    rows = []
    for arm in study.design.arms():
        if arm.id != arm.baseline:
            model = arm.config.model
            place = model.embedding_norm_on if model.positions == "learned" else model.positions
            rows.append({"place": place, "arm": arm.id, "baseline": arm.baseline})
    return paired_rows(pd.DataFrame(rows), study.runs, "loss", study.alpha)


def against_sum(effects: pd.DataFrame, study: RecordedStudy) -> pd.DataFrame:
    """What the layer adds to the loss at each other place, less what it adds on the sum."""
    added = {
        row["place"]: seed_differences(study.runs, "loss", row["arm"], row["baseline"])
        for row in effects.to_dict("records")
    }
    whole = added.pop("sum")
    tests = {place: t_test((each - whole).dropna(), study.alpha) for place, each in added.items()}
    return pd.DataFrame([{"place": place} | test._asdict() for place, test in tests.items()])


if Record("where").verdict_file.is_file():
    places = recorded("where")
    by_place = place_effects(places)
    display(keep("where", by_place), keep("where_apart", against_sum(by_place, places)))

# %% [markdown]
# ## Width or steps
# What `ladder-2` and `ladder-2-wide` show, once they are recorded: the difference in loss (nats) to
# no layer by width and number of steps, each arm at its best rate, chosen as above on the runs that
# report it. Then what the layer adds to the loss after most steps, less what it adds after fewest,
# paired over seeds. Look whether that is below zero at each width, and how many best rates the grid
# brackets.


# %%
def effects_at_best(study: RecordedStudy) -> pd.DataFrame:
    """The difference in loss to no layer, each arm at its best rate: a row per width and number of
    steps, with how many of the two rates lie inside the grid."""
    rows, losses = [], final_losses(study)
    widths = losses.get(WIDTH, study.design.model.n_embd)  # one, where it is no factor
    for (width, steps), part in losses.assign(**{WIDTH: widths}).groupby([WIDTH, BUDGET]):
        best = best_rates(part).set_index("variant")
        arms = part.drop_duplicates("arm").set_index(["variant", RATE])["arm"]
        arm, baseline = (arms[name, best["best_rate"][name]] for name in ("layernorm", "none"))
        inside = int(best["bracketed"].sum())
        rows.append({"width": width, "steps": steps, "arm": arm, "baseline": baseline}
                    | {"bracketed": inside})  # fmt: skip
    return paired_rows(pd.DataFrame(rows), study.runs, "loss", study.alpha)


def by_more_steps(effects: pd.DataFrame, study: RecordedStudy) -> pd.DataFrame:
    """What the layer adds to the loss after most steps, less what it adds after fewest: a row per
    width."""
    rows = []
    for width, part in effects.groupby("width"):
        pairs = part.sort_values("steps")[["arm", "baseline"]].to_numpy()
        few, many = (seed_differences(study.runs, "loss", *pairs[i]) for i in (0, -1))
        rows.append({"width": width} | t_test((many - few).dropna(), study.alpha)._asdict())
    return pd.DataFrame(rows)


crossed = [
    recorded(study)
    for study in ("ladder-2", "ladder-2-wide")
    if Record(study).verdict_file.is_file()
]
if crossed:
    by_cell = [effects_at_best(study) for study in crossed]
    display(keep("ladder_2", pd.concat(by_cell, ignore_index=True)))
    by_width = map(by_more_steps, by_cell, crossed)
    display(keep("ladder_2_steps", pd.concat(by_width, ignore_index=True)))

# %% [markdown]
# ## On a GPU
# What `final-gpu` and `modern-gpu` show, once they are recorded. `final-gpu` is `final` on another
# device: look how far two runs of an arm and a seed end apart. The model of `modern-gpu` overfits:
# what the layer adds to the dev loss where that is lowest in each run, and to the loss at the end.


# %%
def apart(one: RecordedStudy, other: RecordedStudy) -> pd.DataFrame:
    """How far (nats) two runs of one arm and seed end apart at most, in two studies."""
    both = one.runs.merge(other.runs, on=["arm", "seed"], suffixes=("", "_other"))
    return pd.DataFrame(
        [{"n": len(both), "greatest": (both["loss"] - both["loss_other"]).abs().max()}]
    )


def at_end_and_lowest(study: RecordedStudy, curves: pd.DataFrame) -> pd.DataFrame:
    """The difference to no layer in loss at the end, and in dev loss at the evaluation at which it
    is lowest in each run; then between which steps that was, and of no layer the mean dev loss
    there and the mean loss at the end, which is of all held-out text."""
    last = curves.loc[curves.groupby(["arm", "seed"])["step"].idxmax()]
    lowest = curves.loc[curves.groupby(["arm", "seed"])["dev_loss"].idxmin()]
    rows = []
    for at, points in {"end": last, "lowest": lowest}.items():
        runs = study.runs.merge(points[["arm", "seed", "step", "dev_loss"]])
        bare = runs.query("arm == baseline")[["dev_loss", "loss"]].mean()
        pairs = runs.query("arm != baseline")[["arm", "baseline"]].drop_duplicates()
        measure = "loss" if at == "end" else "dev_loss"
        row = paired_rows(pairs.reset_index(drop=True), runs, measure, study.alpha)
        row = row.assign(at=at, first=int(runs["step"].min()), last=int(runs["step"].max()))
        rows.append(row.assign(**bare))
    return pd.concat(rows, ignore_index=True)


if Record("final-gpu").verdict_file.is_file():
    display(keep("devices", apart(recorded("final"), recorded("final-gpu"))))
if Record("modern-gpu").verdict_file.is_file():
    larger = recorded("modern-gpu")
    display(keep("larger", at_end_and_lowest(larger, larger.record.joined("curve"))))

# %% [markdown]
# ## What the task suite says
# Of the studies after the second record that were asked it: the share of zero-shot questions that
# runs without the layer and with it answer right, task by task, and what answers the same questions
# without a network: a look at the choices alone, and counts of pairs of characters and of five.
# Then means over tasks. Look whether the models reach the counts.


# %%
def suite_tasks(study: RecordedStudy, baseline: str, layer: str) -> pd.DataFrame:
    """A row per task: questions, chance, what is reached without a network, and the mean share that
    the runs of two arms answer right."""
    rows = [
        {"arm": run["arm"]} | row for run in study.record.runs for row in run["tables"]["tasks"]
    ]
    zero_shot = pd.DataFrame(rows).query("shots == 0")
    right = zero_shot.groupby(["task", "arm"])["accuracy"].mean().unstack()
    by_arm = pd.DataFrame({"baseline": right[baseline], "layer": right[layer]})
    columns = ["task", "n", "chance", "choice_alone", "bigram", "five_gram"]
    return zero_shot[columns].drop_duplicates("task").merge(by_arm, on="task")


asked = {"trained": "{}", "turn-suite": "{},gradient_clip=none"}
by_task = [
    suite_tasks(recorded(study), arm.format("none"), arm.format("layernorm")).assign(study=study)
    for study, arm in asked.items()
    if Record(study).verdict_file.is_file()
]
display(keep("suite_tasks", pd.concat(by_task)))
keep("suite_means", pd.concat(by_task).groupby("study").mean(numeric_only=True).reset_index())

# %% [markdown]
# ## Beside the preliminary table
# Mean ± sd here and as reported; whether the mean here lies within two reported standard
# deviations; and whether the difference to the baseline has the reported sign.


# %%
def beside_reported(study: RecordedStudy, reported: dict) -> pd.DataFrame:
    """A row per setting, measure and variant."""
    rows = []
    for setting, (measure, content) in product(
        dict.fromkeys(study.runs["setting"]), reported["measures"].items()
    ):
        part, digits = study.runs[study.runs["setting"] == setting], MEASURES[measure].digits
        values = content["values"]
        here = {name: part.loc[part["variant"] == name, measure].dropna() for name in values}
        baseline = next(iter(here))
        for name, told in values.items():
            mean, sd = told["mean"], told.get("sd")
            said = f"{mean:.{digits}f}" + (f" ± {sd:.{digits}f}" if sd else "")
            within = same = "n/a"
            if sd:
                within = "yes" if abs(here[name].mean() - mean) <= 2 * sd else "no"
            if name != baseline:
                change = here[name].mean() - here[baseline].mean()
                same = "yes" if change * (mean - values[baseline]["mean"]) > 0 else "no"
            rows.append(
                {"setting": setting, "measure": measure, "variant": name}
                | {"here": mean_and_sd(here[name], digits), "reported": said}
                | {"within_two_sd": within, "same_direction": same}
            )
    return pd.DataFrame(rows)


pilot = recorded("pilot")
keep("reported", beside_reported(pilot, read_yaml(Path(pilot.record.paper, pilot.design.reported))))

# %% [markdown]
# ## One contrast over several studies
# Model, training and text are the same in these studies: their seeds tested together.

# %%
studies = {name: Record(name).runs for name in ("confirmatory-2", "confirmatory", "final")}
found["pooled"] = pooled_contrasts(studies, ["perplexity"])
readable(pd.DataFrame(found["pooled"]).astype({"studies": str}), 4)

# %%
write_json(Path("findings.json"), found)
print("findings.json:", *found)
