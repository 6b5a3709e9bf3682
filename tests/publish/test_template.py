"""Numbers are looked up and claims are checked; a fault stops the build and names the line."""

import json
import re

import pytest

from lib.config.paths import PAPER
from lib.publish import template as filters
from lib.publish.template import Template, TextError
from tests.conftest import refused


def row(mean, low, high, **fields):
    return fields | {"mean_delta": mean, "t_low": low, "t_high": high}


CONTRASTS = [
    row(0.02, 0.01, 0.03, arm="layernorm", baseline="none", measure="loss"),
    row(-0.03, -0.05, -0.01, arm="layernorm", baseline="scale", measure="loss"),
    row(0.01, -0.01, 0.03, arm="scale", baseline="none", measure="loss"),
    row(0.5, None, None, arm="scale", baseline="none", measure="perplexity"),
]
HYPOTHESES = [
    row(0.02, 0.01, 0.03, hypothesis="cost", answer="supported"),
    row(0.02, 0.01, 0.03, hypothesis="equal", answer="undecided"),
    row(0.00, -0.01, 0.01, hypothesis="warm-up", answer="refuted"),
    row(0.00, -0.01, 0.01, hypothesis="small", answer="negligible"),
]
SUMMARY = {
    "none": {"loss": {"n": 2, "mean": 1.68462, "sd": 0.01214}},
    "layernorm": {"loss": {"n": 1, "mean": 1.70534, "sd": None}},
}


@pytest.fixture
def paper(tmp_path):
    """Make a paper with one study, `long-run`, with the numbers above."""
    results = tmp_path / "results"
    results.mkdir()
    verdict = {"standing": "CONFIRMATORY", "contrasts": CONTRASTS, "hypothesis_tests": HYPOTHESES}
    (results / "long-run.verdict.json").write_text(json.dumps(verdict | {"tests": []}))
    study = {"seeds": [1, 2], "training": {"iterations": 300}}
    (results / "long-run.json").write_text(json.dumps({"study": study, "summary": SUMMARY}))
    (tmp_path / "findings.json").write_text(json.dumps({"rates": {"best": 0.003, "low": None}}))
    return tmp_path


def rendered(paper, text):
    (paper / "paper.md").write_text(text)
    return Template(paper).render("paper.md")


@pytest.mark.parametrize(
    ("subject", "holds", "flipped"),
    [
        ("long_run.cost", "supported", "refuted"),
        ("long_run.equal", "undecided", "supported"),
        ("long_run.equal", "higher", "lower"),  # what its interval says
        ('long_run["warm-up"]', "refuted", "supported"),
        ("long_run.small", "negligible", "refuted"),
        ('contrast("long-run", "layernorm")', "higher", "lower"),
        ('contrast("long-run", "layernorm - scale")', "lower", "undecided"),
        ('contrast("long-run", "scale")', "undecided", "higher"),
        ('contrast("long-run", "scale", "perplexity")', "undecided", "lower"),
        ('contrast("long-run", "layernorm")', "within 0.031", "within 0.03"),
        ('contrast("long-run", "layernorm - scale")', "within 0.06", "within 0.05"),
        ("long_run.arms.none.loss.mean", "< long_run.arms.layernorm.loss.mean", "> 1.7"),
        ("long_run.design.training.iterations", "== 300", "== 301"),
    ],
)
def test_a_claim_that_turns_stops_the_build_with_its_sentence(paper, subject, holds, flipped):
    text = "First.\n\n<!-- holds: {} -->\nThe layer costs.\nMore of it.\n"
    holding, turned = f"{subject} {holds}", f"{subject} {flipped}"
    assert rendered(paper, text.format(holding)) == "First.\n\nThe layer costs.\nMore of it.\n"
    said = refused(rendered, paper, text.format(f"{holding};\n  {turned}"))
    assert said.startswith("paper.md, line 4: ")
    assert turned in said
    assert said.endswith("Rewrite: The layer costs.")


@pytest.mark.parametrize(
    ("text", "line", "words_of_it"),
    [
        ("\n\n{{ longrun.cost }}", 3, "did you mean 'long_run'?"),
        ("\n{{ long_run.costs | estimate }}", 2, "did you mean 'cost'?"),
        ("{{ long_run.arms.non.loss.mean | number('.2f') }}", 1, "did you mean 'none'?"),
        ("{{ contrast('long-ran', 'scale') | estimate }}", 1, "did you mean 'long-run'?"),
        ("{{ contrast('long-run', 'scael') | estimate }}", 1, "did you mean 'scale'?"),
        ("{{ contrast('long-run', 'scale', 'los') | estimate }}", 1, "did you mean 'loss'?"),
        ("{{ one(long_run.verdict.contrasts, arm='scale') | estimate }}", 1, "2 rows have"),
        ("\n{{ long_run.cost | estimat }}", 2, "estimat"),
        ("\n\n{{ long_run.cost", 3, "unexpected end"),
        ("\n{{ findings.rates.best }}", 2, "needs a filter"),
        ("\n<!-- holds: long_run.costs supported -->\nIt costs.", 2, "did you mean 'cost'?"),
        ("<!-- holds: long_run.cost suported -->\nIt costs.", 1, "suported"),
        ("<!-- holds: long_run.cost -->\nIt costs.", 1, "end it with one of supported"),
    ],
)
def test_what_cannot_be_looked_up_is_named_with_its_line(paper, text, line, words_of_it):
    said = refused(rendered, paper, text)
    assert said.startswith(f"paper.md, line {line}: ")
    assert words_of_it in said


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (filters.number(0.0207, "+.3f"), "+0.021"),
        (filters.number(-0.0001, "+.3f"), "0.000"),
        (filters.number(-1234.5, ",.1f"), "−1,234.5"),
        (filters.number(None, ".2f"), "n/a"),
        (filters.mean_sd({"mean": 1.68462, "sd": 0.01214}, ".3f"), "1.685 ± 0.012"),
        (filters.mean_sd({"mean": 1.68462, "sd": None}, ".3f"), "1.685"),
        (filters.estimate(row(0.0207, 0.0054, 0.0361)), "+0.021 [+0.005, +0.036]"),
        (filters.estimate(row(-95.3, -126.03, -64.59), "+.1f"), "−95.3 [−126.0, −64.6]"),
        (filters.p_value(0.0391), ".039"),
        (filters.p_value(0.0004), "< .001"),
        (filters.words(0), "none"),
        (filters.words(12), "twelve"),
        (filters.words(13), "13"),
        (filters.words(1300), "1,300"),
        (filters.direction(row(0.1, 0.0, 0.2)), "undecided"),
        (filters.direction(row(-0.1, -0.2, -0.001)), "lower"),
    ],
)
def test_numbers_are_written_as_a_reader_expects(written, expected):
    assert written == expected


PUBLISHED = ["paper.md", "templates/answers.md"]
OPPOSITE = {
    "supported": "refuted",
    "refuted": "supported",
    "higher": "lower",
    "lower": "higher",
    "undecided": "supported",
}


def claims(name):
    text = (PAPER / name).read_text("utf-8")
    found = re.findall(r"<!-- holds: (.+?) -->", text, re.DOTALL)
    return [claim.strip() for each in found for claim in each.split(";")]


def flip(claim):
    """Return the contrary of a claim."""
    before, _, last = claim.rpartition(" ")
    if before.endswith(" within"):
        return f"{before} 0"
    return f"{before} {OPPOSITE[last]}" if last in OPPOSITE else f"not ({claim})"


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_claim_of_the_published_texts_stops_the_build_when_it_turns(tmp_path, name):
    for place in ("results", "findings.json", "former.yaml", "studies.yaml", "published.yaml"):
        (tmp_path / place).symlink_to(PAPER / place)
    template = Template(tmp_path)
    for i, claim in enumerate(claims(name)):
        (tmp_path / f"{i}.md").write_text(f"<!-- holds: {flip(claim)} -->\nSo it is.\n")
        with pytest.raises(TextError, match="does not hold"):
            template.render(f"{i}.md")


def test_a_published_answer_is_told_in_its_plan_s_words(tmp_path):
    (tmp_path / "results").symlink_to(PAPER / "results")
    told = rendered(tmp_path, "{{ tying.untied.outcome }}; {{ tying.untied | estimate }}")
    excluded = "refuted in its plan's words: a gain of 0.03 or more is excluded"
    alone = "changes when one of 6 of its 8 seeds is left out"
    assert told == f"{excluded}; {alone}; −0.012 [−0.026, +0.002]"


def test_every_paragraph_with_a_number_or_a_study_says_what_it_rests_on():
    text = (PAPER / "paper.md").read_text("utf-8").partition("# The question")[2]
    text = re.sub(r"^::: \{.*?^:::$", "", text, flags=re.MULTILINE | re.DOTALL)
    named = re.compile("{{|`(" + "|".join(Template(PAPER).studies) + ")`")
    paragraphs = [p for p in text.split("\n\n") if named.search(p) and "{%" not in p]
    assert len(paragraphs) > 20
    assert [p for p in paragraphs if "<!-- holds: " not in p] == []


def test_no_paragraph_of_the_paper_holds_more_than_two_intervals():
    text = re.sub(r"^\|.*$", "", Template(PAPER).render("paper.md"), flags=re.MULTILINE)
    interval = re.compile(r"\[[+−]?\d[\d.]*, [+−]?\d[\d.]*\]")
    assert [p for p in text.split("\n\n") if len(interval.findall(p)) > 2] == []
