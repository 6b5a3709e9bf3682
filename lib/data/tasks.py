"""The tasks of the suite. Each task is a rule that finds places in held-out text, and the
continuation (`answer`) of each place. `lib.data.suite` turns them into questions.

To add a task, write its rule and add it to `RULES`. 01_data shows the rule's docstring.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from lib.config.schema import GRAM

CONTEXT = 24
"""Most characters of a context. Two solved examples and a question then fit in 128 characters."""
BEGINNING = 12
"""Number of characters of a line that `next_line` asks for."""

_LETTERS = r"[^\W\d_]"
_WORD = re.compile(rf"(?<![\w'’-]){_LETTERS}+(?![\w'’-])")
_LAST_WORD = re.compile(rf" ({_LETTERS}+)([^\w\s]?)$")


@dataclass(frozen=True)
class Candidate:
    """A place in a text that a question may ask about: the text before it, and its continuation.

    If all answers of a task begin with the same character, that character belongs to the context.
    Otherwise its likelihood would count, although it says nothing about the answer. So `turn_end`
    compares the characters after a line break, not the likelihood of the line break itself.
    """

    context: str
    answer: str
    kind: str = ""
    """A question shows only places of the same kind."""
    fits: frozenset[str] = frozenset()
    """Other answers that would be right here. Their places are never in the same question."""


@dataclass(frozen=True)
class Line:
    """A line of held-out text, and the line after it. The line after is "" at the end of a passage
    (a turn in a play, or a paragraph)."""

    text: str
    after: str
    after_usable: bool
    """Whether a question may also show the line after it."""


def windows(text: str, length: int) -> list[str]:
    """List all substrings of a text that have this length."""
    return [text[i : i + length] for i in range(len(text) - length + 1)]


class Lexicon:
    """Symbols, lower-case words, lines and 24-grams of the training part."""

    def __init__(self, train: str) -> None:
        self.symbols = frozenset(train)
        self.words = {word for word in _WORD.findall(train) if word.islower()}
        self._lines = set(train.split("\n"))
        self._grams = set(windows(train, GRAM))

    def leaks(self, text: str) -> bool:
        """Return whether `text` is a line of the training part, or shares a 24-gram with it."""
        return text in self._lines or not self._grams.isdisjoint(windows(text, GRAM))


Candidates = Iterator[Candidate]
Rule = Callable[[list[Line], Lexicon], Candidates]


def word_order(lines: list[Line], lexicon: Lexicon) -> Candidates:
    """A word in a line: after which of four beginnings of that line does it come? The first and the
    last word of a line are not asked."""
    for line in lines:
        for start, end in pairwise(blank.start() for blank in re.finditer(" ", line.text)):
            answer = line.text[start + 1 : end + 1]
            yield Candidate(_context(line.text[:start]) + " ", answer, kind=line.text)


def spelling(lines: list[Line], lexicon: Lexicon) -> Candidates:
    """The second half of a word of five letters or more: after which of four first halves does it
    come? All four end with the same letter, and only one of them makes a word with it."""
    halves: dict[str, set[str]] = defaultdict(set)
    for word in lexicon.words:
        for i in range(2, len(word)):
            halves[word[:i]].add(f"{word[i:]} ")
    for line in lines:
        for match in re.finditer(rf"(?<= ){_LETTERS}{{5,}} ", line.text):
            middle = len(match.group()) // 2
            half = match.group()[:middle]
            rest = match.group()[middle:]
            if rest in halves[half]:
                before = _context(line.text[: match.start() + middle])
                yield Candidate(before, rest, half[-1], frozenset(halves[half]))


_PERSONS = {
    "I": "1",
    "thou": "2",
    "he": "3",
    "she": "3",
    "it": "3",
    "we": "p",
    "you": "p",
    "ye": "p",
    "they": "p",
}
_FORMS_OF = {
    "1": ["am"],
    "2": [
        "art",
        "wert",
        "hast",
        "hadst",
        "dost",
        "didst",
        "wilt",
        "shalt",
        "wouldst",
        "shouldst",
        "canst",
        "mayst",
    ],
    "3": ["is", "hath", "has", "doth", "does"],
    "13": ["was"],
    "1p": ["have", "do"],
    "p": ["are"],
    "13p": ["were", "had", "did", "will", "shall", "would", "should", "can", "may"],
}
"""Persons → forms of a verb that agree with each of these persons. p is the plural, and `you`."""
_FORMS = {form: persons for persons, forms in _FORMS_OF.items() for form in forms}
_NEIGHBOURS = re.compile(r"(?<![\w'’-])(?=([A-Za-z]+) ([A-Za-z]+)(?![\w'’-]))")


def agreement(lines: list[Line], lexicon: Lexicon) -> Candidates:
    """A form of a verb and two pronouns (thou art, he is), or a pronoun and two forms: after which
    does it come? It agrees with only one of them."""
    for line in lines:
        for match in _NEIGHBOURS.finditer(line.text):
            one = match[1] if match[1] == "I" else match[1].lower()
            inverted = one in _FORMS
            before, after = (_FORMS, _PERSONS) if inverted else (_PERSONS, _FORMS)
            fits = {word for word in after if set(after[word]) & set(before.get(one, ""))}
            if match[2] in fits:
                context = _context(line.text[: match.end(1)]) + " "
                yield Candidate(context, match[2], f"{inverted=}", frozenset(fits))


def turn_end(lines: list[Line], lexicon: Lexicon) -> Candidates:
    """The end of a passage. One of two lines is followed by a blank line, the other by a line of
    text. Given the first character that follows: after which line does it come?"""
    goes_on = lexicon.symbols - {"\n"}
    for line in lines:
        fits = goes_on if line.after else frozenset[str]()
        yield Candidate(_context(line.text) + "\n", line.after[:1] or "\n", fits=fits)


def line_break(lines: list[Line], lexicon: Lexicon) -> Candidates:
    """A line break in verse. One of two places is followed by a line break, the other by a space:
    which is which? Both are far from the beginning of their line, after a word or after the same
    mark."""
    for line in lines:
        for match in re.finditer(" |$", line.text):
            if match.start() >= CONTEXT:
                before = line.text[: match.start()]
                mark = "a" if before[-1].isalpha() else before[-1]  # all letters count as one mark
                yield Candidate(_context(before), match.group() or "\n", mark)


def last_word(lines: list[Line], lexicon: Lexicon) -> Candidates:
    """The last word of a line, its punctuation and the line break: after which of four lines do
    they come?"""
    for line in lines:
        match = _LAST_WORD.search(line.text)
        if match and match[1] in lexicon.words:
            context = _context(line.text[: match.start()]) + " "
            yield Candidate(context, f"{match[0][1:]}\n")


def next_line(lines: list[Line], lexicon: Lexicon) -> Candidates:
    """The beginning of a line: after which of four lines does it come?"""
    for line in lines:
        if line.after_usable:
            yield Candidate(_context(line.text) + "\n", line.after[:BEGINNING])


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (word_order, spelling, agreement, turn_end, line_break, last_word, next_line)
}
N_CHOICES = {name: 4 for name in RULES} | {"agreement": 2, "turn_end": 2, "line_break": 2}
"""Number of places to choose from; the chance level is 1 divided by it."""


def _context(before: str) -> str:
    """Cut a context to its last `CONTEXT` characters, beginning with a whole word if possible."""
    if len(before) <= CONTEXT:
        return before
    cut = before[-CONTEXT:]
    return cut if before[-CONTEXT - 1] == " " or " " not in cut else cut.partition(" ")[2]
