"""A study over learning rates: how sensitive each variant is to its rate, and each at its own best.

Settings of other factors are kept apart. A diverged run counts as its initial loss in the
sensitivity, and a rate at which a run diverged is never a best one.
"""

import numpy as np
import pandas as pd

from lib.analysis.paired import holm, t_test
from lib.study.plan import Plan

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


def sensitivity_table(losses: pd.DataFrame, stability: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """One row per variant and within: mean sensitivity and its sd over seeds; the difference to the
    first variant, its t interval, p and Holm-adjusted p over the variants; at how many of the rates
    its runs were stable (by the table of `lib.analysis.stability.unstable_runs`), and at how many
    of those where the baseline's were not; and the plan's answer to H1b: supported when it is
    stable at one of these and its sensitivity is significantly lower."""
    judged = losses.merge(stability, on=["arm", "seed"])
    tables = []
    for within, part in sensitivities(losses).groupby("within", sort=False):
        values = part.pivot(index="seed", columns="variant", values="sensitivity")
        variants = list(dict.fromkeys(part["variant"]))
        unstable = judged[judged["within"] == within].groupby(["variant", RATE])["unstable"]
        stable = (unstable.mean() <= plan.instability.tolerated_share).unstack(RATE)
        trouble = ~stable.loc[variants[0]]  # the rates at which the baseline is unstable
        deltas = [values[name] - values[variants[0]] for name in variants]
        tests = [t_test(of_seeds, plan.alpha)._asdict() for of_seeds in deltas]
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
        # Lower sensitivity alone is not enough: an arm that learns less has less to lose.
        lower = (table["p_holm"] < plan.alpha) & (table["mean_delta"] < 0)
        supported = lower & (table["made_stable"] > 0)
        table["H1b"] = np.where(supported, "supported", "not supported")
        if not trouble.any():
            table["H1b"] = "not tested: the baseline is stable at every rate"
        table.loc[0, "H1b"] = "baseline"
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def best_rate_table(losses: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """One row per variant and within: the rate with the lowest mean dev perplexity over seeds, and
    test perplexity at it; the paired difference to the first variant at *its* best rate, with its t
    interval. A variant that completed at no rate has NaN."""
    rows = []
    for within, part in losses.groupby("within", sort=False):
        baseline: pd.Series | None = None
        for variant, own in part.groupby("variant", sort=False):
            # The mean of a rate with a diverged run is NaN, and NaN is never the lowest.
            dev = own.groupby(RATE)["perplexity_dev"].agg(lambda v: v.mean(skipna=False))
            best = float(dev.idxmin()) if dev.notna().any() else np.nan
            test = own[own[RATE] == best].set_index("seed")["perplexity_test"]
            baseline = test if baseline is None else baseline
            compared = t_test((test - baseline).dropna(), alpha)
            rows.append(
                {"variant": variant, "within": within, "best_rate": best}
                | {"perplexity_dev": dev.min(), "perplexity_test": test.mean(), "sd": test.std()}
                | compared._asdict()
            )
    return pd.DataFrame(rows)
