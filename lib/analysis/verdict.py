"""The verdict on a study: contrasts under its plan, the rule each arm meets, and it in words."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator

from lib.analysis.paired import contrast_table, holm
from lib.analysis.resampling import crossed_bootstrap, iqm_interval
from lib.analysis.rules import Decision, Direction, Evidence, decide, hypotheses
from lib.analysis.stability import unstable_runs
from lib.study.measures import MEASURES
from lib.study.plan import Plan
from lib.study.record import records


@dataclass(frozen=True)
class Verdict:
    """What a plan says of every arm of a study."""

    contrasts: pd.DataFrame
    """The table of `lib.analysis.paired.contrast_table` with `family` and `p_holm`."""
    imputed: pd.DataFrame
    """The same where runs diverged, each counting as the plan says; else empty."""
    stability: pd.DataFrame
    """A row per run: arm, seed, spikes, unstable."""
    evidence: list[Evidence]
    decisions: list[Decision]
    """One per arm whose primary measures were taken."""

    def as_json(self) -> dict[str, Any]:
        """The same as plain values; NaN becomes None."""
        return {
            "decisions": [asdict(decision) for decision in self.decisions],
            "hypotheses": {e.arm: hypotheses(e) for e in self.evidence},
            "evidence": [asdict(e) for e in self.evidence],
            "contrasts": records(self.contrasts),
            "imputed": records(self.imputed),
            "stability": records(self.stability),
        }


UNPLANNED = ("macro_accuracy_zero_shot", "macro_accuracy_few_shot", "perplexity", "accuracy", "ece")
"""Measures contrasted where a study names no plan."""


def reach_verdict(
    runs: pd.DataFrame, trace: pd.DataFrame, plan: Plan | None, rng: Generator
) -> Verdict:
    """Judge every arm of a study against its baseline by the plan; without one, only contrast.

    `runs` is the table of `lib.analysis.runs.tidy`, `trace` the joined traces of all its runs.
    """
    if plan is None:
        table = contrast_table(runs, taken(UNPLANNED, runs), rng).assign(family="", p_holm=np.nan)
        return Verdict(table, pd.DataFrame(), pd.DataFrame(), [], [])
    contrasts = planned_contrasts(runs, plan, rng)
    rule = plan.instability
    stability = unstable_runs(runs, trace, rule.window, rule.threshold)
    shares = stability.groupby("arm")["unstable"].mean()
    speed = trace.groupby(["arm", "seed"])["seconds"].median().unstack("seed")
    evidence = []
    for arm, rows in by_arm_and_measure(contrasts, runs).items():
        baseline = next(iter(rows.values()))["baseline"]
        # A measure that no pair of runs has speaks neither for nor against an arm.
        primary = [name for name in plan.primary if name in rows and rows[name]["n"]]
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
    decisions = [decide(e, plan) for e in evidence if e.accuracy]
    return Verdict(contrasts, imputed_contrasts(runs, plan, rng), stability, evidence, decisions)


def taken(measures: Iterable[str], runs: pd.DataFrame) -> list[str]:
    """Keep the measures that at least one run has."""
    return [name for name in measures if name in runs and runs[name].notna().any()]


def planned_pairs(runs: pd.DataFrame, plan: Plan) -> dict[tuple[str, str], str]:
    """Pair every arm with its baseline, and as the plan's families say, within each setting of the
    other factors: (arm, the arm it is held against) → family, "" when in none."""
    pairs: dict[tuple[str, str], str] = {}
    families = {tuple(pair): name for name, listed in plan.families.items() for pair in listed}
    for _, arms in runs.drop_duplicates("arm").groupby("setting", sort=False):
        names = dict(zip(arms["variant"], arms["arm"], strict=True))
        reference = dict(zip(arms["arm"], arms["baseline"], strict=True))
        for variant, arm in names.items():
            if arm != reference[arm]:
                base = next(v for v, name in names.items() if name == reference[arm])
                pairs[arm, reference[arm]] = families.get((variant, base), "")
        for (variant, base), family in families.items():
            if variant in names and base in names:
                pairs[names[variant], names[base]] = family
    return pairs


def planned_contrasts(runs: pd.DataFrame, plan: Plan, rng: Generator) -> pd.DataFrame:
    """Contrast every planned pair in the plan's measures. `p_holm` is adjusted within each family:
    its contrasts × the primary measures; other rows have none."""
    pairs = planned_pairs(runs, plan)
    table = contrast_table(
        runs,
        taken([*plan.primary, *plan.secondary], runs),
        rng,
        alpha=plan.alpha,
        power=plan.power,
        equivalence_margins=dict.fromkeys(plan.primary, plan.minimum_detectable_effect),
        pairs=list(pairs),
    )
    family = [pairs[pair] for pair in zip(table["arm"], table["baseline"], strict=True)]
    table["family"] = np.where(table["measure"].isin(plan.primary), family, "")
    table["p_holm"] = np.nan
    for name in plan.families:
        table.loc[table["family"] == name, "p_holm"] = holm(
            table.loc[table["family"] == name, "t_p"]
        )
    return table


def imputed_contrasts(runs: pd.DataFrame, plan: Plan, rng: Generator) -> pd.DataFrame:
    """Contrast every arm with its baseline once more, a diverged run counting as the plan says;
    empty when none diverged."""
    diverged = runs["status"] == "diverged"
    if not diverged.any():
        return pd.DataFrame()
    measures = taken(plan.imputation, runs)
    filled = {name: runs[name].mask(diverged, plan.imputation[name]) for name in measures}
    return contrast_table(runs.assign(**filled), measures, rng, alpha=plan.alpha, power=plan.power)


def by_arm_and_measure(
    contrasts: pd.DataFrame, runs: pd.DataFrame
) -> dict[str, dict[str, dict[str, Any]]]:
    """Look up, by arm and measure, the row of the contrasts that holds an arm against its own
    baseline."""
    baselines = runs.drop_duplicates("arm").set_index("arm")["baseline"]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in contrasts.to_dict("records"):
        if row["baseline"] == baselines[row["arm"]]:
            found.setdefault(row["arm"], {})[row["measure"]] = {str(k): v for k, v in row.items()}
    return found


def direction(measure: str, delta: float, p: float, plan: Plan) -> Direction:
    """Say whether a change is a significant improvement or regression. NaN p: none."""
    if not p < plan.alpha:
        return "none"
    lower = MEASURES[measure].lower_is_better
    return "improvement" if (delta < 0) == bool(lower) else "regression"


def in_words(verdict: Verdict, runs: pd.DataFrame, kind: str) -> str:
    """Write a paragraph per arm: its decision, the rule and the numbers behind it."""
    rows = by_arm_and_measure(verdict.contrasts, runs)
    decisions = {decision.arm: decision for decision in verdict.decisions}
    paragraphs = []
    for evidence in verdict.evidence:
        measures, decision = rows[evidence.arm], decisions.get(evidence.arm)
        named = [name for name in (*evidence.accuracy, "perplexity") if name in measures]
        numbers = "; ".join(_in_numbers(measures[name]) for name in named)
        answers = "; ".join(f"{name} {answer}" for name, answer in hypotheses(evidence).items())
        stable = {True: "stable", False: "unstable"}
        said = "**no decision**: no primary measure was taken"
        if decision:
            said = f"**{decision.decision}** by rule {decision.rule}: {decision.reason}"
        paragraphs.append(
            f"**{evidence.arm}** ({kind.lower()}): {said}. {numbers}. Baseline "
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
