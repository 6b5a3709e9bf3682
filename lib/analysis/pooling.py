"""One contrast over several studies."""

from typing import Any

import pandas as pd

from lib.analysis.paired import TTest, t_test
from lib.study.plan import ALPHA


def paired_runs(runs: list[dict[str, Any]], arm: str, baseline: str, measure: str) -> pd.DataFrame:
    """One row per seed that completed in both arms: delta of the measure, and the final weights of
    both runs. `runs` are the results of a study as JSON."""
    of = {(run["arm"], run["seed"]): run for run in runs if run["status"] == "completed"}
    rows = []
    for (name, seed), run in of.items():
        other = of.get((baseline, seed))
        if name == arm and other:
            delta = run["measures"][measure] - other["measures"][measure]
            weights = run["final_weights"], other["final_weights"]
            rows.append({"seed": seed, "delta": delta, "weights": weights})
    return pd.DataFrame(rows, columns=["seed", "delta", "weights"])


def pool(*pairs: pd.DataFrame, alpha: float = ALPHA) -> TTest:
    """Paired t test over the seeds of several studies together, each from `paired_runs`. A pair of
    runs with the same final weights in two studies is one pair, and counts once. The studies must
    ask the same: nothing here allows for a difference between them."""
    joined = pd.concat(pairs, ignore_index=True).drop_duplicates("weights")
    return t_test(joined["delta"], alpha)
