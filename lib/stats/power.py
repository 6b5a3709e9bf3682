"""What a number of seeds can show: the power of a paired t test and of a plan's hypotheses, and the
two p that answer a hypothesis.

A hypothesis claims where the mean difference of two arms lies. Directions are tested two-sided, so
that the answer agrees with the interval beside it; equivalence by two one-sided tests (Schuirmann
1987).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy  # which loads its parts where they are used: a second, which few commands need
from numpy.typing import ArrayLike

from lib.config.contrasts import arm_weights
from lib.config.metrics import JUDGED
from lib.config.plan import ALPHA, POWER, Hypothesis, Plan
from lib.stats.runs import of_arms, own_baselines, seed_differences, sides

MAX_SEEDS = 1024
"""Beyond which no number of seeds is sought."""
DRAWS = 4000
"""Simulated studies; the standard error of a power is below 0.008."""

OneSided = Callable[[float], Any]
"""p of the test that the mean lies above (or below) a bound."""


def t_test_power(d_z: float, n: int, alpha: float = ALPHA) -> float:
    """Return the probability that n seeds give a two-sided p ≤ alpha when the true effect is `d_z`,
    mean over standard deviation of the deltas (Cohen 1988, ch. 2).

    Not by statsmodels: for n of 2 to 4 it takes scipy's lower tail of the noncentral t, which is
    NaN there, and then solves for a wrong effect. Turning the sign avoids that tail.
    """
    critical = scipy.stats.t.isf(alpha / 2, n - 1)
    shift = d_z * n**0.5
    return float(np.sum(scipy.stats.nct.sf(critical, n - 1, [shift, -shift])))


def minimum_detectable_effect(
    sd: float, n: int, alpha: float = ALPHA, power: float = POWER
) -> float:
    """Return the smallest true effect that n seeds detect with probability `power`, in the units of
    `sd`, the standard deviation of the deltas. NaN when n < 2 or there is no spread.

    With few seeds it is uncertain itself: with 5, the true sd may be, at 95 % confidence, 0.60 to
    2.87 times as large as the sample's.
    """
    if n < 2 or not sd > 0:
        return np.nan
    # A noncentrality of ten critical values leaves no probability below the first of them.
    critical = scipy.stats.t.isf(alpha / 2, n - 1)
    upper = 10 * (critical + 3) / n**0.5
    root = scipy.optimize.brentq(lambda d_z: t_test_power(d_z, n, alpha) - power, 0, upper)
    return sd * float(root)


def p_values(h: Hypothesis, smallest: float, above: OneSided, below: OneSided) -> tuple[Any, Any]:
    """Test that a hypothesis is true, and that it is false: two p. `smallest` is the smallest
    effect of interest in its measure (0: none): a direction is false, too, where the effect is
    shown to be smaller. Whether they differ at all cannot be refuted without one."""
    bound = h.beyond
    limit = h.beyond or smallest
    if margin := h.equivalent_within:
        p = np.maximum(above(-margin), below(margin))
        refuted = 2 * np.minimum(above(margin), below(-margin))
    elif h.direction == "greater":
        p = 2 * above(bound)
        refuted = 2 * below(limit)
    elif h.direction == "less":
        p = 2 * below(-bound)
        refuted = 2 * above(-limit)
    else:
        p = 2 * np.minimum(above(bound), below(-bound))
        refuted = np.maximum(above(-limit), below(limit)) if limit else np.ones_like(p)
    return np.minimum(1, p), np.minimum(1, refuted)


def t_sides(mean: ArrayLike, sd: ArrayLike, n: int) -> tuple[OneSided, OneSided]:
    """Return one-sided t tests, above and below, of samples with these means and standard
    deviations; NaN without spread."""
    known = np.where(np.asarray(sd) > 0, sd, np.nan)
    error = known / max(n, 1) ** 0.5

    def t(bound: float) -> Any:
        return (np.asarray(mean) - bound) / error

    student = scipy.stats.t
    return lambda bound: student.sf(t(bound), n - 1), lambda bound: student.cdf(t(bound), n - 1)


def is_exact(h: Hypothesis) -> bool:
    """Return whether a hypothesis is tested by sign flips; a share of runs always is."""
    return h.exact or (h.test or [""])[-1] in JUDGED


def power_of(
    h: Hypothesis, mean: float, sd: float, n: int, alpha: float, smallest: float = 0.0
) -> tuple[float, float]:
    """Simulate the power of `n` seeds: the probability that a hypothesis is supported, and that it
    is refuted, where the true mean difference is `mean` and the differences have this `sd`.

    Means and variances of normal samples are drawn as a Latin hypercube, always the same. For an
    exact test it is the power of t, and 0 where no p of that many sign flips, 2 / 2^n at the least,
    is below alpha.
    """
    if is_exact(h) and 2.0 ** (1 - n) >= alpha:
        return 0.0, 0.0
    share = (np.arange(DRAWS) + 0.5) / DRAWS
    z = scipy.stats.norm.ppf(np.random.default_rng(0).permutation(share))
    spread = sd * np.sqrt(scipy.stats.chi2.ppf(share, n - 1) / (n - 1))
    means = mean + sd * z / n**0.5
    p, refuted = p_values(h, smallest, *t_sides(means, spread, n))
    supported = p < alpha
    return float(supported.mean()), float((~supported & (refuted < alpha)).mean())


def seeds_to_decide(
    h: Hypothesis, mean: float, sd: float, alpha: float, power: float, smallest: float = 0.0
) -> float:
    """Return the smallest number of seeds that supports or refutes a hypothesis with probability
    `power`; infinite beyond `MAX_SEEDS`, NaN without spread."""
    if not sd > 0:
        return np.nan
    seeds = range(2, MAX_SEEDS + 1)
    i = bisect_left(seeds, power, key=lambda n: sum(power_of(h, mean, sd, n, alpha, smallest)))
    return seeds[i] if i < len(seeds) else np.inf


def expected_power(
    plan: Plan, spread: Mapping[str, float], n: int, effect: float | None = None
) -> pd.DataFrame:
    """Return what `n` seeds can show, a row per hypothesis: the true difference assumed (`effect`;
    else none for an equivalence, and the smallest effect of interest beyond the bound for a
    direction), the sd of the differences (`spread`, by hypothesis, for those that it has), the
    power, and the seeds that the plan's power takes. Tests share alpha as in a
    family where all others fail."""
    rows = []
    size = Counter(h.family for h in plan.bound.values())
    for name in spread:
        h = plan.bound[name]
        smallest = plan.smallest_effect_of_interest.get(h.measure, 0.0)
        true = effect
        if true is None:
            true = 0.0 if h.equivalent_within else h.beyond + smallest
        true = -true if h.direction == "less" else true
        alpha = plan.alpha / size[h.family]
        sd = spread[name]
        row: dict[str, Any] = {"hypothesis": name, "measure": h.measure, "difference": true}
        row["sd"] = sd
        row["power"], _ = power_of(h, true, sd, n, alpha, smallest)
        row["seeds"] = seeds_to_decide(h, true, sd, alpha, plan.power, smallest)
        rows.append(row)
    return pd.DataFrame(rows)


def spread_of(plan: Plan, runs: pd.DataFrame) -> dict[str, float]:
    """Take the sd of the differences that each hypothesis is about from the runs of another study,
    a pilot or a tuning study: of the same arms, variants or levels, where it has them, else the
    largest of every arm and its baseline. A measure that shows none is missing."""
    variants = of_arms(runs, "variant")
    levels = of_arms(runs, "levels")
    spreads = {}
    for name, h in plan.bound.items():
        if h.measure not in runs:
            continue
        if weights := arm_weights(h.pairs, variants, levels):
            both = sides(runs, h.measure, weights)
            sd = (both["arm"] - both["baseline"]).std()
        else:
            pairs = own_baselines(runs).items()
            sds = [seed_differences(runs, h.measure, *pair).std() for pair in pairs]
            sd = pd.Series(sds).max() * independent(h, {})
        if sd > 0:
            spreads[name] = sd
    return spreads


def independent(h: Hypothesis, weights: Mapping[str, float]) -> float:
    """Return the sd of a hypothesis' difference relative to that of two arms, as if all arms had
    the same and varied alone: less for the mean of several pairs, more for an interaction. Without
    the weights of its arms, each of its pairs counts as one."""
    squares = sum(weight**2 for weight in weights.values()) or 2 * len(h.pairs)
    return float((squares / 2) ** 0.5)


def out_of_reach(plan: Plan, n: int) -> Iterator[str]:
    """Yield each exact test of a plan whose level `n` seeds cannot reach, and how many can. The
    smallest p of n seeds is 2 / 2^n; in a family of m tests one must reach alpha / m."""
    sizes = Counter(h.family for h in plan.bound.values())
    tests = {name: sizes[h.family] for name, h in plan.bound.items() if is_exact(h)}
    for name, family in plan.families.items():
        if family.test == "exact":
            tests[name] = len(family.contrasts) * len(family.measures)
    for name, m in tests.items():
        enough = 2 + int(np.log2(m / plan.alpha))
        if n < enough:
            yield f"{name}: an exact test of {n} seeds cannot reach its level; {enough} seeds can"
