"""A source's probabilities are those that counting all of its paths gives."""

from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest

from lib.data.markov import Rules, Source, generate

RULES: Rules = {
    "a": [(2, "x y", "b"), (1, "xz", "a"), (1, "y", "b")],
    "b": [(3, "y", "a"), (1, "zxx", "b"), (2, "zyx", "a")],
}
SYMBOLS = " xyz"


@pytest.fixture(scope="module")
def source() -> Source:
    return Source(RULES)


@cache
def from_within(slot: str, begun: str, text: str) -> float:
    """Probability that `text` follows what a slot has begun to write, over all paths."""
    if not text:
        return 1.0
    total = found = 0.0
    for weight, string, following in RULES[slot]:
        if string.startswith(begun):
            total += weight
            rest = string[len(begun) :]
            if rest.startswith(text):
                found += weight
            elif text.startswith(rest):
                found += weight * from_within(following, "", text[len(rest) :])
    return found / total


@cache
def places() -> list[tuple[float, str, str]]:
    """Share of an endless text at which a slot has begun to write something."""
    slots = {"a": 0.5, "b": 0.5}
    for _ in range(200):
        after = dict.fromkeys(slots, 0.0)
        for slot, share in slots.items():
            for weight, _, following in RULES[slot]:
                after[following] += share * weight / sum(w for w, _, _ in RULES[slot])
        slots = after
    found: Counter[tuple[str, str]] = Counter()
    for slot, share in slots.items():
        for weight, string, _ in RULES[slot]:
            for place in range(len(string)):
                found[slot, string[:place]] += share * weight / sum(w for w, _, _ in RULES[slot])
    return [(n / found.total(), *place) for place, n in found.items()]


@cache
def probability(text: str) -> float:
    """Of reading `text` at a random place."""
    return sum(share * from_within(slot, begun, text) for share, slot, begun in places())


def all_texts(length: int) -> list[str]:
    return ["".join(letters) for letters in product(SYMBOLS, repeat=length)]


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_the_probabilities_of_all_texts_sum_to_one(length: int) -> None:
    assert sum(map(probability, all_texts(length))) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("length", [2, 3, 5])
def test_losses_are_those_of_counting_all_paths(source: Source, length: int) -> None:
    spoken = [text for text in all_texts(length) if probability(text) > 0]
    assert 4 < len(spoken) < 4**length
    for text in spoken:
        conditional = [probability(text[: i + 1]) / probability(text[:i]) for i in range(1, length)]
        np.testing.assert_allclose(source.nll(text, length), -np.log(conditional), atol=1e-12)


def test_every_window_starts_anew_and_sees_one_character(source: Source) -> None:
    text = generate(RULES, "a", 30, b"windows")
    for block_size in (1, 4, 7, 29, 100):
        parts = [source.nll(text[i : i + block_size + 1], 100) for i in range(0, 29, block_size)]
        np.testing.assert_allclose(source.nll(text, block_size), np.concatenate(parts), atol=1e-12)
    alone = [-np.log(probability(text[i : i + 2]) / probability(text[i])) for i in range(29)]
    np.testing.assert_allclose(source.nll(text, 1), alone, atol=1e-12)


def test_many_windows_are_followed_in_turns(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = generate(RULES, "a", 500, b"turns")
    at_once = source.nll(text, 8)
    monkeypatch.setattr("lib.data.markov._WINDOWS", 10)
    assert np.array_equal(source.nll(text, 8), at_once)


def test_the_mean_loss_is_the_cross_entropy_of_the_source_with_itself(source: Source) -> None:
    """Over all texts of a length, each as often as it is read."""
    weights = {text: probability(text) for text in all_texts(6)}
    block = [
        -sum(p * np.log(p) for text in all_texts(n) if (p := probability(text))) for n in (1, 6)
    ]
    mean = sum(p * source.nll(text, 6).sum() for text, p in weights.items() if p)
    assert mean == pytest.approx(block[1] - block[0], abs=1e-12)


def test_the_entropy_rate_is_what_a_character_adds_when_the_state_is_known(source: Source) -> None:
    n = 6
    entropy = 0.0
    for share, slot, begun in places():
        p = np.array([from_within(slot, begun, text) for text in all_texts(n)])
        entropy -= share * np.sum(p[p > 0] * np.log(p[p > 0]))
    assert source.entropy_rate == pytest.approx(entropy / n, abs=1e-12)


def test_the_stationary_distribution_is_a_fixed_point_and_that_of_the_paths(source: Source) -> None:
    shares = sorted(share for share, _, _ in places())
    np.testing.assert_allclose(sorted(source.stationary), shares, atol=1e-12)
    joint = source.stationary[source.state] * source.probability
    after = np.bincount(source.after, joint, minlength=len(source.stationary))
    np.testing.assert_allclose(after, source.stationary, atol=1e-12)


@pytest.mark.slow
def test_a_long_text_has_the_sources_frequencies_and_its_loss_the_entropy_rate(
    source: Source,
) -> None:
    text = generate(RULES, "a", 200_000, b"long")
    assert len(text) == 200_000
    for gram in all_texts(3):
        share = sum(text[i : i + 3] == gram for i in range(0, 200_000, 20)) / 10_000
        p = probability(gram)
        assert abs(share - p) <= 5 * np.sqrt(p * (1 - p) / 10_000)
    losses = source.nll(text[:20_001], 20_000)
    error = losses.reshape(100, 200).mean(axis=1).std() / np.sqrt(100)
    assert abs(losses.mean() - source.entropy_rate) < 4 * error < 0.03


def test_a_seed_is_a_text(source: Source) -> None:
    assert generate(RULES, "a", 50, b"1") == generate(RULES, "a", 80, b"1")[:50]
    assert generate(RULES, "a", 50, b"1") != generate(RULES, "a", 50, b"2")


def test_what_the_source_never_says_has_infinite_loss_to_the_windows_end(source: Source) -> None:
    text = "yy" + "  " + generate(RULES, "a", 8, b"1")
    assert np.isinf(source.nll(text, 4)).tolist()[2:4] == [True, True]
    assert np.isfinite(source.nll(text, 4)[4:]).all()
    assert np.isinf(source.nll("y?y", 9)).all()
    assert np.isinf(source.nll("?yy", 9)).all()


@pytest.mark.parametrize("text", ["", "x"])
def test_a_text_without_a_prediction_has_no_loss(source: Source, text: str) -> None:
    assert source.nll(text, 4).shape == (0,)


@pytest.mark.parametrize(
    "strings",
    [
        pytest.param([(1, "ab", "a"), (1, "abc", "a")], id="one begins another"),
        pytest.param([(1, "abc", "a"), (1, "ab", "a")], id="the other way round"),
        pytest.param([(1, "ab", "a"), (1, "ab", "a")], id="twice the same"),
        pytest.param([(1, "", "a")], id="empty"),
        pytest.param([(0, "ab", "a")], id="no weight"),
        pytest.param([(1, "ab", "b")], id="no next slot"),
        pytest.param([], id="no strings"),
    ],
)
def test_rules_that_are_no_source_are_refused(strings: list[tuple[int, str, str]]) -> None:
    with pytest.raises(ValueError, match="slot 'a'"):
        Source({"a": strings})
