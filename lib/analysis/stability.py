"""When a run counts as unstable."""

import numpy as np
import pandas as pd


def spikes(loss: pd.Series, window: int, threshold: float) -> list[int]:
    """List the steps (1 …) whose loss exceeds the mean of the `window` steps before it by more than
    `threshold` of their standard deviations.

    One-sided, as OLMo-core skips steps, with a window that fits runs of a few hundred steps. The
    first `window` steps are not judged, and while the loss falls steeply the large spread
    of the window hides all but large spikes. A loss that is not finite is a spike.
    """
    before = loss.shift(1).rolling(window)
    high = loss > before.mean() + threshold * before.std()
    return [int(i) + 1 for i in np.flatnonzero(high | ~np.isfinite(loss))]


def is_unstable(loss: pd.Series, diverged: bool, window: int, threshold: float) -> bool:
    """Tell whether a run diverged, spiked, or ended above where it began (mean loss of its last
    tenth above its first loss)."""
    tail = loss.iloc[-max(1, len(loss) // 10) :].mean()
    return diverged or bool(spikes(loss, window, threshold)) or bool(tail > loss.iloc[0])


def unstable_runs(
    runs: pd.DataFrame, trace: pd.DataFrame, window: int, threshold: float
) -> pd.DataFrame:
    """Judge every run of the tidy table from its trace: arm, seed, spikes (how many), unstable."""
    rows = []
    for run in runs.itertuples():
        loss = trace.loc[(trace["arm"] == run.arm) & (trace["seed"] == run.seed), "loss"]
        loss = loss.reset_index(drop=True)
        found = spikes(loss, window, threshold)
        unstable = is_unstable(loss, run.status == "diverged", window, threshold)
        rows.append({"arm": run.arm, "seed": run.seed, "spikes": len(found), "unstable": unstable})
    return pd.DataFrame(rows)
