"""The power of a paired t test, and of a plan's hypotheses, with a given number of seeds. Also the
p values that decide the answers to hypotheses.

A hypothesis claims that the mean difference of two arms lies in some range. A direction is tested
two-sided, so that its answer agrees with the t interval. An equivalence is tested by two one-sided
tests (Schuirmann 1987).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy  # loads a submodule at its first use: that takes a second, and few commands need it
from numpy.typing import ArrayLike

from lib.config.contrasts import arm_weights
from lib.config.metrics import JUDGED
from lib.config.plan import ALPHA, POWER, Hypothesis, Plan
from lib.stats.runs import by_seed, column_by_arm, own_baselines, sides

MAX_SEEDS = 1024
"""The largest number of seeds that a search tries."""
DRAWS = 4000
"""Number of studies to simulate when a power is estimated. The standard error of the power is then
below 0.008."""

OneSided = Callable[[float], Any]
"""Bound → p of the one-sided test that the mean lies above it (or below it)."""


def t_test_power(d_z: float, n: int, alpha: float = ALPHA) -> float:
    """Return the probability that n seeds give a two-sided p ≤ alpha if the true effect is `d_z`,
    the mean of the deltas divided by their standard deviation (Cohen 1988, ch. 2).

    We use the upper tail of -d_z, because scipy's lower tail of the noncentral t is NaN for n from
    2 to 4. statsmodels uses that lower tail, and then solves for a wrong effect.
    """
    critical = scipy.stats.t.isf(alpha / 2, n - 1)
    noncentrality = d_z * n**0.5
    tails = scipy.stats.nct.sf(critical, n - 1, [noncentrality, -noncentrality])
    return float(np.sum(tails))


def minimum_detectable_effect(
    sd: float, n: int, alpha: float = ALPHA, power: float = POWER
) -> float:
    """Return the smallest true effect that n seeds detect with probability `power`, in the units of
    `sd`, the standard deviation of the deltas. NaN if n < 2 or there is no spread.

    With few seeds, the effect is itself uncertain: with 5 seeds, the 95 % interval for the true sd
    is 0.60 to 2.87 times the sample's sd.
    """
    if n < 2 or not sd > 0:
        return np.nan
    # The effect that we look for is below `upper`. At `upper`, the noncentrality is more than ten
    # times the critical value, and the power is 1.
    critical = scipy.stats.t.isf(alpha / 2, n - 1)
    upper = 10 * (critical + 3) / n**0.5
    root = scipy.optimize.brentq(lambda d_z: t_test_power(d_z, n, alpha) - power, 0, upper)
    return sd * float(root)


def p_values(h: Hypothesis, plan: Plan, above: OneSided, below: OneSided) -> tuple[Any, Any, Any]:
    """Return three p values. The first is small if the hypothesis is shown to be true, the second
    if it is shown to be false. The third is small if the difference is shown to be smaller than the
    smallest effect of interest. If the hypothesis cannot get one of these answers, the p of that
    answer is 1.

    `above` and `below` are one-sided tests of the data. In older plans, without `small_effects`, a
    hypothesis is also false if the difference is shown to be smaller than the smallest effect of
    interest.
    """
    bound, smallest = h.beyond, plan.smallest_of(h)
    never = np.ones_like(above(0.0))
    if margin := h.equivalent_within:
        # True if the difference is inside both margins, false if it is outside one of them.
        p = np.maximum(above(-margin), below(margin))
        refuted_p = 2 * np.minimum(above(margin), below(-margin))
        return np.minimum(1, p), np.minimum(1, refuted_p), never
    limit = bound if plan.small_effects else bound or smallest
    if h.direction == "greater":
        p = 2 * above(bound)
        refuted_p = 2 * below(limit)
    elif h.direction == "less":
        p = 2 * below(-bound)
        refuted_p = 2 * above(-limit)
    else:
        p = 2 * np.minimum(above(bound), below(-bound))
        refuted_p = never
        if limit and not plan.small_effects:
            refuted_p = np.maximum(above(-limit), below(limit))
    negligible_p = never
    if smallest and plan.small_effects:
        negligible_p = np.maximum(above(-smallest), below(smallest))
    return np.minimum(1, p), np.minimum(1, refuted_p), negligible_p


def t_sides(mean: ArrayLike, sd: ArrayLike, n: int) -> tuple[OneSided, OneSided]:
    """Return the two one-sided t tests, above and below a bound, for samples of n values with these
    means and standard deviations. Their p is NaN if the sd is 0."""
    known_sd = np.where(np.asarray(sd) > 0, sd, np.nan)
    standard_error = known_sd / max(n, 1) ** 0.5

    def t(bound: float) -> Any:
        return (np.asarray(mean) - bound) / standard_error

    def above(bound: float) -> Any:
        return scipy.stats.t.sf(t(bound), n - 1)

    def below(bound: float) -> Any:
        return scipy.stats.t.cdf(t(bound), n - 1)

    return above, below


def is_exact(h: Hypothesis) -> bool:
    """Return whether a hypothesis is tested by sign flips. A claim about a share of runs always
    is."""
    return h.exact or h.measure in JUDGED


def power_of(
    h: Hypothesis, plan: Plan, mean: float, sd: float, n: int, alpha: float
) -> tuple[float, float, float]:
    """Simulate studies of `n` seeds, with a true mean difference of `mean` and differences with
    this `sd`. Return the probabilities that a hypothesis is supported, that it is refuted, and that
    the difference is negligible.

    We assume that an exact test has the power of the t test. But its power is 0 if even its
    smallest p, 2 / 2^n, is not below alpha.
    """
    if is_exact(h) and 2.0 ** (1 - n) >= alpha:
        return 0.0, 0.0, 0.0
    # Sample means are normal, sample variances are chi-squared, and they are independent. We take
    # evenly spaced quantiles of both (a Latin hypercube) and pair them at random, with a fixed
    # seed.
    quantiles = (np.arange(DRAWS) + 0.5) / DRAWS
    z = scipy.stats.norm.ppf(np.random.default_rng(0).permutation(quantiles))
    sample_means = mean + sd * z / n**0.5
    sample_sds = sd * np.sqrt(scipy.stats.chi2.ppf(quantiles, n - 1) / (n - 1))
    p, refuted_p, negligible_p = p_values(h, plan, *t_sides(sample_means, sample_sds, n))
    supported = p < alpha
    refuted = ~supported & (refuted_p < alpha)
    negligible = ~supported & ~refuted & (negligible_p < alpha)
    return float(supported.mean()), float(refuted.mean()), float(negligible.mean())


def seeds_to_decide(h: Hypothesis, plan: Plan, mean: float, sd: float, alpha: float) -> float:
    """Return the smallest number of seeds that gives an answer other than undecided with the plan's
    power. Return infinity if it is above `MAX_SEEDS`, and NaN if `sd` is 0 or unknown."""
    if not sd > 0:
        return np.nan
    return _seeds_for(plan.power, lambda n: sum(power_of(h, plan, mean, sd, n, alpha)))


def seeds_to_support(h: Hypothesis, plan: Plan, mean: float, sd: float, alpha: float) -> float:
    """Return the smallest number of seeds that supports a hypothesis with the plan's power."""
    return _seeds_for(plan.power, lambda n: power_of(h, plan, mean, sd, n, alpha)[0])


def _seeds_for(power: float, probability: Callable[[int], float]) -> float:
    """Return the smallest number of seeds at which a probability reaches a power; infinity if it is
    above `MAX_SEEDS`. The probability must grow with the number of seeds."""
    seeds = range(2, MAX_SEEDS + 1)
    i = bisect_left(seeds, power, key=probability)
    return seeds[i] if i < len(seeds) else np.inf


def expected_power(
    plan: Plan, spread: Mapping[str, float], n: int, effect: float | None = None
) -> pd.DataFrame:
    """Return the power of `n` seeds, with a row for each hypothesis in `spread`. `spread` maps
    hypotheses to the sd of their differences.

    Columns: hypothesis, measure, `difference` (assumed to be the true one), sd, power, the `seeds`
    that reach the plan's power, and `negligible`: the power to show that the difference is
    negligible if it is 0 (NaN if the hypothesis cannot get that answer).

    The assumed difference is `effect`. Without an `effect`, it is 0 for an equivalence, and for a
    direction it is the bound plus the smallest effect of interest. Every test gets an equal share
    of alpha, as if no other test of its family were significant.
    """
    rows = []
    family_size = Counter(h.family for h in plan.bound.values())
    for name, sd in spread.items():
        h = plan.bound[name]
        difference = effect
        if difference is None:
            difference = 0.0 if h.equivalent_within else h.beyond + plan.smallest_of(h)
        if h.direction == "less":
            difference = -difference
        alpha = plan.alpha / family_size[h.family]
        *_, negligible = power_of(h, plan, 0.0, sd, n, alpha)
        can_be_negligible = plan.small_effects and plan.smallest_of(h) and h.direction
        rows.append(
            {
                "hypothesis": name,
                "measure": h.measure,
                "difference": difference,
                "sd": sd,
                "power": power_of(h, plan, difference, sd, n, alpha)[0],
                "seeds": seeds_to_support(h, plan, difference, sd, alpha),
                "negligible": negligible if can_be_negligible else np.nan,
            }
        )
    return pd.DataFrame(rows)


def spread_of(plan: Plan, runs: pd.DataFrame) -> dict[str, float]:
    """Estimate the sd of each hypothesis's differences from the runs of another study, such as a
    pilot or a tuning study.

    If that study has the arms, variants or levels of the hypothesis, use the sd of the same
    difference. Otherwise use the largest sd of any arm's difference from its baseline, scaled by
    `independent`. Leave out a hypothesis if its measure has no runs or no spread.
    """

    def sd_between(values: pd.DataFrame, weights: Mapping[str, float]) -> float:
        both = sides(values, weights)
        return float((both["arm"] - both["baseline"]).std())

    variants = column_by_arm(runs, "variant")
    levels = column_by_arm(runs, "levels")
    spreads = {}
    for name, h in plan.bound.items():
        if h.measure not in runs:
            continue
        values = by_seed(runs, h.measure)
        if weights := arm_weights(h.pairs, variants, levels, h.minus_share):
            sd = sd_between(values, weights)
        else:
            pairs = own_baselines(runs).items()
            sds = [sd_between(values, {arm: 1.0, baseline: -1.0}) for arm, baseline in pairs]
            sd = pd.Series(sds).max() * independent(h, {})
        if sd > 0:
            spreads[name] = sd
    return spreads


def independent(h: Hypothesis, weights: Mapping[str, float]) -> float:
    """Return the ratio of two sds: that of a hypothesis's difference, and that of the difference of
    two arms. All arms are assumed to be independent and to have the same sd. The ratio is below 1
    for the mean of several pairs, and above 1 for an interaction. `weights` are the weights of the
    hypothesis's arms. If `weights` is {}, each pair of the hypothesis counts as two arms."""
    # If each arm has variance 1, a weighted sum has the sum of the squared weights as its variance,
    # and the difference of two arms has variance 2.
    squares = sum(weight**2 for weight in weights.values()) or 2 * len(h.pairs)
    return float((squares / 2) ** 0.5)


def out_of_reach(plan: Plan, n: int) -> Iterator[str]:
    """Yield a sentence for each exact test of a plan that cannot be significant with `n` seeds. The
    sentence names the number of seeds that would be enough."""
    family_size = Counter(h.family for h in plan.bound.values())
    m_of = {name: family_size[h.family] for name, h in plan.bound.items() if is_exact(h)}
    for name, family in plan.families.items():
        if family.test == "exact":
            m_of[name] = len(family.contrasts) * len(family.measures)
    for name, m in m_of.items():
        # The smallest p of n seeds is 2 / 2^n. In a family of m tests, Holm's method needs a
        # smallest p below alpha / m.
        enough = 2 + int(np.log2(m / plan.alpha))
        if n < enough:
            yield f"{name}: an exact test of {n} seeds cannot reach its level; {enough} seeds can"
