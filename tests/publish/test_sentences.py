"""The paper is short, and each of its sentences reads as if somebody had written it."""

import re

import pypdf
import pytest

from lib.publish.sources import Sources
from lib.study.io import PAPER
from tests.publish.prose import MOST_NUMBERS, abstract, answers, faults, numbers, sentences

MOST_PAGES, MOST_IN_APPENDIX = 10, 5
MOST_IN_ABSTRACT = 160, 4
"""Words and numbers."""


@pytest.fixture(scope="module")
def text() -> str:
    return Sources(PAPER).render("paper.md")


def test_every_sentence_passes_the_checklist(text: str) -> None:
    found = sentences(text)
    assert len(found) > 100
    assert {sentence: wrong for sentence in found if (wrong := faults(sentence))} == {}


def test_every_sentence_and_cell_of_the_answers_passes_it_too() -> None:
    text = Sources(PAPER).page_part("answers")
    cells = answers(text)
    assert len(cells) >= 12
    found = [*sentences(text), *(line for cell in cells for line in sentences(cell))]
    assert {sentence: wrong for sentence in found if (wrong := faults(sentence))} == {}
    assert {cell for cell in cells if len(numbers(cell)) > MOST_NUMBERS} == set()


@pytest.mark.parametrize(
    ("sentence", "fault"),
    [
        ("The the layer costs.", "a doubled word"),
        ("They differ in loss by 0.1 and are not shown to be equivalent.", "two clauses spliced"),
        ("Runs, arms and seeds and one, two or three of them count.", "a list in a list"),
        ("It is 0.1 after 300 steps and 8 seeds.", "too many numbers"),
        ("It costs n/a nats.", "a missing value"),
        ("It costs {} nats.", "a missing value"),
        ("It costs , in short.", "a stray mark"),
        ("it costs.", "no capital at its beginning"),
        ("It costs", "no end"),
        ("It " + "really " * 60 + "costs.", "too long"),
    ],
)
def test_a_bad_sentence_is_found(sentence: str, fault: str) -> None:
    assert fault in faults(sentence)


def test_a_good_sentence_is_left_alone() -> None:
    for sentence in (
        "After 300 steps the layer costs 0.121 [0.103, 0.138] nats.",
        "`begin`, `speed` and `both` are arms of GPT-2's kind [@radford2019].",
        "*Supported*, *refuted* and *undecided* are verdicts.",
    ):
        assert faults(sentence) == []
    assert numbers("Of 1,200 steps, 78% cost +0.1 [−0.1, +0.3] at $x_0$ in GPT-2.") == [
        *("1,200", "78%", "+0.1")
    ]


def test_the_abstract_is_short(text: str) -> None:
    words, most = MOST_IN_ABSTRACT
    assert len(abstract(text).split()) <= words
    assert len(numbers(abstract(text))) <= most


def test_the_paper_has_few_pages() -> None:
    pages = [page.extract_text() for page in pypdf.PdfReader(PAPER / "paper.pdf").pages]
    begun = [i for i, page in enumerate(pages) if re.search(r"^A Tests and studies$", page, re.M)]
    assert len(begun) == 1
    assert begun[0] <= MOST_PAGES
    assert len(pages) - begun[0] <= MOST_IN_APPENDIX
