"""A study over learning rates: the final loss at each, and the best rate of each variant.

Settings of other factors are kept apart. A diverged run counts as its initial loss.
"""

import pandas as pd

from lib.analysis.finding import Finding, where

RATE = "training.learning_rate"


def final_losses(runs: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    """Add to each run its initial_loss and final_loss on dev (nats; the latter NaN for a diverged
    run). Which runs are unstable is left to the table of `lib.analysis.stability`."""
    loss = curve.sort_values("step").groupby(["arm", "seed"])["dev_loss"]
    ends = loss.agg(initial_loss="first", final_loss="last").reset_index()
    table = runs.drop(columns="unstable", errors="ignore").merge(ends, on=["arm", "seed"])
    table["final_loss"] = table["final_loss"].where(table["status"] == "completed")
    return table


_FACTS = ["transient", "collapsed", "diverged"]


def counted_losses(losses: pd.DataFrame, stability: pd.DataFrame) -> pd.DataFrame:
    """Add to each run its `transient`, `collapsed` and `diverged`, and `counted`: its final dev
    loss (nats), or, if it diverged or collapsed, its initial one. `stability` is the table of
    `judge_runs`."""
    judged = losses.merge(stability[["arm", "seed", *_FACTS]], on=["arm", "seed"])
    failed = judged["diverged"] | judged["collapsed"]
    return judged.assign(counted=judged["final_loss"].mask(failed, judged["initial_loss"]))


def rate_table(losses: pd.DataFrame, stability: pd.DataFrame) -> pd.DataFrame:
    """One row per variant, within and rate: n, mean final dev loss (nats) over seeds, where a run
    that diverged or collapsed counts as its initial loss, and how many runs did, or had a
    transient, which excludes nothing. `stability` is the table of `judge_runs`."""
    cells = counted_losses(losses, stability).groupby(["variant", "within", RATE], sort=False)
    table = cells.agg(
        n=("seed", "size"),
        dev_loss=("counted", "mean"),
        **{f"{name}_runs": (name, "sum") for name in _FACTS},
    )
    return table.reset_index()


def best_rate_table(rates: pd.DataFrame) -> pd.DataFrame:
    """One row per variant and within: the rate with the lowest mean final dev loss in `rates`, the
    table of `rate_table`, and whether the grid brackets it, the best being neither its lowest nor
    its highest rate; then what `rates` holds of it."""
    rows = []
    for (variant, within), grid in rates.groupby(["variant", "within"], sort=False):
        chosen = grid.loc[grid["dev_loss"].idxmin()]
        best = float(chosen[RATE])
        rows.append(
            {"variant": variant, "within": within, "best_rate": best}
            | {"bracketed": bool(grid[RATE].min() < best < grid[RATE].max())}
            | chosen.drop(["variant", "within", RATE]).to_dict()
        )
    return pd.DataFrame(rows)


def rate_findings(losses: pd.DataFrame, stability: pd.DataFrame) -> list[Finding]:
    """Both tables, the second with its sentences."""
    rates = rate_table(losses, stability)
    best = best_rate_table(rates)
    words = [
        f"{row.variant}{where(str(row.within))}: best at {row.best_rate:g} "
        f"({'inside the grid' if row.bracketed else 'at the edge of the grid: not bracketed'}) "
        f"with a mean final dev loss of {row.dev_loss:.3f} nats over {row.n} runs, of which "
        f"{row.transient_runs} have a transient."
        for row in best.itertuples()
    ]
    chosen = "The runs that chose a rate cannot report at it: that takes seeds that chose nothing."
    return [
        Finding("rates", "Final dev loss by learning rate", rates),
        Finding("best_rate", "The best learning rate of each variant", best, [*words, chosen]),
    ]
