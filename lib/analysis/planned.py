"""The contrasts that a plan asks for, and its families of tests."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator

from lib.analysis.paired import contrast_table, holm
from lib.analysis.rules import read_rules
from lib.analysis.runs import available_measures
from lib.analysis.tables import outcome
from lib.study.plan import Plan, arms_called

P_OF = {"t": "t_p", "equivalence": "tost_p", "exact": "sign_flip_p"}
"""Test of a family → the column of `contrast_table` that holds its p."""


def planned_pairs(runs: pd.DataFrame, plan: Plan) -> dict[tuple[str, str], list[str]]:
    """Pair every arm with its baseline, as the plan's families say within each setting of the other
    factors, and as its hypotheses do: (arm, the arm it is held against) → its families, which may
    be none."""
    arms = runs.drop_duplicates("arm").to_dict("records")
    pairs: dict[tuple[str, str], list[str]] = {}
    for arm, other in product(arms, repeat=2):
        contrast = [arm["variant"], other["variant"]]
        families = [name for name, f in plan.tests_of.items() if contrast in f.contrasts]
        own_baseline = other["arm"] == arm["baseline"] != arm["arm"]
        if own_baseline or (families and arm["setting"] == other["setting"]):
            pairs[arm["arm"], other["arm"]] = families
    variants = {arm["arm"]: arm["variant"] for arm in arms}
    for _, arm_name, baseline, _ in plan.bound.values():
        for pair in product(arms_called(arm_name, variants), arms_called(baseline, variants)):
            pairs.setdefault(pair, [])
    return pairs


def planned_measures(plan: Plan) -> list[str]:
    """Name the measures that a plan asks for."""
    measures = [*plan.primary_measures, *plan.secondary, *(of[-1] for of in plan.bound.values())]
    return list(dict.fromkeys(measures))


def margins_of(plan: Plan) -> dict[str, float]:
    """Return the margin of equivalence per measure: the smallest effect of interest. Older plans
    name a margin or, of what their rules call quality, mean the minimum detectable effect."""
    margins = plan.margins | plan.smallest_effect_of_interest
    if plan.minimum_detectable_effect is None:
        return margins
    rated = read_rules(plan).quality
    quality = [name for name in planned_measures(plan) if name in rated]
    return dict.fromkeys(quality, plan.minimum_detectable_effect) | margins


def planned_contrasts(
    runs: pd.DataFrame, plan: Plan, rng: Generator
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Contrast every planned pair in the plan's measures, and make every test of its families.

    The first table is that of `contrast_table` with `family`, `test` and `p_holm`: the first family
    that asks whether the two differ, "" and NaN where none does. The second, whose columns
    `family_tests` names, has a row per test: a contrast may be in several families.
    """
    pairs = planned_pairs(runs, plan)
    contrasts = contrast_table(
        runs,
        available_measures(planned_measures(plan), runs),
        rng,
        alpha=plan.alpha,
        power=plan.power,
        equivalence_margins=margins_of(plan),
        pairs=list(pairs),
    )
    tests = family_tests(contrasts, pairs, plan)
    if tests.empty:
        return contrasts.assign(family="", test="", p_holm=np.nan), tests
    keys = ["arm", "baseline", "measure"]
    differ = tests[tests["test"] != "equivalence"].drop_duplicates(keys)
    contrasts = contrasts.merge(differ[[*keys, "family", "test", "p_holm"]], on=keys, how="left")
    return contrasts.fillna({"family": "", "test": ""}), tests


def family_tests(
    contrasts: pd.DataFrame, pairs: dict[tuple[str, str], list[str]], plan: Plan
) -> pd.DataFrame:
    """Return one row per family, contrast and measure: family, test, arm, baseline, measure, n,
    mean_delta and its t interval, p of the family's test, p_holm adjusted within the family, and
    the answer: helps, harms, no difference beyond the margin, undecided."""
    columns = ["arm", "baseline", "measure", "n", "mean_delta", "t_low", "t_high", "sd_delta"]
    tables = []
    for name, family in plan.tests_of.items():
        inside = [
            name in pairs[p] for p in zip(contrasts["arm"], contrasts["baseline"], strict=True)
        ]
        rows = contrasts[np.array(inside, dtype=bool) & contrasts["measure"].isin(family.measures)]
        p = rows[P_OF[family.test]]
        table = rows[columns].assign(family=name, test=family.test, p=p, p_holm=holm(p))
        tables.append(table)
    if not tables:
        return pd.DataFrame()
    joined = pd.concat(tables, ignore_index=True)
    margins = margins_of(plan)
    joined["answer"] = [_answer(row, margins, plan.alpha) for row in joined.to_dict("records")]
    first = ["family", "test"]
    return joined[[*first, *columns[:-1], "p", "p_holm", "answer"]]


def _answer(row: dict[Any, Any], margins: dict[str, float], alpha: float) -> str:
    measure, mean = row["measure"], row["mean_delta"]
    if mean == 0 and row["sd_delta"] == 0:
        return "no difference in any seed"
    if np.isnan(row["p_holm"]):
        return "not tested"
    if not row["p_holm"] < alpha:
        return "undecided"
    if row["test"] == "equivalence":
        return f"no difference beyond ± {margins[measure]:g}"
    return outcome(measure, mean, mean)


def imputed_contrasts(runs: pd.DataFrame, plan: Plan, rng: Generator) -> pd.DataFrame:
    """Contrast every arm with its baseline once more, a diverged run counting as the plan says;
    empty when none diverged."""
    diverged = runs["status"] == "diverged"
    if not diverged.any():
        return pd.DataFrame()
    measures = available_measures(plan.imputation, runs)
    filled = {name: runs[name].mask(diverged, plan.imputation[name]) for name in measures}
    return contrast_table(runs.assign(**filled), measures, rng, alpha=plan.alpha, power=plan.power)
