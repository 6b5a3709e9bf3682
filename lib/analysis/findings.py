"""The whole analysis of a study: the verdict by its plan, then tables beyond the planned contrasts,
each made where the study has what it needs.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from lib.analysis.course import cosine_finding
from lib.analysis.dose import dose_findings
from lib.analysis.efficiency import efficiency_findings
from lib.analysis.finding import Finding
from lib.analysis.hypotheses import Answer
from lib.analysis.ladder import ladder_findings
from lib.analysis.learning_rate import RATE, final_losses, rate_findings
from lib.analysis.mechanism import mechanism_finding, mechanism_table
from lib.analysis.references import reference_findings
from lib.analysis.reported import load_reported, reported_finding
from lib.analysis.resampling import suite_contrasts
from lib.analysis.robustness import (
    leave_one_out,
    leave_one_task_out,
    robustness_findings,
    task_left_out_finding,
    threshold_table,
)
from lib.analysis.runs import other_settings, taken
from lib.analysis.stability import rule_of, stability_finding, stability_map
from lib.analysis.tasks import task_contrasts, task_finding
from lib.analysis.tied import TIED, tied_finding
from lib.analysis.trade_off import trade_off
from lib.analysis.verdict import Verdict, answer_hypotheses, in_words, reach_verdict
from lib.study.config import Study
from lib.study.measures import MAIN, measures_in
from lib.study.plan import ALPHA, Plan
from lib.study.record import records
from lib.study.standing import Standing


@dataclass(frozen=True)
class Analysis:
    """What 03_analysis shows of a study and keeps."""

    standing: Standing
    verdict: Verdict
    answers: dict[str, Answer]
    findings: list[Finding]

    def _repr_markdown_(self) -> str:
        return in_words(self.verdict, self.answers, self.verdict.runs, self.standing.name)

    def as_json(self) -> dict[str, Any]:
        """The same as plain values, each finding's table under its key; NaN becomes None."""
        return {
            "standing": self.standing.name,
            "exploratory_because": self.standing.reasons,
            "answers": {name: asdict(answer) for name, answer in self.answers.items()},
            **self.verdict.as_json(),
            **{finding.key: records(finding.table) for finding in self.findings},
        }


def analyse(
    design: Study,
    plan: Plan | None,
    standing: Standing,
    runs: pd.DataFrame,
    trace: pd.DataFrame,
    curve: pd.DataFrame,
    items: pd.DataFrame,
) -> Analysis:
    """Judge a study by its plan and make every table that applies, from the tables of
    `lib.analysis.runs`. Only a confirmatory study gets tests, decisions and answers to hypotheses.
    What is drawn at random follows from the study's hash, so that the same runs always give the
    same numbers."""
    rng = np.random.default_rng(int(design.hash[:8], 16))
    verdict = reach_verdict(runs, trace, plan, rng)
    answers = answer_hypotheses(verdict, verdict.runs, plan)
    if standing.reasons:
        verdict, answers = untested(verdict), {}
    suite = suite_contrasts(verdict.runs, items, rng, plan.alpha if plan else ALPHA)
    resampled = Finding("suite", "The suite, seeds and questions resampled", suite)
    found = [resampled, *findings(design, plan, verdict, trace, curve, items)]
    return Analysis(standing, verdict, answers, [f for f in found if not f.table.empty])


def untested(verdict: Verdict) -> Verdict:
    """What an exploratory study keeps of a verdict: its differences with their intervals. It is in
    no family of tests, so that nothing is adjusted or decided."""
    contrasts = verdict.contrasts.assign(family="", test="", p_holm=np.nan)
    return replace(verdict, contrasts=contrasts, tests=pd.DataFrame(), decisions=[])


def findings(
    design: Study,
    plan: Plan | None,
    verdict: Verdict,
    trace: pd.DataFrame,
    curve: pd.DataFrame,
    items: pd.DataFrame,
) -> Iterator[Finding]:
    """Make every table; those that do not apply to a study are empty. The functions called say
    which columns each has."""
    runs, alpha = verdict.runs, plan.alpha if plan else ALPHA
    yield from reference_findings(runs, alpha)
    stability, rule = stability_map(runs, verdict.stability, alpha), rule_of(plan)
    yield stability_finding(stability, rule)
    yield trade_off(runs, stability, verdict.contrasts)
    yield cosine_finding(runs, curve, alpha)
    yield mechanism_finding(mechanism_table(runs, taken(measures_in("mechanism"), runs), alpha))
    yield from dose_findings(design, runs, alpha)
    if len(design.factors.get(TIED, [])) > 1:
        yield tied_finding(design, runs, alpha)
    if len(design.factors.get(RATE, [])) > 1:
        losses = final_losses(runs, curve)
        losses["within"] = other_settings(losses, design, RATE)
        yield from rate_findings(losses, verdict.stability)
    yield from ladder_findings(design, runs, alpha)
    yield task_finding(task_contrasts(runs, items, alpha), alpha)
    pairs = pd.concat([verdict.contrasts, verdict.tests])[["arm", "baseline", "measure"]]
    yield task_left_out_finding(leave_one_task_out(items, pairs.drop_duplicates(), alpha))
    left_out = leave_one_out(runs, first_family(verdict, plan))
    thresholds = threshold_table(trace, verdict.stability, rule)
    yield from robustness_findings(left_out, thresholds, rule)
    # A point of a curve is the end of a shorter budget only where the rate does not depend on it.
    constant = {arm.id for arm in design.arms() if arm.config.training.schedule == "constant"}
    steady = runs[runs["arm"].isin(constant) & runs["baseline"].isin(constant)]
    if len(steady):
        yield from efficiency_findings(steady, curve, alpha)
    if reported := load_reported(design):
        yield reported_finding(reported, runs)


def first_family(verdict: Verdict, plan: Plan | None) -> pd.DataFrame:
    """The contrasts that the plan's first family tests; where nothing is tested, those in the main
    measure."""
    contrasts = verdict.contrasts
    if plan is None or verdict.tests.empty:
        return contrasts[contrasts["measure"] == MAIN]
    name = next(iter(plan.families), "")
    return verdict.tests[verdict.tests["family"] == name]
