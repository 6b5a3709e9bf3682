from typing import Any

import pytest
from scipy import stats

from lib.analysis.pooling import paired_runs, pool

DELTAS = {0: 0.1, 1: 0.3, 2: 0.2}


def study(deltas: dict[int, float], tag: str = "", **more: Any) -> list[dict[str, Any]]:
    """Runs as they stand in a study's results; equal tags and seeds share their weights."""
    return [
        {"arm": arm, "seed": seed, "status": "completed", "final_weights": f"{tag}{arm}{seed}"}
        | {"measures": {"loss": 2.0 + (delta if arm == "layernorm" else 0.0)}}
        | more
        for arm in ("none", "layernorm")
        for seed, delta in deltas.items()
    ]


def pairs(runs: list[dict[str, Any]]) -> Any:
    return paired_runs(runs, "layernorm", "none", "loss")


def test_seeds_of_both_studies_are_tested_together() -> None:
    found = pool(pairs(study(DELTAS)), pairs(study({5: 0.5, 6: 0.4}, "other")))
    peer = stats.ttest_1samp([0.1, 0.3, 0.2, 0.5, 0.4], 0)
    assert (found.n, found.mean_delta) == (5, pytest.approx(0.3))
    assert found.t_p == pytest.approx(peer.pvalue)
    assert (found.t_low, found.t_high) == pytest.approx(tuple(peer.confidence_interval()))


def test_the_same_weights_in_two_studies_count_once() -> None:
    one, other = pairs(study(DELTAS)), pairs(study(DELTAS | {7: 0.6}))
    assert pool(one, other) == pool(other)
    assert pool(one, other).n == 4


def test_the_same_seed_with_other_weights_counts_twice() -> None:
    assert pool(pairs(study(DELTAS)), pairs(study(DELTAS, "other"))).n == 6


def test_a_diverged_run_drops_its_pair() -> None:
    runs = study(DELTAS)
    runs[0] |= {"status": "diverged", "measures": {}}
    assert pairs(runs)["seed"].tolist() == [1, 2]
    assert pool(pairs([])).n == 0
