"""What a run's training loss says of stability, from the first step on: its largest rise, in nats
and relative to its own batch noise; how long its plateau is; and, by a plan's definition, whether
the run is unstable, and whether that did harm. While it trains: what is warned of."""

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from lib.config.plan import Instability, Noise, Plan
from lib.config.yaml import Json
from lib.results import largest_rise
from lib.stats.paired import Floats


def rule_of(plan: Plan | None) -> Instability:
    """Return the plan's definition; one by which no run is unstable without a plan, or where the
    plan has none."""
    return (plan.instability if plan else None) or Instability()


def batch_noise(loss: ArrayLike, window: int) -> Floats:
    """Estimate the standard deviation (steps,) of a batch's loss, in nats, before each step of a
    finite training loss (steps,); NaN of a run too short for it.

    It is 1.4826 times the median absolute deviation (Hampel 1974) of the last `window` differences
    between neighbours, over √2, as a difference has the noise of two. The loss's own fall moves it
    little, and a spike less. The first steps have that of the first window.
    """
    from scipy.stats import median_abs_deviation

    values = np.asarray(loss, dtype=float)
    differences = np.diff(values)
    n = min(window, len(differences))
    if n < 10:
        return np.full(len(values), np.nan)
    windows = sliding_window_view(differences, n)
    spread = median_abs_deviation(windows, axis=1, scale="normal") / np.sqrt(2)
    before = np.maximum(0, np.arange(len(values)) - n - 1)
    return np.asarray(spread[before])


def transients(loss: ArrayLike, rule: Instability) -> NDArray[np.bool_]:
    """Return for each step of a finite training loss (steps,) whether it is further above the
    running minimum than a definition allows, in nats or in multiples of its noise before; for none
    without a definition, or where the run is too short for noise."""
    values = np.asarray(loss, dtype=float)
    rises = values - np.minimum.accumulate(values)
    if rule.noise:
        return np.asarray(rises > rule.noise.times * batch_noise(values, rule.noise.window))
    return np.asarray(rises > (rule.rise or np.inf))


def plateau(loss: ArrayLike, below: float) -> int:
    """Count the steps until the mean of the last five training losses (steps,) is below `below`
    nats; all steps where it never is."""
    means = pd.Series(np.asarray(loss, dtype=float)).rolling(5).mean()
    steps_below = np.flatnonzero(means < below)
    return int(steps_below[0]) + 1 if len(steps_below) else len(means)


def judge_run(loss: ArrayLike, rule: Instability, entropy: float, *, diverged: bool) -> Json:
    """Judge one run by its training loss (steps,), in nats.

    `severity` is its largest rise; `plateau` as `plateau` says; `transient`: a rise is more than
    the rule allows; `collapsed`: such a run whose last steps are above `entropy`, the training
    text's without context; `untrained`: a run that ends there without a transient; `unstable`:
    diverged, transient or collapsed.
    """
    values = np.asarray(loss, dtype=float)
    finite = values[np.isfinite(values)]
    transient = bool(transients(finite, rule).any())
    above = bool(values[-(rule.last or 10) :].mean() > entropy)
    return {
        "severity": largest_rise(finite),
        "plateau": plateau(values, rule.plateau.below),
        "transient": transient,
        "collapsed": transient and above,
        "untrained": above and not transient and not diverged,
        "diverged": diverged,
        "unstable": diverged or transient,
    }


def judge_runs(runs: pd.DataFrame, trace: pd.DataFrame, plan: Plan | None) -> pd.DataFrame:
    """Judge every run of the tidy table by its trace: arm, seed, what `judge_run` says, and
    `judged`: no run where the plan has no definition, and not the runs of an arm whose mean first
    loss is more than `start` above ln V; their `unstable` is NaN.

    `harmful` is 1 where a run diverged, or its loss is above the median of its arm's by more than
    the plan's smallest effect of interest after a plateau longer than the plan's longest, else 0;
    NaN where the plan has no such effect.
    """
    rule = rule_of(plan)
    losses = trace.groupby(["arm", "seed"])["loss"]
    rows = []
    for run in runs.to_dict("records"):
        loss = losses.get_group((run["arm"], run["seed"])).to_numpy()
        diverged = run["status"] == "diverged"
        judgement = judge_run(loss, rule, run["unigram_entropy"], diverged=diverged)
        height = loss[0] - run["uniform_loss"]
        rows.append({"arm": run["arm"], "seed": run["seed"], "height": height} | judgement)
    table = pd.DataFrame(rows, runs.index)
    high = table.groupby("arm")["height"].transform("mean") > (rule.start or np.inf)
    table["judged"] = ~high & rule.is_defined
    table["unstable"] = table["unstable"].astype(float).where(table["judged"])
    excess = runs["loss"] - runs.groupby("arm")["loss"].transform("median")
    smallest = plan.smallest_effect_of_interest.get("loss", np.nan) if plan else np.nan
    late = table["plateau"] > rule.plateau.longest
    harmful = (table["diverged"] | (late & (excess > smallest))).astype(float)
    return table.drop(columns="height").assign(harmful=harmful if smallest > 0 else np.nan)


def with_stability(runs: pd.DataFrame, stability: pd.DataFrame) -> pd.DataFrame:
    """Add to the tidy table what `judge_runs` says: `unstable` and `harmful` (0 or 1; NaN where it
    is not judged), and `severity` and `plateau` (NaN of a diverged run, as all its other
    measures)."""
    of_completed = stability[["severity", "plateau"]].where(runs["status"] == "completed")
    return runs.assign(**stability[["unstable", "harmful"]], **of_completed)


def share_interval(count: int, n: int, alpha: float) -> tuple[float, float]:
    """Return the exact 1 - alpha interval for a share, `count` of n (Clopper & Pearson 1934); NaN
    of none."""
    from scipy.stats import binomtest

    if n == 0:
        return np.nan, np.nan
    interval = binomtest(count, n).proportion_ci(1 - alpha, method="exact")
    return float(interval.low), float(interval.high)


def stability_map(runs: pd.DataFrame, stability: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """Return one row per arm: its variant and setting, n, how many runs are judged and of these
    unstable, their share with its exact 1 - alpha interval, how many runs have a transient,
    collapsed, are untrained, diverged or harmful, median and largest severity (nats), and median
    and longest plateau (steps)."""
    kinds = ("transient", "collapsed", "untrained", "diverged", "harmful")
    known = [kind for kind in kinds if stability[kind].notna().all()]
    table = (
        stability.assign(variant=runs["variant"], setting=runs["setting"])
        .groupby(["arm", "variant", "setting"], sort=False)
        .agg(
            n=("seed", "size"),
            judged=("judged", "sum"),
            unstable=("unstable", "sum"),
            share=("unstable", "mean"),
            **{f"{kind}_runs": (kind, "sum") for kind in known},
            median_severity=("severity", "median"),
            severity=("severity", "max"),
            median_plateau=("plateau", "median"),
            plateau=("plateau", "max"),
        )
        .reset_index()
        .astype(dict.fromkeys(["unstable", *(f"{kind}_runs" for kind in known)], int))
    )
    counts = zip(table["unstable"], table["judged"], strict=True)
    table[["low", "high"]] = [share_interval(count, n, alpha) for count, n in counts]
    return table


def training_warnings(steps: pd.DataFrame, rule: Instability) -> dict[str, str]:
    """Find what goes wrong in the steps of a run: by kind, the first step where
    its loss or gradient is not finite, where its loss is further above its lowest so far than the
    rule allows (12 times its noise, where no plan has a rule), and where its gradient norm is ten
    times the median of the last 50."""
    rule = rule if rule.is_defined else Instability(noise=Noise())
    loss, norm = steps["loss"], steps["grad_norm"]  # a step that fp16 skipped has no norm
    finite = np.isfinite(loss) & ~np.isinf(norm)
    above = loss - loss.cummin()
    of_batches = loss[np.isfinite(loss)]
    risen = pd.Series(transients(of_batches, rule), of_batches.index)
    norms = norm[np.isfinite(norm)]
    times = (norms / norms.rolling(50).median().shift()).reindex(steps.index)
    texts = {
        "finite": "its loss or gradient is not finite",
        "rise": "its loss is {loss:.2f}, {above:.2f} nats above its lowest so far",
        "norm": "its gradient norm is {grad_norm:.3g}, {times:.0f} times the usual",
    }
    found = {
        "finite": ~finite,
        "rise": finite & risen.reindex(steps.index, fill_value=False),
        "norm": times > 10,
    }
    steps = steps.assign(above=above, times=times)
    messages = {}
    for kind, where in found.items():
        if where.any():
            first = steps[where].iloc[0]
            messages[kind] = f"{texts[kind].format(**first)} at step {first['step']:.0f}"
    return messages
