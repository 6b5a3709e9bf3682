"""The verdict on a study: contrasts under its plan, the rule each arm meets, and it in words."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator

from lib.preregistration import Decision, Direction, Evidence, Plan, decide, hypotheses
from lib.resampling import crossed_bootstrap, iqm_interval
from lib.results import MEASURES
from lib.stability import unstable_runs
from lib.statistics import contrast_table, holm


@dataclass(frozen=True)
class Verdict:
    """What a plan says of every arm of a study."""

    contrasts: pd.DataFrame
    """The table of `lib.statistics.contrast_table` with `family` and `p_holm`."""
    stability: pd.DataFrame
    """A row per run: arm, seed, spikes, unstable."""
    evidence: list[Evidence]
    decisions: list[Decision]

    def as_json(self) -> dict[str, Any]:
        """The same as plain values; NaN becomes None."""
        rows = self.contrasts.to_dict("records")
        return {
            "decisions": [asdict(decision) for decision in self.decisions],
            "hypotheses": {e.arm: hypotheses(e) for e in self.evidence},
            "evidence": [asdict(e) for e in self.evidence],
            "contrasts": [{k: None if pd.isna(v) else v for k, v in r.items()} for r in rows],
            "stability": self.stability.to_dict("records"),
        }


UNPLANNED = ("macro_accuracy_zero_shot", "macro_accuracy_few_shot", "perplexity", "accuracy", "ece")
"""Measures contrasted where a study names no plan."""


def reach_verdict(
    runs: pd.DataFrame, trace: pd.DataFrame, plan: Plan | None, rng: Generator
) -> Verdict:
    """Judge every arm of a study against its baseline by the plan; without one, only contrast.

    `runs` is the table of `lib.collection.tidy`, `trace` the joined traces of all its runs.
    """
    if plan is None:
        table = contrast_table(runs, list(UNPLANNED), rng).assign(family="", p_holm=np.nan)
        return Verdict(table, pd.DataFrame(), [], [])
    contrasts = planned_contrasts(runs, plan, rng)
    rule = plan.instability
    stability = unstable_runs(runs, trace, rule.window, rule.threshold)
    shares = stability.groupby("arm")["unstable"].mean()
    speed = trace.groupby(["arm", "seed"])["seconds"].median().unstack("seed")
    evidence = []
    for arm, rows in by_arm_and_measure(contrasts).items():
        baseline = next(iter(rows.values()))["baseline"]
        primary = [name for name in plan.primary if name in rows]
        calibration: Direction = "none"
        if "ece" in rows:
            calibration = direction("ece", rows["ece"]["mean_delta"], rows["ece"]["t_p"], plan)
        evidence.append(
            Evidence(
                arm=arm,
                baseline_stable=bool(shares[baseline] <= rule.tolerated_share),
                arm_stable=bool(shares[arm] <= rule.tolerated_share),
                accuracy={
                    n: direction(n, rows[n]["mean_delta"], rows[n]["p_holm"], plan) for n in primary
                },
                accuracy_change={n: rows[n]["mean_delta"] for n in primary},
                calibration=calibration,
                throughput_change=float((speed.loc[baseline] / speed.loc[arm]).median() - 1),
            )
        )
    return Verdict(contrasts, stability, evidence, [decide(e, plan) for e in evidence])


def planned_contrasts(runs: pd.DataFrame, plan: Plan, rng: Generator) -> pd.DataFrame:
    """Contrast every arm with its baseline in the plan's measures. `p_holm` is adjusted over the
    primary family: its contrasts × the primary measures; other rows have none."""
    measures = [name for name in [*plan.primary, *plan.secondary] if name in runs]
    margins = dict.fromkeys(plan.primary, plan.minimum_detectable_effect)
    table = contrast_table(
        runs, measures, rng, alpha=plan.alpha, power=plan.power, equivalence_margins=margins
    )
    variant = runs.drop_duplicates("arm").set_index("arm")["variant"]
    pairs = [
        [variant[arm], variant[base]]
        for arm, base in zip(table["arm"], table["baseline"], strict=True)
    ]
    in_family = np.array([list(pair) in plan.families["primary"] for pair in pairs], dtype=bool)
    in_family &= table["measure"].isin(plan.primary).to_numpy()
    table["family"] = np.where(in_family, "primary", "")
    table["p_holm"] = np.nan
    table.loc[in_family, "p_holm"] = holm(table.loc[in_family, "t_p"])
    return table


def by_arm_and_measure(contrasts: pd.DataFrame) -> dict[str, dict[str, dict[str, Any]]]:
    """Look a row of the contrasts up by arm and measure."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in contrasts.to_dict("records"):
        found.setdefault(row["arm"], {})[row["measure"]] = {str(k): v for k, v in row.items()}
    return found


def direction(measure: str, delta: float, p: float, plan: Plan) -> Direction:
    """Say whether a change is a significant improvement or regression. NaN p: none."""
    if not p < plan.alpha:
        return "none"
    lower = MEASURES[measure].lower_is_better
    return "improvement" if (delta < 0) == bool(lower) else "regression"


def in_words(verdict: Verdict, kind: str) -> str:
    """Write a paragraph per arm: its decision, the rule and the numbers behind it."""
    rows = by_arm_and_measure(verdict.contrasts)
    paragraphs = []
    for evidence, decision in zip(verdict.evidence, verdict.decisions, strict=True):
        measures = rows[evidence.arm]
        named = [name for name in (*evidence.accuracy, "perplexity") if name in measures]
        numbers = "; ".join(_in_numbers(measures[name]) for name in named)
        answers = "; ".join(f"{name} {answer}" for name, answer in hypotheses(evidence).items())
        stable = {True: "stable", False: "unstable"}
        paragraphs.append(
            f"**{evidence.arm}** ({kind.lower()}): **{decision.decision}** by rule "
            f"{decision.rule}: {decision.reason}. {numbers}. Baseline "
            f"{stable[evidence.baseline_stable]}, arm {stable[evidence.arm_stable]}; calibration: "
            f"{evidence.calibration}; training speed {evidence.throughput_change:+.1%}. {answers}."
        )
    return "\n\n".join(paragraphs) or "No plan, or one arm: nothing to decide."


def _in_numbers(row: dict[str, Any]) -> str:
    measure = MEASURES[row["measure"]]
    p, kind = (row["p_holm"], "Holm p") if row["family"] else (row["t_p"], "unadjusted p")
    low, high = (f"{row[key]:+.{measure.digits}f}" for key in ("t_low", "t_high"))
    dropped = f", {row['n_dropped']} dropped" if row["n_dropped"] else ""
    return (
        f"{measure.label} {row['mean_delta']:+.{measure.digits}f} [{low}, {high}] "
        f"(n = {row['n']}{dropped}, {kind} {p:.3g})"
    )


def suite_contrasts(
    runs: pd.DataFrame, tasks: pd.DataFrame, items: pd.DataFrame, rng: Generator
) -> pd.DataFrame:
    """Contrast every arm with its baseline on the task suite in two further ways: the interquartile
    mean over tasks with seeds resampled whole, and accuracy over all questions with seeds and
    questions resampled. Rows: arm, shots (zero or few), then value, low and high of each."""
    rows = []
    for arm, baseline in runs.drop_duplicates("arm").set_index("arm")["baseline"].items():
        for kind, few in (("zero", False), ("few", True)):
            if arm == baseline or tasks.empty or not ((tasks["shots"] > 0) == few).any():
                continue
            accuracy, correct = (
                {
                    name: part[part["arm"] == name].pivot(
                        index="seed", columns=columns, values=value
                    )
                    for name in (arm, baseline)
                }
                for part, columns, value in (
                    (tasks[(tasks["shots"] > 0) == few], "task", "accuracy"),
                    (items[(items["shots"] > 0) == few], ["task", "item"], "correct"),
                )
            )
            # Only a seed that completed in both arms was asked in both.
            seeds = accuracy[arm].index.intersection(accuracy[baseline].index)
            iqm = iqm_interval((accuracy[arm] - accuracy[baseline]).loc[seeds], rng)
            crossed = crossed_bootstrap(correct[arm].loc[seeds], correct[baseline].loc[seeds], rng)
            cells = {
                f"{name}, {field}": value
                for name, estimate in (("IQM over tasks", iqm), ("all questions", crossed))
                for field, value in estimate._asdict().items()
            }
            rows.append({"arm": arm, "shots": kind, "seeds": len(seeds), **cells})
    return pd.DataFrame(rows)
