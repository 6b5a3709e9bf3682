"""A plan's hypotheses: the test of each, its answer in one word, and the power of the test.

A hypothesis claims where the mean difference of two arms lies. It is supported where a test shows
that it lies there, refuted where one shows that it does not, else undecided. Directions are tested
two-sided, so that the answer agrees with the interval beside it; equivalence by two one-sided tests
(Schuirmann 1987). In a family, supports share alpha by Holm's method, and so do refutations.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, product
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import stats

from lib.analysis.paired import holm, paired_deltas, sd_of, t_test
from lib.analysis.resampling import Floats, sign_flip_test
from lib.analysis.rules import Answer
from lib.analysis.runs import own_baselines
from lib.analysis.sequential import Looks, nominal_level, sequential_p
from lib.analysis.stability import harmed
from lib.analysis.tables import numbers
from lib.study.metrics import JUDGED, MEASURES
from lib.study.plan import Hypothesis, Plan, arms_called

MAX_SEEDS = 1024
"""Beyond which no number of seeds is sought."""
DRAWS = 4000
"""Simulated studies; the standard error of a power is below 0.008."""

Row = dict[Any, Any]
OneSided = Callable[[float], Any]
"""p of the test that the mean lies above (or below) a bound."""


def p_values(h: Hypothesis, smallest: float, above: OneSided, below: OneSided) -> tuple[Any, Any]:
    """Test that a hypothesis is true, and that it is false: two p. `smallest` is the smallest
    effect of interest in its measure (0: none): a direction is false, too, where the effect is
    shown to be smaller. Whether they differ at all cannot be refuted without one."""
    if margin := h.equivalent_within:
        two_sided = 2 * np.minimum(above(margin), below(-margin))
        return np.maximum(above(-margin), below(margin)), np.minimum(1, two_sided)
    bound, limit = h.beyond, h.beyond or smallest
    if h.direction == "greater":
        return np.minimum(1, 2 * above(bound)), np.minimum(1, 2 * below(limit))
    if h.direction == "less":
        return np.minimum(1, 2 * below(-bound)), np.minimum(1, 2 * above(-limit))
    equal = np.maximum(above(-limit), below(limit)) if limit else np.ones_like(above(0.0))
    return np.minimum(1, 2 * np.minimum(above(bound), below(-bound))), equal


def hypothesis_tests(
    runs: pd.DataFrame, plan: Plan, rng: Generator, looks: Sequence[int] = ()
) -> pd.DataFrame:
    """Test every hypothesis whose arms a study has, a row each: `hypothesis`, what it `says`,
    `claim`, arm, baseline, measure, family, test, n, mean_delta and its t interval, sd_delta; p and
    p_holm that it is true, `refuted_p` that it is false, adjusted too; the answer, the `sentence`
    that the plan has for it, and of an undecided one the `seeds` that would decide it.

    Of a study with `looks`, numbers of seeds in the order of the runs, a row is that of the first
    look that decides, else of the last so far; it names the `look`. All p are over the looks up to
    then (see `lib.analysis.sequential`), and the interval is a repeated one; `looks` says how many
    there are, `next_look` after how many seeds the next is.
    """
    seeds = list(dict.fromkeys(runs["seed"]))
    so_far = [n for n in looks if n <= len(seeds)] or [len(seeds)]
    rows: dict[str, Row] = {}
    for k in range(len(so_far)):
        parts = [harmed(runs[runs["seed"].isin(seeds[:n])], plan) for n in so_far[: k + 1]]
        for row in _tested(parts, plan, rng, tuple(looks)).to_dict("records"):
            name = row["hypothesis"]
            if name not in rows or rows[name]["answer"] == "undecided":
                later = {"next_look": [*looks[k + 1 :], np.nan][0]}
                rows[name] = row | ({"look": k + 1, "looks": len(looks)} | later if looks else {})
    return pd.DataFrame(rows.values())


def _tested(parts: list[pd.DataFrame], plan: Plan, rng: Generator, looks: Looks) -> pd.DataFrame:
    """Test every hypothesis by the runs at each look so far."""
    runs, level = parts[-1], plan.alpha
    if looks:
        level = nominal_level(plan.alpha, looks, len(parts) - 1)
    arms = dict(zip(runs["arm"], runs["variant"], strict=True))
    rows = []
    for name, (h, *pair, measure) in plan.bound.items():
        matches = [arms_called(arm_name, arms) for arm_name in pair]
        if measure not in runs or any(len(match) != 1 for match in matches):
            continue
        (arm,), (baseline,) = matches
        samples, exact = [_deltas(part, arm, baseline, measure) for part in parts], is_exact(h)
        tests = [t_test(deltas, level) for deltas in samples]
        sides = [
            _by_sign_flips(deltas, rng)
            if exact
            else _t_sides(test.mean_delta, sd_of(deltas), test.n)
            for deltas, test in zip(samples, tests, strict=True)
        ]
        smallest = plan.smallest_effect_of_interest.get(measure, 0.0)
        p, refuted = p_values(h, smallest, *in_sequence(sides, looks))
        row: Row = {"hypothesis": name, "says": h.says.strip(), "claim": claim(h)}
        row |= {"arm": arm, "baseline": baseline, "measure": measure, "family": h.family}
        row |= {"test": "exact" if exact else "t", **tests[-1]._asdict()}
        row |= {"sd_delta": sd_of(samples[-1])}
        rows.append(row | {"p": float(p), "refuted_p": float(refuted)})
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows)
    families = table.groupby("family", sort=False)
    table["p_holm"] = families["p"].transform(holm)
    table["refuted_p"] = families["refuted_p"].transform(holm)
    table["alpha"] = plan.alpha / families["p"].transform("size")
    return pd.DataFrame([row | _answer(row, plan) for row in table.to_dict("records")])


def in_sequence(sides: list[tuple[OneSided, OneSided]], looks: Looks) -> tuple[OneSided, OneSided]:
    """Combine one-sided tests at each look so far into one test over all of them; without looks,
    return the one there is."""
    if not looks:
        return sides[-1]

    def at_all(side: int) -> OneSided:
        return lambda bound: sequential_p(np.array([each[side](bound) for each in sides]), looks)

    return at_all(0), at_all(1)


def _deltas(runs: pd.DataFrame, arm: str, baseline: str, measure: str) -> Floats:
    """Return arm - baseline of every seed that completed in both."""
    values = runs.pivot(index="seed", columns="arm", values=measure).astype(float)
    pairs = values[[baseline, arm]].dropna().to_numpy()
    return paired_deltas(pairs[:, 0], pairs[:, 1])


def is_exact(h: Hypothesis) -> bool:
    """Tell whether a hypothesis is tested by sign flips; a share of runs always is."""
    return h.exact or (h.test or [""])[-1] in JUDGED


def _answer(row: Row, plan: Plan) -> Row:
    h = plan.hypotheses[row["hypothesis"]]
    smallest = plan.smallest_effect_of_interest.get(row["measure"], 0.0)
    if row["p_holm"] < plan.alpha:
        return {"answer": "supported", "sentence": h.if_supported, "seeds": np.nan}
    if row["refuted_p"] < plan.alpha:
        sentence = h.if_refuted
        if smallest and h.direction and not (h.beyond or sentence):  # the claim has no bound
            limit = claim(h.model_copy(update={"beyond": smallest}))
            sentence = f"Ruled out is {limit}, the smallest effect of interest."
        return {"answer": "refuted", "sentence": sentence, "seeds": np.nan}
    measured = row["mean_delta"], row["sd_delta"]
    seeds = seeds_to_decide(h, *measured, row["alpha"], plan.power, smallest)
    return {"answer": "undecided", "sentence": h.if_undecided, "seeds": seeds}


def holds(h: Hypothesis, difference: float) -> bool:
    """Tell whether a hypothesis is true where this is the true mean difference."""
    if h.equivalent_within:
        return abs(difference) < h.equivalent_within
    signed = {"greater": difference, "less": -difference, "differs": abs(difference)}
    return signed[h.direction or "differs"] > h.beyond


def claim(h: Hypothesis) -> str:
    """Write what a hypothesis claims of the difference, in short: > 0.02."""
    if h.equivalent_within:
        return f"within ± {h.equivalent_within:g}"
    if h.direction == "differs":
        return f"beyond ± {h.beyond:g}" if h.beyond else "≠ 0"
    return f"> {h.beyond:g}" if h.direction == "greater" else f"< {-h.beyond or 0:g}"


def answer_tests(tests: pd.DataFrame, power: float) -> dict[str, Answer]:
    """Write the answer to each hypothesis, and as its reason what it says, what was found, and what
    follows: the plan's sentence, and of an undecided one the seeds that would decide it."""
    answers = {}
    for row in tests.to_dict("records"):
        measure, texts = MEASURES[row["measure"]], [row["says"]]
        form = f"+.{measure.digits}f"
        difference = numbers(row["mean_delta"], row["t_low"], row["t_high"], form)
        p = "; ".join(
            f"{what} {row[key]:.2g}"
            for what, key in (("p to support", "p_holm"), ("p to refute", "refuted_p"))
            if row[key] < 1
        )
        texts += [
            f"{row['arm']} - {row['baseline']} in {measure.title}: {difference}, claimed is "
            f"{row['claim']} (n = {row['n']}, {p or 'no p'}).",
            row["sentence"],
        ]
        if row["answer"] != "undecided":
            texts += [f"Reached at look {row['look']} of {row['looks']}."] if "look" in row else []
        elif row.get("next_look", np.nan) > 0:
            texts += [f"The next look is after {row['next_look']:.0f} seeds."]
        else:
            texts += [_what_would_decide(row["seeds"], power)]
        answers[row["hypothesis"]] = Answer(row["answer"], " ".join(filter(None, texts)))
    return answers


def _what_would_decide(seeds: float, power: float) -> str:
    if np.isnan(seeds):
        return "There are too few pairs, or they have no spread."
    many = f"Some {seeds:.0f} seeds" if seeds <= MAX_SEEDS else f"Not even {MAX_SEEDS:,} seeds"
    return f"{many} would decide it with a power of {power:.0%}, were this difference the true one."


def power_of(
    h: Hypothesis, mean: float, sd: float, n: int, alpha: float, smallest: float = 0.0
) -> tuple[float, float]:
    """Simulate the power of `n` seeds: the probability that a hypothesis is supported, and that it
    is refuted, where the true mean difference is `mean` and the differences have this `sd`.

    Means and variances of normal samples are drawn as a Latin hypercube, always the same. For an
    exact test it is the power of t, and nothing where no p of that many sign flips is below alpha.
    """
    if is_exact(h) and smallest_exact_p(n) >= alpha:
        return 0.0, 0.0
    share = (np.arange(DRAWS) + 0.5) / DRAWS
    z = stats.norm.ppf(np.random.default_rng(0).permutation(share))
    spread = sd * np.sqrt(stats.chi2.ppf(share, n - 1) / (n - 1))
    p, refuted = p_values(h, smallest, *_t_sides(mean + sd * z / n**0.5, spread, n))
    return float(np.mean(p < alpha)), float(np.mean((refuted < alpha) & (p >= alpha)))


def power_with_looks(
    h: Hypothesis, mean: float, sd: float, looks: Looks, alpha: float, smallest: float = 0.0
) -> tuple[float, float]:
    """Simulate the power of a study that is looked at so, and ends with its answer: the probability
    that a hypothesis is supported, and the seeds that it takes on average."""
    samples = np.random.default_rng(0).normal(mean, sd, (DRAWS, looks[-1]))
    sides, by_look = [], []
    for n in looks:
        part = samples[:, :n]
        sides.append(_t_sides(part.mean(axis=1), part.std(axis=1, ddof=1), n))
        p, refuted = p_values(h, smallest, *in_sequence(sides, looks))
        by_look.append(np.where(p < alpha, 1, np.where(refuted < alpha, -1, 0)))
    answers = np.array(by_look)
    first = np.where(answers.any(axis=0), (answers != 0).argmax(axis=0), len(looks) - 1)
    supported = answers[first, np.arange(DRAWS)] == 1
    return float(supported.mean()), float(np.array(looks)[first].mean())


def smallest_exact_p(n: int) -> float:
    """Return the smallest two-sided p that sign flips of `n` seeds can give."""
    return float(2.0 ** (1 - n))


def out_of_reach(plan: Plan, n: int) -> Iterator[str]:
    """Say of each exact test of a plan that `n` seeds cannot reach its level, and how many can. In
    a family of m tests one must reach alpha / m."""
    sizes = Counter(h.family for h, *_ in plan.bound.values())
    tests = {f"hypotheses.{name}": sizes[of[0].family] for name, of in plan.bound.items()
             if is_exact(of[0])}  # fmt: skip
    families = {name: f for name, f in plan.tests_of.items() if f.test == "exact"}
    tests |= {
        f"families.{name}": len(f.contrasts) * len(f.measures) for name, f in families.items()
    }
    for name, m in tests.items():
        level, smallest = plan.alpha / m, smallest_exact_p(n)
        if smallest >= level:
            enough = next(k for k in count(n) if smallest_exact_p(k) < level)
            yield (
                f"{name}: the p of an exact test of {n} seeds is {smallest:.3g} at the least, and "
                f"must be below {level:.3g}; {enough} seeds can reach it"
            )


def seeds_to_decide(
    h: Hypothesis,
    mean: float,
    sd: float,
    alpha: float,
    power: float,
    smallest: float = 0.0,
    *,
    or_refute: bool = True,
) -> float:
    """Return the smallest number of seeds that supports a hypothesis, `or_refute`s it, with
    probability `power`; infinite beyond `MAX_SEEDS`, NaN without spread."""
    if not sd > 0:
        return np.nan

    def reached(n: int) -> float:
        return sum(power_of(h, mean, sd, n, alpha, smallest)[: 1 + or_refute])

    seeds = range(2, MAX_SEEDS + 1)
    i = bisect_left(seeds, power, key=reached)
    return seeds[i] if i < len(seeds) else np.inf


def expected_power(
    plan: Plan,
    spread: Mapping[str, float],
    n: int,
    effect: float | None = None,
    looks: Sequence[int] = (),
) -> pd.DataFrame:
    """Say what `n` seeds can show, a row per hypothesis: the true difference assumed (`effect`;
    else none for an equivalence, and the smallest effect of interest beyond the bound for a
    direction), the sd of the differences (`spread`, by hypothesis, for those that it has), the
    power, and the seeds that the plan's power takes, to support it. Tests share alpha as in a
    family where all others fail. With `looks`, the last of which is `n`, also the seeds that are
    `used` on average."""
    rows = []
    size = Counter(h.family for h, *_ in plan.bound.values())
    for name, (h, arm, baseline, measure) in plan.bound.items():
        if name not in spread:
            continue
        smallest = plan.smallest_effect_of_interest.get(measure, 0.0)
        true = (0.0 if h.equivalent_within else h.beyond + smallest) if effect is None else effect
        true = -true if h.direction == "less" else true
        case = true, spread[name]
        alpha = plan.alpha / size[h.family]
        supported, _ = power_of(h, *case, n, alpha, smallest)
        seeds = seeds_to_decide(h, *case, alpha, plan.power, smallest, or_refute=False)
        row: Row = {"hypothesis": name, "arm": arm, "baseline": baseline, "measure": measure}
        row |= {"difference": true, "sd": spread[name], "n": n, "power": supported, "seeds": seeds}
        if looks:
            row["power"], row["used"] = power_with_looks(h, *case, tuple(looks), alpha, smallest)
        rows.append(row)
    return pd.DataFrame(rows)


def spread_of(plan: Plan, runs: pd.DataFrame) -> dict[str, float]:
    """Take the sd of the differences that each hypothesis is about from the runs of another study,
    a pilot or a tuning study: of the same two arms or variants, else of every arm and its baseline;
    of several the largest. A measure that shows none is missing."""
    arms, settings = (
        dict(zip(runs["arm"], runs[of], strict=True)) for of in ("variant", "setting")
    )
    spreads = {}
    for name, (_, *pair, measure) in plan.bound.items():
        same_arms = [
            (arm, other)
            for arm, other in product(*(arms_called(of, arms) for of in pair))
            if settings[arm] == settings[other]
        ]
        pairs = same_arms or own_baselines(runs).items()
        is_measured = measure in runs
        sds = [sd_of(_deltas(runs, *of, measure)) for of in pairs] if is_measured else []
        if positive := [sd for sd in sds if sd > 0]:
            spreads[name] = max(positive)
    return spreads


def _t_sides(mean: ArrayLike, sd: ArrayLike, n: int) -> tuple[OneSided, OneSided]:
    """Return one-sided t tests of samples with these means and standard deviations; NaN without
    spread."""
    error = np.where(np.asarray(sd) > 0, sd, np.nan) / max(n, 1) ** 0.5

    def t(bound: float) -> Any:
        return (np.asarray(mean) - bound) / error

    return lambda bound: stats.t.sf(t(bound), n - 1), lambda bound: stats.t.cdf(t(bound), n - 1)


def _by_sign_flips(deltas: Floats, rng: Generator) -> tuple[OneSided, OneSided]:
    """Return the one-sided halves of the exact test, whose distribution is symmetric."""

    def side(sign: int) -> OneSided:
        def p(bound: float) -> float:
            two_sided = sign_flip_test(deltas - bound, rng).sign_flip_p
            return two_sided / 2 if sign * (deltas - bound).sum() > 0 else 1 - two_sided / 2

        return p

    return side(1), side(-1)
