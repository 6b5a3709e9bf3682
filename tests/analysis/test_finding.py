import math

import pytest

from lib.analysis.tables import Finding, numbers, outcome


@pytest.mark.parametrize(
    ("measure", "low", "high", "margin", "said"),
    [
        ("perplexity", 0.1, 0.2, None, "harms"),
        ("perplexity", -0.2, -0.1, 1.0, "helps"),
        ("accuracy", 0.1, 0.2, None, "helps"),
        ("accuracy", -0.2, -0.1, None, "harms"),
        ("grad_norm", 0.1, 0.2, None, "rises"),
        ("grad_norm", -0.2, -0.1, None, "falls"),
        ("accuracy", -0.1, 0.2, 0.3, "no difference beyond ± 0.3"),
        ("accuracy", -0.1, 0.2, 0.2, "undecided"),
        ("accuracy", -0.2, 0.1, 0.2, "undecided"),
        ("accuracy", 0.0, 0.2, None, "undecided"),
        ("accuracy", -0.2, 0.0, None, "undecided"),
        ("accuracy", -0.1, 0.2, None, "undecided"),
        ("accuracy", math.nan, math.nan, 0.3, "undecided"),
    ],
)
def test_an_interval_has_one_form(
    measure: str, low: float, high: float, margin: float | None, said: str
) -> None:
    assert outcome(measure, low, high, margin) == said


def test_numbers_without_an_interval_say_so() -> None:
    assert numbers(1.0, 0.5, 1.5) == "+1.000 [+0.500, +1.500]"
    assert numbers(1.0, math.nan, math.nan, ".1f") == "1.0 (no interval)"


def test_a_finding_shows_its_title_and_sentences() -> None:
    assert Finding("k", "Title", None, ["a.", "b."])._repr_markdown_() == "### Title\n\n- a.\n- b."
