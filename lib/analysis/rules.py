"""The plan's decision rules, and what the evidence says about its hypotheses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lib.study.measures import ACCURACIES, MEASURES
from lib.study.plan import Plan

Direction = Literal["improvement", "regression", "none", "undefined"]
"""A significant change for the better or the worse, none, or no test possible."""


@dataclass(frozen=True)
class Evidence:
    """What the rules look at: one arm beside its baseline."""

    arm: str
    baseline_stable: bool
    arm_stable: bool
    accuracy: dict[str, Direction]
    """Per primary measure."""
    accuracy_change: dict[str, float]
    """Per primary measure: mean paired difference."""
    calibration: Direction
    """Of the calibration error; improvement: it fell."""
    throughput_change: float
    """Relative change of training speed; -0.02: two percent slower."""
    throughput_noise: float | None = None
    """Largest relative difference between repeated measurements of one arm, made with the machine
    idle and alternating with the baseline's. None: speed was not measured that way and decides
    nothing."""


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

    With a stable baseline: R1 worse in a primary measure, R0 a primary measure without a test, R2
    better in one, and where the primary measures show nothing, R6 better calibration, R7 faster
    (beyond the noise and the plan's margin), R8 a tie, which keeps the baseline. With an unstable
    one: R5 the arm does not cure it, R0 a cost without an interval, R4 too high a cost, R3 a
    bearable one.
    """
    e, margin = evidence, plan.cost.throughput or 0.0

    def measures(what: Direction) -> str:
        return ", ".join(MEASURES[name].label for name, d in e.accuracy.items() if d == what)

    def decision(rule: str, what: str, reason: str) -> Decision:
        return Decision(e.arm, rule, what, reason)  # type: ignore[arg-type]

    keep, adopt = "keep the baseline", "adopt the arm"
    untested = "no adjusted p (no family of the plan, fewer than two pairs, or no spread)"
    undefined = f"{untested} of {measures('undefined')}"
    if e.baseline_stable:
        if lost := measures("regression"):
            return decision("R1", keep, f"it is worse in {lost} and the baseline trains stably")
        if measures("undefined"):
            return decision("R0", "undecided", undefined)
        if gained := measures("improvement"):
            return decision(
                "R2",
                "replicate before adopting",
                f"it is better in {gained}, but the baseline trains stably: the plan adopts an arm "
                "only for the instability it removes",
            )
        if e.calibration == "improvement":
            return decision("R6", adopt, "only its calibration tells them apart, and it is better")
        beyond = e.throughput_noise is not None and (
            e.throughput_change > max(margin, e.throughput_noise)
        )
        if e.calibration == "none" and beyond:
            return decision("R7", adopt, "only its speed tells them apart, and it is faster")
        return decision("R8", keep, "a tie: nothing speaks for the extra layer")
    if not e.arm_stable:
        return decision("R5", keep, "the baseline is unstable and the arm does not cure it")
    if measures("undefined"):
        return decision(
            "R0", "undecided", f"it removes instability, at a cost unknown: {undefined}"
        )
    losses = [-MEASURES[name].gain(e.accuracy_change[name]) for name in _accuracies(e)]
    slower = e.throughput_noise is not None and (
        -e.throughput_change > max(margin, e.throughput_noise)
    )
    if slower or max(losses, default=0.0) > plan.cost.accuracy:
        return decision("R4", keep, "it removes instability, at more than the planned cost")
    return decision("R3", adopt, "it removes instability within the planned cost")


def _accuracies(evidence: Evidence) -> list[str]:
    return [name for name in evidence.accuracy if name in ACCURACIES]


@dataclass(frozen=True)
class Answer:
    """What a study says to one hypothesis."""

    answer: str
    """rejected, not rejected, supported, supported in part, not supported, not tested."""
    reason: str


def hypotheses(
    evidence: Sequence[Evidence], sensitivity: Mapping[str, str] | None = None
) -> dict[str, Answer]:
    """Answer each hypothesis once, from all arms that hold the layer.

    H0 is rejected when an arm's accuracy changed significantly beside a stable baseline; H1a is
    supported when it fell. H1b is about arms beside an unstable baseline or, for a study over
    learning rates, about `sensitivity`: the answer per variant of
    `lib.analysis.learning_rate.sensitivity_table`.
    """
    h0, h1a, h1b = {}, {}, {}
    for e in evidence:
        found = {e.accuracy[name] for name in _accuracies(e)}
        if not e.baseline_stable:
            h0[e.arm] = h1a[e.arm] = "not tested: the baseline is unstable"
            h1b[e.arm] = "supported" if e.arm_stable else "not supported"
            continue
        h1b[e.arm] = "not tested: the baseline is stable"
        if not found - {"undefined"}:
            h0[e.arm] = h1a[e.arm] = "not tested: no accuracy has an adjusted p"
        else:
            h0[e.arm] = "rejected" if found & {"improvement", "regression"} else "not rejected"
            h1a[e.arm] = "supported" if "regression" in found else "not supported"
    return {
        "H0": _one_answer(h0, "rejected", some="rejected"),
        "H1a": _one_answer(h1a, "supported"),
        "H1b": _one_answer(h1b if sensitivity is None else sensitivity, "supported"),
    }


def _one_answer(cases: Mapping[str, str], yes: str, some: str = "") -> Answer:
    """Make one answer of several (arm or variant → answer); the reason lists each."""
    grouped: dict[str, list[str]] = {}
    for case, answer in cases.items():
        grouped.setdefault(answer, []).append(case)
    reason = "; ".join(f"{answer} ({', '.join(names)})" for answer, names in grouped.items())
    tested = [answer for answer in grouped if not answer.startswith("not tested")]
    if not tested:
        return Answer("not tested", reason or "no arm of the plan's first family")
    if len(tested) == 1:
        return Answer(tested[0], reason)
    return Answer(some or f"{yes} in part", reason)
