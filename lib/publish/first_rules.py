"""Records made under the first rules, before raw files sufficed to compute every measure.

They are verified under the rules of their time: the results follow from the notebooks, the summary
from the runs, and the statistics of every contrast from the runs. No other record may claim them.
Of superseded studies only the last two remain to be verified.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from lib.analysis.paired import holm, paired_deltas, t_test

MANIFESTS = {
    "confirmatory": "9964d65667925d190a904e97e8f2e4f41ed08a1a556ca8b412cef8078ddd1760",
}
"""Study → SHA-256 of its manifest."""
SUPERSEDED = {
    "horizon": "396941092e80e359e29071598811c386ae14655b347db1eb0e460ab81bed822f",
    "initialisation": "898609b4ab8b470b9609e2e7cab5ae764c15db1befc1fce8397b4b9da1deb87e",
    "stability": "57a9499dcca779f4070bbea70069da812df3dca2edb8eb4c970b62f7d1bcbcd1",
    "stability-warmup": "8cea71f04c1994d6ef41b834ffaabaab59f6cf2a2e27c39497e6339b051f55ba",
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
