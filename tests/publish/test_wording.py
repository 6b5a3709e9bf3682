import pytest

from lib.publish.wording import plain, written

CONTRAST = {"t_low": -0.0351, "t_high": -0.0113}


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (11.3238, ".2f", "11.32"),
        (-0.0232, "+.3f", "−0.023"),
        (1611136, ",", "1,611,136"),
        (0.05, ".1%", "5.0%"),
        ({"mean": 11.32, "sd": 0.048}, "±.2f", "11.32 ± 0.05"),
        ({"mean": 11.32, "sd": None}, "±.1f", "11.3"),
        ({"mean": None, "sd": None}, "±.1f", "n/a"),
        ({"mean": 0.29637, "sd": 0.0031}, "± accuracy", "0.2964 ± 0.0031"),
        (CONTRAST, "[+.3f]", "[−0.035, −0.011]"),
        (0.0168, "p", ".017"),
        (0.0168, "p=", "= .017"),
        (0.0000168, "p=", "< .001"),
        (1.0, "p", "1.000"),
        (3e-4, "sci", r"$3 \times 10^{-4}$"),
        (0.01, "sci", "$10^{-2}$"),
        ("perplexity", "label", "validation perplexity"),
        ("grad_shrink", "code", "`grad_shrink`"),
        ("grad_shrink", "", r"grad\_shrink"),
        ([0, 1, 2, 3, 4], "words", "five"),
        (0, "words", "none"),
        (72, "words", "72"),
        ([0.02, 0.1, 1.0], "list", "0.02, 0.1 and 1"),
        (-0.02, "higher/lower", "lower"),
        (True, "stable/unstable", "stable"),
        (None, ".3f", "n/a"),
        (300, "", "300"),
    ],
)
def test_values_are_written_as_a_text_needs_them(value, form, text):
    assert written(value, form) == text


@pytest.mark.parametrize(
    ("value", "form"),
    [(0.123456, ""), ({"mean": 1.0}, "±.2f"), ("word", ".2f"), (1.0, "a/b/c"), ("ppl", "label")],
)
def test_a_value_without_that_form_is_refused(value, form):
    with pytest.raises(ValueError, match=r"needs a format|cannot be written"):
        written(value, form)


def test_look_ups_compare_values_as_ids_of_arms_hold_them():
    assert [plain(value) for value in (3e-4, 1.0, True, "none", 4)] == [
        *("0.0003", "1", "true", "none", "4")
    ]
