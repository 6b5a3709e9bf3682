"""What is warned of while a run trains: a loss or a gradient norm that goes wrong."""

import numpy as np
import pandas as pd

from lib.analysis.stability import transients
from lib.study.plan import Instability, Noise

WATCHED = Instability(noise=Noise())
"""What is warned of where no plan says when a run is unstable: a warning judges nothing."""
EXPLODES = 10
"""Times the median of those before it, from which on a gradient norm is warned of."""
RECENT = 50
"""Steps over which speed and that median are taken."""


def trouble(steps: pd.DataFrame, rule: Instability) -> dict[str, str]:
    """Find what goes wrong in the steps of a run (see `read_live`): by kind, the first step where
    its loss or gradient is not finite, where its loss is further above its lowest so far than the
    rule allows, and where its gradient norm is `EXPLODES` times the usual."""
    loss, norm = steps["loss"], steps["grad_norm"]  # a step that fp16 skipped has no norm
    finite = np.isfinite(loss) & ~np.isinf(norm)
    above, of_batches = loss - loss.cummin(), loss[np.isfinite(loss)]
    risen = pd.Series(transients(of_batches, rule), of_batches.index)
    norms = norm[np.isfinite(norm)]
    times = (norms / norms.rolling(RECENT).median().shift()).reindex(steps.index)
    messages = {}
    for kind, where, text in (
        ("finite", ~finite, "its loss or gradient is not finite"),
        (
            "rise",
            finite & risen.reindex(steps.index, fill_value=False),
            "its loss is {loss:.2f}, {above:.2f} nats above its lowest so far",
        ),
        (
            "norm",
            times > EXPLODES,
            "its gradient norm is {grad_norm:.3g}, {times:.0f} times the usual",
        ),
    ):
        if where.any():
            first = steps.assign(above=above, times=times)[where].iloc[0]
            messages[kind] = f"{text.format(**first)} at step {first['step']:.0f}"
    return messages
