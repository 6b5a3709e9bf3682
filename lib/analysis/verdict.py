"""The verdict on a study: contrasts under its plan, the rule that fires for each arm, and both in
words."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator

from lib.analysis.finding import numbers, outcome
from lib.analysis.hypotheses import Answer, answer_all
from lib.analysis.paired import contrast_table
from lib.analysis.planned import imputed_contrasts, margins_of, planned_contrasts, planned_pairs
from lib.analysis.rules import Decision, Direction, Evidence, decide
from lib.analysis.runs import own_baselines, taken
from lib.analysis.stability import (
    in_share,
    judge_runs,
    rule_of,
    stability_map,
    with_stability,
)
from lib.study.measures import ACCURACIES, MAIN, MEASURES, measures_in
from lib.study.plan import Plan
from lib.study.record import records

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
    imputed: pd.DataFrame
    """The contrasts where runs diverged, each counting as the plan says; else empty."""
    stability: pd.DataFrame
    """A row per run, as `lib.analysis.stability.judge_runs` says."""
    evidence: list[Evidence]
    decisions: list[Decision]
    """One per arm whose primary measures were taken."""

    def as_json(self) -> dict[str, Any]:
        """The same as plain values; NaN becomes None."""
        return {
            "decisions": [asdict(decision) for decision in self.decisions],
            "evidence": [asdict(e) for e in self.evidence],
            "contrasts": records(self.contrasts),
            "tests": records(self.tests),
            "imputed": records(self.imputed),
            "stability": records(self.stability),
        }


def reach_verdict(
    runs: pd.DataFrame, trace: pd.DataFrame, plan: Plan | None, rng: Generator
) -> Verdict:
    """Judge every arm of a study against its baseline by the plan; without one, only contrast, and
    judge stability by the usual definition.

    `runs` is the table of `lib.analysis.runs.tidy`, `trace` the joined traces of all its runs.
    """
    stability = judge_runs(runs, trace, rule_of(plan))
    runs = with_stability(runs, stability)
    nothing = pd.DataFrame()
    if plan is None:
        table = contrast_table(runs, taken(measures_in("headline"), runs), rng)
        table = table.assign(family="", test="", p_holm=np.nan)
        return Verdict(runs, table, nothing, nothing, stability, [], [])
    contrasts, tests = planned_contrasts(runs, plan, rng)
    judged = stability_map(runs, stability, plan.alpha)
    shares = {row["arm"]: row for row in judged.to_dict("records")}
    speed = trace.groupby(["arm", "seed"])["seconds"].median().unstack("arm")
    evidence = []
    for arm, rows in by_arm_and_measure(contrasts, runs).items():
        baseline = next(iter(rows.values()))["baseline"]
        faster = float((speed[baseline] / speed[arm]).median() - 1)
        evidence.append(weigh(arm, rows, shares[baseline], shares[arm], plan, faster))
    decisions = [decide(e, plan) for e in evidence if e.accuracy]
    imputed = imputed_contrasts(runs, plan, rng)
    return Verdict(runs, contrasts, tests, imputed, stability, evidence, decisions)


def weigh(arm: str, rows: Rows, baseline: Row, own: Row, plan: Plan, faster: float) -> Evidence:
    """Gather what the rules look at, from an arm's contrasts with its baseline and both their rows
    in the table of `lib.analysis.stability.stability_map`."""
    alpha, margins = plan.alpha, margins_of(plan)
    # A measure that no pair of runs has is no evidence for or against an arm.
    primary = {name: rows[name] for name in plan.primary if name in rows and rows[name]["n"]}
    tested = {name for name, row in primary.items() if row["family"]}
    exact = any(
        family.test == "exact" and "unstable" in family.measures
        for family in plan.tests_of.values()
    )
    return Evidence(
        arm=arm,
        baseline_stable=_stable(baseline, plan),
        arm_stable=_stable(own, plan),
        accuracy={
            name: direction(row, alpha, "p_holm") if name in tested or not tested else "untested"
            for name, row in primary.items()
        },
        accuracy_change={name: row["mean_delta"] for name, row in primary.items()},
        largest_loss={
            name: largest_loss(row) for name, row in primary.items() if name in ACCURACIES
        },
        calibration=direction(rows["ece"], alpha) if "ece" in rows else "none",
        throughput_change=faster,
        smoothness=_tested(rows, plan.smoothness, alpha) if plan.smoothness else None,
        instability=_tested(rows, "unstable", alpha) if exact else None,
        in_words={
            name: _in_words(row, alpha, margins.get(name))
            for name, row in rows.items()
            if name in primary or name == plan.smoothness
        },
        unstable_in_words=f"{in_share(own)}; of its baseline {in_share(baseline)}",
    )


def _stable(row: Row, plan: Plan) -> bool | None:
    return bool(row["share"] <= plan.instability.tolerated_share) if row["judged"] else None


def _tested(rows: Rows, measure: str, alpha: float) -> Direction:
    """Say what a family's test of a measure shows; undefined where no family tests it."""
    row = rows.get(measure)
    return direction(row, alpha, "p_holm") if row and row["family"] else "undefined"


def largest_loss(row: Row) -> float | None:
    """Return the largest loss that the interval of a row holds, in the measure's units; None
    without an interval. Deltas that are all zero lose nothing."""
    if row["n"] > 1 and row["mean_delta"] == row["sd_delta"] == 0:
        return 0.0
    gains = [MEASURES[row["measure"]].gain(row[end]) for end in ("t_low", "t_high")]
    return None if np.isnan(gains).any() else float(-min(gains))


def by_arm_and_measure(contrasts: pd.DataFrame, runs: pd.DataFrame) -> dict[str, Rows]:
    """Look up, by arm and measure, the row of the contrasts that holds an arm against its own
    baseline."""
    baselines = own_baselines(runs)
    found: dict[str, Rows] = {}
    for row in contrasts.to_dict("records"):
        if row["baseline"] == baselines.get(row["arm"]):
            found.setdefault(row["arm"], {})[row["measure"]] = row
    return found


def direction(row: Row, alpha: float, p: str = "t_p") -> Direction:
    """Say what a row of the contrasts shows by one of its p-values. Deltas that are all zero are no
    change; any others without a p are undefined."""
    if pd.isna(row[p]):
        return "none" if row["n"] > 1 and row["mean_delta"] == row["sd_delta"] == 0 else "undefined"
    gain = MEASURES[row["measure"]].gain(row["mean_delta"])
    if not row[p] < alpha or np.isnan(gain):
        return "none"
    return "improvement" if gain > 0 else "regression"


def answer_hypotheses(verdict: Verdict, runs: pd.DataFrame, plan: Plan | None) -> dict[str, Answer]:
    """Answer each hypothesis once, from the arms that hold a layer and are in the plan's first
    family or in an exact one. Empty without a plan."""
    if plan is None:
        return {}
    families = plan.tests_of
    asked = {name for name, f in families.items() if f.test == "exact"} | {next(iter(families), "")}
    pairs = planned_pairs(runs, plan)
    named = {arm for (arm, _), of in pairs.items() if asked & set(of)}
    if "model.embedding_norm" in runs:
        named -= set(runs.loc[runs["model.embedding_norm"] == "none", "arm"])
    return answer_all([e for e in verdict.evidence if e.arm in named])


def in_words(verdict: Verdict, answers: dict[str, Answer], runs: pd.DataFrame, kind: str) -> str:
    """Write the answer to each hypothesis, then a paragraph per arm: its decision, the rule and the
    numbers behind it. Of an exploratory study the numbers alone."""
    decisions = {decision.arm: decision for decision in verdict.decisions}
    evidence = {e.arm: e for e in verdict.evidence}
    paragraphs = [f"**{name} {a.answer}**: {a.reason}." for name, a in answers.items()]
    for arm, measures in by_arm_and_measure(verdict.contrasts, runs).items():
        weighed, decision = evidence.get(arm), decisions.get(arm)
        said = []
        if decision:
            said = [f"**{decision.decision}** by rule {decision.rule}: {decision.reason}"]
        elif kind == "CONFIRMATORY":
            said = ["**no decision**: no primary measure was taken"]
        primary = weighed.accuracy if weighed else measures_in("headline")
        named = dict.fromkeys(name for name in (*primary, MAIN) if name in measures)
        said += ["; ".join(_in_numbers(measures[name], kind) for name in named)]
        if weighed:
            said += [
                f"Runs: {weighed.unstable_in_words}; calibration: {weighed.calibration}; training "
                f"speed {weighed.throughput_change:+.1%}, not measured alone"
            ]
        paragraphs.append(f"**{arm}** ({kind.lower()}): " + ". ".join(filter(None, said)) + ".")
    if not paragraphs:
        return "One arm: nothing to compare."
    if kind == "EXPLORATORY":
        paragraphs.insert(
            0,
            "Exploratory, so nothing is tested and no rule decides: the differences of each arm "
            "from its baseline, with their intervals.",
        )
    return "\n\n".join(paragraphs)


def _in_numbers(row: Row, kind: str) -> str:
    measure = MEASURES[row["measure"]]
    said = f"n = {row['n']}" + (f", {row['n_dropped']} dropped" if row["n_dropped"] else "")
    if kind == "CONFIRMATORY" and row["family"]:
        said += f", Holm p {row['p_holm']:.3g}"
    elif kind == "CONFIRMATORY":
        said += f", unadjusted p {row['t_p']:.3g}"
    budget = f"; the two sides differ in {row['budget']}" if row["budget"] else ""
    return f"{measure.label} {measure.estimate(row)} ({said}{budget})"


def _in_words(row: Row, alpha: float, margin: float | None) -> str:
    """Write a difference with its interval, and what it shows: by its family's adjusted p whether
    the two differ, by the interval that they do not beyond the margin."""
    measure, low, high = MEASURES[row["measure"]], row["t_low"], row["t_high"]
    if row["family"] and direction(row, alpha, "p_holm") in ("improvement", "regression"):
        said = outcome(row["measure"], row["mean_delta"], row["mean_delta"])
    else:
        said = outcome(row["measure"], min(low, 0.0), max(high, 0.0), margin)
        said = "undecided" if np.isnan(low) else said
    found = numbers(row["mean_delta"], low, high, f"+.{measure.digits}f")
    return f"{said} in {measure.label}: {found}, n = {row['n']}"
