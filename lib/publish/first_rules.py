"""Records made under the first rules, before raw files sufficed to compute every measure.

They are verified under the rules of their time: the results follow from the notebooks, the summary
from the runs, and the statistics of every contrast from the runs. No other record may claim them.
They are kept in smaller files than they were written in (pictures in four greys, probabilities of
answers in single precision); of superseded studies the measures of every run and the verdict are
kept, and the last two checks remain. What they were is in git.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from lib.analysis.paired import holm, paired_deltas, t_test

MANIFESTS = {
    "confirmatory": "f1769b474189e268ba23e12bd704f4edd5b3f5cc26ffd04688a7a7f865391d6e",
}
"""Study → SHA-256 of its manifest."""
SUPERSEDED = {
    "horizon": "2b54ebaaeda275e7e13ad371596f49f930be502ad9a7ddca0403c9b269f16227",
    "initialisation": "5580ccf9d6013be172a592bb9295bd820a042056c24baea7a907b59c3f098e34",
    "stability": "969b33cca50869dabb996e958e0c95490e89e309afb693822405096e9f64c330",
    "stability-warmup": "bbfb6b36bcb182d23204cf08adc5365028d3ccbed1048c7a405b427a7bfb9abf",
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
