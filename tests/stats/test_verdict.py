"""The whole verdict: it repeats, and has no tests if the study is exploratory."""

import json

import pandas as pd
import pytest

from lib.config.claim import ClaimStatus
from lib.stats.verdict import analyse
from tests.stats.decay import decay_plan, decay_runs, decay_study
from tests.stats.samples import trace_of

NONE = pd.DataFrame()


def analysed(plan, runs, name="CONFIRMATORY", *because):
    claim = ClaimStatus("decay", plan.hash if plan else None, name, list(because))
    study = decay_study(runs["seed"].nunique())
    return analyse(study, plan, claim, runs, trace_of(runs), NONE, NONE)


@pytest.mark.parametrize("name", ["CONFIRMATORY", "UNVERIFIED"])
def test_a_verdict_opens_with_an_answer_to_each_hypothesis(name):
    """Also if git cannot tell: the status says so, and the tests stay."""
    verdict = analysed(decay_plan(), decay_runs(), name)
    kept = verdict.as_json()
    found = {name: a["answer"] for name, a in kept["answers"].items()}
    assert found == dict.fromkeys(("slower", "same"), "supported")
    assert kept["standing"] == name
    shown = verdict._repr_markdown_()
    assert shown.startswith("**slower: supported.** Weight decay of 0.3 raises the loss")
    for word in ("rule", "layer", "H0", "H1"):
        assert word not in shown


def test_an_exploratory_study_has_differences_and_no_tests():
    for plan in (decay_plan(), None):
        verdict = analysed(plan, decay_runs(), "EXPLORATORY", "it names no plan")
        kept = verdict.as_json()
        assert (kept["answers"], kept["hypothesis_tests"], kept["tests"]) == ({}, [], [])
        assert kept["exploratory_because"] == ["it names no plan"]
        assert {row["p_holm"] for row in kept["contrasts"]} == {None}
        assert all(row["t_low"] < row["mean_delta"] < row["t_high"] for row in kept["contrasts"])
        assert verdict._repr_markdown_().startswith("Nothing is tested: ")


def test_a_verdict_is_json_repeats_and_names_its_tables():
    runs = decay_runs()
    one, two = (analysed(decay_plan(), runs).as_json() for _ in "ab")
    assert json.dumps(one, allow_nan=False) == json.dumps(two)
    assert {"references", "stability_map"} <= set(one)
    assert "task_contrasts" not in one  # no suite was asked
