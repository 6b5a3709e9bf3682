"""The verdicts of recorded confirmatory studies, reached again from their raw files by the rules of
today. `verify` asks the code of the time; here is whether what was concluded then still follows."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from lib.analysis.findings import analyse
from lib.analysis.runs import tidy
from lib.record.record import Record
from lib.results import RunResult
from lib.study.io import PAPERS, read_json
from lib.study.plan import Plan
from lib.study.preregistration import ClaimStatus
from lib.study.yaml import read_yaml

HISTORY = {"plan_precedes", "deviations", "plan_changes", "analysing_digest"}
"""What 03 adds to a verdict from git, and of its own code."""


def of_today(record: Record) -> dict[str, Any]:
    """Analyse what a record holds as 03 does."""
    runs = [RunResult.model_validate(run) for run in record.runs]
    plan = Plan.model_validate(read_yaml(record.folder / "plan.yaml"))
    raw = {(run["arm"], run["seed"]): record.raw(run) for run in record.runs}

    def joined(name: str) -> pd.DataFrame:
        tables = {key: of[name] for key, of in raw.items() if name in of and not of[name].empty}
        if not tables:
            return pd.DataFrame()
        table = pd.concat(tables, names=["arm", "seed"]).reset_index(["arm", "seed"])
        return table.reset_index(drop=True)

    claim = ClaimStatus(record.study, plan.hash, [])
    tables = tidy(runs), joined("trace"), joined("items"), joined("stock_items")
    found = analyse(record.parameters, plan, claim, *tables).as_json()
    return dict(json.loads(json.dumps(found)))


def differing(now: Any, then: Any, place: str = "") -> Iterator[str]:
    """Name each value that is another, beyond the last digits of a float."""
    if isinstance(now, dict) and isinstance(then, dict):
        yield from (f"{place}.{key}: only on one side" for key in sorted(now.keys() ^ then.keys()))
        for key in sorted(now.keys() & then.keys()):
            yield from differing(now[key], then[key], f"{place}.{key}")
    elif isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        for number, pair in enumerate(zip(now, then, strict=True)):
            yield from differing(*pair, f"{place}[{number}]")
    elif isinstance(now, float) and isinstance(then, float):
        if not math.isclose(now, then, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{place}: {now}, was {then}"
    elif now != then:
        yield f"{place}: {now!r}, was {then!r}"


LARGE = ("start-or-speed", "trained", "turn", "when")
RECENT = [
    pytest.param(study, marks=pytest.mark.slow if study in LARGE else ())
    for path in sorted(PAPERS.glob("*/results/*.verdict.json"))
    if read_json(path).get("hypothesis_tests")
    for study in [path.name.partition(".")[0]]
]
"""Every study whose plan binds its hypotheses to tests."""
EARLIER = ("tuned", "stability-confirm", "confirmatory-2")
EXPLAINED = {
    "answers.H0.reason": "an arm's numbers stand in brackets behind it, and no word twice",
    "answers.H1a.reason": "the same",
    "answers.H1b.reason": "the same",
    "decisions.reason": "the sentence was turned round; it names the same measures",
    "evidence": "was fields of its own for each fact, which were the same facts in other words",
    "hypothesis_tests": "rules answered all hypotheses; the table is empty",
    "stability.severity_in_noise": "judged since, as are plateaus; no test used them",
    "stability.plateau": "the same",
    "stability.harmful": "the same",
    "stability_map.median_plateau": "the same",
    "stability_map.severity_in_noise": "the same",
    "stability_map.plateau": "the same",
    "leave_one_task_out": "a table of the suite that was added since",
    "trade_off": "a table that only this paper asks: since in its findings",
    "cosine_course": "the same",
    "thresholds": "the same",
    "mechanism": "the same",
    "dose": "the same",
    "layers_apart": "the same",
    "efficiency": "the same",
    "budgets": "the same",
}
"""Where verdicts of the first plans differ, and why: words and tables, and no number."""


@pytest.mark.parametrize("study", RECENT)
def test_a_verdict_of_today_is_the_recorded_one(study: str) -> None:
    record = Record(study)
    then = {name: of for name, of in record.verdict.items() if name not in HISTORY}
    renamed = re.sub("p (that it is false|of the contrary)", "p to refute", json.dumps(then))
    renamed = re.sub(r"(\(n = \d+, p) (?=\d)", r"\1 to support ", renamed)
    assert list(differing(of_today(record), json.loads(renamed))) == []


@pytest.mark.slow
@pytest.mark.parametrize("study", EARLIER)
def test_answers_decisions_and_numbers_of_the_first_plans_still_follow(study: str) -> None:
    record = Record(study)
    then = {name: of for name, of in record.verdict.items() if name not in HISTORY}
    now = of_today(record)
    assert now["tests"]
    assert now["hypothesis_tests"] == []
    found = [re.sub(r"\[\d+\]", "", line).removeprefix(".") for line in differing(now, then)]
    places = [re.sub(r"^evidence\b.*", "evidence", line.partition(": ")[0]) for line in found]
    assert {place: found[i] for i, place in enumerate(places) if place not in EXPLAINED} == {}
