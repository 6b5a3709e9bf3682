"""The answer to a hypothesis in words: the finding, what the finding excludes, whether the answer
is the same no matter which seed is left out, and whether a supported difference is large enough to
matter.

`row` is a row of `lib.stats.hypotheses.hypothesis_tests`, or the same row from JSON. Exclusions are
read from its 1 - alpha interval, which is not adjusted for the number of tests.
"""

import numpy as np
import pandas as pd

from lib.config.metrics import JUDGED, MEASURES
from lib.config.plan import Hypothesis, Plan
from lib.stats.factorial import CHANGES, Row

FEW = 3
"""Up to this many seeds are named. More are only counted."""


def in_words(row: Row, plan: Plan) -> str:
    """Return an answer in words, given its row of `hypothesis_tests`. State the hypothesis and its
    claim, then the estimate and what its interval excludes. Then say whether the answer is the same
    no matter which seed is left out, and add the plan's sentence for the answer."""
    measure = MEASURES[row["measure"]]
    n, found, excludes = row["n"], measure.estimate(row), exclusion(row, plan)
    is_tested = not np.isnan(row["p_holm"])
    if row["answer"] == "supported":
        how = f"shown by {n} seeds (p = {row['p_holm']:.2g}){_smallness(row, plan)}"
    elif row["answer"] == "refuted":
        how = f"{_by_its_plan(row, plan)} by {n} seeds (p = {row['refuted_p']:.2g})"
        how += f": {excludes}" if excludes else ""
    elif row["answer"] == "negligible":
        smallest = plan.smallest_of(plan.hypotheses[row["hypothesis"]])
        how = f"shown by {n} seeds to be smaller than {smallest:g}, the smallest effect of interest"
        how += f" (two one-sided tests, p = {row['negligible_p']:.2g})"
    elif not is_tested:
        how = "not tested: fewer than two seeds completed in all arms, or their deltas are equal"
    else:
        how = f"{n} seeds are too few to tell"
        if excludes:
            how += f"; {excludes}"
            if row["alpha"] < plan.alpha:
                how += " by the interval, which is not adjusted for its family"
        if np.isfinite(row["seeds"]):
            true_effect = measure.text(row["mean_delta"], "+")
            how += f"; about {row['seeds']:.0f} would, if the true effect is {true_effect}"
    told = (
        f"Claimed: {row['arm']} - {row['baseline']} is {row['claim']} in {measure.title}. "
        f"Found: {found}; {how}."
    )
    if is_tested and n > 2:
        told += f" The answer {without_a_seed(row)}."
    if row["changes_sign"]:
        each = (f"{measure.estimate(of)} at {name}" for name, of in row["settings"].items())
        told += f" It is the mean of an effect that {CHANGES}: {', '.join(each)}."
    return " ".join(filter(None, [row["says"], told, row["sentence"]]))


def outcome(row: Row, plan: Plan) -> str:
    """Return a hypothesis's answer in a few words, given its row of `hypothesis_tests`. Add what
    the interval excludes, and whether the answer is the same no matter which seed is left out.
    Older records do not have the latter."""
    told = ": ".join(filter(None, [_by_its_plan(row, plan), exclusion(row, plan)]))
    if row["answer"] == "supported":
        told = f"supported{_smallness(row, plan)}"
    if row["answer"] == "negligible":
        told = f"negligible: smaller than {plan.smallest_of(plan.hypotheses[row['hypothesis']]):g}"
    is_left_out = "needed_seeds" in row and row["n"] > 2
    return f"{told}; {without_a_seed(row)}" if is_left_out else told


def exclusion(row: Row, plan: Plan) -> str:
    """Return what a row's interval excludes, such as "a gain of 0.03 or more is excluded", or "" if
    it excludes nothing. If a claim with a direction is refuted, only the claimed side is mentioned.
    The sizes come from the plan: zero, bound or margin of the claim, and the smallest effect of
    interest."""
    h = plan.hypotheses[row["hypothesis"]]
    low, high = row["t_low"], row["t_high"]
    if pd.isna(low) or h.measure in JUDGED:  # a t interval for shares says nothing
        return ""
    sizes = sorted({0.0, h.beyond, h.equivalent_within or 0.0, plan.smallest_of(h)})
    rise = next((size for size in sizes if high < size), None)
    fall = next((size for size in sizes if low > -size), None)
    if row["answer"] == "refuted" and h.direction == "greater":
        fall = None
    if row["answer"] == "refuted" and h.direction == "less":
        rise = None
    up, down = _directions(h)
    if rise is not None and rise == fall:
        return f"a {up} or {down} of {rise:g} or more is excluded"
    named = [
        f"a {name} of {size:g} or more" if size else f"any {name}"
        for name, size in ((up, rise), (down, fall))
        if size is not None
    ]
    verb = "are" if len(named) > 1 else "is"
    return f"{' and '.join(named)} {verb} excluded" if named else ""


def _directions(h: Hypothesis) -> tuple[str, str]:
    """Name a positive and a negative difference in a hypothesis's measure."""
    gain = MEASURES[h.measure].gain(1.0)
    if h.minus:
        return "positive interaction", "negative interaction"
    if np.isnan(gain):  # neither direction is better
        return "rise", "fall"
    return ("gain", "cost") if gain > 0 else ("cost", "gain")


def _by_its_plan(row: Row, plan: Plan) -> str:
    """Return an answer. Add "in its plan's words" if an older plan defined "refuted"
    differently."""
    is_direction = plan.hypotheses[row["hypothesis"]].direction is not None
    is_older = row["answer"] == "refuted" and is_direction and not plan.small_effects
    return f"{row['answer']} in its plan's words" if is_older else str(row["answer"])


def _smallness(row: Row, plan: Plan) -> str:
    """Return a clause for a supported difference that is smaller than the smallest effect of
    interest; "" if it is not smaller."""
    h = plan.hypotheses[row["hypothesis"]]
    smallest = plan.smallest_of(h)
    if h.equivalent_within or not abs(row["mean_delta"]) < smallest:
        return ""
    is_shown = -smallest < row["t_low"] and row["t_high"] < smallest
    verb = "is" if is_shown else "is estimated to be"
    return f", though it {verb} smaller than {smallest:g}, the smallest effect of interest"


def without_a_seed(row: Row) -> str:
    """Return in words whether an answer stays the same if the tests are repeated with one seed left
    out, for each seed in turn."""
    needed = row["needed_seeds"]
    if not needed:
        return "holds without any one seed"
    if len(needed) > FEW:
        return f"changes when one of {len(needed)} of its {row['n']} seeds is left out"
    return f"does not hold without {', nor without '.join(f'seed {seed}' for seed in needed)}"
