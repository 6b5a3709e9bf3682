"""Decisions by a set of rules that a plan names: a file of `params/plans/rules/`.

What a study shows of an arm beside its baseline is written as facts, words by name; of a list of
rules the first one fires whose every condition is among them. The comment at the top of
`embedding-norm.yaml` lists the facts and their words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from lib.study.metrics import MEASURES
from lib.study.plan import Plan, rules_file
from lib.study.schema import Level, Section
from lib.study.yaml import ConfigError, explain, read_yaml

Direction = Literal["improvement", "regression", "none", "undefined", "untested"]
"""A significant change for the better or the worse, none, or no test possible; untested: the plan
tests other measures of this arm, not this one."""
Fact = Literal[
    "baseline", "arm", "primary", "quality", "tie_breaker", "smoothness", "removal", "cost"
]


class Condition(Section):
    when: dict[Fact, str | list[str]] = Field(default_factory=dict)

    def holds(self, facts: dict[str, list[str]]) -> bool:
        """Tell whether every fact that the rule asks for has one of the words that it asks for."""
        accepted = {
            fact: [words] if isinstance(words, str) else words for fact, words in self.when.items()
        }
        return all(set(words) & set(facts[fact]) for fact, words in accepted.items())


class Rule(Condition):
    rule: str
    decision: str
    reason: str
    """A direction in braces stands for the primary measures that changed so."""


class Case(Condition):
    answer: str
    numbers: list[str] = Field(default_factory=list)


class Answers(Section):
    several: str
    """The answer where that of one arm is not that of another."""
    cases: Annotated[list[Case], Field(min_length=1)]

    @model_validator(mode="after")
    def _every_arm_has_one(self) -> Self:
        if self.cases[-1].when:
            raise ValueError("the last case must hold always; leave its when out")
        return self


class RuleSet(Section):
    """A set of rules. See the file for what each field means."""

    quality: list[str] = Field(default_factory=list)
    cost: str = ""
    tie_breaker: str = ""
    rules: list[Rule] = Field(default_factory=list)
    no_answer_from: dict[str, Level] = Field(default_factory=dict)
    answers: dict[str, Answers] = Field(default_factory=dict)


def read_rules(plan: Plan) -> RuleSet:
    """Read the rules that a plan follows: none where it names none. ConfigError for faulty ones."""
    if plan.rule_set is None:
        return RuleSet()
    path = rules_file(plan.rule_set)
    try:
        return RuleSet.model_validate(read_yaml(path))
    except ValidationError as error:
        raise ConfigError(f"rules/{path.name}: {explain(error, RuleSet)}") from None


@dataclass(frozen=True)
class Evidence:
    """What the rules look at: one arm beside its baseline."""

    arm: str
    primary: dict[str, Direction]
    """What the plan's tests show, per primary measure."""
    facts: dict[str, list[str]]
    numbers: dict[str, list[str]]
    """quality, smoothness, stability: what was measured of it, in words."""


@dataclass(frozen=True)
class Decision:
    """What the rules say of one arm."""

    arm: str
    rule: str
    decision: str
    reason: str


@dataclass(frozen=True)
class Answer:
    """What a study says to one hypothesis."""

    answer: str
    """supported, refuted, undecided; rules may have words of their own."""
    reason: str


def decide(evidence: Evidence, rules: RuleSet) -> Decision | None:
    """Return what the first rule that holds says; None where none does."""
    rule = next((each for each in rules.rules if each.holds(evidence.facts)), None)
    if rule is None:
        return None
    measures: dict[str, list[str]] = {"improvement": [], "regression": [], "undefined": []}
    for name, direction in evidence.primary.items():
        measures.setdefault(direction, []).append(MEASURES[name].label)  # it may hold a comma
    reason = rule.reason.format(**{way: "; ".join(of) for way, of in measures.items()})
    return Decision(evidence.arm, rule.rule, rule.decision, reason)


def answers_by_rules(evidence: Sequence[Evidence], rules: RuleSet) -> dict[str, Answer]:
    """Answer each hypothesis of the rules once, from what they look at of several arms. The reason
    lists each arm with its numbers."""
    return {name: _one_answer(evidence, of) for name, of in rules.answers.items()}


def _one_answer(evidence: Sequence[Evidence], of: Answers) -> Answer:
    grouped: dict[str, list[str]] = {}
    for e in evidence:
        case = next(each for each in of.cases if each.holds(e.facts))
        numbers = [text for name in case.numbers for text in e.numbers.get(name, [name])]
        arm_text = f"{e.arm} ({'; '.join(numbers)})" if any(numbers) else e.arm
        grouped.setdefault(case.answer, []).append(arm_text)
    tested = [answer for answer in grouped if not answer.startswith("not tested")]
    if not grouped:
        return Answer("not tested", "no arm of the plan's first family")
    answer = (tested[0] if len(tested) == 1 else of.several) if tested else "not tested"
    parts = []
    for each, arms in grouped.items():  # what the answer says is not said again
        beyond = each.removeprefix(answer).removeprefix(", as ")
        parts.append(": ".join(filter(None, (", ".join(arms), beyond))))
    return Answer(answer, "; ".join(parts))
