"""The notation of a grammar says what its docstring says."""

from collections import defaultdict

import pytest

from lib.data.grammar import expand

WORDS = {"noun": ["cat", "dog", "elk"]}


def shares(grammar: str) -> dict[str, dict[tuple[str, str], float]]:
    """Slot → (string, next slot) → probability."""
    found: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for slot, rules in expand(grammar, WORDS, "my").items():
        total = sum(weight for weight, _, _ in rules)
        assert total == pytest.approx(2**40, rel=1e-9)
        for weight, string, following in rules:
            found[slot][string, following] = weight / total
    return found


def test_a_string_is_followed_by_a_blank_or_a_line_break() -> None:
    found = shares("start : 3 the > thing | 1 so,/ > start\nthing : 1 / > @other start | 1 > start")
    assert found["my start"] == pytest.approx(
        {("the ", "my thing"): 3 / 4, ("so,\n", "my start"): 1 / 4}
    )
    assert found["my thing"] == {("\n", "other start"): 0.5, (" ", "my start"): 0.5}


def test_words_of_a_class_follow_the_law_of_zipf_and_mandelbrot() -> None:
    found = shares("start : 1 {noun}s > start")
    zipf = [1 / 8, 1 / 9, 1 / 10]
    assert list(found["my start"].values()) == pytest.approx([z / sum(zipf) for z in zipf])
    assert [string for string, _ in found["my start"]] == ["cats ", "dogs ", "elks "]


def test_endings_are_put_behind_a_string() -> None:
    found = shares(
        "start : 1 ho ~ end | 1 oh > start\n"
        "end   : 2 ,/ > start | 1 > end\n"
        "      | 1 *more\n"
        "more  : 1 !/ > end"
    )
    assert found["my start"] == pytest.approx(
        {
            ("ho,\n", "my start"): 1 / 4,
            ("ho ", "my end"): 1 / 8,
            ("ho!\n", "my end"): 1 / 8,
            ("oh ", "my start"): 1 / 2,
        }
    )


def test_alternatives_are_taken_over_with_or_without_a_capital() -> None:
    found = shares("line : 1 *Start | 1 *start\nstart : 1 the > line | 3 'tis > line")
    assert found["my line"] == pytest.approx(
        {
            ("The ", "my line"): 1 / 8,
            ("'Tis ", "my line"): 3 / 8,
            ("the ", "my line"): 1 / 8,
            ("'tis ", "my line"): 3 / 8,
        }
    )


def test_what_cannot_be_read_is_named() -> None:
    with pytest.raises(ValueError, match="slot 'start': cannot read 'the > thing'"):
        expand("start : 1 so > start | the > thing", WORDS, "my")
