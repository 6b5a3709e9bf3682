"""The verdict on a study: its contrasts, the tests of its plan's families and hypotheses, what the
plan's rules decide of each arm, and all of it in words."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator

from lib.analysis.hypotheses import answer_tests, hypothesis_tests
from lib.analysis.paired import contrast_table
from lib.analysis.planned import imputed_contrasts, margins_of, planned_contrasts, planned_pairs
from lib.analysis.rules import (
    Answer,
    Decision,
    Direction,
    Evidence,
    RuleSet,
    answers_by_rules,
    decide,
    read_rules,
)
from lib.analysis.runs import available_measures, own_baselines
from lib.analysis.stability import (
    harmed,
    in_share,
    judge_runs,
    rule_of,
    stability_map,
    with_stability,
)
from lib.analysis.tables import numbers, outcome
from lib.results import json_rows
from lib.study.metrics import MAIN, MEASURES, measures_in
from lib.study.plan import Plan

Row = dict[Any, Any]
Rows = dict[str, Row]
"""Measure → the row of the contrasts that holds an arm against its own baseline."""


@dataclass(frozen=True)
class Verdict:
    """What a plan says of every arm of a study."""

    runs: pd.DataFrame
    """The tidy table, with stability judged."""
    contrasts: pd.DataFrame
    """The table of `lib.analysis.paired.contrast_table` with `family`, `test` and `p_holm`."""
    tests: pd.DataFrame
    """A row per test of the plan's families, as `lib.analysis.planned.family_tests` says."""
    hypotheses: pd.DataFrame
    """A row per hypothesis that has a test, as `lib.analysis.hypotheses.hypothesis_tests` says."""
    imputed: pd.DataFrame
    """The contrasts where runs diverged, each counting as the plan says; else empty."""
    stability: pd.DataFrame
    """A row per run, as `lib.analysis.stability.judge_runs` says, and whether it is `harmful`."""
    evidence: list[Evidence]
    decisions: list[Decision]
    """By the plan's rules, one per arm whose primary measures were taken."""
    answers: dict[str, Answer]
    """One to each hypothesis."""

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain values; NaN becomes None."""
        return {
            "answers": {name: asdict(answer) for name, answer in self.answers.items()},
            "decisions": [asdict(decision) for decision in self.decisions],
            "evidence": [asdict(e) for e in self.evidence],
            "contrasts": json_rows(self.contrasts),
            "tests": json_rows(self.tests),
            "hypothesis_tests": json_rows(self.hypotheses),
            "imputed": json_rows(self.imputed),
            "stability": json_rows(self.stability),
        }


def reach_verdict(
    runs: pd.DataFrame,
    trace: pd.DataFrame,
    plan: Plan | None,
    rng: Generator,
    looks: Sequence[int] = (),
) -> Verdict:
    """Test and judge a study by its plan; without one, only contrast every arm with its baseline,
    and call no run unstable.

    `runs` is the table of `lib.analysis.runs.tidy`, `trace` the joined traces of all its runs;
    `looks` are as `hypothesis_tests` says.
    """
    stability = judge_runs(runs, trace, rule_of(plan))
    runs, none = harmed(with_stability(runs, stability), plan), pd.DataFrame()
    stability["harmful"] = runs["harmful"].to_numpy()
    if plan is None:
        table = contrast_table(runs, available_measures(measures_in("headline"), runs), rng)
        table = table.assign(family="", test="", p_holm=np.nan)
        return Verdict(runs, table, none, none, none, stability, [], [], {})
    contrasts, tests = planned_contrasts(runs, plan, rng)
    imputed = imputed_contrasts(runs, plan, rng)
    rules = read_rules(plan)
    shares = stability_map(runs, stability, plan.alpha).set_index("arm", drop=False)
    evidence = [
        collect_evidence(arm, rows, shares.to_dict("index"), plan, rules)
        for arm, rows in by_arm_and_measure(contrasts, runs).items()
    ]
    decided = [decide(e, rules) for e in evidence if e.primary]
    hypotheses = hypothesis_tests(runs, plan, rng, looks)
    answers = answers_by_rules(_answering_evidence(evidence, runs, plan, rules), rules)
    answers |= answer_tests(hypotheses, plan.power)
    return Verdict(
        runs, contrasts, tests, hypotheses, imputed, stability, evidence,
        [decision for decision in decided if decision],
        {name: answers[name] for name in plan.hypotheses if name in answers},
    )  # fmt: skip


def collect_evidence(
    arm: str, rows: Rows, shares: dict[Any, Row], plan: Plan, rules: RuleSet
) -> Evidence:
    """Gather what the rules look at, from an arm's contrasts with its baseline and the table of
    `lib.analysis.stability.stability_map`, by arm."""
    arm_share, baseline_share = shares[arm], shares[next(iter(rows.values()))["baseline"]]
    # A measure that no pair of runs has is no evidence for or against an arm.
    measured = {m: rows[m] for m in plan.primary_measures if m in rows and rows[m]["n"]}
    tested = {name for name, row in measured.items() if row["family"]}
    primary: dict[str, Direction] = {
        name: direction(row, plan.alpha, "p_holm") if name in tested or not tested else "untested"
        for name, row in measured.items()
    }
    quality = [name for name in measured if name in rules.quality]
    smooth = plan.smoothness
    families = plan.tests_of.values()
    exact = any(family.test == "exact" and "unstable" in family.measures for family in families)
    tie = rows.get(rules.tie_breaker)
    margins = margins_of(plan)
    sentences = {
        name: _in_words(rows[name], plan.alpha, margins.get(name))
        for name in filter(None, [*quality, smooth])
        if name in rows
    }
    return Evidence(
        arm,
        primary,
        facts={
            "baseline": [_stability(baseline_share, plan)],
            "arm": [_stability(arm_share, plan)],
            "primary": list(primary.values()),
            "quality": [primary[name] for name in quality],
            "tie_breaker": [direction(tie, plan.alpha) if tie else "none"],
            "smoothness": [_adjusted(rows, smooth, plan) if smooth else "not asked"],
            "removal": [_adjusted(rows, "unstable", plan) if exact else "not asked"],
            "cost": [cost([measured[name] for name in quality], plan.cost.get(rules.cost, np.nan))],
        },
        numbers={
            "quality": [sentences[name] for name in quality],
            "smoothness": [sentences[name] for name in sentences if name not in quality],
            "stability": [f"{in_share(arm_share)}; of its baseline {in_share(baseline_share)}"],
        },
    )


def _stability(row: Row, plan: Plan) -> str:
    if not row["judged"]:
        return "not judged"
    tolerated = plan.instability.tolerated_share if plan.instability else None
    return "stable" if row["share"] <= (tolerated or 0.0) else "unstable"


def _adjusted(rows: Rows, measure: str, plan: Plan) -> Direction:
    """Say what a family's test of a measure shows; undefined where no family tests it."""
    row = rows.get(measure)
    return direction(row, plan.alpha, "p_holm") if row and row["family"] else "undefined"


def cost(rows: list[Row], limit: float) -> str:
    """Hold the losses of some measures against the largest that is allowed: a mean is over it, or
    the whole interval of each is within it, or it is unclear; unknown where one has no interval."""
    if any(-MEASURES[row["measure"]].gain(row["mean_delta"]) > limit for row in rows):
        return "over"
    largest = [largest_loss(row) for row in rows]
    if not largest or np.isnan([*largest, limit]).any():
        return "unknown"
    return "within" if max(largest) < limit else "unclear"


def largest_loss(row: Row) -> float:
    """Return the largest loss that the interval of a row holds, in the measure's units; NaN
    without an interval. Deltas that are all zero lose nothing."""
    if row["n"] > 1 and row["mean_delta"] == row["sd_delta"] == 0:
        return 0.0
    gains = [MEASURES[row["measure"]].gain(row[end]) for end in ("t_low", "t_high")]
    return float(-np.min(gains))


def by_arm_and_measure(contrasts: pd.DataFrame, runs: pd.DataFrame) -> dict[str, Rows]:
    """Look up, by arm and measure, the row of the contrasts that holds an arm against its own
    baseline."""
    baselines = own_baselines(runs)
    rows: dict[str, Rows] = {}
    for row in contrasts.to_dict("records"):
        if row["baseline"] == baselines.get(row["arm"]):
            rows.setdefault(row["arm"], {})[row["measure"]] = row
    return rows


def direction(row: Row, alpha: float, p: str = "t_p") -> Direction:
    """Say what a row of the contrasts shows by one of its p-values. Deltas that are all zero are no
    change; any others without a p are undefined."""
    if pd.isna(row[p]):
        return "none" if row["n"] > 1 and row["mean_delta"] == row["sd_delta"] == 0 else "undefined"
    gain = MEASURES[row["measure"]].gain(row["mean_delta"])
    if not row[p] < alpha or np.isnan(gain):
        return "none"
    return "improvement" if gain > 0 else "regression"


def _answering_evidence(
    evidence: list[Evidence], runs: pd.DataFrame, plan: Plan, rules: RuleSet
) -> list[Evidence]:
    """Keep what rules answer hypotheses from: the arms in the plan's first family or in an exact
    one, but for those of which the rules say that they tell nothing."""
    families = plan.tests_of
    names = {name for name, f in families.items() if f.test == "exact"} | {next(iter(families), "")}
    arms = {arm for (arm, _), of in planned_pairs(runs, plan).items() if names & set(of)}
    for factor, level in rules.no_answer_from.items():
        arms -= set(runs.loc[runs[factor] == level, "arm"]) if factor in runs else set()
    return [e for e in evidence if e.arm in arms]


def in_words(verdict: Verdict, kind: str) -> str:
    """Write the answer to each hypothesis, then a paragraph per arm: its decision where rules made
    one, and the numbers behind it. Of an exploratory study the numbers alone."""
    decisions = {decision.arm: decision for decision in verdict.decisions}
    evidence = {e.arm: e for e in verdict.evidence}
    paragraphs = [
        f"**{name} {a.answer}**: {a.reason.rstrip('.')}." for name, a in verdict.answers.items()
    ]
    for arm, rows in by_arm_and_measure(verdict.contrasts, verdict.runs).items():
        basis, parts = evidence.get(arm), []
        if decision := decisions.get(arm):
            parts = [f"**{decision.decision}** by rule {decision.rule}: {decision.reason}"]
        elif kind == "CONFIRMATORY" and basis and not basis.primary:
            parts = ["**no decision**: no primary measure was taken"]
        primary = basis.primary if basis else measures_in("headline")
        measures = dict.fromkeys(name for name in (*primary, MAIN) if name in rows)
        parts += ["; ".join(_in_numbers(rows[name], kind) for name in measures)]
        parts += [f"Runs: {'; '.join(basis.numbers['stability'])}"] if basis else []
        paragraphs.append(f"**{arm}** ({kind.lower()}): " + ". ".join(filter(None, parts)) + ".")
    if not paragraphs:
        return "One arm: nothing to compare."
    if kind == "EXPLORATORY":
        paragraphs.insert(
            0,
            "Exploratory, so nothing is tested and no rule decides: the differences of each arm "
            "from its baseline, with their intervals.",
        )
    return "\n\n".join(paragraphs)


def for_terminal(verdict: dict[str, Any], width: int) -> Iterator[str]:
    """Write what is kept of a study under a plan in lines of at most `width` characters: whether it
    may confirm, the answer to each hypothesis, and what rules decide of each arm."""
    because = "".join(f"; {reason}" for reason in verdict["exploratory_because"])
    yield from textwrap.wrap(f"{verdict['standing']}{because}", width, subsequent_indent="    ")
    rows = [(name, a["answer"], a["reason"]) for name, a in verdict["answers"].items()]
    rows += [(d["arm"], d["decision"], f"{d['rule']}: {d['reason']}") for d in verdict["decisions"]]
    for name, answer, reason in rows:
        yield f"  {name}: {answer.upper()}"
        yield from (f"    {line}" for line in textwrap.wrap(reason, width - 4))


def _in_numbers(row: Row, kind: str) -> str:
    measure = MEASURES[row["measure"]]
    text = f"n = {row['n']}" + (f", {row['n_dropped']} dropped" if row["n_dropped"] else "")
    if kind == "CONFIRMATORY" and row["family"]:
        text += f", Holm p {row['p_holm']:.3g}"
    elif kind == "CONFIRMATORY":
        text += f", unadjusted p {row['t_p']:.3g}"
    budget = f"; the two sides differ in {row['budget']}" if row["budget"] else ""
    return f"{measure.label} {measure.estimate(row)} ({text}{budget})"


def _in_words(row: Row, alpha: float, margin: float | None) -> str:
    """Write a difference with its interval, and what it shows: by its family's adjusted p whether
    the two differ, by the interval that they do not beyond the margin."""
    measure, low, high = MEASURES[row["measure"]], row["t_low"], row["t_high"]
    if row["family"] and direction(row, alpha, "p_holm") in ("improvement", "regression"):
        text = outcome(row["measure"], row["mean_delta"], row["mean_delta"])
    else:
        text = outcome(row["measure"], min(low, 0.0), max(high, 0.0), margin)
        text = "undecided" if np.isnan(low) else text
    estimate = numbers(row["mean_delta"], low, high, f"+.{measure.digits}f")
    return f"{text} in {measure.label}: {estimate}, n = {row['n']}"
