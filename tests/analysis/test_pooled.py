import math
from typing import Any

import pytest
from scipy import stats

from lib.analysis.effects import pooled_contrasts

DELTAS = {0: 0.1, 1: 0.3, 2: 0.2}


def study(deltas: dict[int, float], tag: str = "", **training: Any) -> list[dict[str, Any]]:
    """Runs as they stand in a study's results; `tag` names the suite."""
    return [
        {"arm": arm, "baseline": "none", "seed": seed, "status": "completed", "variant": arm}
        | {"corpus_sha256": "0", "suite_hash": tag}
        | {"config": {"model": {"embedding_norm": arm}, "training": training}}
        | {"measures": dict.fromkeys(("loss", "macro_accuracy_few_shot"), 2.0 + delta)}
        for arm in ("none", "layernorm")
        for seed, change in deltas.items()
        for delta in [change if arm == "layernorm" else 0.0]
    ]


def pooled(*studies: list[dict[str, Any]], measure: str = "loss") -> list[dict[str, Any]]:
    return pooled_contrasts({str(n): runs for n, runs in enumerate(studies)}, [measure])


def test_seeds_of_both_studies_are_tested_together() -> None:
    (found,) = pooled(study(DELTAS), study({5: 0.5, 6: 0.4}, "other"))
    peer = stats.ttest_1samp([0.1, 0.3, 0.2, 0.5, 0.4], 0)
    assert (found["variant"], found["reference"]) == ("layernorm", "none")
    assert (found["studies"], found["n"]) == (["0", "1"], 5)
    assert found["mean_delta"] == pytest.approx(0.3)
    assert found["t_p"] == pytest.approx(peer.pvalue)
    assert (found["t_low"], found["t_high"]) == pytest.approx(tuple(peer.confidence_interval()))


def test_a_seed_of_two_studies_counts_once() -> None:
    (found,) = pooled(study(DELTAS), study({1: 9.9, 2: 9.9, 7: 0.6}))
    assert found["n"] == 4
    assert found["mean_delta"] == pytest.approx((0.1 + 0.3 + 0.2 + 0.6) / 4)
    assert not pooled(study(DELTAS), study({1: 0.3}))


def test_studies_that_ask_something_else_are_not_pooled() -> None:
    assert not pooled(study(DELTAS), study({5: 0.5}, learning_rate=1e-3))
    assert not pooled(study(DELTAS))


def test_fields_that_an_older_schema_lacks_have_their_defaults() -> None:
    explicit = study({5: 0.5}, "other", learning_rate=3e-4, gradient_clip=None)
    explicit[0]["config"]["training"]["micro_batch_size"] = 4  # where it stood before
    assert pooled(study(DELTAS), explicit)[0]["n"] == 4


def test_accuracies_of_two_suites_are_not_pooled() -> None:
    both = study(DELTAS), study({5: 0.5}, "another suite")
    assert pooled(*both)
    assert not pooled(*both, measure="macro_accuracy_few_shot")


def test_a_diverged_run_drops_its_pair() -> None:
    runs = study(DELTAS)
    runs[0] |= {"status": "diverged", "measures": {}}
    assert pooled(runs, study({5: 0.5}, "other"))[0]["n"] == 3


def test_differences_that_are_all_equal_have_no_interval() -> None:
    (found,) = pooled(study({0: 0.1}), study({1: 0.1}))
    assert (found["n"], found["t_low"]) == (2, None)
    assert math.isclose(found["mean_delta"], 0.1)
