"""What a plan may say, its hash, and the seeds that are drawn from it."""

import hashlib
import re
from typing import Any

import pytest

from lib.study.plan import Plan, read_plan
from lib.study.preregistration import load_plan
from lib.study.study import Study, load_study
from lib.study.yaml import ConfigError
from tests.study.samples import LISTED, Parameters

BOUND = {"says": "…", "test": ["layernorm", "none", "loss"], "direction": "greater"}
WITHIN = {"says": "…", "test": ["layernorm", "none", "loss"], "equivalent_within": 0.1}
STAMPED = "1618edaa1d1fe566d9fbb2a52050ac2c3e78d5dab855c9872e6e91d0bde7c135"


def test_the_plan_has_the_hash_that_its_runs_are_stamped_with() -> None:
    assert read_plan("preregistration.yaml").hash == STAMPED


def refusal(change: dict[str, Any], parameters: Parameters) -> str:
    """Return why a plan that is changed is refused."""
    (parameters.plans / "p.yaml").write_text(str(LISTED | change), "utf-8")
    with pytest.raises(ConfigError) as error:
        read_plan("p.yaml")
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"alpha": 5}, "alpha: 5 is not allowed"),
        ({"alhpa": 0.05}, "did you mean 'alpha'"),
        ({"hypotheses": {}}, "hypotheses: "),
        ({"hypotheses": {"a": BOUND | {"test": ["a", "b"]}}}, "hypotheses.a.test: "),
        ({"hypotheses": {"a": BOUND | {"equivalent_within": 1}}}, "give either direction or equi"),
        (
            {"hypotheses": {"a": {"says": "…", "test": BOUND["test"]}}},
            "give either direction or equivalent",
        ),
        ({"hypotheses": {"a": BOUND | {"direction": "up"}}}, "hypotheses.a.direction: 'up' is not"),
        ({"hypotheses": {"a": {"says": "…", "beyond": 1}}}, "hypotheses.a: test: is missing"),
        ({"hypotheses": {"a": WITHIN | {"beyond": 1}}}, "hypotheses.a: beyond goes with direction"),
        ({"frozen": {"trial": {"seeds": 0}}}, "frozen.trial.seeds: 0 is not allowed"),
        ({"frozen": []}, "frozen: "),
    ],
)
def test_a_faulty_plan_names_the_field(
    change: dict[str, Any], named: str, parameters: Parameters
) -> None:
    assert named in refusal(change, parameters)


def test_what_has_a_usual_value_may_be_left_out(parameters: Parameters) -> None:
    least = {"title": "T", "question": "Q?", "confirmatory": ["trial"], "hypotheses": {"a": BOUND}}
    (parameters.plans / "p.yaml").write_text(str(least), "utf-8")
    plan = load_plan(load_study("trial", undrawn=True))
    assert plan is not None
    assert (plan.alpha, plan.power, plan.primary_measures) == (0.05, 0.8, ["loss"])
    assert plan.rule_set is None
    written = Plan.model_validate(least | {"alpha": 0.05, "rules": "none"})
    assert Plan.model_validate(least | {"alpha": 0.05}).hash == plan.hash
    assert Plan.model_validate(least | {"alpha": 0.01}).hash != plan.hash
    assert Plan.model_validate(written.model_dump()) == written


def test_a_hypothesis_that_nothing_answers_is_refused(parameters: Parameters) -> None:
    least = {"title": "T", "question": "Q?", "confirmatory": ["trial"]}
    said = {"a": BOUND, "b": "A sentence that no test is bound to."}
    (parameters.plans / "rules" / "own.yaml").write_text("answers: {c: {}}", "utf-8")
    for rules, hypotheses, fault in (
        ("none", said, "nothing answers b; give each its test"),
        ("own", said | {"c": "Words."}, "nothing answers b; give each its test"),
        ("own", {"c": "Words."}, "primary: names no measure, and no hypothesis has a test"),
    ):
        content = least | {"hypotheses": hypotheses, "rules": rules}
        (parameters.plans / "p.yaml").write_text(str(content), "utf-8")
        with pytest.raises(ConfigError, match=fault) as error:
            load_plan(load_study("trial", undrawn=True))
        assert ("nothing answers" in str(error.value)) == ("nothing" in fault)


def test_a_plan_holds_the_content_of_the_rules_that_it_names(parameters: Parameters) -> None:
    named = Plan.model_validate(LISTED | {"rules": "own"})
    before = named.hash
    (parameters.plans / "rules" / "own.yaml").write_text("tie_breaker: ece", "utf-8")
    with_rules = named.hash
    (parameters.plans / "rules" / "own.yaml").write_text("tie_breaker: brier", "utf-8")
    assert len({before, with_rules, named.hash}) == 3
    assert (named.rule_set, Plan.model_validate(LISTED).rule_set) == ("own", "embedding-norm")


@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan"])
def test_a_number_that_no_hash_can_hold_is_refused(number: str, parameters: Parameters) -> None:
    text = str(LISTED | {"imputation": {"perplexity": "…"}}).replace("'…'", number)
    (parameters.plans / "p.yaml").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"^p\.yaml: imputation\.perplexity: -?(inf|nan) is not"):
        read_plan("p.yaml")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spread": 0.4}, "spread: is 0.4; say of which measure, as {perplexity: 0.4}"),
        ({"title": {"a": 1}}, "title: {'a': 1} is not allowed. Input should be a valid string"),
        ({"spread": [1]}, "spread: is [1]; say of which measure, as {perplexity: 0.4}, or name"),
        ({"spread": True}, "spread: is True; say of which measure, as {perplexity: 0.4}, or name"),
        ({"spread": {"perplexity": 0}}, "spread.perplexity: 0 is not allowed"),
        ({"title": " "}, "title: is missing; add it"),
        ({"families": {"a": 3}}, "families.a: 3 is not allowed. Input should be a valid list"),
        (
            {"families": {"a": [["x"]]}},
            "families.a.0: ['x'] is not allowed. List should have at lea",
        ),
        (
            {"families": {"a": {"contrasts": [["x", "y"]], "measures": ["loss"], "tset": "t"}}},
            "families.a.tset: 'tset' is unknown; did you mean 'test'?",
        ),
        (
            {"families": {"a": {"contrasts": [["x", "y"]], "measures": ["loss"], "test": "tt"}}},
            "families.a.test: 'tt' is not allowed. Input should be 't', 'equivalence' or 'exact'",
        ),
        ({"changes": [3]}, "changes.0: 3 is not allowed. Input should be a valid dictionary"),
        (
            {"instability": {"nois": {}}},
            "instability.nois: 'nois' is unknown; did you mean 'noise'",
        ),
    ],
)
def test_a_wrong_field_is_one_line_with_the_remedy(
    change: dict[str, Any], said: str, parameters: Parameters
) -> None:
    message = refusal(change, parameters)
    assert message.startswith(f"p.yaml: {said}")
    assert "\n" not in message


def test_of_thousands_of_faults_the_first_are_named(parameters: Parameters) -> None:
    *lines, last = refusal({"changes": [*range(5000)]}, parameters).split("\nerror: ")
    faults = [line.partition(" is not allowed")[0] for line in lines]
    assert faults == [f"p.yaml: changes.{number}: {number}" for number in range(30)]
    assert last == "p.yaml: and 4970 more"


def test_a_plan_that_is_not_there_is_named_with_the_nearest() -> None:
    said = "there is no params/plans/traned.yaml ('traned' is unknown; did you mean 'trained'?)"
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_plan("traned.yaml")


def test_seeds_are_31_bits_of_the_hash_of_plan_study_and_place(parameters: Parameters) -> None:
    plan = read_plan("p.yaml")
    expected = [
        int(hashlib.sha256(f"{plan.hash}/trial/{i}".encode()).hexdigest()[:8], 16) // 2
        for i in range(3)
    ]
    study = load_study("trial")
    assert study.seeds == expected
    assert [type(seed) for seed in study.seeds] == [int] * 3
    assert study.hash == Study.model_validate(study.model_dump() | {"seeds": [0]}).hash


def test_a_seed_used_before_is_passed_over(
    parameters: Parameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash is held fixed: a plan that names another used seed would draw altogether others."""
    monkeypatch.setattr(Plan, "hash", "h")
    first, second, third = load_study("trial").seeds
    parameters.plan(frozen={"trial": parameters.frozen() | {"used_seeds": [second]}})
    assert load_study("trial").seeds[:2] == [first, third]


@pytest.mark.parametrize(
    "change", [{"alpha": 0.01}, {"primary": ["perplexity"]}, {"title": "Another"}]
)
def test_a_plan_edited_after_its_runs_has_other_seeds(
    change: dict[str, Any], parameters: Parameters
) -> None:
    """Rules written from results then have no runs: those there are have other seeds."""
    before = load_study("trial").seeds
    parameters.plan(frozen={"trial": parameters.frozen()}, **change)
    assert not set(before) & set(load_study("trial").seeds)


def test_a_frozen_block_edited_by_hand_draws_other_seeds(parameters: Parameters) -> None:
    before = load_study("trial").seeds
    for field, value in [("used_seeds", [before[0]]), ("training_digest", "0" * 64), ("suite", [])]:
        parameters.plan(frozen={"trial": parameters.frozen() | {field: value}})
        assert not set(before) & set(load_study("trial").seeds)


def test_a_deviation_and_another_study_leave_the_seeds(parameters: Parameters) -> None:
    before = load_study("trial").seeds
    deviation = {"date": "2026-11-30", "what": "a", "why": "b"}
    parameters.plan(frozen={"trial": parameters.frozen()}, deviations=[deviation])
    parameters.study(name="other", seeds=before[:1], plan=None)
    assert load_study("trial").seeds == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, r"trial\.yaml: seeds: are drawn .* \./run_all\.sh freeze p\.yaml$"),
        ({"plan": None}, r"trial\.yaml: seeds: are drawn from a plan, and none is named"),
        ({"plan": "q.yaml"}, r"trial\.yaml: plan: there is no params/plans/q\.yaml"),
        ({"seeds": {"count": 0}}, r"trial\.yaml: seeds\.count: 0 is not allowed"),
        ({"seeds": {"count": 3, "a": 1}}, r"trial\.yaml: seeds\.a: 'a' is unknown"),
        ({"seeds": {"count": 10**9}}, r"trial\.yaml: seeds\.count: 1000000000 is not allowed"),
    ],
)
def test_seeds_that_cannot_be_drawn_say_what_to_do(
    change: dict[str, Any], named: str, parameters: Parameters
) -> None:
    parameters.plan()  # not frozen
    parameters.study(**change)
    with pytest.raises(ConfigError, match=named):
        load_study("trial")


def test_studies_and_plans_are_told_apart_by_their_folder(parameters: Parameters) -> None:
    """A study may even have the name of a plan; a plan is never taken for a study."""
    parameters.study(name="p", seeds=[0], plan="p.yaml")
    assert load_study("p").seeds == [0]
    with pytest.raises(ConfigError, match="'plans' is unknown; there are p, trial in params/"):
        load_study("plans")
