"""The plan's decision rules and what evidence means for its hypotheses."""

from dataclasses import dataclass
from typing import Literal

from lib.study.plan import Plan

Direction = Literal["improvement", "regression", "none"]


@dataclass(frozen=True)
class Evidence:
    """What the rules look at, of one arm beside its baseline."""

    arm: str
    baseline_stable: bool
    arm_stable: bool
    accuracy: dict[str, Direction]
    """Per primary measure: the significant change (adjusted p below alpha), or none."""
    accuracy_change: dict[str, float]
    """Per primary measure: mean paired difference."""
    calibration: Direction
    """Significant change of the calibration error; improvement: it fell."""
    throughput_change: float
    """Relative change of training speed; -0.02: two percent slower."""


@dataclass(frozen=True)
class Decision:
    """What the plan says of one arm."""

    arm: str
    rule: str
    decision: Literal["keep the baseline", "adopt the arm", "replicate before adopting"]
    reason: str


def decide(evidence: Evidence, plan: Plan) -> Decision:
    """Apply the rules in order; exactly one fires for any evidence.

    R1 regression with a stable baseline, R2 improvement with a stable baseline, R3–R5 an unstable
    baseline (the arm stable at a bearable cost; at too high a cost; not stable), R6–R8 nothing
    significant in accuracy with a stable baseline (calibration, throughput and simplicity break the
    tie).
    """
    e, changes = evidence, set(evidence.accuracy.values())
    loss = max([0.0, *(-change for change in e.accuracy_change.values())])

    def decision(rule: str, what: str, reason: str) -> Decision:
        return Decision(e.arm, rule, what, reason)  # type: ignore[arg-type]

    keep, adopt = "keep the baseline", "adopt the arm"
    if e.baseline_stable:
        if "regression" in changes:
            return decision("R1", keep, "it loses accuracy and the baseline trains stably")
        if "improvement" in changes:
            return decision(
                "R2",
                "replicate before adopting",
                "it gains accuracy, but the baseline trains stably: the plan adopts an arm only "
                "for the instability it removes",
            )
        if e.calibration == "improvement":
            return decision(
                "R6", adopt, "accuracy does not tell them apart; its calibration is better"
            )
        if e.calibration == "none" and e.throughput_change > plan.cost.throughput:
            return decision("R7", adopt, "neither accuracy nor calibration tells; it is faster")
        return decision("R8", keep, "nothing speaks for the extra layer")
    if not e.arm_stable:
        return decision("R5", keep, "the baseline is unstable and the arm does not cure it")
    if loss > plan.cost.accuracy or -e.throughput_change > plan.cost.throughput:
        return decision("R4", keep, "it removes instability, at more than the pre-registered cost")
    return decision("R3", adopt, "it removes instability within the pre-registered cost")


def hypotheses(evidence: Evidence) -> dict[str, str]:
    """Say of each hypothesis what one arm's evidence means for it."""
    changes = set(evidence.accuracy.values())
    h0 = "not tested: the baseline is unstable"
    if not changes:
        h0 = "not tested: no primary measure was taken"
    h1a = h0
    if evidence.baseline_stable and changes:
        h0 = "rejected" if changes - {"none"} else "not rejected"
        h1a = "supported" if "regression" in changes else "not supported"
    h1b = "not tested: the baseline is stable"
    if not evidence.baseline_stable:
        h1b = "supported" if evidence.arm_stable else "not supported"
    return {"H0": h0, "H1a": h1a, "H1b": h1b}
