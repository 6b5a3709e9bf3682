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


@pytest.mark.parametrize("noise", [None, 0.4])
def test_speed_decides_nothing_unless_measured_alone_and_beyond_its_noise(
    noise: float | None, plan: Plan
) -> None:
    faster = evidence(throughput_change=0.3, throughput_noise=noise)
    assert decide(faster, plan).rule == "R8"
    slower = evidence(baseline_stable=False, throughput_change=-0.3, throughput_noise=noise)
    assert decide(slower, plan).rule == "R3"


def test_without_a_planned_cost_in_speed_no_speed_decides(plan: Plan) -> None:
    other = plan.model_copy(update={"cost": plan.cost.model_copy(update={"throughput": None})})
    fast = {"throughput_change": 0.3, "throughput_noise": 0.0}
    slow = {"throughput_change": -0.3, "throughput_noise": 0.0}
    assert (decide(evidence(**fast), plan).rule, decide(evidence(**fast), other).rule) == (
        "R7",
        "R8",
    )
    unstable = evidence(**UNSTABLE | slow)
    assert (decide(unstable, plan).rule, decide(unstable, other).rule) == ("R4", "R3")


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
