"""The verdict on a study: its contrasts, tests of its plan's families and hypotheses, the answer to
each, what is decided of each arm, and tables beyond the plan, where the study has what they need.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.config.claim import ClaimStatus
from lib.config.metrics import MAIN, measures_in
from lib.config.plan import ALPHA, Plan
from lib.config.study import Study
from lib.config.yaml import Json
from lib.results import json_rows
from lib.stats.decision import decide
from lib.stats.factorial import factor_effects
from lib.stats.hypotheses import hypothesis_tests, in_words, planned_contrasts
from lib.stats.paired import contrast_table
from lib.stats.robustness import leave_one_out, leave_one_task_out, task_contrasts
from lib.stats.runs import available_measures, main_measures, planned_measures
from lib.stats.stability import judge_runs, stability_map, with_stability
from lib.stats.tables import in_markdown, reference_table


@dataclass(frozen=True)
class Verdict:
    """What 03_analysis shows of a study and keeps."""

    claim: ClaimStatus
    runs: pd.DataFrame
    """The tidy table, with stability judged."""
    answers: dict[str, dict[str, str]]
    """Hypothesis → its answer in one word, and the reason."""
    decisions: list[dict[str, str]]
    tables: dict[str, pd.DataFrame]
    """`contrasts` (see `lib.stats.paired.contrast_table`); `effects` of every factor of a grid (see
    `lib.stats.factorial`); `tests` of the plan's families and `hypothesis_tests` (see
    `lib.stats.hypotheses`); and `stability`, a row per run."""
    beyond: dict[str, pd.DataFrame]
    """Tables beyond the plan, as far as the study has what they need."""

    def as_json(self) -> Json:
        """Return the same as plain values, without the runs; NaN becomes None."""
        return {
            "standing": self.claim.name,
            "exploratory_because": self.claim.reasons,
            "answers": self.answers,
            "decisions": self.decisions,
            **{name: json_rows(table) for name, table in (self.tables | self.beyond).items()},
        }

    def _repr_markdown_(self) -> str:
        return in_markdown(self.as_json())


def analyse(
    design: Study,
    plan: Plan | None,
    claim: ClaimStatus,
    runs: pd.DataFrame,
    trace: pd.DataFrame,
    items: pd.DataFrame,
    stock: pd.DataFrame,
) -> Verdict:
    """Judge a study by its plan and make every table that applies, from the tables of
    `lib.stats.runs`; `items` are the answers to the suite, `stock` those to stock tasks. An
    exploratory study gets neither tests nor decisions nor answers; its differences stay, with their
    intervals. What is drawn at random follows from the study's hash, so that the same runs always
    give the same numbers."""
    rng = np.random.default_rng(int(design.hash[:8], 16))
    alpha = plan.alpha if plan else ALPHA
    stability = judge_runs(runs, trace, plan)
    runs = with_stability(runs, stability)
    shares = stability_map(runs, stability, alpha)
    if plan:
        contrasts, tests = planned_contrasts(runs, plan, rng)
        hypotheses = hypothesis_tests(runs, plan, rng)
        decisions = decide(runs, contrasts, hypotheses, shares, plan)
    else:
        measures = [*measures_in("headline"), *main_measures(runs, plan)]
        contrasts = contrast_table(runs, available_measures(measures, runs), rng)
    if plan is None or claim.name == "EXPLORATORY":
        contrasts = contrasts.assign(family="", test="", p_holm=np.nan)
        tests, hypotheses, decisions = pd.DataFrame(), pd.DataFrame(), []
    first = contrasts[contrasts["measure"].isin([*main_measures(runs, plan), *MAIN])]
    if plan and len(tests):
        first = tests[tests["family"] == next(iter(plan.families))]
    measures = [*planned_measures(runs, plan), *measures_in("headline")]
    measures = available_measures(measures, runs)
    beyond = {
        "references": reference_table(runs),
        "stability_map": shares,
        "task_contrasts": task_contrasts(runs, items, alpha),
        "stock_contrasts": task_contrasts(runs, stock, alpha),
        "leave_one_task_out": leave_one_task_out(items, contrasts, alpha),
        "leave_one_out": leave_one_out(runs, first),
    }
    tables = {
        "contrasts": contrasts,
        "effects": factor_effects(runs, measures, alpha),
        "tests": tests,
        "hypothesis_tests": hypotheses,
        "stability": stability,
    }
    answers = {
        row["hypothesis"]: {"answer": row["answer"], "reason": in_words(row)}
        for row in hypotheses.to_dict("records")
    }
    beyond = {name: table for name, table in beyond.items() if not table.empty}
    return Verdict(claim, runs, answers, decisions, tables, beyond)
