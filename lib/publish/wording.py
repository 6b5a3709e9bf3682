"""Results as words and numbers: the filters that templates of the paper and the README share.

A sentence that states a direction is written by `effect` or `by_direction`. Both have a form for
every result: lower, higher, undecided (the interval holds zero) and undefined (no interval).
"""

import json
import re
from collections.abc import Iterable
from typing import Any, Literal

from markupsafe import Markup

from lib.analysis import course, finding
from lib.study.measures import MEASURES

MISSING = Markup("n/a")
IDENTITY = Markup("identity")
Row = dict[str, Any]
_WORDS = (
    *("none", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
_ESTIMATES = dict.fromkeys(("mean_delta", "token_ratio", "nats_above_source"), "t_")
_ESTIMATES |= {"share": "", "value": ""}
"""Columns that hold an estimate → how those of its interval, low and high, begin."""
listed = finding.listed


def finished(value: Any) -> Markup:
    """Write what no filter has written: a whole number, or a text, in which Markdown's marks are
    escaped but for those of code. ValueError for a value that needs a filter."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return MISSING
    if isinstance(value, float | list | dict):
        raise ValueError(f"{value!r} needs a filter such as number('.3f')")
    spans = re.split(r"(`[^`]+`)", str(value))  # every other one is code
    spans[::2] = [re.sub(r"([\\`*_\[\]|$@<>~^#])", r"\\\1", text) for text in spans[::2]]
    return Markup("".join(spans))


def number(value: Any, form: str) -> Markup:
    """Write a number by one of Python's formats. A zero has no sign; None is n/a."""
    if value is None:
        return MISSING
    text = format(value, form)
    text = text if re.search("[1-9]", text) else text.lstrip("+-")
    return Markup(text.replace("-", "−"))


def mean_sd(summary: Row, form: str) -> Markup:
    """Write mean ± sd, or the mean alone where there is no sd. `form` may name a measure: its
    number of digits is then used."""
    form = f".{MEASURES[form].digits}f" if form in MEASURES else form
    parts = [number(summary[key], form) for key in ("mean", "sd") if summary[key] is not None]
    return Markup(" ± ").join(parts) or MISSING


def interval(row: Row, form: str) -> Markup:
    """Write the interval of a row's estimate; identity where estimate and interval, if any,
    print as zero; else n/a where there is none."""
    value, low, high = _estimate(row)
    if _is_zero(value, low, high, form):
        return IDENTITY
    return MISSING if low is None else Markup(f"[{number(low, form)}, {number(high, form)}]")


def estimate(row: Row, form: str, why: str = "too few seeds") -> Markup:
    """Write an estimate with its interval; `why` explains a missing one."""
    value, low, high = _estimate(row)
    if _is_zero(value, low, high, form):
        return number(0, form) + Markup(" (an identity in every digit shown)")
    found = Markup(f"(no interval: {why})") if low is None else interval(row, form)
    return number(value, form) + " " + found


def direction(row: Row) -> Literal["lower", "higher", "undecided", "undefined"]:
    """Tell where the interval of a row's estimate lies: below no change (0, of a ratio 1), above
    it, around it, or nowhere."""
    _, low, high = _estimate(row)
    if low is None:
        return "undefined"
    unchanged = 1 if "token_ratio" in row else 0
    return "lower" if high < unchanged else "higher" if low > unchanged else "undecided"


def is_identity(row: Row, form: str) -> bool:
    """Tell whether an estimate and its interval print as zero: what is nearly an identity may have
    an interval that excludes zero."""
    return _is_zero(*_estimate(row), form)


def by_direction(row: Row, *, lower: str, higher: str, undecided: str, undefined: str) -> str:
    """Choose the words for the direction of a row. All four must be given."""
    choice = {"lower": lower, "higher": higher, "undecided": undecided, "undefined": undefined}
    return choice[direction(row)]


def effect(row: Row, what: str, form: str) -> Markup:
    """Say what a change does to `what`, with its number (`form` without a sign) and interval:

    lowers accuracy by 0.025 [0.016, 0.034]
    does not detectably change accuracy: −0.002 [−0.011, +0.007]
    changes accuracy by −0.002 (no interval: too few seeds)
    is an identity in every digit shown: accuracy changes by 0.000
    """
    value, low, high = _estimate(row)
    found, signed = direction(row), "+" + form
    if _is_zero(value, low, high, form):
        text = f"is an identity in every digit shown: {what} changes by {number(0, form)}"
    elif value is None:
        text = f"has no measured effect on {what}"
    elif found == "undefined":
        text = f"changes {what} by {estimate(row, signed)}"
    elif found == "undecided":
        text = f"does not detectably change {what}: {estimate(row, signed)}"
    else:
        size, near, far = (number(abs(x), form) for x in (value, *sorted((low, high), key=abs)))
        verb = "lowers" if found == "lower" else "raises"
        text = f"{verb} {what} by {size} [{near}, {far}]"
    return Markup(text)


def answered(test: Row, what: str, form: str) -> Markup:
    """Say what a test of a plan's family shows of `what`: as `effect`, and of a change that its
    interval holds apart from zero and Holm's method does not, both."""
    text, decided = effect(test, what, form), direction(test) in ("lower", "higher")
    p = Markup(" (Holm $p$ ") + p_value(test["p_holm"], "= ") + ")"
    if test["p_holm"] is None or is_identity(test, form):
        return text
    if decided and test["answer"] == "undecided":
        return Markup(f"changes {what} by {estimate(test, '+' + form)}, which is undecided") + p
    return text + p


def equality(test: Row, what: str, form: str) -> Markup:
    """Say what a test of equivalence shows, after the names of the two:

    are equivalent in accuracy (margin ± 0.01), with a difference of +0.002 [−0.001, +0.005]
    are not shown to be equivalent in accuracy, with a difference of +0.005 [−0.001, +0.011]
    differ in accuracy by +0.015 [+0.005, +0.026] and are not shown to be equivalent
    """
    margin = test["answer"].partition("no difference beyond ")[2]
    if test["answer"] == "no difference in any seed":
        return Markup(f"are identical in {what} in every seed")
    if margin:
        found = f"are equivalent in {what} (margin {margin})"
    else:
        tested = "shown to be" if test["answer"] == "undecided" else "tested for being"
        if direction(test) in ("lower", "higher"):
            change = estimate(test, "+" + form)
            return Markup(f"differ in {what} by {change} and are not {tested} equivalent")
        found = f"are not {tested} equivalent in {what}"
    return Markup(f"{found}, with a difference of ") + estimate(test, "+" + form)


def of_runs(row: Row, runs: str = "") -> Markup:
    """Say how many of how many judged runs are unstable, and `runs` after it; with the exact
    interval of the share, where the row is one arm's."""
    if not row["judged"]:
        return Markup("none judged")
    text = Markup(f"{number(row['unstable'], '.0f')} of {row['judged']}{runs}")
    if "low" not in row:
        return text
    return text + f" [{number(row['low'], '.0%')}, {number(row['high'], '.0%')}]"


def in_course(rows: Iterable[Row], than: str) -> Markup:
    """Say when an arm is lower or higher than another, from its rows of a course."""
    return Markup(course.in_words(list(rows), than))


def p_value(p: float | None, sign: str = "") -> Markup:
    """Write a p-value: .017 or < .001; with the sign "= ", = .017."""
    if p is None:
        return MISSING
    return Markup("< .001" if p < 0.001 else sign + f"{p:.3f}".removeprefix("0"))


def scientific(value: float) -> Markup:
    """Write a number as a power of ten, in TeX."""
    mantissa, _, exponent = f"{value:.12e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    times = "" if mantissa == "1" else rf"{mantissa} \times "
    return Markup(f"${times}10^{{{int(exponent)}}}$")


def words(value: Any) -> str:
    """Write a whole number, or the length of a list, as a word up to twelve."""
    count = value if isinstance(value, int) else len(value)
    return _WORDS[count] if count < len(_WORDS) else f"{count:,}"


def literal(value: Any) -> str:
    """Write a value of a parameter file as it stands there, on one line; – where there is none."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "–" if value is None else " ".join(text.split())


def label(measure: str) -> Markup:
    """Name a measure."""
    return Markup(MEASURES[measure].label)


def code(name: str) -> Markup:
    """Write a name as code."""
    return Markup(f"`{name}`")


def _estimate(row: Row) -> tuple[Any, Any, Any]:
    """An estimate and the ends of its interval, each a number or None."""
    column = next((name for name in _ESTIMATES if name in row), None)
    if column is None:
        raise ValueError(f"a row with {', '.join(row)} holds no estimate")
    return row[column], row[_ESTIMATES[column] + "low"], row[_ESTIMATES[column] + "high"]


def _is_zero(value: float | None, low: float | None, high: float | None, form: str) -> bool:
    """Tell whether an estimate and its interval, if any, print as zero."""
    shown = [number(x, form) for x in (value, low, high) if x is not None]
    return value is not None and not re.search("[1-9]", "".join(shown))
