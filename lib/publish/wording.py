"""Values as the words and figures of a text."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from lib.study.measures import MEASURES

MISSING = "n/a"
_WORDS = (
    *("none", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)


def plain(value: Any) -> str:
    """Write a value as look-ups compare it and as ids of arms hold it: 0.0003, true, layernorm."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def written(value: Any, form: str) -> str:
    """Write a value by a format: one of Python's (`.3f`, `+.1%`, `,`) or

    `±.3f`           mean ± sd of a summary, the mean alone where there is no sd;
                     `± perplexity`: with the digits of that measure
    `[+.3f]`         the t interval of a contrast (t_low, t_high)
    `p`, `p=`        a p-value, alone or with its sign: < .001, = .017
    `sci`            a power of ten
    `label`          the name of a measure
    `code`           a name, as code
    `words`          a number, or the length of a list, as a word
    `list`           a list in prose
    `up/down`        a choice by sign (zero: down) or truth

    None is n/a. Raises ValueError for a value that has no such form.
    """
    if value is None:
        return MISSING
    try:
        if form in _FORMS:
            return _FORMS[form](value)
        if form.startswith("±"):
            return _mean_and_sd(value, form.removeprefix("±").strip())
        if form.startswith("["):
            low, high = (_number(value[key], form.strip("[]")) for key in ("t_low", "t_high"))
            return f"[{low}, {high}]"
        if "/" in form:
            return _choice(value, form.split("/"))
        if form:
            return _number(value, form)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{value!r} cannot be written as {form!r}: {error!r}") from None
    if isinstance(value, float | list | dict):
        raise ValueError(f"{value!r} needs a format")
    return _escaped(plain(value))


def _number(value: Any, form: str) -> str:
    return MISSING if value is None else format(value, form).replace("-", "−")


def _mean_and_sd(summary: dict[str, float | None], form: str) -> str:
    if form in MEASURES:
        form = f".{MEASURES[form].digits}f"
    parts = [value for value in (summary["mean"], summary["sd"]) if value is not None]
    return " ± ".join(_number(part, form) for part in parts) or MISSING


def _p_value(p: float, equals: str = "") -> str:
    return "< .001" if p < 0.001 else equals + f"{p:.3f}".removeprefix("0")


def _power_of_ten(value: float) -> str:
    mantissa, _, exponent = f"{value:.12e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    times = "" if mantissa == "1" else rf"{mantissa} \times "
    return f"${times}10^{{{int(exponent)}}}$"


def _in_words(value: Any) -> str:
    number = len(value) if isinstance(value, list | dict) else value
    return _WORDS[number] if number < len(_WORDS) else f"{number:,}"


def _listed(items: Sequence[Any]) -> str:
    texts = [_escaped(plain(item)) for item in items]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def _choice(value: Any, words: list[str]) -> str:
    up, down = words
    return up if value > 0 else down


def _escaped(text: str) -> str:
    """Keep Markdown from reading marks of its own into a text."""
    return re.sub(r"([\\`*_\[\]|$@<>~^#])", r"\\\1", text)


_FORMS: dict[str, Callable[[Any], str]] = {
    "p": _p_value,
    "p=": lambda value: _p_value(value, "= "),
    "sci": _power_of_ten,
    "label": lambda value: MEASURES[value].label,
    "code": lambda value: f"`{value}`",
    "words": _in_words,
    "list": _listed,
}
