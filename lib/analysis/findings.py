"""The whole analysis of a study: the verdict by its plan, then tables beyond the planned contrasts,
each made where the study has what it needs.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from lib.analysis.effects import (
    leave_one_out,
    leave_one_out_finding,
    leave_one_task_out,
    task_contrasts,
    task_finding,
)
from lib.analysis.resampling import suite_contrasts, with_questions_resampled
from lib.analysis.stability import rule_of, stability_finding, stability_map
from lib.analysis.tables import Finding
from lib.analysis.verdict import Verdict, in_words, reach_verdict
from lib.results import json_rows
from lib.study.metrics import MAIN
from lib.study.plan import ALPHA, Plan
from lib.study.preregistration import ClaimStatus
from lib.study.study import Study

REFERENCES = {
    "uniform_loss": "a uniform guess",
    "unigram_loss": "a unigram model",
    "bigram_loss": "a bigram model",
    "source_loss": "the text's own source",
}
"""Reference (see `RunResult.references`) → what it is the held-out loss of."""


@dataclass(frozen=True)
class Analysis:
    """What 03_analysis shows of a study and keeps."""

    standing: ClaimStatus
    verdict: Verdict
    findings: list[Finding]

    def _repr_markdown_(self) -> str:
        return in_words(self.verdict, self.standing.name)

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain values, each finding's table under its key; NaN becomes None."""
        return {
            "standing": self.standing.name,
            "exploratory_because": self.standing.reasons,
            **self.verdict.as_json(),
            **{finding.key: json_rows(finding.table) for finding in self.findings},
        }


def analyse(
    design: Study,
    plan: Plan | None,
    standing: ClaimStatus,
    runs: pd.DataFrame,
    trace: pd.DataFrame,
    items: pd.DataFrame,
    stock: pd.DataFrame,
) -> Analysis:
    """Judge a study by its plan and make every table that applies, from the tables of
    `lib.analysis.runs`; `items` are the answers to the suite, `stock` those to stock tasks. Only a
    confirmatory study gets tests, decisions and answers to hypotheses. What is drawn at random
    follows from the study's hash, so that the same runs always give the same numbers."""
    rng = np.random.default_rng(int(design.hash[:8], 16))
    verdict = reach_verdict(runs, trace, plan, rng, design.looks)
    if standing.reasons:
        verdict = untested(verdict)
    runs, alpha = verdict.runs, plan.alpha if plan else ALPHA
    suite = suite_contrasts(runs, items, rng, alpha)
    stability = stability_map(runs, verdict.stability, alpha)
    pairs = pd.concat([verdict.contrasts, verdict.tests])[["arm", "baseline", "measure"]]
    left_out = leave_one_task_out(items, pairs.drop_duplicates(), alpha)
    of_stock = with_questions_resampled(task_contrasts(runs, stock, alpha), stock, rng, alpha)
    findings = [
        Finding("suite", "The suite, seeds and questions resampled", suite),
        reference_finding(runs),
        stability_finding(stability, rule_of(plan)),
        task_finding(task_contrasts(runs, items, alpha), alpha),
        task_finding(of_stock, alpha, "stock_contrasts", "Stock tasks one by one"),
        Finding("leave_one_task_out", "With one task left out", left_out),
        leave_one_out_finding(leave_one_out(runs, first_family(verdict, plan))),
    ]
    return Analysis(standing, verdict, [f for f in findings if not f.table.empty])


def untested(verdict: Verdict) -> Verdict:
    """Take all tests out of the verdict of an exploratory study. Its differences stay, with their
    intervals; nothing is adjusted or decided."""
    contrasts = verdict.contrasts.assign(family="", test="", p_holm=np.nan)
    none = pd.DataFrame()
    return replace(
        verdict, contrasts=contrasts, tests=none, hypotheses=none, decisions=[], answers={}
    )


def first_family(verdict: Verdict, plan: Plan | None) -> pd.DataFrame:
    """Return the contrasts that the plan's first family tests; where nothing is tested, those in
    the main measure."""
    contrasts = verdict.contrasts
    if plan is None or verdict.tests.empty:
        return contrasts[contrasts["measure"] == MAIN]
    name = next(iter(plan.families), "")
    return verdict.tests[verdict.tests["family"] == name]


def reference_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per text and reference: nats per held-out character, perplexity, and how many
    of the arms on this text have a higher mean loss. Empty for runs that know none.

    A run above the unigram loss has not learnt how often characters occur; one above the bigram
    loss uses no context that counting pairs does not.
    """
    rows = []
    for text, part in runs.groupby("corpus.source", sort=False):
        losses = part.groupby("arm")["loss"].mean().dropna()
        for reference, name in REFERENCES.items():
            nats = part[reference].mean() if reference in part else np.nan
            if not np.isnan(nats):
                rows.append(
                    {"text": text, "reference": name, "nats": nats, "perplexity": np.exp(nats)}
                    | {"arms_above": int((losses > nats).sum()), "arms": len(losses)}
                )
    return pd.DataFrame(rows)


def reference_finding(runs: pd.DataFrame) -> Finding:
    """Give the table with its sentences."""
    table = reference_table(runs)
    words = [
        f"{row.text}: {row.reference} has {row.nats:.3f} nats, perplexity {row.perplexity:.2f}; "
        f"{row.arms_above} of {row.arms} arms are above it."
        for row in table.itertuples()
    ]
    return Finding("references", "What the text allows", table, words)
