"""How large an effect a number of seeds can detect, and how many seeds an effect needs.

For the two-sided paired t test. Effects and standard deviations are of the per-seed deltas
arm - baseline, in the units of the measure; d_z is their ratio. A standard deviation measured on
few seeds is itself uncertain: with 5 seeds the true one may, at 95 % confidence, be 0.60 to 2.87
times as large, and every number here scales with it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping

import pandas as pd
from scipy import stats
from scipy.optimize import brentq


def t_test_power(d_z: float, n: int, alpha: float = 0.05) -> float:
    """Probability that n seeds give a two-sided p ≤ alpha when the true effect is `d_z`.

    P(|T| > t) with T noncentral t with n - 1 degrees of freedom and noncentrality d_z √n, and t
    the 1 - alpha/2 quantile of the central one (Cohen 1988, ch. 2).
    """
    critical = stats.t.isf(alpha / 2, n - 1)
    noncentrality = d_z * n**0.5
    # P(T < -t), written with the sign turned: nct.cdf is NaN far in its lower tail.
    opposite = stats.nct.sf(critical, n - 1, -noncentrality)
    return float(stats.nct.sf(critical, n - 1, noncentrality) + opposite)


def minimum_detectable_effect(sd: float, n: int, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest true effect that n seeds detect with probability `power`, in the units of `sd`.

    Solves `t_test_power` for d_z and multiplies by `sd`, the standard deviation of the deltas.
    With the sd of the very same sample it tells how fine the study could see; it says nothing
    about whether the observed delta is real.

    Raises ValueError for n < 2, a negative or undefined sd, or unless 0 < alpha < power < 1.
    """
    _require_levels(alpha, power)
    if n < 2:
        raise ValueError(f"n is {n}; a paired t test needs at least 2 seeds")
    if not sd >= 0:
        raise ValueError(f"sd is {sd}; give the standard deviation of the deltas, 0 or more")
    # A noncentrality of ten critical values leaves no probability below the first of them.
    upper = 10 * (stats.t.isf(alpha / 2, n - 1) + 3) / n**0.5
    return sd * float(brentq(lambda d_z: t_test_power(d_z, n, alpha) - power, 0, upper))


def seeds_needed(effect: float, sd: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """Smallest number of seeds, at least 2, that detects `effect` with probability `power`.

    Raises ValueError unless effect ≠ 0, sd > 0 and 0 < alpha < power < 1.
    """
    _require_levels(alpha, power)
    if not (abs(effect) > 0 and sd > 0):
        raise ValueError(f"effect is {effect} and sd is {sd}; neither may be 0 or undefined")
    d_z = abs(effect) / sd
    # The z test's sample size, doubled, is beyond what the t test needs on top of it.
    z_test = ((stats.norm.isf(alpha / 2) + stats.norm.ppf(power)) / d_z) ** 2
    candidates = range(2, 2 * int(z_test) + 100)
    return candidates[bisect_left(candidates, power, key=lambda n: t_test_power(d_z, n, alpha))]


def power_table(
    sds: Mapping[str, float],
    alpha: float = 0.05,
    power: float = 0.8,
    seeds: Iterable[int] = range(2, 41),
) -> pd.DataFrame:
    """Minimum detectable effect against the number of seeds.

    `sds` maps each measure to the measured standard deviation of its deltas. Rows are numbers of
    seeds, n; columns d_z, the effect in standard deviations, then each measure in its own units.
    """
    d_z = {n: minimum_detectable_effect(1.0, n, alpha, power) for n in seeds}
    table = pd.DataFrame({"d_z": d_z}).rename_axis("n")
    return table.assign(**{measure: table["d_z"] * sd for measure, sd in sds.items()})


def _require_levels(alpha: float, power: float) -> None:
    if not 0 < alpha < power < 1:
        raise ValueError(f"alpha is {alpha} and power is {power}; give 0 < alpha < power < 1")
