"""The whole verdict: it repeats, tests nothing where a study is exploratory, and is that of the
record."""

import json

import pandas as pd
import pytest

from lib.config.claim import ClaimStatus, load_plan
from lib.record.archive import Record
from lib.record.verify import Report, differences
from lib.results import RunResult
from lib.stats.runs import tidy
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
    """Also where git cannot tell: the status says so, and what the tests say stays."""
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


# The record

DROPPED = {"percentile_coverage", "seeds_needed", "g_z", "severity_in_noise", "sentence"}
"""Columns that tables had when these studies were recorded, and words."""


def of_today(record):
    """Analyse what a record holds as 03 does."""
    runs = [RunResult.model_validate(run) for run in record.runs]
    study = record.parameters
    claim = ClaimStatus(record.study, None, record.verdict["standing"], [])
    raw = [record.joined(name) for name in ("trace", "items", "stock_items")]
    found = analyse(study, load_plan(study), claim, tidy(runs), *raw).as_json()
    return dict(json.loads(json.dumps(found)))


TABLES = [
    *("contrasts", "tests", "hypothesis_tests", "stability", "stability_map"),
    *("references", "task_contrasts", "leave_one_out"),
]


@pytest.mark.slow
@pytest.mark.parametrize("study", ["confirmatory-2", "modern"])
def test_a_published_verdict_follows_from_its_runs_by_todays_code(study):
    """The first has families of tests, Holm's p and the suite; the second a plan's hypotheses."""
    record = Record(study)
    now, then = of_today(record), record.verdict
    for name in TABLES:
        if name in then:
            report = Report(study)
            assert list(differences(then[name], now[name], report)) == []
            assert not {*report.unchecked} - DROPPED
    words = [{name: a["answer"] for name, a in of["answers"].items()} for of in (now, then)]
    assert words[0] == words[1]
    assert len(then["contrasts"]) == {"confirmatory-2": 66, "modern": 10}[study]
