"""A study over learning rates: how sensitive each variant is to its rate, and each at its own best.

Settings of other factors are kept apart. A diverged run counts as its initial loss.
"""

from typing import Any

import numpy as np
import pandas as pd

from lib.analysis.finding import Finding, numbers, outcome, where
from lib.analysis.paired import holm, t_test

RATE = "training.learning_rate"


def final_losses(runs: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    """Add to each run its initial_loss and final_loss on dev (nats; the latter NaN for a diverged
    run). Which runs are unstable is left to the table of `lib.analysis.stability`."""
    loss = curve.sort_values("step").groupby(["arm", "seed"])["dev_loss"]
    ends = loss.agg(initial_loss="first", final_loss="last").reset_index()
    table = runs.drop(columns="unstable", errors="ignore").merge(ends, on=["arm", "seed"])
    table["final_loss"] = table["final_loss"].where(table["status"] == "completed")
    return table


def sensitivities(losses: pd.DataFrame) -> pd.DataFrame:
    """Sensitivity to the rate (nats) per variant, within and seed: mean over a log-spaced grid of
    rates of min(final loss, initial loss) - best loss (Wortsman et al. 2023, arXiv 2309.14322,
    eq. 1). 0: every rate is as good as the best. `losses` is the table of `final_losses` with the
    column within, as `lib.analysis.runs.other_settings` gives it beside the rate."""
    capped = losses.assign(sensitivity=np.fmin(losses["final_loss"], losses["initial_loss"]))
    grids = capped.groupby(["variant", "within", "seed"], sort=False)["sensitivity"]
    return grids.agg(lambda grid: (grid - grid.min()).mean()).reset_index()


def sensitivity_table(losses: pd.DataFrame, stability: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """One row per variant and within: mean sensitivity and its sd over seeds; the difference to the
    first variant, its t interval, p and Holm-adjusted p over the variants; at how many of the rates
    none of its runs was unstable (by the table of `lib.analysis.stability.judge_runs`), and at how
    many of those where one of the baseline's was."""
    judged = losses.merge(stability[["arm", "seed", "unstable"]], on=["arm", "seed"])
    tables = []
    for within, part in sensitivities(losses).groupby("within", sort=False):
        values = part.pivot(index="seed", columns="variant", values="sensitivity")
        variants = list(dict.fromkeys(part["variant"]))
        unstable = judged[judged["within"] == within].groupby(["variant", RATE])["unstable"]
        stable = (unstable.mean() == 0).unstack(RATE, fill_value=False)
        trouble = ~stable.loc[variants[0]]  # the rates at which the baseline is unstable
        deltas = [values[name] - values[variants[0]] for name in variants]
        tests = [t_test(of_seeds, alpha)._asdict() for of_seeds in deltas]
        table = pd.DataFrame(
            {
                "variant": variants,
                "within": within,
                "sensitivity": [values[name].mean() for name in variants],
                "sd": [values[name].std() for name in variants],
                "stable_rates": [int(stable.loc[name].sum()) for name in variants],
                "rates": len(trouble),
                "made_stable": [int(stable.loc[name][trouble].sum()) for name in variants],
            }
        ).join(pd.DataFrame(tests))
        table["p_holm"] = np.nan
        table.loc[1:, "p_holm"] = holm(table.loc[1:, "t_p"])
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


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


def best_rate_table(losses: pd.DataFrame, rates: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """One row per variant and within: the rate with the lowest mean final dev loss in `rates`, the
    table of `rate_table`, and whether the grid brackets it, the best being neither its lowest nor
    its highest rate; test perplexity at it, and the paired difference to the first variant at *its*
    best rate, with its t interval. Optimistic where the same runs chose the rate."""
    rows = []
    for within, part in losses.groupby("within", sort=False):
        baseline: pd.Series | None = None
        for variant in dict.fromkeys(part["variant"]):
            grid = rates[(rates["variant"] == variant) & (rates["within"] == within)]
            chosen = grid.loc[grid["dev_loss"].idxmin()]
            best = float(chosen[RATE])
            own = part[(part["variant"] == variant) & (part[RATE] == best)].set_index("seed")
            test = own["perplexity_test"]
            baseline = test if baseline is None else baseline
            rows.append(
                {"variant": variant, "within": within, "best_rate": best}
                | {"bracketed": bool(grid[RATE].min() < best < grid[RATE].max())}
                | chosen.drop(["variant", "within", RATE, "n"]).to_dict()
                | {"perplexity_test": test.mean(), "sd": test.std()}
                | t_test((test - baseline).dropna(), alpha)._asdict()
            )
    return pd.DataFrame(rows)


def rate_findings(losses: pd.DataFrame, stability: pd.DataFrame, alpha: float) -> list[Finding]:
    """All three tables with their sentences."""
    sensitivity, rates = sensitivity_table(losses, stability, alpha), rate_table(losses, stability)
    best = best_rate_table(losses, rates, alpha)
    first = losses["variant"].iloc[0]
    compared = [
        f"{row.variant}{where(row.within)}: sensitivity {row.sensitivity:.3f} nats, "
        f"{numbers(row.mean_delta, row.t_low, row.t_high)} to the baseline; no run unstable at "
        f"{row.stable_rates} of {row.rates} rates, of which {row.made_stable} where one of the "
        "baseline's is."
        for row in sensitivity.itertuples()
        if row.variant != first
    ]
    return [
        Finding("sensitivity", "Sensitivity to the learning rate", sensitivity, compared),
        Finding("rates", "Final dev loss by learning rate", rates),
        Finding(
            "best_rate",
            "Each variant at its own best learning rate",
            best,
            [
                *(_at_its_best(row, first) for row in best.to_dict("records")),
                SAME_RUNS.capitalize(),
            ],
        ),
    ]


SAME_RUNS = (
    "the runs that chose a rate are those reported at it, on the same seeds, which flatters both "
    "sides: a comparison needs seeds that chose nothing."
)


def _at_its_best(row: dict[Any, Any], first: str) -> str:
    place = "inside the grid" if row["bracketed"] else "at the edge of the grid: not bracketed"
    text = (
        f"{row['variant']}{where(row['within'])}: best at {row['best_rate']:g} ({place}) with a "
        f"mean final dev loss of {row['dev_loss']:.3f} nats, {row['transient_runs']} runs with a "
        f"transient; test perplexity {row['perplexity_test']:.3f}"
    )
    if row["variant"] == first:
        return text + "."
    change = numbers(row["mean_delta"], row["t_low"], row["t_high"])
    verdict = outcome("perplexity_test", row["t_low"], row["t_high"])
    return f"{text}, {change} to the baseline at its own best rate (n = {row['n']}: {verdict})."
