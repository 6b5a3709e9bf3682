import itertools
from typing import Any

import pytest
import yaml

from lib.analysis.rules import Evidence, decide, hypotheses
from lib.study.paths import PLANS
from lib.study.plan import Plan

ZERO, FEW = "macro_accuracy_zero_shot", "macro_accuracy_few_shot"


@pytest.fixture
def plan() -> Plan:
    return Plan.model_validate(yaml.safe_load((PLANS / "preregistration.yaml").read_text("utf-8")))


def evidence(**fields: Any) -> Evidence:
    """An arm of which nothing is significant, beside a stable baseline; but for `fields`."""
    usual: dict[str, Any] = {
        "arm": "layernorm",
        "baseline_stable": True,
        "arm_stable": True,
        "accuracy": {ZERO: "none", FEW: "none"},
        "accuracy_change": {ZERO: 0.0, FEW: 0.0},
        "calibration": "none",
        "throughput_change": 0.0,
    }
    return Evidence(**(usual | fields))


UNSTABLE = {"baseline_stable": False}


@pytest.mark.parametrize(
    ("rule", "decision", "fields"),
    [
        ("R1", "keep the baseline", {"accuracy": {ZERO: "regression", FEW: "none"}}),
        ("R1", "keep the baseline", {"accuracy": {ZERO: "regression", FEW: "improvement"}}),
        ("R1", "keep the baseline", {"accuracy": {ZERO: "regression", FEW: "undefined"}}),
        ("R2", "replicate before adopting", {"accuracy": {ZERO: "none", FEW: "improvement"}}),
        ("R3", "adopt the arm", UNSTABLE),
        ("R4", "keep the baseline", UNSTABLE | {"accuracy_change": {ZERO: -0.006, FEW: 0.0}}),
        ("R4", "keep the baseline", UNSTABLE | {"throughput_change": -0.06, "throughput_noise": 0}),
        ("R5", "keep the baseline", UNSTABLE | {"arm_stable": False}),
        ("R6", "adopt the arm", {"calibration": "improvement", "throughput_change": -0.5}),
        ("R7", "adopt the arm", {"throughput_change": 0.06, "throughput_noise": 0.02}),
        ("R8", "keep the baseline", {}),
        (
            "R8",
            "keep the baseline",
            {"calibration": "regression", "throughput_change": 0.06, "throughput_noise": 0.02},
        ),
        ("R8", "keep the baseline", {"calibration": "undefined"}),
        ("R0", "undecided", {"accuracy": {ZERO: "none", FEW: "undefined"}}),
        ("R0", "undecided", {"accuracy": {ZERO: "improvement", FEW: "undefined"}}),
        ("R0", "undecided", UNSTABLE | {"accuracy": {ZERO: "undefined"}}),
    ],
)
def test_each_rule_decides_its_case(
    rule: str, decision: str, fields: dict[str, Any], plan: Plan
) -> None:
    found = decide(evidence(**fields), plan)
    assert (found.rule, found.decision) == (rule, decision)


@pytest.mark.parametrize("noise", [None, 0.4])
def test_speed_decides_nothing_unless_measured_alone_and_beyond_its_noise(
    noise: float | None, plan: Plan
) -> None:
    faster = evidence(throughput_change=0.3, throughput_noise=noise)
    assert decide(faster, plan).rule == "R8"
    slower = evidence(baseline_stable=False, throughput_change=-0.3, throughput_noise=noise)
    assert decide(slower, plan).rule == "R3"


def test_a_cost_is_read_in_its_measures_direction_and_only_of_accuracies(plan: Plan) -> None:
    """A perplexity that falls costs nothing, and the plan's cost is not in its units."""
    for change in (-1.0, +1.0):
        case = evidence(
            baseline_stable=False,
            accuracy={"perplexity": "none", ZERO: "none"},
            accuracy_change={"perplexity": change, ZERO: 0.0},
        )
        assert decide(case, plan).rule == "R3"


def test_what_is_not_tested_is_named(plan: Plan) -> None:
    reason = decide(evidence(accuracy={ZERO: "undefined", FEW: "none"}), plan).reason
    assert "macro accuracy, zero-shot" in reason
    assert "few-shot" not in reason


def test_the_rules_cover_every_case(plan: Plan) -> None:
    directions = ("improvement", "regression", "none", "undefined")
    fired = set()
    for stable, arm_stable, zero, few, calibration, change, speed, noise in itertools.product(
        (True, False),
        (True, False),
        *(directions,) * 3,
        (-0.01, 0.0, 0.01),
        (-0.1, 0.0, 0.1),
        (None, 0.02),
    ):
        case = evidence(
            baseline_stable=stable,
            arm_stable=arm_stable,
            accuracy={ZERO: zero, FEW: few},
            accuracy_change={ZERO: change, FEW: 0.0},
            calibration=calibration,
            throughput_change=speed,
            throughput_noise=noise,
        )
        fired.add(decide(case, plan).rule)
    assert fired == {f"R{k}" for k in range(9)}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("not rejected", "not supported", "not tested")),
        ({"accuracy": {ZERO: "regression"}}, ("rejected", "supported", "not tested")),
        ({"accuracy": {ZERO: "improvement"}}, ("rejected", "not supported", "not tested")),
        ({"accuracy": {ZERO: "undefined"}}, ("not tested", "not tested", "not tested")),
        ({"accuracy": {}}, ("not tested", "not tested", "not tested")),
        ({"accuracy": {"perplexity": "regression"}}, ("not tested", "not tested", "not tested")),
        (UNSTABLE, ("not tested", "not tested", "supported")),
        (UNSTABLE | {"arm_stable": False}, ("not tested", "not tested", "not supported")),
    ],
)
def test_hypotheses_are_answered_one_by_one(
    fields: dict[str, Any], expected: tuple[str, ...]
) -> None:
    found = hypotheses([evidence(**fields)])
    assert tuple(answer.answer for answer in found.values()) == expected


def test_a_hypothesis_has_one_answer_however_many_arms_there_are() -> None:
    arms = [
        evidence(arm="a", accuracy={ZERO: "regression"}),
        evidence(arm="b"),
        evidence(arm="c", baseline_stable=False),
        evidence(arm="d", baseline_stable=False, arm_stable=False),
    ]
    found = hypotheses(arms)
    assert [(name, a.answer) for name, a in found.items()] == [
        ("H0", "rejected"), ("H1a", "supported in part"), ("H1b", "supported in part"),
    ]  # fmt: skip
    assert found["H1b"].reason == (
        "not tested: the baseline is stable (a, b); supported (c); not supported (d)"
    )


def test_over_learning_rates_the_sensitivity_answers_h1b_alone() -> None:
    """The arm is as unstable as its baseline at one rate, and the plan asks about all rates."""
    arms = [evidence(arm="slow", **UNSTABLE), evidence(arm="fast", arm_stable=False, **UNSTABLE)]
    assert hypotheses(arms)["H1b"].answer == "supported in part"
    over_rates = hypotheses(arms, {"layernorm": "not supported"})["H1b"]
    assert (over_rates.answer, over_rates.reason) == ("not supported", "not supported (layernorm)")


def test_without_an_arm_of_the_layer_nothing_is_tested() -> None:
    assert {answer.answer for answer in hypotheses([]).values()} == {"not tested"}
