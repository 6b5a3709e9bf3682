import json
import re
from typing import Any

import pandas as pd
import pytest
import yaml
from lib.analysis.findings import Analysis, analyse

from lib.study.io import PLANS
from lib.study.plan import Plan
from lib.study.preregistration import ClaimStatus
from lib.study.study import Study
from tests.analysis.samples import REFERENCES, design, noise, runs_of, trace_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_resamples")]  # whole analyses
NO_ITEMS = pd.DataFrame(columns=["arm", "seed", "task", "shots", "item", "correct"])
NORMS = ["none", "layernorm"]
ALWAYS = ["references", "stability_map", "leave_one_out"]


@pytest.fixture(params=["second.yaml", "preregistration.yaml", None])
def plan(request: pytest.FixtureRequest) -> Plan | None:
    if request.param is None:
        return None
    return Plan.model_validate(yaml.safe_load((PLANS / request.param).read_text("utf-8")))


def analysed(
    study: Study,
    plan: Plan | None,
    items: pd.DataFrame = NO_ITEMS,
    stock: pd.DataFrame = NO_ITEMS,
    because: tuple[str, ...] = (),
    **more: Any,
) -> Analysis:
    runs = runs_of(
        study,
        lambda arm, seed: 2.0 + 0.1 * (arm.id != arm.baseline) + 0.01 * noise(seed, len(arm.id)),
        **{"references": REFERENCES} | more,
    )
    trace = trace_of(runs)
    standing = ClaimStatus(study.name, plan.hash if plan else None, list(because))
    return analyse(study, plan, standing, runs, trace, items, stock)


def keys(analysis: Analysis) -> list[str]:
    assert json.dumps(analysis.as_json(), allow_nan=False)
    assert analysis._repr_markdown_()
    return [finding.key for finding in analysis.findings]


def accuracies() -> dict[str, Any]:
    names = ("macro_accuracy_zero_shot", "macro_accuracy_few_shot", "gradient_cosine")
    return {name: lambda arm, seed: 0.5 + 0.01 * noise(seed, len(arm.id), 7) for name in names}


def test_one_factor_has_what_every_study_has(plan: Plan | None) -> None:
    study = design(factors={"model.embedding_norm": NORMS})
    assert keys(analysed(study, plan, **accuracies())) == ALWAYS


def test_a_study_of_one_arm_has_nothing_to_compare(plan: Plan | None) -> None:
    found = keys(analysed(design(factors={"model.embedding_norm": ["none"]}), plan))
    assert found == ALWAYS[:2]


def test_results_from_before_references_are_still_analysed() -> None:
    study = design(factors={"model.embedding_norm": NORMS})
    assert "references" not in keys(analysed(study, None, references={}))


def test_the_suite_is_shown_task_by_task() -> None:
    study = design(factors={"model.embedding_norm": NORMS})
    found = keys(analysed(study, None, answers(study), **accuracies()))
    of_tasks = ["task_contrasts", "leave_one_task_out"]
    assert found == ["suite", *ALWAYS[:2], *of_tasks, ALWAYS[2]]


def answers(study: Study) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"arm": arm, "seed": seed, "task": task, "shots": shots, "item": item}
            | {"correct": noise(seed, item, shots, len(arm)) > 0}
            for arm in NORMS
            for seed in study.seeds
            for task in ("a", "b")
            for shots in (0, 2)
            for item in range(10)
        ]
    )


def test_stock_tasks_are_contrasted_with_seeds_and_questions_resampled() -> None:
    study = design(factors={"model.embedding_norm": NORMS})
    analysis = analysed(study, None, stock=answers(study), **accuracies())
    assert keys(analysis) == [*ALWAYS[:2], "stock_contrasts", ALWAYS[2]]
    table = next(f.table for f in analysis.findings if f.key == "stock_contrasts")
    assert len(table) == (len(NORMS) - 1) * 2 * 2  # arms, tasks, numbers of shots
    assert (table["questions"] == 10).all()
    assert (table["crossed_low"] < table["mean_delta"]).all()
    assert (table["crossed_high"] > table["mean_delta"]).all()


def test_only_a_confirmatory_study_gets_tests_decisions_and_answers() -> None:
    study = design(factors={"model.embedding_norm": NORMS})
    second = Plan.model_validate(yaml.safe_load((PLANS / "second.yaml").read_text("utf-8")))
    confirmed = analysed(study, second, **accuracies())
    assert confirmed.as_json() == analysed(study, second, **accuracies()).as_json()
    exploratory = analysed(study, second, because=("it is not named",), **accuracies())
    decided, explored = confirmed.as_json(), exploratory.as_json()
    assert [decision["arm"] for decision in decided["decisions"]] == ["layernorm"]
    assert set(decided["answers"]) == {"H0", "H1a", "H1b"}
    assert {test["family"] for test in decided["tests"]} == {"primary", "smoothness"}
    assert (explored["tests"], explored["decisions"], explored["answers"]) == ([], [], {})
    bare = {"family": "", "test": "", "p_holm": None}
    assert explored["contrasts"] == [row | bare for row in decided["contrasts"]]
    assert "** by rule R1" in confirmed._repr_markdown_()
    assert ", Holm p 0." in confirmed._repr_markdown_()
    text = exploratory._repr_markdown_()
    assert text.startswith("Exploratory, so nothing is tested and no rule decides")
    assert re.search(r"validation perplexity \+\d\.\d+ \[\+\d", text)
    for word in ("by rule", "baseline train", "adopt", "supported", "**H", "Holm", " p "):
        assert word not in text
