"""The plan's decision rules."""

from dataclasses import dataclass, field
from typing import Literal

from lib.study.measures import ACCURACIES, MEASURES
from lib.study.plan import Plan

Direction = Literal["improvement", "regression", "none", "undefined", "untested"]
"""A significant change for the better or the worse, none, or no test possible; untested: the plan
tests other measures of this arm, not this one."""


@dataclass(frozen=True)
class Evidence:
    """What the rules look at: one arm beside its baseline."""

    arm: str
    baseline_stable: bool | None
    arm_stable: bool | None
    """By the share of unstable runs; None: its runs are not judged."""
    accuracy: dict[str, Direction]
    """Per primary measure."""
    accuracy_change: dict[str, float]
    """Per primary measure: mean paired difference."""
    largest_loss: dict[str, float | None]
    """Per primary accuracy: the largest loss that its interval holds; None: it has none."""
    calibration: Direction
    """Of the calibration error; improvement: it fell."""
    throughput_change: float
    """Relative change of training speed; -0.02: two percent slower. Runs share a machine, so that
    it decides nothing."""
    smoothness: Direction | None = None
    """Of the plan's measure of smooth training; None: the plan names none."""
    instability: Direction | None = None
    """Of the share of unstable runs, by the plan's exact test; None: the plan has none."""
    in_words: dict[str, str] = field(default_factory=dict)
    """Per primary measure, and that of smoothness: what the difference shows, with its interval."""
    unstable_in_words: str = ""
    """How many runs of the arm and of its baseline are unstable."""


@dataclass(frozen=True)
class Decision:
    """What the plan says of one arm."""

    arm: str
    rule: str
    decision: Literal[
        "keep the baseline", "adopt the arm", "replicate before adopting", "undecided"
    ]
    reason: str


def decide(evidence: Evidence, plan: Plan) -> Decision:
    """Apply the rules in order; exactly one fires for any evidence.

    R0: the stability of one of the two is not judged. With a stable baseline: R1 worse in a primary
    measure, R8 unstable, R0 a primary measure without a test, R2 better in one, and where the
    primary measures show nothing, R6 better calibration, R8 a tie, which keeps the baseline. With
    an unstable one: R5 the arm does not remove the instability, R4 it costs more accuracy than
    planned, R3 its cost is below that with its whole interval, R0 neither. Where the plan has an
    exact test of unstable runs, that must show the removal too. R7, in records of the first rules,
    was speed.
    """
    e = evidence

    def measures(what: Direction) -> str:
        """Their names, some of which have a comma of their own."""
        return "; ".join(MEASURES[name].label for name, d in e.accuracy.items() if d == what)

    def decision(rule: str, what: str, reason: str) -> Decision:
        return Decision(e.arm, rule, what, reason)  # type: ignore[arg-type]

    keep, adopt = "keep the baseline", "adopt the arm"
    if e.baseline_stable is None or (e.arm_stable is None and not e.baseline_stable):
        return decision("R0", "undecided", "stability is not judged where the loss starts high")
    untested = "no adjusted p (no family of the plan, fewer than two pairs, or no spread)"
    undefined = f"{untested} of {measures('undefined')}"
    if e.baseline_stable:
        if lost := measures("regression"):
            return decision(
                "R1", keep, f"the baseline trains stably, and the arm is worse in {lost}"
            )
        if e.arm_stable is False:
            return decision("R8", keep, "the baseline trains stably and the arm does not")
        if measures("undefined"):
            return decision("R0", "undecided", undefined)
        if gained := measures("improvement"):
            return decision(
                "R2",
                "replicate before adopting",
                "the baseline trains stably, and the plan adopts an arm only for the instability "
                f"it removes; it is better in {gained}",
            )
        if e.calibration == "improvement":
            return decision("R6", adopt, "only its calibration tells them apart, and it is better")
        return decision("R8", keep, "a tie: nothing speaks for the extra layer")
    if not e.arm_stable:
        return decision("R5", keep, "the baseline is unstable and the arm does not cure it")
    if e.instability not in (None, "improvement"):
        return decision("R5", keep, "that the arm cures the instability is not significant")
    removes = "it removes instability"
    costs = [-MEASURES[name].gain(e.accuracy_change[name]) for name in accuracies(e)]
    if max(costs, default=0.0) > plan.cost.accuracy:
        return decision("R4", keep, f"{removes}, at more than the planned cost")
    largest = [e.largest_loss.get(name) for name in accuracies(e)]
    if not largest or None in largest:
        return decision("R0", "undecided", f"{removes}, at a cost in accuracy that is unknown")
    if all(loss is not None and loss < plan.cost.accuracy for loss in largest):
        return decision("R3", adopt, f"{removes}, at less than the planned cost")
    return decision(
        "R0", "undecided", f"{removes}, and its cost cannot be told from the planned one"
    )


def accuracies(evidence: Evidence) -> list[str]:
    """Name the primary measures that are accuracies."""
    return [name for name in evidence.accuracy if name in ACCURACIES]
