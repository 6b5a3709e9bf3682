"""A plan's answers on the site, with what their intervals say beyond them."""

import inspect
from types import SimpleNamespace

import pytest
from jinja2 import Environment, FileSystemLoader

from lib.publish import wording
from lib.results import trained_with
from lib.study.io import TEMPLATES

SMALLEST = "Refuted by the plan's smallest effect of interest"
MARGIN = "Undecided is only whether it lies within the margin: the interval excludes zero."


def shown(answer: str, claim: str, low: float, high: float) -> str:
    """The paragraph of one hypothesis."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES / "record"), autoescape=True)
    environment.filters |= dict(inspect.getmembers(wording, inspect.isfunction))
    environment.filters["trained_with"] = trained_with
    row = {"hypothesis": "equal", "answer": answer, "claim": claim}
    row |= {"mean_delta": (low + high) / 2, "t_low": low, "t_high": high}
    found = {"equal": {"answer": answer, "reason": f"{answer}: as claimed"}}
    verdict = {"answers": found, "hypothesis_tests": [row], "decisions": []}
    study = SimpleNamespace(
        verdict=verdict, decisions=[], looked_at_early=False, cell=lambda *_: ""
    )
    page = environment.from_string(
        '{% import "macros.html.j2" as show with context %}{{ show.verdict(study) }}'
    )
    return page.render(study=study, root="").partition("</p>")[0]


@pytest.mark.parametrize(
    ("answer", "claim", "low", "high", "said"),
    [
        ("undecided", "within ± 0.03", -0.05, -0.01, [MARGIN]),
        ("undecided", "within ± 0.03", 0.01, 0.05, [MARGIN]),
        ("undecided", "within ± 0.03", -0.01, 0.05, []),
        ("undecided", "> 0.03", 0.01, 0.05, []),
        ("supported", "within ± 0.03", 0.01, 0.02, []),
        ("refuted", "< 0", -0.02, 0.2, [SMALLEST]),
        ("refuted", "< 0", 0.02, 0.2, []),
    ],
)
def test_what_an_interval_says_beyond_the_answer_is_said(answer, claim, low, high, said):
    text = " ".join(shown(answer, claim, low, high).split())
    assert [words for words in (MARGIN, SMALLEST) if words in text] == said
