"""The character tasks: what each asks, and what its wrong answers are.

A rule turns passages of held-out text into questions. Wrong answers are as long as the right one
and about as frequent, each rule says how, so that neither length nor frequency gives the answer
away. Their letters and words come from the training part.

To add a task, write its rule and name it in `RULES`.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

CONTEXT = 24
"""Most characters of a context. With it two solved examples and a question fit in 128."""
BEGINNING = 12
"""Characters of a line's beginning in `next_line`."""

_LETTERS = r"[^\W\d_]"
_WORD = re.compile(rf"(?<![\w'’-]){_LETTERS}+(?![\w'’-])")
_LAST_WORD = re.compile(rf" ({_LETTERS}+)([^\w\s]?)$")


@dataclass(frozen=True)
class Question:
    """A context, the text that follows it there, and texts that might have followed."""

    context: str
    answer: str
    distractors: tuple[str, ...]


@dataclass(frozen=True)
class Passage:
    """Lines that follow one another without a blank one: a turn of a play, a paragraph."""

    lines: list[str]
    usable: list[bool]
    """Whether questions may be made of each line."""

    def usable_lines(self) -> list[str]:
        return [line for line, usable in zip(self.lines, self.usable, strict=True) if usable]

    def usable_pairs(self) -> list[tuple[str, str]]:
        """Two lines in succession, both usable."""
        neighbours = pairwise(zip(self.lines, self.usable, strict=True))
        return [(one, two) for (one, first), (two, second) in neighbours if first and second]


class Lexicon:
    """The words of the training part and how often they occur there."""

    def __init__(self, train: str) -> None:
        self.symbols = set(train)
        self.frequency = Counter(_WORD.findall(train))
        self.lower = Counter({word: n for word, n in self.frequency.items() if word.islower()})
        self._by_length: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for n, word in sorted((n, word) for word, n in self.lower.items()):
            self._by_length[len(word)].append((n, word))
        letters: Counter[str] = Counter()
        for word, n in self.lower.items():
            for letter in word:
                letters[letter] += n
        self._letters = list(letters)
        self._cumulative = np.cumsum(list(letters.values())) / max(1, letters.total())

    def peers(self, word: str, n: int = 20) -> list[str]:
        """List the `n` lower-case words of the same length that are nearest in frequency rank."""
        ranked = self._by_length[len(word)]
        place = bisect_left(ranked, (self.lower[word], word))
        near = ranked[max(0, place - n // 2) : place + n // 2 + 1]
        return [other for _, other in near if other != word]

    def letter(self, generator: np.random.Generator) -> str:
        """Draw a letter as often as it occurs in lower-case words."""
        return self._letters[bisect_right(self._cumulative, generator.random())]

    def inside_a_line(self, word: str) -> str:
        """Write the first word of a verse inside a line: lower case, except names and the like,
        which the training part seldom or never has in lower case."""
        core = word.rstrip(".,;:!?")
        common = self.frequency[core.lower()] > 0.1 * self.frequency[core]
        return word[:1].lower() + word[1:] if common else word


Rule = Callable[[list[Passage], Lexicon, np.random.Generator], Iterator[Question]]


def word_order(
    passages: list[Passage], lexicon: Lexicon, generator: np.random.Generator
) -> Iterator[Question]:
    """The last three words of a line with their punctuation; the distractors are those orders of
    the same words in which no word follows the one it should."""
    for passage in passages:
        for line in passage.usable_lines():
            *before, a, b, c = ["", "", *line.split(" ")]
            if before[2:] and len({a, b, c}) == 3 and (a + b + c).islower():
                wrong = tuple(f" {x} {y} {z}\n" for x, y, z in ((a, c, b), (b, a, c), (c, b, a)))
                yield Question(_context(" ".join(before[2:])), f" {a} {b} {c}\n", wrong)


def spelling(
    passages: list[Passage], lexicon: Lexicon, generator: np.random.Generator
) -> Iterator[Question]:
    """A word of five letters or more; the distractors, which are no words, swap two neighbouring
    letters after the first."""
    for before, word in _words_inside_lines(passages, lexicon, shortest=5):
        swapped = {
            word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(1, len(word) - 1)
        }
        wrong = [other for other in sorted(swapped) if other not in lexicon.lower]
        yield from _question_about_a_word(before, word, wrong, generator)


def lexical_decision(
    passages: list[Passage], lexicon: Lexicon, generator: np.random.Generator
) -> Iterator[Question]:
    """A word of four letters or more; the distractors, which are no words, have one letter
    replaced by a letter drawn as often as it occurs in the training part."""
    for before, word in _words_inside_lines(passages, lexicon, shortest=4):
        wrong: list[str] = []
        for place in generator.integers(len(word), size=20):
            other = word[:place] + lexicon.letter(generator) + word[place + 1 :]
            if other not in lexicon.lower and other not in wrong:
                wrong.append(other)
        yield from _question_about_a_word(before, word, wrong, generator)


_VERBS = [("am", "is"), ("art", "are"), ("hath", "have", "hast"), ("does", "dost", "doth")]
_VERBS += [("wilt", "will"), ("shalt", "shall")]
_FORMS = {form: forms for forms in _VERBS for form in forms}
_THIRD = {"is", "hath", "does", "doth", "will", "shall"}
_PLURAL = {"are", "have", "will", "shall"}
_AGREEING = {
    **dict.fromkeys(("he", "she", "it"), _THIRD),
    **dict.fromkeys(("we", "you", "ye", "they"), _PLURAL),
    "I": {"am", "have", "will", "shall"},
    "thou": {"art", "hast", "dost", "wilt", "shalt"},
}
_NEIGHBOURS = re.compile(r"(?<![\w'’-])(?=([A-Za-z]+) ([A-Za-z]+)(?![\w'’-]))")


def agreement(
    passages: list[Passage], lexicon: Lexicon, generator: np.random.Generator
) -> Iterator[Question]:
    """A verb after its pronoun, or before it in the middle of a line; the distractor is a form of
    the same verb, equally long, that does not agree (thou art, thou are)."""

    def other_form(verb: str, pronoun: str) -> str:
        wrong = [form for form in _FORMS[verb] if form not in _AGREEING[pronoun]]
        return wrong[int(generator.integers(len(wrong)))]

    for passage in passages:
        for line in passage.usable_lines():
            for match in _NEIGHBOURS.finditer(line):
                one, two = match.groups()
                subject = one if one == "I" else one.lower()
                if two in _AGREEING.get(subject, ()):
                    wrong = f" {other_form(two, subject)}"
                    yield Question(_context(line[: match.end(1)]), f" {two}", (wrong,))
                elif one in _AGREEING.get(two, ()) and match.start() > 0:
                    wrong = f" {other_form(one, two)} {two}"
                    before = line[: match.start() - 1]
                    yield Question(_context(before), f" {one} {two}", (wrong,))


def turn_end(
    passages: list[Passage], lexicon: Lexicon, generator: np.random.Generator
) -> Iterator[Question]:
    """Whether a passage ends after a line: a blank line, or a line break and a line's first
    character. Both answers are right equally often."""
    initials = [line[0] for passage in passages for line in passage.lines[1:]]
    ends, continues = [], []
    for passage in passages:
        following = [*(line[0] for line in passage.lines[1:]), None]
        for line, usable, initial in zip(passage.lines, passage.usable, following, strict=True):
            if usable and initial:
                continues.append(Question(_context(line), f"\n{initial}", ("\n\n",)))
            elif usable and initials:
                other = initials[int(generator.integers(len(initials)))]
                ends.append(Question(_context(line), "\n\n", (f"\n{other}",)))
    n = min(len(ends), len(continues))
    for questions in (ends, continues):
        yield from (questions[i] for i in generator.permutation(len(questions))[:n])


def line_break(
    passages: list[Passage], lexicon: Lexicon, generator: np.random.Generator
) -> Iterator[Question]:
    """Where verse breaks: after the last word of a line. The distractors break one word earlier
    or later; what follows a break has a capital and what does not has none."""
    for passage in passages:
        for line, following in passage.usable_pairs():
            *before, last = line.split(" ")
            first, second, *_ = [*following.split(" "), "", ""]
            if before and last and second and following[0].isupper():
                inner, initial = lexicon.inside_a_line(first), second[:1].upper() + second[1:]
                early = f"\n{last[:1].upper() + last[1:]} {inner} {second}"
                late = f" {last} {inner}\n{initial}"
                answer = f" {last}\n{first} {second}"
                yield Question(_context(" ".join(before)), answer, (early, late))


def last_word(
    passages: list[Passage], lexicon: Lexicon, generator: np.random.Generator
) -> Iterator[Question]:
    """The last word of a line, its punctuation and the line break; the distractors are other words
    of the same length, nearest in frequency."""
    for passage in passages:
        for line in passage.usable_lines():
            match = _LAST_WORD.search(line)
            if match and match[1] in lexicon.lower:
                peers = lexicon.peers(match[1])
                chosen = generator.permutation(len(peers))[:3]
                wrong = tuple(f" {peers[i]}{match[2]}\n" for i in chosen)
                yield Question(_context(line[: match.start()]), match[0] + "\n", wrong)


def next_line(
    passages: list[Passage], lexicon: Lexicon, generator: np.random.Generator
) -> Iterator[Question]:
    """How the next line begins; the distractors are taken from inside other lines, at a word's
    beginning, and have a capital if the answer has one."""
    pairs = [pair for p in passages for pair in p.usable_pairs() if len(pair[1]) >= BEGINNING]
    inside = [
        line[match.end() : match.end() + BEGINNING]
        for _, line in pairs
        for match in re.finditer(" ", line[: -BEGINNING or None])
    ]
    for line, following in pairs:
        answer = following[:BEGINNING]
        wrong = [inside[i] for i in generator.integers(len(inside), size=3 if inside else 0)]
        if answer[0].isupper():
            wrong = [other[0].upper() + other[1:] for other in wrong]
        yield Question(_context(line) + "\n", answer, tuple(wrong))


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        word_order,
        spelling,
        lexical_decision,
        agreement,
        turn_end,
        line_break,
        last_word,
        next_line,
    )
}
N_CHOICES = {name: 4 for name in RULES} | {"agreement": 2, "turn_end": 2, "line_break": 3}
"""Answers to choose from; chance is one over it. A question with fewer is dropped."""


def _context(before: str) -> str:
    """Cut to the last `CONTEXT` characters, from the beginning of a word where one begins."""
    if len(before) <= CONTEXT:
        return before
    cut = before[-CONTEXT:]
    return cut if before[-CONTEXT - 1] == " " or " " not in cut else cut.partition(" ")[2]


def _words_inside_lines(
    passages: list[Passage], lexicon: Lexicon, shortest: int
) -> Iterator[tuple[str, str]]:
    """Yield what stands before a word on its line, and the word, for lower-case words that occur
    in the training part too and follow a space."""
    for passage in passages:
        for line in passage.usable_lines():
            for match in _WORD.finditer(line):
                before, word = line[: match.start()], match.group()
                if before.endswith(" ") and len(word) >= shortest and word in lexicon.lower:
                    yield before[:-1], word


def _question_about_a_word(
    before: str, word: str, wrong: list[str], generator: np.random.Generator
) -> Iterator[Question]:
    chosen = generator.permutation(len(wrong))[:3]
    yield Question(_context(before), f" {word}", tuple(f" {wrong[i]}" for i in chosen))
