import pytest
from markupsafe import Markup

from lib.publish import wording
from lib.publish.wording import (
    by_direction,
    direction,
    effect,
    estimate,
    finished,
    interval,
    sentence,
    verdict,
)


def change(value: float | None, low: float | None, high: float | None) -> dict[str, object]:
    return {"mean_delta": value, "t_low": low, "t_high": high}


LOWER, HIGHER = change(-0.0253, -0.0341, -0.0164), change(1.05, 0.985, 1.116)
UNDECIDED, ONE_SEED = change(0.44, -1.02, 1.9), change(-0.2, None, None)
ROUNDING, EXACT = change(-1e-5, -4e-5, 2e-5), change(0.0, None, None)
TOUCHING, NOTHING = change(0.2, 0.0, 0.4), change(None, None, None)


@pytest.mark.parametrize(
    ("value", "name", "arguments", "text"),
    [
        (11.3238, "number", [".2f"], "11.32"),
        (-0.0232, "number", ["+.3f"], "−0.023"),
        (-0.00002, "number", ["+.4f"], "0.0000"),
        (0.0, "number", ["+.2f"], "0.00"),
        (-0.001, "number", [".0%"], "0%"),
        (1611136, "number", [","], "1,611,136"),
        (None, "number", [".3f"], "n/a"),
        ({"mean": 11.32, "sd": 0.048}, "mean_sd", [".2f"], "11.32 ± 0.05"),
        ({"mean": 11.32, "sd": None}, "mean_sd", [".1f"], "11.3"),
        ({"mean": None, "sd": None}, "mean_sd", [".1f"], "n/a"),
        ({"mean": 0.29637, "sd": 0.0031}, "mean_sd", ["accuracy"], "0.2964 ± 0.0031"),
        (0.0168, "p_value", [], ".017"),
        (0.0000168, "p_value", [], "< .001"),
        (1.0, "p_value", [], "1.000"),
        (None, "p_value", [], "n/a"),
        ("perplexity", "label", [], "validation perplexity"),
        ("grad_shrink", "code", [], "`grad_shrink`"),
        ([0, 1, 2, 3, 4], "words", [], "five"),
        (0, "words", [], "none"),
        (72, "words", [], "72"),
        ([0.02, 0.1, 1.0], "listed", [], "0.02, 0.1 and 1"),
        (["one"], "listed", [], "one"),
        ({"share": -0.07, "low": -0.09, "high": -0.04}, "estimate", [".0%"], "−7% [−9%, −4%]"),
        ({"token_ratio": 1.6, "t_low": 1.5, "t_high": 1.7}, "estimate", [".1f"], "1.6 [1.5, 1.7]"),
    ],
)
def test_values_are_written_as_a_text_needs_them(value, name, arguments, text):
    assert getattr(wording, name)(value, *arguments) == text


def test_what_no_filter_has_written_is_escaped_or_refused():
    assert finished("grad_shrink *and* $") == r"grad\_shrink \*and\* \$"
    assert finished(Markup("`grad_shrink`")) == "`grad_shrink`"
    assert finished("`grad_shrink` is a_b, ` not") == r"`grad_shrink` is a\_b, \` not"
    assert [finished(value) for value in (300, True, None)] == ["300", "True", "n/a"]
    for value in (0.123456, [1], {"mean": 1.0}):
        with pytest.raises(ValueError, match="needs a filter"):
            finished(value)


@pytest.mark.parametrize(
    ("row", "form", "cell", "in_prose"),
    [
        (LOWER, "+.3f", "[−0.034, −0.016]", "−0.025 [−0.034, −0.016]"),
        (UNDECIDED, "+.2f", "[−1.02, +1.90]", "+0.44 [−1.02, +1.90]"),
        (ONE_SEED, "+.2f", "n/a", "−0.20 (no interval: too few seeds)"),
        (ROUNDING, "+.3f", "identity", "0.000 (an identity in every digit shown)"),
        (ROUNDING, "+.5f", "[−0.00004, +0.00002]", "−0.00001 [−0.00004, +0.00002]"),
        (EXACT, "+.3f", "identity", "0.000 (an identity in every digit shown)"),
        (NOTHING, "+.3f", "n/a", "n/a (no interval: too few seeds)"),
    ],
)
def test_an_interval_is_written_in_each_form_that_it_can_take(row, form, cell, in_prose):
    assert interval(row, form) == cell
    assert estimate(row, form) == in_prose


@pytest.mark.parametrize(
    ("row", "found", "sentence"),
    [
        (LOWER, "lower", "lowers accuracy by 0.025 [0.016, 0.034]"),
        (HIGHER, "higher", "raises accuracy by 1.050 [0.985, 1.116]"),
        (UNDECIDED, "undecided", "does not detectably change accuracy: +0.440 [−1.020, +1.900]"),
        (ONE_SEED, "undefined", "changes accuracy by −0.200 (no interval: too few seeds)"),
        (ROUNDING, "undecided", "is an identity in every digit shown: accuracy changes by 0.000"),
        (EXACT, "undefined", "is an identity in every digit shown: accuracy changes by 0.000"),
        (NOTHING, "undefined", "has no measured effect on accuracy"),
        (TOUCHING, "undecided", "does not detectably change accuracy: +0.200 [0.000, +0.400]"),
    ],
)
def test_a_direction_is_said_with_its_number_in_each_form_that_it_can_take(row, found, sentence):
    forms = {"lower": "helps", "higher": "harms", "undecided": "unclear", "undefined": "unknown"}
    assert direction(row) == found
    assert by_direction(row, **forms) == forms[found]
    assert effect(row, "accuracy", ".3f") == sentence


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (LOWER, "It gains 0.025 [0.016, 0.034], 0.025 in all."),
        (HIGHER, "It costs 1.050 [0.985, 1.116]."),
        (UNDECIDED, "A cost is undecided: +0.440 [−1.020, +1.900]."),
        (ONE_SEED, "It changes by −0.200 (no interval: too few seeds)."),
    ],
)
def test_a_whole_sentence_is_chosen_by_the_direction_of_its_number(row, text):
    forms = {
        "lower": "It gains {}, {size} in all.",
        "higher": "It costs {}.",
        "undecided": "A cost is undecided: {}.",
        "undefined": "It changes by {}.",
    }
    assert sentence(row, ".3f", **forms) == text
    with pytest.raises(TypeError, match="undefined"):
        sentence(row, ".3f", lower="a", higher="b", undecided="c")


def test_a_claim_is_answered_in_the_words_of_the_plans():
    words = {"lower": "supported", "higher": "refuted", "equal": "undecided"}
    for claim, word in words.items():
        assert verdict(LOWER, claim) == verdict(LOWER | {"answer": "harms"}, claim) == word
    assert verdict(HIGHER, "higher") == "supported"
    assert verdict(LOWER | {"answer": "undecided"}, "lower") == "undecided"  # by Holm's method
    assert verdict(UNDECIDED, "lower") == verdict(ONE_SEED, "lower") == "undecided"
    assert verdict(LOWER | {"answer": "no difference beyond ± 0.1"}, "equal") == "supported"


def test_a_ratio_of_one_is_no_change():
    ends = [(0.8, 0.9, "lower"), (1.1, 1.2, "higher"), (0.9, 1.1, "undecided")]
    for low, high, found in ends:
        assert direction({"token_ratio": (low + high) / 2, "t_low": low, "t_high": high}) == found


def test_a_direction_without_all_its_forms_is_refused():
    with pytest.raises(TypeError, match="undefined"):
        by_direction(LOWER, lower="helps", higher="harms", undecided="unclear")  # type: ignore
    with pytest.raises(ValueError, match="holds no estimate"):
        direction({"mean": 1.0})


def test_a_minus_sign_stands_before_numbers_and_between_what_is_subtracted() -> None:
    text = "warm-up - none: -0.1 [-.2, 3e-05] on 2026-11-23"
    assert wording.minus(text) == "warm-up − none: −0.1 [−.2, 3e-05] on 2026-11-23"
