"""Attempts to explain a result away: one seed or one task left out, and other definitions of
instability."""

import numpy as np
import pandas as pd

from lib.analysis.finding import Finding, numbers
from lib.analysis.paired import holm, t_test
from lib.study.measures import MEASURES
from lib.study.plan import Instability
from lib.study.raw import largest_rise

RISES = (0.25, 0.5, 1.0)
"""Nats above the running minimum, beside the rule's own."""
ZERO_SHOT, FEW_SHOT = "macro_accuracy_zero_shot", "macro_accuracy_few_shot"
EARLY = 64
"""Steps at the beginning: those that the first plan did not look at."""


def leave_one_out(runs: pd.DataFrame, contrasts: pd.DataFrame) -> pd.DataFrame:
    """One row per contrast given (arm, baseline, measure): n, mean difference, lowest and highest
    mean when one seed is left out, whether the sign of the mean ever changes, and the largest p
    then. Where the contrasts are a family of tests, p is adjusted by Holm's method over the family
    without that seed. Contrasts of fewer than three pairs are left out."""
    rows, tests = [], []
    for row in contrasts.to_dict("records"):
        values = runs.pivot(index="seed", columns="arm", values=row["measure"]).astype(float)
        deltas = (values[row["arm"]] - values[row["baseline"]]).dropna()
        if len(deltas) < 3:
            continue
        without = {seed: t_test(deltas.drop(seed, errors="ignore")) for seed in values.index}
        means, mean = [test.mean_delta for test in without.values()], deltas.mean()
        rows.append(
            {key: row[key] for key in ("arm", "baseline", "measure")}
            | {"n": len(deltas)}
            | _spread(mean, means)
        )
        tests.append({seed: test.t_p for seed, test in without.items()})
    p = pd.DataFrame(tests)  # a column per seed that is left out
    if rows and "family" in contrasts and contrasts["family"].all():
        p = p.apply(holm)
    return pd.DataFrame(rows).assign(largest_p=p.max(axis=1).to_numpy())


def _spread(mean: float, means: list[float]) -> dict[str, float | bool]:
    """Say how far a mean moves to those with a part left out, and whether past zero."""
    found = {"mean_delta": mean, "lowest": min(means), "highest": max(means)}
    return found | {"sign_changes": bool((np.sign(means) != np.sign(mean)).any())}


def leave_one_task_out(items: pd.DataFrame, contrasts: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """One row per contrast given (arm, baseline, measure) in a macro accuracy: n, mean difference,
    lowest and highest mean when one task is left out, whether the sign of the mean ever changes;
    then `task`, without which the mean moves most, and the t interval and p of what is left. Only
    tasks that both were asked count. `items` are the joined answers of all runs."""
    rows = []
    for row in contrasts.to_dict("records") if len(items) else []:
        asked = items[(items["shots"] > 0) == (row["measure"] == FEW_SHOT)]
        both = {row["arm"], row["baseline"]} <= set(asked["arm"])
        if row["measure"] not in (ZERO_SHOT, FEW_SHOT) or not both:
            continue
        accuracy = asked.groupby(["arm", "seed", "task"])["correct"].mean().unstack("task")
        deltas = accuracy.loc[row["arm"]] - accuracy.loc[row["baseline"]]
        deltas = deltas.dropna(how="all").dropna(axis=1)
        if deltas.size and deltas.shape[1] > 1:
            without = {t: t_test(deltas.drop(columns=t).mean(axis=1), alpha) for t in deltas}
            mean = float(deltas.mean(axis=1).mean())
            task = max(without, key=lambda t: abs(without[t].mean_delta - mean))
            rows.append(
                {key: row[key] for key in ("arm", "baseline", "measure")}
                | {"n": len(deltas), "tasks": deltas.shape[1]}
                | _spread(mean, [test.mean_delta for test in without.values()])
                | {"task": task, "without": without[task].mean_delta}
                | {key: getattr(without[task], key) for key in ("t_low", "t_high", "t_p")}
            )
    return pd.DataFrame(rows)


def task_left_out_finding(table: pd.DataFrame) -> Finding:
    """The table of `leave_one_task_out`, and in words how much of each difference is one task's."""
    words = [
        f"{row.arm} - {row.baseline}, {MEASURES[str(row.measure)].label}: {row.mean_delta:+.4f} "
        f"over {row.tasks} tasks; without {row.task} "
        f"{numbers(row.without, row.t_low, row.t_high, '+.4f')}; with one task left out between "
        f"{row.lowest:+.4f} and {row.highest:+.4f}, its sign "
        f"{'changes' if row.sign_changes else 'never changes'}."
        for row in table.itertuples()
    ]
    return Finding("leave_one_task_out", "With one task left out", table, words)


def threshold_table(
    trace: pd.DataFrame, stability: pd.DataFrame, rule: Instability
) -> pd.DataFrame:
    """One row per arm: n, and the share of its runs that are unstable (diverged, or rising by more)
    at each of `RISES`, and at the rule's rise when the first `EARLY` steps are not looked at; arms
    that are not judged are left out."""
    losses = {
        key: part.sort_values("step")["loss"].to_numpy()
        for key, part in trace.groupby(["arm", "seed"])
    }
    rows = []
    for run in stability[stability["judged"]].to_dict("records"):
        loss = losses[run["arm"], run["seed"]]
        rises = {f"rise_{rise:g}": largest_rise(loss) > rise for rise in RISES}
        late = largest_rise(loss[EARLY:]) > (rule.rise or np.inf)
        unstable = {name: run["diverged"] or high for name, high in rises.items()}
        unstable[f"after_step_{EARLY}"] = late or (run["diverged"] and len(loss) > EARLY)
        rows.append({"arm": run["arm"]} | unstable)
    if not rows:
        return pd.DataFrame()
    arms = pd.DataFrame(rows).groupby("arm", sort=False)
    return arms.mean().reset_index().assign(n=arms.size().to_numpy())


def robustness_findings(
    left_out: pd.DataFrame, thresholds: pd.DataFrame, rule: Instability
) -> list[Finding]:
    """Both tables, and in words what stands and what falls."""
    words = [
        f"{row.arm} - {row.baseline}, {MEASURES[str(row.measure)].label}: "
        f"{row.mean_delta:+.4g}, between {row.lowest:+.4g} and {row.highest:+.4g} with one of "
        f"{row.n} seeds left out; its sign {'changes' if row.sign_changes else 'never changes'}."
        for row in left_out.itertuples()
    ]
    sentences = []
    for row in thresholds.to_dict("records"):
        shares = [f"{row[f'rise_{rise:g}']:.0%} at {rise:g} nats" for rise in RISES]
        if max(row[f"rise_{rise:g}"] for rise in RISES) > 0:
            late = f"{row[f'after_step_{EARLY}']:.0%} at {rule.rise:g} after step {EARLY}"
            sentences.append(f"{row['arm']}: unstable {', '.join([*shares, late])}.")
    if len(thresholds) and not sentences:
        sentences = [f"No run is unstable by any of these definitions, down to {RISES[0]:g} nats."]
    return [
        Finding("leave_one_out", "With one seed left out", left_out, words),
        Finding("thresholds", "Other definitions of instability", thresholds, sentences),
    ]
