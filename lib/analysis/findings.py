"""What a study's factors and variants let one ask beyond its planned contrasts.

Each table is made where the study has what it needs, and left out elsewhere.
"""

from dataclasses import dataclass

import pandas as pd

from lib.analysis.efficiency import budget_table, efficiency_table
from lib.analysis.learning_rate import RATE, best_rate_table, final_losses, sensitivity_table
from lib.analysis.mechanism import mechanism_table
from lib.analysis.reported import load_reported, reported_table
from lib.analysis.runs import other_settings
from lib.analysis.verdict import Verdict, taken
from lib.study.config import Study
from lib.study.measures import MEASURES
from lib.study.plan import Plan

MECHANISM_MEASURES = ("perplexity", "macro_accuracy_zero_shot", "ece")


@dataclass(frozen=True)
class Finding:
    """A table, under a key in the results, with what it shows in words."""

    key: str
    title: str
    table: pd.DataFrame
    words: list[str]


def findings(
    design: Study, plan: Plan | None, runs: pd.DataFrame, curve: pd.DataFrame, verdict: Verdict
) -> list[Finding]:
    """Make every table that applies to a study; see the functions called for their columns."""
    alpha = plan.alpha if plan else 0.05
    found = [_mechanism(runs, alpha)]
    if RATE in design.factors and plan:
        losses = final_losses(runs, curve)
        losses["within"] = other_settings(losses, design, RATE)
        found.append(_sensitivity(sensitivity_table(losses, verdict.stability, plan)))
        found.append(_best_rate(best_rate_table(losses, alpha)))
    if design.training.schedule == "constant":
        efficiency = efficiency_table(runs, curve, alpha)
        found.append(_efficiency(efficiency))
        budgets = budget_table(runs, curve, alpha)
        found.append(Finding("budgets", "Difference in dev loss at shorter budgets", budgets, []))
    if reported := load_reported(design):
        table = reported_table(reported, runs)
        notes = [f"{MEASURES[m].label}: {c.note.strip()}." for m, c in reported.measures.items()]
        found.append(Finding("reported", f"Beside the {reported.source}", table, notes))
    return [finding for finding in found if not finding.table.empty]


def _mechanism(runs: pd.DataFrame, alpha: float) -> Finding:
    table = mechanism_table(runs, taken(MECHANISM_MEASURES, runs), alpha)
    words = [
        f"{row.label}: {row.ingredient} ({row.contrast}) accounts for {row.share:.0%} "
        f"[{row.low:.0%}, {row.high:.0%}] of the whole effect{_of(row.setting)}."
        for row in table.itertuples()
    ]
    return Finding("mechanism", "Which ingredient accounts for how much", table, words)


def _sensitivity(table: pd.DataFrame) -> Finding:
    words = [
        f"{row.variant}{_of(row.within)}: sensitivity {row.sensitivity:.3f} nats, "
        f"{row.mean_delta:+.3f} [{row.t_low:+.3f}, {row.t_high:+.3f}] to the baseline, all runs "
        f"stable at {row.stable_rates} of {row.rates} rates. H1b {row.H1b}."
        for row in table.itertuples()
        if row.H1b != "baseline"
    ]
    return Finding("sensitivity", "Sensitivity to the learning rate", table, words)


def _best_rate(table: pd.DataFrame) -> Finding:
    words = [
        f"{row.variant}{_of(row.within)}: best at {row.best_rate:g} (chosen on dev), test "
        f"perplexity {row.perplexity_test:.3f}, {row.mean_delta:+.3f} "
        f"[{row.t_low:+.3f}, {row.t_high:+.3f}] to the baseline at its own best rate."
        for row in table.itertuples()
    ]
    return Finding("best_rate", "Each variant at its own best learning rate", table, words)


def _efficiency(table: pd.DataFrame) -> Finding:
    words = [
        f"{row.arm} needs {row.token_ratio:.2f} [{row.t_low:.2f}, {row.t_high:.2f}] times the "
        f"tokens of {row.baseline} for the same dev loss; it reached the baseline's final loss in "
        f"{row.reached} of {row.n} seeds."
        for row in table.itertuples()
    ]
    return Finding("efficiency", "Tokens for the same loss", table, words)


def _of(setting: object) -> str:
    return f" at {setting}" if setting else ""
