"""Decide whether to keep the baseline or to adopt an arm, by three criteria fixed before any run.

1. Keep the baseline if the arm is significantly worse and the baseline trains stably.
2. Adopt an arm only if it removes instability or divergence, and if its cost in the primary
   measures is below the plan's limit: the smallest effect of interest.
3. If the primary measures show no difference, calibration breaks the tie, then speed.

Decisions are made only if the plan defines when a run is unstable and tests the share of such runs.
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
    """Decide on every arm against its own baseline. For each arm, return its name, the decision,
    the `rule` that made the decision, and the reason. Return nothing if the plan does not test
    stability.

    `runs` is the tidy table. `contrasts` and `hypotheses` are tables of `lib.stats.hypotheses`.
    `stability` is the table of `lib.stats.stability.stability_map`.
    """
    tested = [h.measure for h in plan.bound.values()]
    for family in plan.families.values():
        tested += family.measures
    if plan.instability is None or "unstable" not in tested:
        return []
    unstable_share = stability.set_index("arm")["share"]  # NaN if the arm is not judged
    contrasts_of = _by_pair(contrasts)
    hypotheses_of = _by_pair(hypotheses)
    decisions = []
    for arm, baseline in own_baselines(runs).items():
        tests = hypotheses_of.get((arm, baseline), [])
        rows = {row["measure"]: row for row in contrasts_of.get((arm, baseline), [])}
        shown = {measure: shown_change(row, tests, plan.alpha) for measure, row in rows.items()}
        rule, decision, reason = by_criteria(
            rows, shown, unstable_share[baseline], unstable_share[arm], plan
        )
        decisions.append({"arm": arm, "rule": rule, "decision": decision, "reason": reason})
    return decisions


def _by_pair(table: pd.DataFrame) -> dict[tuple[str, str], list[Row]]:
    """Group the rows of a table by their arm and baseline."""
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in table.to_dict("records"):
        rows.setdefault((row["arm"], row["baseline"]), []).append(row)
    return rows


def shown_change(contrast: Row, hypotheses: list[Row], alpha: float) -> str:
    """Return what an arm's tests show about the measure of a contrast: "better", "worse",
    "negligible" if the difference is shown to be too small to matter, or "none". Return "" if there
    is no test.

    One test is that of the contrast itself (p is adjusted within the family). The others are tests
    of hypotheses: `hypotheses` has the answers about this arm and baseline.
    """
    answers = [test for test in hypotheses if test["measure"] == contrast["measure"]]
    if contrast["p_holm"] < alpha or any(_shows_a_change(answer) for answer in answers):
        gain = MEASURES[contrast["measure"]].gain(contrast["mean_delta"])
        return "better" if gain > 0 else "worse"
    if any(answer["answer"] == "negligible" for answer in answers):
        return "negligible"
    is_tested = answers or not np.isnan(contrast["p_holm"])
    return "none" if is_tested else ""


def _shows_a_change(hypothesis: Row) -> bool:
    """Return whether an answer shows that there is a difference at all. In older plans a hypothesis
    can also be refuted because the difference is too small to matter."""
    if hypothesis["answer"] == "supported":
        return not hypothesis["claim"].startswith("within")
    if hypothesis["answer"] != "refuted" or hypothesis["mean_delta"] == 0:
        return False
    # If all deltas are equal, the interval is NaN. The deltas are not 0 here, and an exact test can
    # still show a difference.
    return not hypothesis["t_low"] <= 0 <= hypothesis["t_high"]


def by_criteria(
    contrasts: Mapping[str, Row],
    shown: Mapping[str, str],
    baseline_share: float,
    arm_share: float,
    plan: Plan,
) -> tuple[str, str, str]:
    """Return rule, decision and reason for one arm. The keys of `contrasts` and `shown` (see
    `shown_change`) are measures. `baseline_share` and `arm_share` are the shares of unstable runs
    in the two arms."""
    tolerated = 0.0
    if plan.instability and plan.instability.tolerated_share:
        tolerated = plan.instability.tolerated_share
    primary = [
        name
        for name in plan.primary_measures
        if name in contrasts and name not in JUDGED and MEASURES[name].better
    ]
    worse, better, negligible = (
        "; ".join(MEASURES[name].label for name in primary if shown[name] == change)
        for change in ("worse", "better", "negligible")
    )

    if np.isnan(baseline_share) or (baseline_share > tolerated and np.isnan(arm_share)):
        return "stability", UNDECIDED, "the loss starts too high to judge stability"

    if baseline_share <= tolerated:
        if worse:
            return "regression", KEEP, f"the baseline is stable and the arm is worse in {worse}"
        if arm_share > tolerated:
            return "stability", KEEP, "the baseline trains stably and the arm does not"
        if not any(shown[name] for name in primary):
            return "no test", UNDECIDED, "the plan tests no primary measure of this arm"
        if better:
            return "improvement", "replicate before adopting", f"the arm is better in {better}"
        for name in ("ece", "inference_tokens_per_second", "training_tokens_per_second"):
            if name in contrasts and contrasts[name]["t_p"] < plan.alpha:
                gain = MEASURES[name].gain(contrasts[name]["mean_delta"])
                return "tie", ADOPT if gain > 0 else KEEP, f"{MEASURES[name].label} breaks the tie"
        if negligible:
            return "tie", KEEP, f"the arm's effect is negligible in {negligible}"
        return "tie", KEEP, "no measure favours the arm"

    if arm_share > tolerated:
        return "stability", KEEP, "the baseline is unstable and the arm does not cure it"
    if shown.get("unstable") != "better":
        return "stability", KEEP, "the arm may cure the instability, but that is not significant"
    cost = _cost([contrasts[name] for name in primary], plan.smallest_effect_of_interest)
    if cost == "beyond":
        return "cost", KEEP, "it removes instability, at more than the planned cost"
    if cost == "within":
        return "cost", ADOPT, "it removes instability, at less than the planned cost"
    return "cost", UNDECIDED, "it removes instability, and whether that is worth it is unclear"


def _cost(contrasts: list[Row], limits: Mapping[str, float]) -> str:
    """Compare the cost of an arm in each measure with the limit of that measure. Return "beyond" if
    a mean cost is above its limit, and "within" if every interval is wholly below its limit.
    Otherwise return "unclear". If there are no measures or no limits, the cost is also
    "unclear"."""
    is_within = bool(contrasts)
    for row in contrasts:
        gain = MEASURES[row["measure"]].gain
        limit = limits.get(row["measure"], np.nan)
        if -gain(row["mean_delta"]) > limit:
            return "beyond"
        is_within &= max(-gain(row["t_low"]), -gain(row["t_high"])) < limit
    return "within" if is_within else "unclear"
