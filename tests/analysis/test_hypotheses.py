import itertools
from typing import Any

import pytest

from lib.analysis.hypotheses import answer_all
from tests.analysis.test_rules import FEW, UNSTABLE, ZERO, evidence

LOST = {"accuracy": {ZERO: "regression"}, "in_words": {ZERO: "harms", "gradient_cosine": "smooth"}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("not rejected", "not supported", "not tested")),
        ({"accuracy": {ZERO: "regression"}}, ("rejected", "supported", "not tested")),
        ({"accuracy": {ZERO: "improvement"}}, ("rejected", "not supported", "not tested")),
        ({"accuracy": {ZERO: "undefined"}}, ("not tested", "not tested", "not tested")),
        ({"accuracy": {ZERO: "untested"}}, ("not tested", "not tested", "not tested")),
        ({"accuracy": {}}, ("not tested", "not tested", "not tested")),
        ({"accuracy": {"perplexity": "regression"}}, ("not tested", "not tested", "not tested")),
        (UNSTABLE, ("not tested", "not tested", "supported")),
        (UNSTABLE | {"arm_stable": False}, ("not tested", "not tested", "not supported")),
        (UNSTABLE | {"arm_stable": None}, ("not tested", "not tested", "not tested")),
        ({"baseline_stable": None}, ("not tested", "not tested", "not tested")),
        (UNSTABLE | {"instability": "improvement"}, ("not tested", "not tested", "supported")),
        (UNSTABLE | {"instability": "none"}, ("not tested", "not tested", "not supported")),
        (UNSTABLE | {"instability": "undefined"}, ("not tested", "not tested", "not tested")),
        (LOST | {"smoothness": "improvement"}, ("rejected", "supported", "not tested")),
        (LOST | {"smoothness": "none"}, ("rejected", "supported in part", "not tested")),
        (LOST | {"smoothness": "regression"}, ("rejected", "supported in part", "not tested")),
        (LOST | {"smoothness": "undefined"}, ("rejected", "supported in part", "not tested")),
        ({"smoothness": "improvement"}, ("not rejected", "not supported", "not tested")),
    ],
)
def test_hypotheses_are_answered_one_by_one(
    fields: dict[str, Any], expected: tuple[str, ...]
) -> None:
    found = answer_all([evidence(**fields)])
    assert tuple(answer.answer for answer in found.values()) == expected


def test_a_hypothesis_has_one_answer_however_many_arms_there_are() -> None:
    arms = [
        evidence(arm="a", accuracy={ZERO: "regression"}),
        evidence(arm="b"),
        evidence(arm="c", unstable_in_words="0 of 8", **UNSTABLE),
        evidence(arm="d", arm_stable=False, **UNSTABLE),
    ]
    found = answer_all(arms)
    assert [(name, a.answer) for name, a in found.items()] == [
        ("H0", "rejected"), ("H1a", "supported in part"), ("H1b", "supported in part"),
    ]  # fmt: skip
    assert found["H1b"].reason == (
        "a, b: not tested, as the baseline is stable; c (0 of 8): supported; d: not supported"
    )


def test_a_reason_holds_the_numbers_of_every_accuracy() -> None:
    words = {ZERO: "harms: -0.02", FEW: "undecided: 0.00", "perplexity": "harms: +1"}
    accuracy = {ZERO: "regression", FEW: "none", "perplexity": "regression"}
    found = answer_all([evidence(accuracy=accuracy, in_words=words)])
    assert found["H0"].reason == "layernorm (harms: -0.02; undecided: 0.00)"
    assert found["H1a"].reason == "layernorm (harms: -0.02; undecided: 0.00)"


def test_less_accuracy_without_smoother_training_says_so() -> None:
    found = answer_all([evidence(smoothness="none", **LOST)])["H1a"]
    assert found.reason == (
        "layernorm (it lowers accuracy, and that it smooths training is not shown; harms; smooth)"
    )


def test_without_an_arm_of_the_layer_nothing_is_tested() -> None:
    assert {answer.answer for answer in answer_all([]).values()} == {"not tested"}


def test_a_reason_does_not_say_the_answer_again() -> None:
    cases: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({}, {"H0": "layernorm", "H1b": "layernorm: the baseline is stable"}),
        ({"baseline_stable": None}, {"H0": "layernorm: the baseline is not judged"}),
        (UNSTABLE | {"instability": "undefined", "unstable_in_words": "0 of 8"},
         {"H1b": "layernorm (0 of 8): its unstable runs have no adjusted p"}),
    ]  # fmt: skip
    for fields, reasons in cases:
        found = answer_all([evidence(**fields)])
        assert {name: found[name].reason for name in reasons} == reasons
    for baseline, arm, zero, smooth in itertools.product(
        (True, False, None),
        (True, False, None),
        ("none", "regression", "undefined"),
        (None, "none"),
    ):
        fields = {"baseline_stable": baseline, "arm_stable": arm, "smoothness": smooth}
        one = evidence(arm="a", accuracy={ZERO: zero}, **fields)
        for answer in answer_all([one, evidence(arm="b")]).values():
            assert not answer.reason.startswith(answer.answer)
            assert f"{answer.answer}: {answer.answer}" not in f"{answer.answer}: {answer.reason}"
