"""Whether to keep the baseline or to adopt an arm, by three criteria fixed before any run:

1. Keep the baseline where an arm is significantly worse and the baseline trains stably.
2. Adopt an arm only where it removes instability or divergence, and what it loses in the primary
   measures is less than its planned cost, the smallest effect of interest.
3. Where the primary measures do not tell the two apart, calibration, then speed, breaks the tie.

They apply where a plan says when a run is unstable, and tests the share of such runs.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.config.metrics import JUDGED, MEASURES
from lib.config.plan import Plan
from lib.stats.factorial import Row
from lib.stats.runs import own_baselines

KEEP = "keep the baseline"
ADOPT = "adopt the arm"
UNDECIDED = "undecided"


def decide(
    runs: pd.DataFrame,
    contrasts: pd.DataFrame,
    hypotheses: pd.DataFrame,
    stability: pd.DataFrame,
    plan: Plan,
) -> list[dict[str, str]]:
    """Decide on every arm beside its own baseline, from the tidy table and the tables of the
    verdict: arm, the decision, the `rule` by which, and its reason. `stability` is the table of
    `lib.stats.stability.stability_map`."""
    tested = [h.measure for h in plan.bound.values()]
    for family in plan.families.values():
        tested += family.measures
    if plan.instability is None or "unstable" not in tested:
        return []
    shares = stability.set_index("arm")["share"]  # NaN of an arm that is not judged
    decisions = []
    for arm, baseline in own_baselines(runs).items():
        rows = {row["measure"]: row for row in _between(arm, baseline, contrasts)}
        tests = _between(arm, baseline, hypotheses)
        shown = {measure: effect(row, tests, plan.alpha) for measure, row in rows.items()}
        rule, decision, reason = by_criteria(rows, shown, shares[baseline], shares[arm], plan)
        decisions.append({"arm": arm, "rule": rule, "decision": decision, "reason": reason})
    return decisions


def _between(arm: str, baseline: str, table: pd.DataFrame) -> list[Row]:
    rows = table.to_dict("records")
    return [row for row in rows if row["arm"] == arm and row["baseline"] == baseline]


def effect(row: Row, tests: list[Row], alpha: float) -> str:
    """Return what the tests of a contrast show of its arm, by the adjusted p of its family or by
    the answers to hypotheses about it: better, worse, or none; "" where nothing tests it."""
    answers = [test for test in tests if test["measure"] == row["measure"]]
    if row["p_holm"] < alpha or any(_shows_a_change(test) for test in answers):
        return "better" if MEASURES[row["measure"]].gain(row["mean_delta"]) > 0 else "worse"
    is_tested = answers or not np.isnan(row["p_holm"])
    return "none" if is_tested else ""


def _shows_a_change(test: Row) -> bool:
    if test["answer"] == "supported":
        return not test["claim"].startswith("within")
    return test["answer"] == "refuted" and not test["t_low"] <= 0 <= test["t_high"]


def by_criteria(
    rows: Mapping[str, Row], shown: Mapping[str, str], before: float, after: float, plan: Plan
) -> tuple[str, str, str]:
    """Return rule, decision and reason for one arm: from its contrasts by measure, what `effect`
    says of each, and the shares of unstable runs without the arm (`before`) and with it."""
    tolerated = 0.0
    if plan.instability and plan.instability.tolerated_share:
        tolerated = plan.instability.tolerated_share
    primary = [
        name
        for name in plan.primary_measures
        if name in rows and name not in JUDGED and MEASURES[name].better
    ]
    worse = "; ".join(MEASURES[name].label for name in primary if shown[name] == "worse")
    better = "; ".join(MEASURES[name].label for name in primary if shown[name] == "better")

    if np.isnan(before) or (before > tolerated and np.isnan(after)):
        return "stability", UNDECIDED, "stability is not judged where the loss starts high"

    if before <= tolerated:
        if worse:
            return "regression", KEEP, f"the baseline is stable and the arm is worse in {worse}"
        if after > tolerated:
            return "stability", KEEP, "the baseline trains stably and the arm does not"
        if not any(shown[name] for name in primary):
            return "no test", UNDECIDED, "the plan tests no primary measure of this arm"
        if better:
            return "improvement", "replicate before adopting", f"the arm is better in {better}"
        for name in ("ece", "inference_tokens_per_second", "training_tokens_per_second"):
            if name in rows and rows[name]["t_p"] < plan.alpha:
                gain = MEASURES[name].gain(rows[name]["mean_delta"])
                return "tie", ADOPT if gain > 0 else KEEP, f"{MEASURES[name].label} breaks the tie"
        return "tie", KEEP, "nothing speaks for the arm"

    if after > tolerated:
        return "stability", KEEP, "the baseline is unstable and the arm does not cure it"
    if shown.get("unstable") != "better":
        return "stability", KEEP, "it is not significant that the arm cures the instability"
    cost = _cost([rows[name] for name in primary], plan.smallest_effect_of_interest)
    if cost == "beyond":
        return "cost", KEEP, "it removes instability, at more than the planned cost"
    if cost == "within":
        return "cost", ADOPT, "it removes instability, at less than the planned cost"
    return "cost", UNDECIDED, "it removes instability, and whether that is worth it is unclear"


def _cost(rows: list[Row], limits: Mapping[str, float]) -> str:
    """Compare what an arm loses with the limit of each measure: "beyond" if a mean is, "within" if
    every interval is, else "unclear"."""
    is_within = bool(rows)
    for row in rows:
        gain = MEASURES[row["measure"]].gain
        limit = limits.get(row["measure"], np.nan)
        if -gain(row["mean_delta"]) > limit:
            return "beyond"
        is_within &= max(-gain(row["t_low"]), -gain(row["t_high"])) < limit
    return "within" if is_within else "unclear"
