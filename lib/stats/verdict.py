"""The verdict on a study: contrasts, tests of the plan's families, an answer to each of its
hypotheses, a decision on each arm, and tables beyond the plan."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.config.claim import ClaimStatus
from lib.config.metrics import MAIN, measures_in
from lib.config.plan import ALPHA, Plan
from lib.config.study import Study
from lib.config.yaml import Json
from lib.results import json_rows
from lib.stats.answers import in_words
from lib.stats.decision import decide
from lib.stats.factorial import factor_effects
from lib.stats.hypotheses import hypothesis_tests, planned_contrasts
from lib.stats.paired import contrast_table
from lib.stats.robustness import leave_one_out, leave_one_task_out, task_contrasts
from lib.stats.runs import available_measures, main_measures, planned_measures
from lib.stats.stability import judge_runs, stability_map, with_stability
from lib.stats.tables import in_markdown, reference_table


@dataclass(frozen=True)
class Verdict:
    """The verdict that 03_analysis shows and writes to `verdict.json`."""

    claim: ClaimStatus
    runs: pd.DataFrame
    """The tidy table, with the stability of each run."""
    answers: dict[str, dict[str, str]]
    """Hypothesis → `answer` (supported, refuted, negligible, undecided) and `reason`, in words."""
    decisions: list[dict[str, str]]
    tables: dict[str, pd.DataFrame]
    """Tables by name; some may be empty: `contrasts` (columns of `lib.stats.paired.contrast_table`,
    and family, test, p_holm), `effects` (`lib.stats.factorial.factor_effects`), `tests` and
    `hypothesis_tests` (`lib.stats.hypotheses`), `stability` (`lib.stats.stability.judge_runs`)."""
    beyond: dict[str, pd.DataFrame]
    """Exploratory tables by name, such as those of `lib.stats.robustness`; none is empty."""

    def as_json(self) -> Json:
        """Return everything except the runs, ready for JSON; NaN becomes None."""
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
    """Make every table of the verdict on a study.

    `runs` is the tidy table. `trace`, `items` and `stock` are raw tables of all runs: steps,
    answers to the suite, answers to stock tasks. An exploratory study gets contrasts with
    intervals, but no tests, answers or decisions. The study's hash seeds the random generator, so
    the same runs always give the same numbers.
    """
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
    primary = contrasts[contrasts["measure"].isin([*main_measures(runs, plan), *MAIN])]
    if plan and len(tests):
        primary = tests[tests["family"] == next(iter(plan.families))]
    of_effects = [*planned_measures(runs, plan), *measures_in("headline")]
    of_effects = available_measures(of_effects, runs)
    beyond = {
        "references": reference_table(runs),
        "stability_map": shares,
        "task_contrasts": task_contrasts(runs, items, alpha),
        "stock_contrasts": task_contrasts(runs, stock, alpha),
        "leave_one_task_out": leave_one_task_out(items, contrasts, alpha),
        "leave_one_out": leave_one_out(runs, primary),
    }
    tables = {
        "contrasts": contrasts,
        "effects": factor_effects(runs, of_effects, alpha),
        "tests": tests,
        "hypothesis_tests": hypotheses,
        "stability": stability,
    }
    answers = {
        row["hypothesis"]: {"answer": row["answer"], "reason": in_words(row, plan)}
        for row in hypotheses.to_dict("records")
        if plan
    }
    beyond = {name: table for name, table in beyond.items() if not table.empty}
    return Verdict(claim, runs, answers, decisions, tables, beyond)
