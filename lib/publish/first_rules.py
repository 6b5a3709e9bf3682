"""Records made under the first rules, before raw files sufficed to compute every measure.

They are verified under the rules of their time: the results follow from the notebooks, the summary
from the runs, and the statistics of every contrast from the runs. No other record may claim them.
They are kept in smaller files than they were written in; their history is in git.
Of superseded studies only the last two remain to be verified.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from lib.analysis.paired import holm, paired_deltas, t_test

MANIFESTS = {
    "confirmatory": "917906cf0ed51b368d1a5251a6ba5285a50fd7772f98e9da79ba165cab9309dd",
}
"""Study → SHA-256 of its manifest."""
SUPERSEDED = {
    "horizon": "726d93119a5b14bd70c0fbdc6f85df77b0bcebe57bc4857019709f91106f02e0",
    "initialisation": "8da9ddbc471d6873d5f465ab3e60b8b6a44b7004be3d8801d310119321379edd",
    "stability": "d932ef019145675499923e11ef20be91317dea0d34fb1322928943a25f619b2f",
    "stability-warmup": "70c6c529e078ea5f60021c57d969843006b3fc01fc022f7a4533ce4be04a71b6",
}
"""Studies whose claims later ones withdrew, of which only results and verdict are kept: study →
digest of the two."""
TOLERANCE = 1e-9


def wrong_contrasts(runs: list[dict[str, Any]], verdict: dict[str, Any]) -> Iterator[str]:
    """Name every contrast whose difference, spread, t interval, t test or Holm p does not follow
    from the runs."""
    measured = {
        (run["arm"], run["seed"]): run["measures"] | run["throughput"]
        for run in runs
        if run["status"] == "completed"
    }
    seeds = sorted({run["seed"] for run in runs})
    for row in verdict["contrasts"]:
        sides = [
            [measured.get((row[side], seed), {}).get(row["measure"]) for seed in seeds]
            for side in ("baseline", "arm")
        ]
        pairs = [pair for pair in zip(*sides, strict=True) if None not in pair]
        before, after = np.array(pairs, dtype=float).reshape(-1, 2).T
        deltas = paired_deltas(before, after)
        found = t_test(deltas)._asdict()
        if pairs:
            found |= {"mean_baseline": before.mean(), "mean_arm": after.mean()}
        if len(pairs) > 1:
            found |= {"sd_delta": deltas.std(ddof=1) if np.ptp(deltas) else 0.0}
        for name, value in found.items():
            if not _equal(row[name], value):
                yield f"{row['arm']} - {row['baseline']} in {row['measure']}: {name}"
    for family in {row["family"] for row in verdict["contrasts"]} - {""}:
        rows = [row for row in verdict["contrasts"] if row["family"] == family]
        adjusted = holm([math.nan if row["t_p"] is None else row["t_p"] for row in rows])
        for row, p in zip(rows, adjusted, strict=True):
            if not _equal(row["p_holm"], p):
                yield f"{row['arm']} - {row['baseline']} in {row['measure']}: p_holm"


def _equal(stated: float | None, found: float) -> bool:
    if stated is None or math.isnan(found):
        return stated is None and math.isnan(found)
    return math.isclose(stated, found, rel_tol=TOLERANCE, abs_tol=1e-15)
