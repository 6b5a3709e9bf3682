"""What a plan asks of a study: its contrasts, the tests of its families, and an answer to each of
its hypotheses.

A hypothesis is supported where a test shows that it is true, refuted where one shows that it is
false, else undecided. In a family, supports share alpha by Holm's method, and so do refutations.
"""

from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from numpy.random import Generator

from lib.config.contrasts import arm_weights, arms_called, setting_weights
from lib.config.metrics import MEASURES, measures_in
from lib.config.plan import Hypothesis, Plan
from lib.stats import paired
from lib.stats.factorial import CHANGES, Row, changes_sign
from lib.stats.paired import Floats, holm
from lib.stats.power import OneSided, is_exact, p_values, seeds_to_decide, t_sides
from lib.stats.runs import available_measures, is_comparable, of_arms, planned_measures

P_OF = {"t": "t_p", "equivalence": "tost_p", "exact": "sign_flip_p"}
"""Test of a family → the column of `contrast_table` that holds its p."""

Pairs = dict[tuple[str, str], list[str]]
"""(Arm, the arm it is held against) → the families that test them, which may be none."""


def planned_pairs(runs: pd.DataFrame, plan: Plan) -> Pairs:
    """Pair every arm with its baseline, as the plan's families say within each setting of the other
    factors, and as its hypotheses do: (arm, the arm it is held against) → its families, which may
    be none."""
    arms = runs.drop_duplicates("arm").to_dict("records")
    pairs: Pairs = {}
    for arm, other in product(arms, repeat=2):
        contrast = [arm["variant"], other["variant"]]
        families = [name for name, f in plan.families.items() if contrast in f.contrasts]
        own_baseline = other["arm"] == arm["baseline"] != arm["arm"]
        if own_baseline or (families and arm["setting"] == other["setting"]):
            pairs[arm["arm"], other["arm"]] = families
    variants = {arm["arm"]: arm["variant"] for arm in arms}
    for h in plan.bound.values():
        arm_name, baseline = h.pairs[0]
        for pair in product(arms_called(arm_name, variants), arms_called(baseline, variants)):
            pairs.setdefault(pair, [])
    return pairs


def planned_contrasts(
    runs: pd.DataFrame, plan: Plan, rng: Generator
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Contrast every planned pair in the plan's measures and then in those of every study, and make
    every test of its families.

    The first table is that of `contrast_table` with `family`, `test` and `p_holm`: the first family
    that asks whether the two differ, "" and NaN where none does. The second, whose columns
    `family_tests` names, has a row per test: a contrast may be in several families.
    """
    pairs = planned_pairs(runs, plan)
    keys = ["arm", "baseline", "measure"]
    measures = available_measures([*planned_measures(runs, plan), *measures_in("headline")], runs)
    contrasts = paired.contrast_table(runs, measures, rng, plan, pairs)
    tests = family_tests(contrasts, pairs, plan)
    differ = tests[tests["test"] != "equivalence"].drop_duplicates(keys)
    contrasts = contrasts.merge(differ[[*keys, "family", "test", "p_holm"]], on=keys, how="left")
    return contrasts.fillna({"family": "", "test": ""}), tests


def family_tests(contrasts: pd.DataFrame, pairs: Pairs, plan: Plan) -> pd.DataFrame:
    """Return one row per family, contrast and measure: family, test, arm, baseline, measure, n,
    mean_delta and its t interval, p of the family's test, p_holm adjusted within the family, and
    the answer: helps, harms, no difference beyond the margin, undecided."""
    rows: list[Row] = []
    for name, family in plan.families.items():
        tests = []
        for row in contrasts.to_dict("records"):
            if name in pairs[row["arm"], row["baseline"]] and row["measure"] in family.measures:
                p = row[P_OF[family.test]]
                tests.append(row | {"family": name, "test": family.test, "p": p})
        for row, p_holm in zip(tests, holm([row["p"] for row in tests]), strict=True):
            row["p_holm"] = float(p_holm)
            rows.append(row | {"answer": _family_answer(row, plan)})
    contrast = ["arm", "baseline", "measure", "n", "mean_delta", "t_low", "t_high"]
    columns = ["family", "test", *contrast, "p", "p_holm", "answer"]
    return pd.DataFrame(rows, columns=columns)


def _family_answer(row: Row, plan: Plan) -> str:
    if row["mean_delta"] == 0 and row["sd_delta"] == 0:
        return "no difference in any seed"
    if np.isnan(row["p_holm"]):
        return "not tested"
    if not row["p_holm"] < plan.alpha:
        return "undecided"
    if row["test"] == "equivalence":
        return f"no difference beyond ± {plan.smallest_effect_of_interest[row['measure']]:g}"
    gain = MEASURES[row["measure"]].gain(row["mean_delta"])
    if np.isnan(gain):
        return "rises" if row["mean_delta"] > 0 else "falls"
    return "helps" if gain > 0 else "harms"


def hypothesis_tests(runs: pd.DataFrame, plan: Plan, rng: Generator) -> pd.DataFrame:
    """Test every hypothesis whose arms a study has, a row each: `hypothesis`, what it `says`,
    `claim`, arm, baseline, measure, family, test, n, mean_delta and its t interval, sd_delta; p and
    p_holm that it is true, `refuted_p` that it is false, adjusted too; `changes_sign`, over the
    settings that it is a mean of (see `lib.stats.factorial`), and if so the `settings`, each with
    its t test; the answer, the `sentence` that the plan has for it, and of an undecided one the
    `seeds` that would decide it."""
    variants = of_arms(runs, "variant")
    levels = of_arms(runs, "levels")
    rows = []
    for name, h in plan.bound.items():
        measure, weights = h.measure, arm_weights(h.pairs, variants, levels)
        if measure not in runs or not weights or not is_comparable(runs, measure, weights):
            continue
        arm, baseline = weights if len(weights) == 2 else h.pairs[0]
        if h.minus:
            arm, baseline = (f"({one} - {other})" for one, other in h.pairs)
        deltas = paired.weighed_deltas(runs, measure, weights)
        test = paired.t_test(deltas, plan.alpha)
        sd = paired.sd_of(deltas)
        settings = {
            setting: paired.t_test(paired.weighed_deltas(runs, measure, of), plan.alpha)._asdict()
            for setting, of in setting_weights(h.pairs, variants, levels).items()
        }
        mixed = changes_sign(of["mean_delta"] for of in settings.values())
        exact = is_exact(h)
        tests = _by_sign_flips(deltas, rng) if exact else t_sides(test.mean_delta, sd, test.n)
        p, refuted = p_values(h, plan.smallest_effect_of_interest.get(measure, 0.0), *tests)
        rows.append(
            {
                "hypothesis": name,
                "says": h.says.strip(),
                "claim": claim(h),
                "arm": arm,
                "baseline": baseline,
                "measure": measure,
                "family": h.family,
                "test": "exact" if exact else "t",
                **test._asdict(),
                "sd_delta": sd,
                "changes_sign": mixed,
                "settings": settings if mixed else {},
                "p": float(p),
                "refuted_p": float(refuted),
            }
        )
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows)
    families = table.groupby("family", sort=False)
    table["p_holm"] = families["p"].transform(holm)
    table["refuted_p"] = families["refuted_p"].transform(holm)
    table["alpha"] = plan.alpha / families["p"].transform("size")
    return pd.DataFrame([row | _answer(row, plan) for row in table.to_dict("records")])


def _by_sign_flips(deltas: Floats, rng: Generator) -> tuple[OneSided, OneSided]:
    """Return the one-sided halves of the exact test, whose distribution is symmetric."""

    def p(sign: int, bound: float) -> float:
        moved = deltas - bound
        half = paired.sign_flip_test(moved, rng)[0] / 2
        return half if sign * moved.sum() > 0 else 1 - half

    return partial(p, 1), partial(p, -1)


def _answer(row: Row, plan: Plan) -> Row:
    h = plan.hypotheses[row["hypothesis"]]
    if row["p_holm"] < plan.alpha:
        return {"answer": "supported", "sentence": h.if_supported, "seeds": np.nan}
    if row["refuted_p"] < plan.alpha:
        return {"answer": "refuted", "sentence": h.if_refuted, "seeds": np.nan}
    seeds = seeds_to_decide(
        h,
        row["mean_delta"],
        row["sd_delta"],
        row["alpha"],
        plan.power,
        plan.smallest_effect_of_interest.get(row["measure"], 0.0),
    )
    return {"answer": "undecided", "sentence": h.if_undecided, "seeds": seeds}


def claim(h: Hypothesis) -> str:
    """Write what a hypothesis claims of the difference, in short: > 0.02."""
    if h.equivalent_within:
        return f"within ± {h.equivalent_within:g}"
    if h.direction == "differs":
        return f"beyond ± {h.beyond:g}" if h.beyond else "≠ 0"
    if h.direction == "greater":
        return f"> {h.beyond:g}"
    return f"< {-h.beyond or 0:g}"


def in_words(row: Row) -> str:
    """Write the reason of an answer, from its row of `hypothesis_tests`: what the hypothesis says,
    what was found, and the plan's sentence for it."""
    measure = MEASURES[row["measure"]]
    n = row["n"]
    if row["answer"] == "supported":
        how = f"shown by {n} seeds (p = {row['p_holm']:.2g})"
    elif row["answer"] == "refuted":
        how = f"refuted by {n} seeds (p = {row['refuted_p']:.2g})"
    elif np.isnan(row["p_holm"]):
        how = "no test, since fewer than two seeds were completed in all arms, or none differs"
    else:
        enough = f"; some {row['seeds']:.0f} could" if np.isfinite(row["seeds"]) else ""
        how = f"too few seeds to tell: {n}{enough}"
    found = (
        f"Claimed: {row['arm']} - {row['baseline']} is {row['claim']} in {measure.title}. "
        f"Found: {measure.estimate(row)}; {how}."
    )
    if row["changes_sign"]:
        each = (f"{measure.estimate(of)} at {name}" for name, of in row["settings"].items())
        found += f" It is the mean of an effect that {CHANGES}: {', '.join(each)}."
    return " ".join(filter(None, [row["says"], found, row["sentence"]]))
