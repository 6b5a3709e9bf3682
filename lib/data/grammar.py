"""A notation for the rules of a finite-state source, short enough to read.

An entry is a slot and, between bars, its alternatives: a weight, a string, `>` and the next slot.

    start   : 3 the > thing | 1 so,/ > start
    thing   : 2 {noun} ~ ending
    ending  : 1 ./ > start | 1 > start

A blank follows the string, or a line break for `/`. `{noun}` stands for any word of a class.
`~ ending` puts each alternative of that slot behind the string. `*start` takes over a slot's
alternatives; `*Start` also gives them a capital. `@` begins the full name of a slot elsewhere.
"""

import re
from collections.abc import Mapping, Sequence

from lib.data.markov import Rule

_UNIT = 1 << 40
"""What weights are shares of."""
_ALTERNATIVE = re.compile(r"(\d+) (?:\*(?P<lender>.+)|(?P<text>.*?) ?(?P<sign>[>~]) (?P<slot>.+))")

Words = Mapping[str, Sequence[str]]
"""Class → its words, the frequent ones first."""


def expand(grammar: str, words: Words, name: str) -> dict[str, list[Rule]]:
    """Write a grammar out, word by word, into slots that are called `name` and a blank and theirs.

    Weights are integers. Words of a class follow the law of Zipf and Mandelbrot: the r-th is
    drawn as often as 1 / (r + 7). Raises ValueError for an alternative that cannot be read.
    """
    slots = {}
    for entry in re.split(r"\n+(?! )", grammar.strip()):
        slot, alternatives = entry.split(":", 1)
        slots[slot.strip()] = re.split(r"\s+\|\s+", alternatives.strip())
    return {
        f"{name} {slot}": [
            (weight, string, following[1:] if following[0] == "@" else f"{name} {following}")
            for weight, string, following in _strings(slot, slots, words)
        ]
        for slot in slots
    }


def _strings(slot: str, slots: Mapping[str, list[str]], words: Words) -> list[Rule]:
    """Write out one slot; its weights sum to `_UNIT`, rounded down."""
    matches = [_ALTERNATIVE.fullmatch(alternative) for alternative in slots[slot]]
    total = sum(int(match[1]) for match in matches if match)
    rules: list[Rule] = []
    for match, alternative in zip(matches, slots[slot], strict=True):
        if not match:
            raise ValueError(f"slot {slot!r}: cannot read {alternative!r}")
        lender, text, following = match["lender"], match["text"], match["slot"]
        if lender:
            found = _strings(lender.lower(), slots, words)
            if lender[0].isupper():
                found = [(w, re.sub("[a-z]", _upper, s, count=1), n) for w, s, n in found]
        elif match["sign"] == "~":
            ends = _strings(following, slots, words)
            texts = _texts(text, words)
            found = [(v * w // _UNIT, s + end, n) for v, s in texts for w, end, n in ends]
        else:
            text = f"{text[:-1]}\n" if text.endswith("/") else f"{text} "
            found = [(w, s, following) for w, s in _texts(text, words)]
        share = _UNIT * int(match[1]) // total
        rules += [(share * weight // _UNIT, string, n) for weight, string, n in found]
    return rules


def _upper(match: re.Match[str]) -> str:
    return match[0].upper()


def _texts(text: str, words: Words) -> list[tuple[int, str]]:
    """Put each word of a text's class in its place."""
    match = re.search(r"{(\w+)}", text)
    if not match:
        return [(_UNIT, text)]
    shares = [_UNIT // (rank + 8) for rank in range(len(words[match[1]]))]
    found = zip(shares, words[match[1]], strict=True)
    return [(_UNIT * n // sum(shares), text.replace(match[0], word)) for n, word in found]
