import itertools
from typing import Any

import pytest
import yaml
from lib.analysis.rules import Answers, Evidence, RuleSet, answers_by_rules, decide, read_rules

from lib.study.io import PLANS
from lib.study.plan import Plan

ZERO, FEW = "macro_accuracy_zero_shot", "macro_accuracy_few_shot"
QUALITY = (ZERO, FEW, "accuracy")


@pytest.fixture(scope="module")
def rules() -> RuleSet:
    content = yaml.safe_load((PLANS / "second.yaml").read_text("utf-8"))
    return read_rules(Plan.model_validate(content))


def evidence(
    primary: dict[str, Any] | None = None, arm: str = "layernorm", own: str = "stable", **facts: str
) -> Evidence:
    """An arm of which nothing is significant, beside a stable baseline; but for what is given."""
    primary = {ZERO: "none", FEW: "none"} if primary is None else primary
    usual: dict[str, Any] = {
        "baseline": "stable",
        "arm": own,
        "tie_breaker": "none",
        "smoothness": "not asked",
        "removal": "not asked",
        "cost": "within",
    }
    words = {name: [word] for name, word in (usual | facts).items()}
    words |= {"primary": [*primary.values()]}
    words |= {"quality": [way for name, way in primary.items() if name in QUALITY]}
    numbers = {"quality": [f"Q of {arm}"], "smoothness": ["S"], "stability": ["0 of 8"]}
    if words["smoothness"] == ["not asked"]:
        numbers["smoothness"] = []
    return Evidence(arm, primary, words, numbers)


UNSTABLE = {"baseline": "unstable"}
LOST = {"primary": {ZERO: "regression"}}


@pytest.mark.parametrize(
    ("rule", "decision", "given"),
    [
        ("R1", "keep the baseline", LOST),
        ("R1", "keep the baseline", {"primary": {ZERO: "regression", FEW: "improvement"}}),
        ("R1", "keep the baseline", {"primary": {ZERO: "regression", FEW: "undefined"}}),
        ("R1", "keep the baseline", {"primary": {ZERO: "regression", FEW: "untested"}}),
        ("R1", "keep the baseline", {"own": "unstable"} | LOST),
        ("R2", "replicate before adopting", {"primary": {ZERO: "none", FEW: "improvement"}}),
        ("R3", "adopt the arm", UNSTABLE),
        ("R3", "adopt the arm", UNSTABLE | {"primary": {ZERO: "undefined"}}),
        ("R3", "adopt the arm", UNSTABLE | {"removal": "improvement"}),
        ("R4", "keep the baseline", UNSTABLE | {"cost": "over"}),
        ("R5", "keep the baseline", UNSTABLE | {"own": "unstable"}),
        ("R5", "keep the baseline", UNSTABLE | {"removal": "none", "cost": "over"}),
        ("R5", "keep the baseline", UNSTABLE | {"removal": "undefined"}),
        ("R5", "keep the baseline", UNSTABLE | {"own": "unstable", "removal": "improvement"}),
        ("R6", "adopt the arm", {"tie_breaker": "improvement"}),
        ("R8", "keep the baseline", {}),
        ("R8", "keep the baseline", {"tie_breaker": "regression"}),
        ("R8", "keep the baseline", {"tie_breaker": "undefined"}),
        ("R8", "keep the baseline", {"own": "not judged"}),
        ("R8", "keep the baseline", {"own": "unstable", "tie_breaker": "improvement"}),
        ("R8", "keep the baseline", {"own": "unstable", "primary": {ZERO: "improvement"}}),
        ("R8", "keep the baseline", {"primary": {ZERO: "none", FEW: "untested"}}),
        ("R0", "undecided", {"primary": {ZERO: "improvement", FEW: "undefined"}}),
        ("R0", "undecided", UNSTABLE | {"cost": "unknown"}),
        ("R0", "undecided", UNSTABLE | {"cost": "unclear"}),
        ("R0", "undecided", {"baseline": "not judged"}),
        ("R0", "undecided", UNSTABLE | {"own": "not judged"}),
    ],
)
def test_each_rule_decides_its_case(
    rule: str, decision: str, given: dict[str, Any], rules: RuleSet
) -> None:
    found = decide(evidence(**given), rules)
    assert found is not None
    assert (found.rule, found.decision) == (rule, decision)


def test_what_decided_is_named_so_that_each_measure_can_be_told(rules: RuleSet) -> None:
    """The names of two measures have a comma themselves."""
    for way in ("regression", "improvement", "undefined"):
        found = decide(evidence(dict.fromkeys(("perplexity", ZERO), way) | {FEW: "none"}), rules)
        assert found is not None
        assert found.reason.endswith(" validation perplexity; macro accuracy, zero-shot")


def test_exactly_one_rule_fires_whatever_is_found(rules: RuleSet) -> None:
    stable = ("stable", "unstable", "not judged")
    ways = ("improvement", "regression", "none", "undefined")
    costs = ("over", "within", "unclear", "unknown")
    fired = set()
    cases = itertools.product(stable, stable, ways, ways, ways, ("not asked", *ways), costs)
    for baseline, own, zero, few, tie, removal, cost in cases:
        facts = {"own": own, "tie_breaker": tie, "removal": removal, "cost": cost}
        found = decide(evidence({ZERO: zero, FEW: few}, baseline=baseline, **facts), rules)
        assert found is not None
        assert (found.decision == "undecided") == (found.rule == "R0")
        fired.add(found.rule)
    assert fired == {"R0", "R1", "R2", "R3", "R4", "R5", "R6", "R8"}
    assert decide(evidence(), RuleSet()) is None


NOT = "not tested"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("not rejected", "not supported", NOT)),
        (LOST, ("rejected", "supported", NOT)),
        ({"primary": {ZERO: "improvement"}}, ("rejected", "not supported", NOT)),
        ({"primary": {ZERO: "undefined"}}, (NOT, NOT, NOT)),
        ({"primary": {ZERO: "untested"}}, (NOT, NOT, NOT)),
        ({"primary": {"perplexity": "regression"}}, (NOT, NOT, NOT)),
        ({"baseline": "not judged"}, (NOT, NOT, NOT)),
        (LOST | {"smoothness": "improvement"}, ("rejected", "supported", NOT)),
        (LOST | {"smoothness": "none"}, ("rejected", "supported in part", NOT)),
        (LOST | {"smoothness": "undefined"}, ("rejected", "supported in part", NOT)),
        ({"smoothness": "improvement"}, ("not rejected", "not supported", NOT)),
        (UNSTABLE, (NOT, NOT, "supported")),
        (UNSTABLE | {"own": "unstable"}, (NOT, NOT, "not supported")),
        (UNSTABLE | {"own": "not judged"}, (NOT, NOT, NOT)),
        (UNSTABLE | {"removal": "improvement"}, (NOT, NOT, "supported")),
        (UNSTABLE | {"removal": "none"}, (NOT, NOT, "not supported")),
        (UNSTABLE | {"removal": "undefined"}, (NOT, NOT, NOT)),
    ],
)
def test_hypotheses_are_answered_one_by_one(
    given: dict[str, Any], expected: tuple[str, ...], rules: RuleSet
) -> None:
    found = answers_by_rules([evidence(**given)], rules)
    assert [*found] == ["H0", "H1a", "H1b"]
    assert tuple(answer.answer for answer in found.values()) == expected


def test_a_hypothesis_has_one_answer_however_many_arms_there_are(rules: RuleSet) -> None:
    arms = [
        evidence(arm="a", **LOST),
        evidence(arm="b"),
        evidence(arm="c", **UNSTABLE),
        evidence(arm="d", own="unstable", **UNSTABLE),
    ]
    found = answers_by_rules(arms, rules)
    assert [a.answer for a in found.values()] == ["rejected", *["supported in part"] * 2]
    assert found["H1b"].reason == (
        "a, b: not tested, as the baseline is stable; c (0 of 8): supported; "
        "d (0 of 8): not supported"
    )
    assert found["H0"].reason.startswith(
        "a (Q of a); b (Q of b): not rejected; c, d: not tested, as"
    )
    assert {answer.answer for answer in answers_by_rules([], rules).values()} == {NOT}


def test_a_reason_holds_the_numbers_and_says_the_answer_once(rules: RuleSet) -> None:
    found = answers_by_rules([evidence(smoothness="none", **LOST)], rules)
    assert found["H0"].reason == "layernorm (Q of layernorm)"
    assert found["H1a"].reason == (
        "layernorm (it lowers accuracy, and that it smooths training is not shown; "
        "Q of layernorm; S)"
    )
    assert found["H1b"].reason == "layernorm: the baseline is stable"
    undefined = answers_by_rules([evidence(removal="undefined", **UNSTABLE)], rules)
    assert undefined["H1b"].reason == "layernorm (0 of 8): its unstable runs have no adjusted p"


def test_the_last_case_of_an_answer_must_hold_always() -> None:
    with pytest.raises(ValueError, match="the last case must hold always"):
        Answers.model_validate(
            {"several": "", "cases": [{"when": {"arm": "stable"}, "answer": ""}]}
        )
