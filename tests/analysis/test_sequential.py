"""Looking early is no cheaper way to a claim: boundaries as published, errors as promised."""

import numpy as np
import pytest
from scipy import stats

from lib.analysis.hypotheses import in_sequence, p_values, power_with_looks
from lib.analysis.sequential import boundary, inflation, nominal_level, sequential_p, spent
from lib.study.plan import Hypothesis

LOOKS = (6, 10, 16)
DIFFERS = Hypothesis.model_validate(
    {"says": "", "test": ["a", "b", "loss"], "direction": "differs"}
)


@pytest.mark.parametrize(
    ("looks", "published"),
    [
        # Two-sided alpha .05: Lan & DeMets (1983), and their program ld98, as gsDesign prints them.
        (2, [2.963, 1.969]),
        (3, [3.710, 2.511, 1.993]),
        (4, [4.333, 2.963, 2.359, 2.014]),
        (5, [4.877, 3.357, 2.680, 2.290, 2.031]),
    ],
)
def test_boundaries_are_the_published_ones(looks: int, published: list[float]) -> None:
    shares = tuple((k + 1) / looks for k in range(looks))
    assert boundary(0.025, shares) == pytest.approx(published, abs=6e-4)


def test_all_of_a_level_is_spent_when_all_seeds_have_run() -> None:
    assert spent(0.025, 1.0) == pytest.approx(0.025)
    assert spent(0.025, 0.2) < 1e-6
    assert boundary(0.025, (1.0,)) == pytest.approx([stats.norm.isf(0.025)])


@pytest.mark.parametrize("alpha", [0.2, 0.025, 0.003])
@pytest.mark.parametrize("look", [0, 1, 2])
def test_a_p_on_the_boundary_of_a_look_is_its_level(alpha: float, look: int) -> None:
    z = boundary(alpha, tuple(n / 16 for n in LOOKS))[look]
    p = [0.9] * look + [stats.norm.sf(z)]
    assert sequential_p(p, LOOKS) == pytest.approx(alpha * inflation(LOOKS), rel=1e-3)


def test_later_looks_never_take_an_answer_back() -> None:
    p = np.random.default_rng(0).random((3, 1000))
    parts = np.array([sequential_p(p[: k + 1], LOOKS) for k in range(3)])
    assert (np.diff(parts, axis=0) <= 0).all()
    assert (sequential_p([1e-9, 0.5, 0.5], LOOKS) == sequential_p([1e-9], LOOKS)).all()
    one, nothing = sequential_p([np.nan, 0.001], LOOKS), sequential_p([np.nan], LOOKS)
    assert one == sequential_p([1.0, 0.001], LOOKS)
    assert np.isnan(nothing)


def studies(looks: tuple[int, ...], effect: float, number: int = 400_000) -> list[np.ndarray]:
    """Means and sds at each look of many studies whose differences have an sd of 1."""
    draws = np.random.default_rng(7).normal(effect, 1.0, (number, looks[-1]))
    return [np.array([draws[:, :n].mean(axis=1), draws[:, :n].std(axis=1, ddof=1)]) for n in looks]


def p_at(looks: tuple[int, ...], found: list[np.ndarray], until: int) -> np.ndarray:
    """Two-sided p after some looks, of every study."""
    sides = []
    for n, (mean, sd) in zip(looks, found[:until], strict=False):
        t = mean / sd * n**0.5
        sides.append(
            (lambda _, t=t, n=n: stats.t.sf(t, n - 1), lambda _, t=t, n=n: stats.t.cdf(t, n - 1))
        )
    p: np.ndarray = p_values(DIFFERS, 0.0, *in_sequence(sides, looks))[0]
    return p


@pytest.mark.slow
@pytest.mark.parametrize("looks", [LOOKS, (4, 8), (2, 4, 6, 8)])
def test_studies_without_an_effect_claim_one_no_more_often_than_alpha(
    looks: tuple[int, ...],
) -> None:
    """In 400,000 studies; the error of the rate is 0.0003. Looking at the usual p would claim one
    in 9 to 14 % of them."""
    found = studies(looks, 0.0)
    p = p_at(looks, found, len(looks))
    for alpha in (0.05, 0.025):
        assert 0.9 * alpha < (p < alpha).mean() <= alpha
    usual = [
        2 * stats.t.sf(abs(mean / sd) * n**0.5, n - 1)
        for n, (mean, sd) in zip(looks, found, strict=True)
    ]
    assert 0.085 < (np.min(usual, axis=0) < 0.05).mean() < 0.145


@pytest.mark.slow
def test_intervals_hold_the_true_difference_at_whichever_look_a_study_ends() -> None:
    found = studies(LOOKS, 0.8)
    held, going = np.zeros(400_000, dtype=bool), np.ones(400_000, dtype=bool)
    seeds = np.zeros(400_000)
    for k, (n, (mean, sd)) in enumerate(zip(LOOKS, found, strict=True)):
        half = stats.t.isf(nominal_level(0.05, LOOKS, k) / 2, n - 1) * sd / n**0.5
        claimed = p_at(LOOKS, found, k + 1) < 0.05
        ends = going & (claimed | (n == LOOKS[-1]))
        held[ends] = (abs(mean - 0.8) <= half)[ends]
        seeds[ends] = n
        going &= ~ends
    assert held.mean() >= 0.95
    power, used = power_with_looks(DIFFERS, 0.8, 1.0, LOOKS, 0.05)
    assert power == pytest.approx(claimed.mean(), abs=0.02)
    assert used == pytest.approx(seeds.mean(), abs=0.2)


def test_a_small_difference_ends_a_study_too() -> None:
    """Where it is shown to be smaller than what matters: futility."""
    within = power_with_looks(DIFFERS, 0.0, 0.3, LOOKS, 0.05, smallest=1.0)
    assert within[0] < 0.05
    assert within[1] < 8
