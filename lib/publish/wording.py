"""Results as words and numbers: the filters that templates of the paper and the README share.

A sentence that states a direction is written by `sentence` or `effect`. Both have a form for every
result: lower, higher, undecided (the interval holds zero) and undefined (no interval).
"""

import json
import re
from collections.abc import Iterable
from typing import Any, Literal

from markupsafe import Markup

from lib.study.metrics import MEASURES

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


def minus(text: str) -> str:
    """Write a minus sign before numbers, and between what is subtracted."""
    return re.sub(r"(?<![\w.-])-(?=\.?\d)|(?<= )-(?= )", "−", text)


def mean_sd(summary: Row, form: str) -> Markup:
    """Write mean ± sd, or the mean alone where there is no sd. `form` may name a measure: its
    number of digits is then used."""
    form = f".{MEASURES[form].digits}f" if form in MEASURES or ".acc" in form else form
    parts = [number(summary[key], form) for key in ("mean", "sd") if summary[key] is not None]
    return Markup(" ± ").join(parts) or MISSING


def interval(row: Row, form: str) -> Markup:
    """Write the interval of a row's estimate; identity where estimate and interval, if any,
    print as zero; else n/a where there is none."""
    value, low, high = _estimate(row)
    if _is_zero(value, low, high, form):
        return IDENTITY
    return MISSING if low is None else Markup(f"[{number(low, form)}, {number(high, form)}]")


def estimate(row: Row, form: str) -> Markup:
    """Write an estimate with its interval, or that there are too few seeds for one."""
    value, low, high = _estimate(row)
    if _is_zero(value, low, high, form):
        return number(0, form) + Markup(" (an identity in every digit shown)")
    interval_text = Markup("(no interval: too few seeds)") if low is None else interval(row, form)
    return number(value, form) + " " + interval_text


def direction(row: Row) -> Literal["lower", "higher", "undecided", "undefined"]:
    """Tell where the interval of a row's estimate lies: below no change (0, of a ratio 1), above
    it, around it, or nowhere."""
    _, low, high = _estimate(row)
    if low is None:
        return "undefined"
    unchanged = 1 if "token_ratio" in row else 0
    return "lower" if high < unchanged else "higher" if low > unchanged else "undecided"


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
    outcome, signed = direction(row), "+" + form
    if _is_zero(value, low, high, form):
        text = f"is an identity in every digit shown: {what} changes by {number(0, form)}"
    elif value is None:
        text = f"has no measured effect on {what}"
    elif outcome == "undefined":
        text = f"changes {what} by {estimate(row, signed)}"
    elif outcome == "undecided":
        text = f"does not detectably change {what}: {estimate(row, signed)}"
    else:
        text = f"{'lowers' if outcome == 'lower' else 'raises'} {what} by {_unsigned(row, form)}"
    return Markup(text)


def sentence(row: Row, form: str, **sentences: str) -> Markup:
    """Choose the whole sentence for the direction of a row. In it {} is the estimate with its
    interval and {size} the estimate alone, both without a sign where the sentence tells the
    direction. `sentences` are as in `by_direction`."""
    chosen, outcome = by_direction(row, **sentences), direction(row)
    value, signed = _estimate(row)[0], "+" + form
    size, text = number(value, signed), estimate(row, signed)
    if outcome in ("lower", "higher"):
        size, text = number(abs(value), form), _unsigned(row, form)
    return Markup(chosen.replace("{size}", size).replace("{}", text))


def verdict(test: Row, claim: Literal["lower", "higher", "equal"]) -> str:
    """Answer a claim by a test: supported, refuted or undecided. The claim is that an arm is lower
    or higher than another, or equal to it within the margin. What Holm's method leaves undecided
    is undecided, whatever its interval. A contrast without a test is answered by its interval."""
    answer = test.get("answer", "")
    if claim == "equal":
        return "supported" if answer.startswith("no difference") else "undecided"
    outcome = direction(test)
    if answer == "undecided" or outcome not in ("lower", "higher"):
        return "undecided"
    return "supported" if outcome == claim else "refuted"


def p_value(p: float | None) -> Markup:
    """Write a p-value: .017 or < .001."""
    if p is None:
        return MISSING
    return Markup("< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0"))


def words(value: Any) -> str:
    """Write a whole number, or the length of a list, as a word up to twelve."""
    count = value if isinstance(value, int) else len(value)
    return _WORDS[count] if count < len(_WORDS) else f"{count:,}"


def listed(items: Iterable[Any]) -> str:
    """Write a list in prose: 0.02, 0.1 and 1."""
    *first, last = [f"{x:.12g}" if isinstance(x, float) else str(x) for x in items]
    return " and ".join(filter(None, (", ".join(first), last)))


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
    """Return an estimate and the ends of its interval, each a number or None."""
    column = next((name for name in _ESTIMATES if name in row), None)
    if column is None:
        raise ValueError(f"a row with {', '.join(row)} holds no estimate")
    return row[column], row[_ESTIMATES[column] + "low"], row[_ESTIMATES[column] + "high"]


def _unsigned(row: Row, form: str) -> Markup:
    """Write an estimate and its interval by their size alone, the end nearer to zero first."""
    value, *ends = map(abs, _estimate(row))
    size, near, far = (number(x, form) for x in (value, *sorted(ends)))
    return Markup(f"{size} [{near}, {far}]")


def _is_zero(value: float | None, low: float | None, high: float | None, form: str) -> bool:
    """Tell whether an estimate and its interval, if any, print as zero."""
    texts = [number(x, form) for x in (value, low, high) if x is not None]
    return value is not None and not re.search("[1-9]", "".join(texts))
