"""Test what a plan asks of a study: its contrasts, its families of tests, and its hypotheses.

A hypothesis is supported if a test shows that it is true, refuted if another shows that it is
false, and undecided otherwise. Within a family both kinds of p are adjusted by Holm's method, each
kind on its own.
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
from lib.stats.runs import (
    available_measures,
    by_seed,
    column_by_arm,
    is_comparable,
    planned_measures,
)

P_OF = {"t": "t_p", "equivalence": "tost_p", "exact": "sign_flip_p"}
"""Test of a family → the column of `contrast_table` with its p."""

Pairs = dict[tuple[str, str], list[str]]
"""(Arm, the arm that it is compared with) → names of the families that test the two, maybe none."""


def planned_pairs(runs: pd.DataFrame, plan: Plan) -> Pairs:
    """Return the pairs of arms to compare: every arm with its baseline; the contrasts of the plan's
    families, which name variants, within each setting of the other factors; and the pairs of its
    hypotheses, as far as these name arms or variants."""
    arms = runs.drop_duplicates("arm").to_dict("records")
    pairs: Pairs = {}
    for arm, other in product(arms, repeat=2):
        contrast = [arm["variant"], other["variant"]]
        families = [name for name, f in plan.families.items() if contrast in f.contrasts]
        is_own_baseline = other["arm"] == arm["baseline"] != arm["arm"]
        if is_own_baseline or (families and arm["setting"] == other["setting"]):
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
    """Return the contrasts of all planned pairs, and the tests of the plan's families.

    The first table is a `contrast_table` of the plan's measures and the headline ones, with the
    columns family, test and p_holm. They are of the first family that tests whether the two arms
    differ (not whether they are equivalent); "", "" and NaN if there is none. The second is that of
    `family_tests`: a contrast has one row there for each of its families.
    """
    pairs = planned_pairs(runs, plan)
    keys = ["arm", "baseline", "measure"]
    measures = available_measures([*planned_measures(runs, plan), *measures_in("headline")], runs)
    contrasts = paired.contrast_table(runs, measures, rng, plan, pairs)
    tests = family_tests(contrasts, pairs, plan)
    of_difference = tests[tests["test"] != "equivalence"].drop_duplicates(keys)
    of_difference = of_difference[[*keys, "family", "test", "p_holm"]]
    contrasts = contrasts.merge(of_difference, on=keys, how="left")
    return contrasts.fillna({"family": "", "test": ""}), tests


def family_tests(contrasts: pd.DataFrame, pairs: Pairs, plan: Plan) -> pd.DataFrame:
    """Return one row per family, contrast and measure.

    Columns: family, test, arm, baseline, measure, n, mean_delta, t_low, t_high, p (of the family's
    test), p_holm (adjusted within the family), and the answer, such as "helps", "harms", "no
    difference beyond ± 0.02" or "undecided".
    """
    rows: list[Row] = []
    contrast_rows = contrasts.to_dict("records")
    for name, family in plan.families.items():
        tests = []
        for row in contrast_rows:
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
    """Say in a few words what a test of a family shows."""
    if row["mean_delta"] == 0 and row["sd_delta"] == 0:
        return "no difference in any seed"
    if np.isnan(row["p_holm"]):
        return "not tested"
    if not row["p_holm"] < plan.alpha:
        return "undecided"
    if row["test"] == "equivalence":
        return f"no difference beyond ± {plan.smallest_effect_of_interest[row['measure']]:g}"
    gain = MEASURES[row["measure"]].gain(row["mean_delta"])
    if np.isnan(gain):  # neither direction is better
        return "rises" if row["mean_delta"] > 0 else "falls"
    return "helps" if gain > 0 else "harms"


def hypothesis_tests(runs: pd.DataFrame, plan: Plan, rng: Generator) -> pd.DataFrame:
    """Test every hypothesis whose arms and measure a study has; return a row each.

    What it claims: `hypothesis` (its name), says, claim, arm, baseline, measure, family, test.
    What was found: n, mean_delta, t_low, t_high, t_p, sd_delta.
    Tests: p that it is true and `refuted_p` that it is false. `p_holm` and the final `refuted_p`
    are adjusted in the family; `alpha` is the share of one test if all others of its family fail.
    Settings: if the difference is a mean over settings of the other factors, and `changes_sign`
    among them, `settings` maps each to its t test. Otherwise it is {}.
    Answer: supported, refuted or undecided; the plan's `sentence` for it; and for an undecided one
    the number of `seeds` that would decide it.
    """
    variants = column_by_arm(runs, "variant")
    levels = column_by_arm(runs, "levels")
    vocabularies = column_by_arm(runs, "vocabulary")
    rows = []
    for name, h in plan.bound.items():
        measure = h.measure
        weights = arm_weights(h.pairs, variants, levels, h.minus_share)
        if measure not in runs or not weights:
            continue
        if not is_comparable(vocabularies, measure, weights):
            continue
        # Names of two arms, or of what several arms have in common.
        arm, baseline = weights if len(weights) == 2 else h.pairs[0]
        if h.minus:
            arm, baseline = (f"({one} - {other})" for one, other in h.pairs)
            if h.minus_share != 1:
                baseline = f"{h.minus_share:g} · {baseline}"
        values = by_seed(runs, measure)
        deltas = paired.weighted_deltas(values, weights)
        test = paired.t_test(deltas, plan.alpha)
        sd = paired.sd_of(deltas)
        settings = {
            setting: paired.t_test(paired.weighted_deltas(values, of), plan.alpha)._asdict()
            for setting, of in setting_weights(h.pairs, variants, levels, h.minus_share).items()
        }
        differ_in_sign = changes_sign(of["mean_delta"] for of in settings.values())
        if is_exact(h):
            above, below = sign_flip_sides(deltas, rng)
        else:
            above, below = t_sides(test.mean_delta, sd, test.n)
        smallest = plan.smallest_effect_of_interest.get(measure, 0.0)
        p, refuted_p = p_values(h, smallest, above, below)
        rows.append(
            {
                "hypothesis": name,
                "says": h.says.strip(),
                "claim": claim(h),
                "arm": arm,
                "baseline": baseline,
                "measure": measure,
                "family": h.family,
                "test": "exact" if is_exact(h) else "t",
                **test._asdict(),
                "sd_delta": sd,
                "changes_sign": differ_in_sign,
                "settings": settings if differ_in_sign else {},
                "p": float(p),
                "refuted_p": float(refuted_p),
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


def sign_flip_sides(deltas: Floats, rng: Generator) -> tuple[OneSided, OneSided]:
    """Return the two one-sided sign-flip tests, above and below a bound, of deltas (n,). Under sign
    flips the mean is symmetric, so a one-sided p is half the two-sided one, or the rest of 1."""

    def p(sign: int, bound: float) -> float:
        moved = deltas - bound
        half = paired.sign_flip_test(moved, rng)[0] / 2
        return half if sign * moved.sum() > 0 else 1 - half

    return partial(p, 1), partial(p, -1)


def _answer(row: Row, plan: Plan) -> Row:
    """Return the columns answer, sentence and seeds of a row of `hypothesis_tests`."""
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
    """Write what a hypothesis claims about the difference, such as `> 0.02`."""
    if h.equivalent_within:
        return f"within ± {h.equivalent_within:g}"
    if h.direction == "differs":
        return f"beyond ± {h.beyond:g}" if h.beyond else "≠ 0"
    if h.direction == "greater":
        return f"> {h.beyond:g}"
    return f"< {-h.beyond or 0:g}"  # -0.0 would show its sign


def in_words(row: Row) -> str:
    """Explain an answer, given its row of `hypothesis_tests`: what the hypothesis says and claims,
    what was found, and the plan's sentence for it."""
    measure = MEASURES[row["measure"]]
    n = row["n"]
    if row["answer"] == "supported":
        how = f"shown by {n} seeds (p = {row['p_holm']:.2g})"
    elif row["answer"] == "refuted":
        how = f"refuted by {n} seeds (p = {row['refuted_p']:.2g})"
    elif np.isnan(row["p_holm"]):
        how = "not tested: fewer than two seeds completed in all arms, or their deltas are equal"
    else:
        how = f"{n} seeds are too few to tell"
        if np.isfinite(row["seeds"]):
            true_effect = measure.text(row["mean_delta"], "+")
            how += f"; about {row['seeds']:.0f} would, if the true effect is {true_effect}"
    found = (
        f"Claimed: {row['arm']} - {row['baseline']} is {row['claim']} in {measure.title}. "
        f"Found: {measure.estimate(row)}; {how}."
    )
    if row["changes_sign"]:
        each = (f"{measure.estimate(of)} at {name}" for name, of in row["settings"].items())
        found += f" It is the mean of an effect that {CHANGES}: {', '.join(each)}."
    return " ".join(filter(None, [row["says"], found, row["sentence"]]))
