"""The tests of a plan: its contrasts, its families of tests, and its hypotheses.

A claim with a direction is tested two-sided against its bound. The claim is supported if the
difference is shown to be on the claim's side of the bound, and refuted if it is shown to be on the
other side. If neither is shown, but the difference is shown to be smaller than the smallest effect
of interest, the answer is negligible. Otherwise the answer is undecided. In older plans, without
`small_effects`, a difference that is shown to be smaller than the smallest effect of interest
refutes the claim instead. p values are adjusted by Holm's method within a family.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from numpy.random import Generator

from lib.config.contrasts import arm_weights, arms_called, setting_weights
from lib.config.metrics import MEASURES, measures_in
from lib.config.plan import Hypothesis, Plan
from lib.stats import paired
from lib.stats.factorial import Row, changes_sign
from lib.stats.paired import Floats, holm, paired_deltas
from lib.stats.power import OneSided, is_exact, p_values, seeds_to_decide, t_sides
from lib.stats.runs import (
    available_measures,
    by_seed,
    column_by_arm,
    is_comparable,
    planned_measures,
    sides,
)

P_OF = {"t": "t_p", "equivalence": "tost_p", "exact": "sign_flip_p"}
"""Test of a family → the column of `contrast_table` with its p."""

Pairs = dict[tuple[str, str], list[str]]
"""(Arm, the arm that it is compared with) → names of the families that test this pair, if any."""


def planned_pairs(runs: pd.DataFrame, plan: Plan) -> Pairs:
    """Return the pairs of arms to compare:

    - every arm with its baseline;
    - the contrasts in the plan's families. These name variants, so each contrast is made in every
      setting of the other factors;
    - the pairs of the plan's hypotheses, if these name arms or variants.
    """
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

    The first table is a `contrast_table` of the plan's measures and the headline measures, with the
    columns family, test and p_holm. These three come from the first family that tests whether the
    two arms differ (not whether they are equivalent). If no family does, they are "", "" and NaN.
    The second table is `family_tests`, in which a contrast has one row for each of its families.
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
    """Return the result of a family's test in a few words."""
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


@dataclass(frozen=True)
class _Asked:
    """A hypothesis that a study can answer."""

    h: Hypothesis
    about: Row
    """The columns of `hypothesis_tests` about its claim and its settings."""
    values: pd.DataFrame
    """The two `sides` of its difference, by seed."""


def hypothesis_tests(runs: pd.DataFrame, plan: Plan, rng: Generator) -> pd.DataFrame:
    """Test every hypothesis, if the study has its arms and its measure. Return a row for each, with
    columns

    - about the claim: `hypothesis` (its name), says, claim, arm, baseline, measure, family, test;
    - about the estimate: n, mean_delta, t_low, t_high, t_p, sd_delta;
    - about the tests: p (small if the claim is shown to be true), `refuted_p` (small if it is shown
      to be false), and `negligible_p` (small if the difference is shown to be smaller than the
      smallest effect of interest). `p_holm`, `refuted_p` and `negligible_p` are adjusted in the
      family. `alpha` is the level of one test if no other test of its family is significant;
    - `changes_sign`: whether the difference is a mean over settings of the other factors, and
      changes sign among them. If so, `settings` maps each setting to its t test; else it is {};
    - `answer` (supported, refuted, negligible or undecided), the plan's `sentence` for it, and the
      number of `seeds` that would decide an undecided one;
    - `needed_seeds`: every seed that changes the answer if it alone is left out.
    """
    asked = [*_asked(runs, plan)]
    if not asked:
        return pd.DataFrame()
    table = _tested(asked, plan, rng)
    table["alpha"] = plan.alpha / table.groupby("family")["p"].transform("size")
    rows = [*zip((one.h for one in asked), table.to_dict("records"), strict=True)]
    table["sentence"] = [getattr(h, f"if_{row['answer']}") for h, row in rows]
    table["seeds"] = [
        seeds_to_decide(h, plan, row["mean_delta"], row["sd_delta"], row["alpha"])
        if row["answer"] == "undecided"
        else np.nan
        for h, row in rows
    ]
    seeds = sorted(runs["seed"].unique())
    without = pd.DataFrame({seed: _tested(asked, plan, rng, [seed])["answer"] for seed in seeds})
    is_other = without.ne(table["answer"], axis=0)
    table["needed_seeds"] = [without.columns[others].tolist() for others in is_other.to_numpy()]
    return table


def _asked(runs: pd.DataFrame, plan: Plan) -> Iterator[_Asked]:
    """Yield the hypotheses that a study can answer, because it has their arms and their measure."""
    variants = column_by_arm(runs, "variant")
    levels = column_by_arm(runs, "levels")
    vocabularies = column_by_arm(runs, "vocabulary")
    for name, h in plan.bound.items():
        measure = h.measure
        weights = arm_weights(h.pairs, variants, levels, h.minus_share)
        if measure not in runs or not weights:
            continue
        if not is_comparable(vocabularies, measure, weights):
            continue
        # These are names of two arms, or of levels that several arms share.
        arm, baseline = weights if len(weights) == 2 else h.pairs[0]
        if h.minus:
            arm, baseline = (f"({one} - {other})" for one, other in h.pairs)
            if h.minus_share != 1:
                baseline = f"{h.minus_share:g} · {baseline}"
        values = by_seed(runs, measure)
        settings = {
            setting: paired.t_test(paired.weighted_deltas(values, of), plan.alpha)._asdict()
            for setting, of in setting_weights(h.pairs, variants, levels, h.minus_share).items()
        }
        differ_in_sign = changes_sign(of["mean_delta"] for of in settings.values())
        about = {
            "hypothesis": name,
            "says": h.says.strip(),
            "claim": claim(h),
            "arm": arm,
            "baseline": baseline,
            "measure": measure,
            "family": h.family,
            "test": "exact" if is_exact(h) else "t",
            "changes_sign": differ_in_sign,
            "settings": settings if differ_in_sign else {},
        }
        yield _Asked(h, about, sides(values, weights))


def _tested(
    asked: list[_Asked], plan: Plan, rng: Generator, left_out: Sequence[int] = ()
) -> pd.DataFrame:
    """Test and answer hypotheses, without the runs of the seeds in `left_out`. Return a row for
    each."""
    rows = []
    for one in asked:
        complete = one.values.drop(index=[*left_out], errors="ignore").dropna()
        deltas = paired_deltas(complete["baseline"].to_numpy(), complete["arm"].to_numpy())
        test = paired.t_test(deltas, plan.alpha)
        sd = paired.sd_of(deltas)
        if is_exact(one.h):
            above, below = sign_flip_sides(deltas, rng)
        else:
            above, below = t_sides(test.mean_delta, sd, test.n)
        p, refuted_p, negligible_p = map(float, p_values(one.h, plan, above, below))
        rows.append(
            {
                **one.about,
                **test._asdict(),
                "sd_delta": sd,
                "p": p,
                "refuted_p": refuted_p,
                "negligible_p": negligible_p,
            }
        )
    table = pd.DataFrame(rows)
    # A claim with a direction has one test, against its bound. The p of this test counts for
    # supported and for refuted.
    either = table[["p", "refuted_p"]].min(axis=1, skipna=False)
    has_one = [bool(plan.small_effects) and one.h.direction in ("greater", "less") for one in asked]
    family = table["family"]
    for kind, adjusted in (("p", "p_holm"), ("refuted_p", "refuted_p")):
        tested = table[kind].where(~np.array(has_one), either)
        # The answer on the wrong side of the bound has p = 1. The maximum keeps this p at 1.
        table[adjusted] = np.maximum(table[kind], tested.groupby(family).transform(holm))
    table["negligible_p"] = table.groupby(family)["negligible_p"].transform(holm)
    is_shown = [table[name] < plan.alpha for name in ("p_holm", "refuted_p", "negligible_p")]
    answers = ["supported", "refuted", "negligible"]
    return table.assign(answer=np.select(is_shown, answers, "undecided"))


def sign_flip_sides(deltas: Floats, rng: Generator) -> tuple[OneSided, OneSided]:
    """Return the two one-sided sign-flip tests of deltas (n,), above and below a bound. If signs
    are flipped at random, the distribution of the mean is symmetric about zero. So a one-sided p is
    half of the two-sided p, or 1 minus half of it."""

    def p(sign: int, bound: float) -> float:
        moved = deltas - bound
        half = paired.sign_flip_test(moved, rng)[0] / 2
        return half if sign * moved.sum() > 0 else 1 - half

    return partial(p, 1), partial(p, -1)


def claim(h: Hypothesis) -> str:
    """Write the claim of a hypothesis about the difference, such as `> 0.02`."""
    if h.equivalent_within:
        return f"within ± {h.equivalent_within:g}"
    if h.direction == "differs":
        return f"beyond ± {h.beyond:g}" if h.beyond else "≠ 0"
    if h.direction == "greater":
        return f"> {h.beyond:g}"
    return f"< {-h.beyond or 0:g}"  # -0.0 would show its sign
