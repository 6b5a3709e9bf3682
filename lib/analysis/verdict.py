"""The verdict on a study: contrasts under its plan, the rule that fires for each arm, and both in
words."""

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator

from lib.analysis.paired import contrast_table, holm
from lib.analysis.rules import Answer, Decision, Direction, Evidence, decide, hypotheses
from lib.analysis.runs import own_baselines, taken
from lib.analysis.stability import unstable_runs
from lib.study.measures import ACCURACIES, MAIN, MEASURES, measures_in
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
            "evidence": [asdict(e) for e in self.evidence],
            "contrasts": records(self.contrasts),
            "imputed": records(self.imputed),
            "stability": records(self.stability),
        }


def reach_verdict(
    runs: pd.DataFrame, trace: pd.DataFrame, plan: Plan | None, rng: Generator
) -> Verdict:
    """Judge every arm of a study against its baseline by the plan; without one, only contrast.

    `runs` is the table of `lib.analysis.runs.tidy`, `trace` the joined traces of all its runs.
    """
    if plan is None:
        table = contrast_table(runs, taken(measures_in("headline"), runs), rng)
        table = table.assign(family="", p_holm=np.nan)
        return Verdict(table, pd.DataFrame(), pd.DataFrame(), [], [])
    contrasts = planned_contrasts(runs, plan, rng)
    rule = plan.instability
    stability = unstable_runs(runs, trace, rule.window or 64, rule.threshold or 6.0)
    shares = stability.groupby("arm")["unstable"].mean()
    speed = trace.groupby(["arm", "seed"])["seconds"].median().unstack("seed")
    evidence = []
    for arm, rows in by_arm_and_measure(contrasts, runs).items():
        baseline = next(iter(rows.values()))["baseline"]
        # A measure that no pair of runs has is no evidence for or against an arm.
        primary = [name for name in plan.primary if name in rows and rows[name]["n"]]
        evidence.append(
            Evidence(
                arm=arm,
                baseline_stable=bool(shares[baseline] <= rule.tolerated_share),
                arm_stable=bool(shares[arm] <= rule.tolerated_share),
                accuracy={n: direction(rows[n], plan.alpha, "p_holm") for n in primary},
                accuracy_change={n: rows[n]["mean_delta"] for n in primary},
                calibration=direction(rows["ece"], plan.alpha) if "ece" in rows else "none",
                throughput_change=float((speed.loc[baseline] / speed.loc[arm]).median() - 1),
            )
        )
    decisions = [decide(e, plan) for e in evidence if e.accuracy]
    return Verdict(contrasts, imputed_contrasts(runs, plan, rng), stability, evidence, decisions)


def planned_pairs(runs: pd.DataFrame, plan: Plan) -> dict[tuple[str, str], str]:
    """Pair every arm with its baseline, and as the plan's families say, within each setting of the
    other factors: (arm, the arm it is held against) → family, "" when in none."""
    families = {tuple(pair): name for name, f in plan.tests_of.items() for pair in f.contrasts}
    arms = runs.drop_duplicates("arm").to_dict("records")
    pairs = {}
    for arm, other in product(arms, repeat=2):
        family = families.get((arm["variant"], other["variant"]), "")
        own_baseline = other["arm"] == arm["baseline"] != arm["arm"]
        if own_baseline or (family and arm["setting"] == other["setting"]):
            pairs[arm["arm"], other["arm"]] = family
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
        equivalence_margins={
            name: plan.minimum_detectable_effect for name in plan.primary if name in ACCURACIES
        },
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
    baselines = own_baselines(runs)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in contrasts.to_dict("records"):
        if row["baseline"] == baselines.get(row["arm"]):
            found.setdefault(row["arm"], {})[row["measure"]] = {str(k): v for k, v in row.items()}
    return found


def direction(row: dict[str, Any], alpha: float, p: str = "t_p") -> Direction:
    """Say what a row of the contrasts shows by one of its p-values. Deltas that are all zero are no
    change; any others without a p are undefined."""
    if pd.isna(row[p]):
        return "none" if row["n"] > 1 and row["mean_delta"] == row["sd_delta"] == 0 else "undefined"
    gain = MEASURES[row["measure"]].gain(row["mean_delta"])
    if not row[p] < alpha or np.isnan(gain):
        return "none"
    return "improvement" if gain > 0 else "regression"


def answer_hypotheses(
    verdict: Verdict, runs: pd.DataFrame, plan: Plan | None, sensitivity: pd.DataFrame | None
) -> dict[str, Answer]:
    """Answer each hypothesis once, from the arms in the plan's first family and, of a study over
    learning rates, the table of `lib.analysis.learning_rate`. Empty without a plan."""
    if plan is None:
        return {}
    pairs = planned_pairs(runs, plan)
    first = next(iter(plan.families), "")
    layered = {arm for (arm, _), family in pairs.items() if family == first}
    evidence = [e for e in verdict.evidence if e.arm in layered]
    if sensitivity is None:
        return hypotheses(evidence)
    rows = sensitivity[sensitivity["H1b"] != "baseline"]
    names = rows["variant"] + rows["within"].map(lambda within: within and f" at {within}")
    return hypotheses(evidence, dict(zip(names, rows["H1b"], strict=True)))


def in_words(verdict: Verdict, answers: dict[str, Answer], runs: pd.DataFrame, kind: str) -> str:
    """Write the answer to each hypothesis, then a paragraph per arm: its decision, the rule and the
    numbers behind it."""
    rows = by_arm_and_measure(verdict.contrasts, runs)
    decisions = {decision.arm: decision for decision in verdict.decisions}
    paragraphs = [f"**{name} {a.answer}**: {a.reason}." for name, a in answers.items()]
    for evidence in verdict.evidence:
        measures, decision = rows[evidence.arm], decisions.get(evidence.arm)
        named = [name for name in (*evidence.accuracy, MAIN) if name in measures]
        numbers = "; ".join(_in_numbers(measures[name]) for name in dict.fromkeys(named))
        stable = {True: "stable", False: "unstable"}
        said = "**no decision**: no primary measure was taken"
        if decision:
            said = f"**{decision.decision}** by rule {decision.rule}: {decision.reason}"
        alone = "" if evidence.throughput_noise is not None else ", not measured alone"
        paragraphs.append(
            f"**{evidence.arm}** ({kind.lower()}): {said}. {numbers}. Baseline "
            f"{stable[evidence.baseline_stable]}, arm {stable[evidence.arm_stable]}; calibration: "
            f"{evidence.calibration}; training speed {evidence.throughput_change:+.1%}{alone}."
        )
    return "\n\n".join(paragraphs) or "No plan, or one arm: nothing to decide."


def _in_numbers(row: dict[str, Any]) -> str:
    measure = MEASURES[row["measure"]]
    p, kind = (row["p_holm"], "Holm p") if row["family"] else (row["t_p"], "unadjusted p")
    dropped = f", {row['n_dropped']} dropped" if row["n_dropped"] else ""
    budget = f"; the two sides differ in {row['budget']}" if row["budget"] else ""
    return (
        f"{measure.label} {measure.estimate(row)} (n = {row['n']}{dropped}, {kind} {p:.3g}{budget})"
    )
