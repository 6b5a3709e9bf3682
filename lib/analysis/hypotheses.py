"""What the evidence says about the plan's hypotheses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lib.analysis.rules import Evidence, accuracies


@dataclass(frozen=True)
class Answer:
    """What a study says to one hypothesis."""

    answer: str
    """rejected, not rejected, supported, supported in part, not supported, not tested."""
    reason: str


def answer_all(evidence: Sequence[Evidence]) -> dict[str, Answer]:
    """Answer each hypothesis once, from all arms that hold the layer.

    H0 is rejected when an arm's accuracy changed significantly beside a stable baseline. H1a is
    supported when it fell and training became smoother, in part when it fell alone; a plan that
    names no measure of smoothness asks for none. H1b is about arms beside an unstable baseline.
    """
    h0, h1a, h1b = {}, {}, {}
    for e in evidence:
        h1b[e.arm] = _conditional_benefit(e)
        found = {e.accuracy[name] for name in accuracies(e)} - {"untested"}
        if e.baseline_stable is not True:
            known = "unstable" if e.baseline_stable is False else "not judged"
            h0[e.arm] = h1a[e.arm] = _Case(f"not tested, as the baseline is {known}")
        elif not found - {"undefined"}:
            h0[e.arm] = h1a[e.arm] = _Case("not tested, as no accuracy has an adjusted p")
        else:
            numbers = "; ".join(e.in_words[name] for name in accuracies(e) if name in e.in_words)
            changed = found & {"improvement", "regression"}
            h0[e.arm] = _Case("rejected" if changed else "not rejected", numbers)
            h1a[e.arm] = _risk(e, "regression" in found, numbers)
    return {
        "H0": _one_answer(h0, "rejected", some="rejected"),
        "H1a": _one_answer(h1a, "supported"),
        "H1b": _one_answer(h1b, "supported"),
    }


@dataclass(frozen=True)
class _Case:
    """The answer for one arm, and its numbers."""

    answer: str
    numbers: str = ""


def _risk(e: Evidence, fell: bool, numbers: str) -> _Case:
    smoother = [text for name, text in e.in_words.items() if name not in e.accuracy]
    if e.smoothness is not None:
        numbers = "; ".join([numbers, *smoother])
    if not fell:
        return _Case("not supported", numbers)
    if e.smoothness in (None, "improvement"):
        return _Case("supported", numbers)
    why = "it lowers accuracy, and that it smooths training is not shown"
    return _Case("supported in part", f"{why}; {numbers}")


def _conditional_benefit(e: Evidence) -> _Case:
    if e.baseline_stable is not False:
        known = "stable" if e.baseline_stable else "not judged"
        return _Case(f"not tested, as the baseline is {known}")
    if e.arm_stable is None:
        return _Case("not tested, as the arm is not judged")
    if e.instability is None:
        return _Case("supported" if e.arm_stable else "not supported", e.unstable_in_words)
    if e.instability == "undefined":
        return _Case("not tested, as its unstable runs have no adjusted p", e.unstable_in_words)
    better = e.instability == "improvement"
    return _Case("supported" if better else "not supported", e.unstable_in_words)


def _one_answer(cases: Mapping[str, _Case], yes: str, some: str = "") -> Answer:
    """Make one answer of several (arm → answer); the reason lists each, with its numbers."""
    grouped: dict[str, list[str]] = {}
    for arm, case in cases.items():
        said = f"{arm} ({case.numbers})" if case.numbers else arm
        grouped.setdefault(case.answer, []).append(said)
    tested = [answer for answer in grouped if not answer.startswith("not tested")]
    if not grouped:
        return Answer("not tested", "no arm of the plan's first family")
    if not tested:
        answer = "not tested"
    else:
        answer = tested[0] if len(tested) == 1 else some or f"{yes} in part"
    parts = []
    for found, arms in grouped.items():  # what the answer says is not said again
        beyond = found.removeprefix(answer).removeprefix(", as ")
        parts.append(": ".join(filter(None, (", ".join(arms), beyond))))
    return Answer(answer, "; ".join(parts))
