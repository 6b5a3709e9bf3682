import itertools
from typing import Any

import pytest
import yaml

from lib.analysis.rules import Evidence, decide
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
        "largest_loss": {ZERO: 0.001, FEW: 0.001},
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
        # Exactly the planned cost is not more than it, and an interval that reaches it not below.
        ("R3", "adopt the arm", UNSTABLE | {"accuracy_change": {ZERO: -0.005, FEW: 0.0}}),
        ("R3", "adopt the arm", UNSTABLE | {"throughput_change": -0.9}),
        ("R5", "keep the baseline", UNSTABLE | {"arm_stable": False}),
        ("R6", "adopt the arm", {"calibration": "improvement", "throughput_change": -0.5}),
        ("R8", "keep the baseline", {}),
        ("R8", "keep the baseline", {"throughput_change": 0.9}),
        ("R8", "keep the baseline", {"calibration": "regression"}),
        ("R8", "keep the baseline", {"calibration": "undefined"}),
        ("R0", "undecided", {"accuracy": {ZERO: "none", FEW: "undefined"}}),
        ("R0", "undecided", {"accuracy": {ZERO: "improvement", FEW: "undefined"}}),
        ("R0", "undecided", UNSTABLE | {"largest_loss": {ZERO: None, FEW: 0.001}}),
        ("R0", "undecided", UNSTABLE | {"largest_loss": {ZERO: 0.006, FEW: 0.001}}),
        ("R0", "undecided", UNSTABLE | {"largest_loss": {ZERO: 0.005, FEW: 0.001}}),
        ("R0", "undecided", UNSTABLE | {"largest_loss": {ZERO: 0.001}}),
        ("R0", "undecided", UNSTABLE | {"accuracy": {"perplexity": "none"}}),
        ("R3", "adopt the arm", UNSTABLE | {"accuracy": {ZERO: "undefined"}}),
        ("R3", "adopt the arm", UNSTABLE | {"instability": "improvement"}),
        ("R5", "keep the baseline", UNSTABLE | {"instability": "none"}),
        ("R5", "keep the baseline", UNSTABLE | {"instability": "undefined"}),
        ("R5", "keep the baseline", UNSTABLE | {"arm_stable": False, "instability": "improvement"}),
        ("R0", "undecided", {"baseline_stable": None}),
        ("R0", "undecided", UNSTABLE | {"arm_stable": None}),
        ("R8", "keep the baseline", {"arm_stable": None}),
        ("R8", "keep the baseline", {"arm_stable": False, "calibration": "improvement"}),
        (
            "R8",
            "keep the baseline",
            {"arm_stable": False, "accuracy": {ZERO: "improvement", FEW: "none"}},
        ),
        (
            "R1",
            "keep the baseline",
            {"arm_stable": False, "accuracy": {ZERO: "regression", FEW: "none"}},
        ),
        ("R1", "keep the baseline", {"accuracy": {ZERO: "regression", FEW: "untested"}}),
        ("R8", "keep the baseline", {"accuracy": {ZERO: "none", FEW: "untested"}}),
    ],
)
def test_each_rule_decides_its_case(
    rule: str, decision: str, fields: dict[str, Any], plan: Plan
) -> None:
    found = decide(evidence(**fields), plan)
    assert (found.rule, found.decision) == (rule, decision)


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


@pytest.mark.parametrize(("found", "rule"), [("regression", "R1"), ("improvement", "R2")])
def test_several_measures_are_listed_so_that_each_can_be_told(
    found: str, rule: str, plan: Plan
) -> None:
    """The names of two measures have a comma themselves."""
    decision = decide(evidence(accuracy=dict.fromkeys(("perplexity", ZERO, FEW), found)), plan)
    said = "in validation perplexity; macro accuracy, zero-shot; macro accuracy, few-shot"
    assert (decision.rule, decision.reason.endswith(said)) == (rule, True)


def test_the_rules_cover_every_case(plan: Plan) -> None:
    directions = ("improvement", "regression", "none", "undefined")
    fired = set()
    for stable, arm_stable, zero, few, calibration, change, speed in itertools.product(
        (True, False),
        (True, False),
        *(directions,) * 3,
        (-0.01, 0.0, 0.01),
        (-0.1, 0.0, 0.1),
    ):
        case = evidence(
            baseline_stable=stable,
            arm_stable=arm_stable,
            accuracy={ZERO: zero, FEW: few},
            accuracy_change={ZERO: change, FEW: 0.0},
            calibration=calibration,
            throughput_change=speed,
        )
        fired.add(decide(case, plan).rule)
    assert fired == {f"R{k}" for k in range(9)} - {"R7"}
