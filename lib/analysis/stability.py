"""When a run counts as unstable: judged from its training loss, from the first step on."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from lib.analysis.finding import Finding
from lib.study.plan import ALPHA, INSTABILITY, Instability, Plan
from lib.study.raw import largest_rise


def rule_of(plan: Plan | None) -> Instability:
    """The plan's definition; the usual one without a plan, or under the first, whose spikes in a
    window could not see the first 64 steps."""
    rule = plan.instability if plan else None
    return rule if rule and rule.rise else INSTABILITY


def judge_run(loss: ArrayLike, diverged: bool, rule: Instability, entropy: float) -> dict[str, Any]:
    """Judge one run by its training loss (steps,), in nats.

    `severity` is its largest rise; `transient`: that is more than `rule.rise`; `collapsed`: such a
    run whose last steps are above `entropy`, the training text's without context; `untrained`: a
    run that ends there without a transient; `unstable`: diverged, transient or collapsed.
    """
    values = np.asarray(loss, dtype=float)
    severity = largest_rise(values)
    transient = bool(severity > (rule.rise or np.inf))
    above = bool(values[-(rule.last or 1) :].mean() > entropy)
    return {
        "severity": severity,
        "transient": transient,
        "collapsed": transient and above,
        "untrained": above and not transient and not diverged,
        "diverged": diverged,
        "unstable": diverged or transient,
    }


def judge_runs(runs: pd.DataFrame, trace: pd.DataFrame, rule: Instability) -> pd.DataFrame:
    """Judge every run of the tidy table by its trace: arm, seed, what `judge_run` says, and
    `judged`: not the runs of an arm whose mean first loss is more than `rule.start` above ln V;
    their `unstable` is NaN."""
    losses = {key: part["loss"].to_numpy() for key, part in trace.groupby(["arm", "seed"])}
    rows = []
    for run in runs.to_dict("records"):
        loss = losses[run["arm"], run["seed"]]
        judgement = judge_run(loss, run["status"] == "diverged", rule, run["unigram_entropy"])
        height = loss[0] - run["uniform_loss"]
        rows.append({"arm": run["arm"], "seed": run["seed"], "height": height} | judgement)
    table = pd.DataFrame(rows)
    high = table.groupby("arm")["height"].transform("mean") > (rule.start or np.inf)
    unstable = table["unstable"].astype(float).mask(high)
    return table.drop(columns="height").assign(unstable=unstable, judged=~high)


def with_stability(runs: pd.DataFrame, stability: pd.DataFrame) -> pd.DataFrame:
    """Give the tidy table the columns `unstable` (0 or 1; NaN of a run that is not judged) and
    `severity` (NaN of a diverged run, as all its other measures)."""
    judged = runs[["arm", "seed"]].merge(stability, on=["arm", "seed"], how="left")
    completed = (runs["status"] == "completed").to_numpy()
    severity = judged["severity"].where(completed).to_numpy()
    return runs.assign(unstable=judged["unstable"].to_numpy(), severity=severity)


def share_interval(count: int, n: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Exact 1 - alpha interval for a share, `count` of n (Clopper & Pearson 1934); NaN of none."""
    from scipy.stats import binomtest

    if n == 0:
        return np.nan, np.nan
    interval = binomtest(count, n).proportion_ci(1 - alpha, method="exact")
    return float(interval.low), float(interval.high)


def stability_map(runs: pd.DataFrame, stability: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """One row per arm: its variant and setting, n, how many runs are judged and of these unstable,
    their share with its exact 1 - alpha interval, how many runs have a transient, collapsed, are
    untrained or diverged, and median and largest severity (nats)."""
    places = runs[["arm", "seed", "variant", "setting"]]
    rows = []
    for arm, part in places.merge(stability, on=["arm", "seed"]).groupby("arm", sort=False):
        judged, count = int(part["judged"].sum()), int(part["unstable"].sum())
        low, high = share_interval(count, judged, alpha)
        rows.append(
            {"arm": arm, "variant": part["variant"].iloc[0], "setting": part["setting"].iloc[0]}
            | {"n": len(part), "judged": judged, "unstable": count}
            | {"share": count / judged if judged else np.nan, "low": low, "high": high}
            | {
                f"{name}_runs": int(part[name].sum())
                for name in ("transient", "collapsed", "untrained", "diverged")
            }
            | {"median_severity": part["severity"].median(), "severity": part["severity"].max()}
        )
    return pd.DataFrame(rows)


def in_share(row: Any) -> str:
    """Write an arm's unstable runs, from its row in `stability_map`."""
    if not row["judged"]:
        return "not judged"
    interval = f"[{row['low']:.2f}, {row['high']:.2f}]"
    return f"{row['unstable']:.0f} of {row['judged']:.0f} unstable {interval}"


def stability_finding(table: pd.DataFrame, rule: Instability) -> Finding:
    """The map in words: how many runs are unstable, and each arm that is not calm."""
    judged, unstable = int(table["judged"].sum()), int(table["unstable"].sum())
    words = [
        f"{unstable} of {judged} judged runs are unstable: diverged, or their training loss rises "
        f"more than {rule.rise:g} nats above its running minimum at any step."
    ]
    for row in table.to_dict("records"):
        if not row["judged"]:
            words.append(f"{row['arm']}: not judged, its loss falls from a height.")
        elif row["unstable"]:
            words.append(
                f"{row['arm']}: {in_share(row)}; {row['collapsed_runs']} collapsed, "
                f"{row['diverged_runs']} diverged; largest rise {row['severity']:.2f} nats."
            )
        elif row["untrained_runs"]:
            words.append(
                f"{row['arm']}: none unstable, but {row['untrained_runs']} of {row['n']} "
                "untrained: above the unigram entropy at the end."
            )
    return Finding("stability_map", "Stability: share of unstable runs", table, words)
