"""Judge the stability of runs by their training loss, from the first step on.

Two things are measured: the largest rise of the loss (the *severity*), in nats or in multiples of
the run's batch noise; and the *plateau*, the number of steps in which the loss stays high at the
start. A plan defines which rise makes a run unstable, and when a run counts as harmful.
`training_warnings` applies the same rule while a run trains.
"""

from functools import cache

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from lib.config.plan import Instability, Noise, Plan
from lib.config.yaml import Json
from lib.results import largest_rise
from lib.stats.paired import Floats


def rule_of(plan: Plan | None) -> Instability:
    """Return the plan's definition of instability. Without one, return a definition by which no run
    is unstable."""
    return (plan.instability if plan else None) or Instability()


def batch_noise(loss: ArrayLike, window: int) -> Floats:
    """Estimate the batch noise at each step (steps,): the standard deviation, in nats, of the
    losses of single batches in the steps before. `loss` is a finite training loss (steps,). All NaN
    for fewer than 11 steps.

    The estimate is 1.4826 times the median absolute deviation (Hampel 1974) of the last `window`
    differences between neighbouring losses, divided by √2 because a difference has the noise of two
    batches. Neither the fall of the loss nor a spike moves it much. The first steps have no full
    window before them, so they share the estimate of the first window.
    """
    from scipy.stats import median_abs_deviation

    values = np.asarray(loss, dtype=float)
    differences = np.diff(values)
    n = min(window, len(differences))
    if n < 10:
        return np.full(len(values), np.nan)
    windows = sliding_window_view(differences, n)
    spread = median_abs_deviation(windows, axis=1, scale="normal") / np.sqrt(2)
    # Window i ends with the loss of step i + n. Step t uses the window that ends with step t - 1.
    last_before = np.maximum(0, np.arange(len(values)) - n - 1)
    return np.asarray(spread[last_before])


def transients(loss: ArrayLike, rule: Instability) -> NDArray[np.bool_]:
    """For each step of a finite training loss (steps,), return whether the loss is further above
    its running minimum than the rule allows, in nats or in multiples of the `batch_noise`. All
    False if the rule sets no limit, or the run is too short to estimate noise."""
    values = np.asarray(loss, dtype=float)
    rises = values - np.minimum.accumulate(values)
    if rule.noise:
        return np.asarray(rises > rule.noise.times * batch_noise(values, rule.noise.window))
    return np.asarray(rises > (rule.rise or np.inf))


def plateau(loss: ArrayLike, below: float) -> int:
    """Count the steps until the mean of the last five training losses is below `below` nats; all
    steps if the mean never is. `loss` is a training loss (steps,)."""
    means = pd.Series(np.asarray(loss, dtype=float)).rolling(5).mean()
    steps_below = np.flatnonzero(means < below)
    return int(steps_below[0]) + 1 if len(steps_below) else len(means)


def judge_run(loss: ArrayLike, rule: Instability, entropy: float, *, diverged: bool) -> Json:
    """Judge one run by its training loss (steps,), in nats.

    - `severity`: the largest rise of the loss above its running minimum, in nats
    - `plateau`: the length of the plateau in steps
    - `transient`: whether some rise is larger than the rule allows
    - `collapsed`: whether the run has a transient and ends high
    - `untrained`: whether the run ends high without a transient
    - `unstable`: whether the run diverged or has a transient

    A run ends high if its mean loss in the last steps is above `entropy`, the unigram entropy of
    the training text in nats.
    """
    values = np.asarray(loss, dtype=float)
    finite = values[np.isfinite(values)]
    transient = bool(transients(finite, rule).any())
    last_steps = values[-(rule.last or 10) :]
    ends_high = bool(last_steps.mean() > entropy)
    return {
        "severity": largest_rise(finite),
        "plateau": plateau(values, rule.plateau.below),
        "transient": transient,
        "collapsed": transient and ends_high,
        "untrained": ends_high and not transient and not diverged,
        "diverged": diverged,
        "unstable": diverged or transient,
    }


def judge_runs(runs: pd.DataFrame, trace: pd.DataFrame, plan: Plan | None) -> pd.DataFrame:
    """Judge every run of the tidy table by its training loss. `trace` is the raw table of all runs.
    Return a row per run: arm, seed, the columns of `judge_run`, `judged` and `harmful`.

    `judged` is False, and `unstable` NaN, if the plan does not define instability, or if the run's
    arm starts high: its mean first loss is more than `rule.start` nats above ln V, the loss of a
    uniform guess.

    `harmful` is 1 if a run diverged. It is also 1 if the plateau is longer than the plan allows
    (`rule.plateau.longest`), and the final loss also exceeds the median of the arm by more than the
    smallest effect of interest. Otherwise it is 0. It is NaN if the plan has no smallest effect of
    interest for the loss.
    """
    rule = rule_of(plan)
    losses = trace.groupby(["arm", "seed"])["loss"]
    rows = []
    for run in runs.to_dict("records"):
        loss = losses.get_group((run["arm"], run["seed"])).to_numpy()
        diverged = run["status"] == "diverged"
        judgement = judge_run(loss, rule, run["unigram_entropy"], diverged=diverged)
        excess_at_start = loss[0] - run["uniform_loss"]
        key = {"arm": run["arm"], "seed": run["seed"], "excess_at_start": excess_at_start}
        rows.append(key | judgement)
    table = pd.DataFrame(rows, runs.index)
    of_arm = table.groupby("arm")["excess_at_start"].transform("mean")
    starts_high = of_arm > (rule.start or np.inf)
    table["judged"] = ~starts_high & rule.is_defined
    table["unstable"] = table["unstable"].astype(float).where(table["judged"])
    excess = runs["loss"] - runs.groupby("arm")["loss"].transform("median")
    smallest = plan.smallest_effect_of_interest.get("loss", np.nan) if plan else np.nan
    is_late = table["plateau"] > rule.plateau.longest
    harmful = (table["diverged"] | (is_late & (excess > smallest))).astype(float)
    table["harmful"] = harmful if smallest > 0 else np.nan
    return table.drop(columns="excess_at_start")


def with_stability(runs: pd.DataFrame, stability: pd.DataFrame) -> pd.DataFrame:
    """Add four columns of `judge_runs` to the tidy table: `unstable` and `harmful` (0 or 1; NaN if
    not judged), `severity` and `plateau` (like other measures, NaN if the run diverged)."""
    of_completed = stability[["severity", "plateau"]].where(runs["status"] == "completed")
    return runs.assign(**stability[["unstable", "harmful"]], **of_completed)


@cache  # most arms have the same few counts, and each takes milliseconds
def share_interval(count: int, n: int, alpha: float) -> tuple[float, float]:
    """Return the two ends of the exact 1 - alpha interval for the share `count` / n (Clopper &
    Pearson 1934); NaN if n = 0."""
    from scipy.stats import binomtest

    if n == 0:
        return np.nan, np.nan
    interval = binomtest(count, n).proportion_ci(1 - alpha, method="exact")
    return float(interval.low), float(interval.high)


def stability_map(runs: pd.DataFrame, stability: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """Return one row per arm, from the tidy table and that of `judge_runs`.

    Columns: arm, variant, setting; n, `judged` and `unstable` (how many runs there are, how many of
    them are judged, and how many are unstable); `share`, the share of unstable runs among judged
    runs, with its exact 1 - alpha interval (low, high); `transient_runs` and so on, the number of
    runs of each kind; median and largest severity (nats); median and longest plateau (steps).
    """
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
    """Return warnings about a run in training, from its steps so far (columns step, loss and
    grad_norm). There is at most one warning of each kind, about the first step at which it applies:

    - `finite`: the loss or the gradient is not finite;
    - `rise`: the loss is further above its minimum so far than the rule allows (if the plan has no
      rule, by more than 12 times the batch noise);
    - `norm`: the gradient norm is more than ten times the median of the 50 steps before.
    """
    rule = rule if rule.is_defined else Instability(noise=Noise())
    loss = steps["loss"]
    norm = steps["grad_norm"]  # NaN if fp16 skipped the step
    is_finite = np.isfinite(loss) & ~np.isinf(norm)
    above = loss - loss.cummin()
    finite_loss = loss[np.isfinite(loss)]
    is_transient = pd.Series(transients(finite_loss, rule), finite_loss.index)
    finite_norm = norm[np.isfinite(norm)]
    usual_norm = finite_norm.rolling(50).median().shift()
    times = (finite_norm / usual_norm).reindex(steps.index)
    texts = {
        "finite": "its loss or gradient is not finite",
        "rise": "its loss is {loss:.2f}, {above:.2f} nats above its lowest so far",
        "norm": "its gradient norm is {grad_norm:.3g}, {times:.0f} times the usual",
    }
    is_wrong = {
        "finite": ~is_finite,
        "rise": is_finite & is_transient.reindex(steps.index, fill_value=False),
        "norm": times > 10,
    }
    steps = steps.assign(above=above, times=times)
    messages = {}
    for kind, wrong in is_wrong.items():
        if wrong.any():
            first = steps[wrong].iloc[0]
            messages[kind] = f"{texts[kind].format(**first)} at step {first['step']:.0f}"
    return messages
