"""The answers in the README: made from the results, whatever these may be."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lib.publish.paper import write_answers
from lib.publish.sources import Sources, TextError
from lib.study.paths import PAPER, ROOT

Verdict = dict[str, Any]
README = "# Title\n\n<!-- answers: x -->\n\nold\n\n<!-- end of answers -->\n\nRest.\n"
DECIDED_LOWER = {"t_low": -2.0, "t_high": -1.0}
DECIDED_HIGHER = {"t_low": 1.5, "t_high": 2.0}
UNDECIDED = {"t_low": -1.0, "t_high": 2.0}
UNDEFINED = {"t_low": None, "t_high": None}


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    shutil.copytree(PAPER / "results", tmp_path / "results")
    (tmp_path / "templates").mkdir()
    shutil.copyfile(PAPER / "templates" / "answers.md", tmp_path / "templates" / "answers.md")
    (tmp_path / "README.md").write_text(README, "utf-8")
    return tmp_path


def answers(paper: Path, **changes: Callable[[Verdict], None]) -> list[str]:
    """The answers after changes to verdicts, one line per question."""
    for study, change in changes.items():
        path = paper / "results" / f"{study.replace('_', '-')}.verdict.json"
        verdict = json.loads(path.read_text("utf-8"))
        change(verdict)
        path.write_text(json.dumps(verdict), "utf-8")
    write_answers(Sources(paper), paper / "README.md")
    return (
        (paper / "README.md").read_text("utf-8").split("-->")[1].split("<!--")[0].split("\n")[2:-2]
    )


def setting(table: str, ends: dict[str, Any], **fields: Any) -> Callable[[Verdict], None]:
    """A change: the interval of every row with these fields."""

    def change(verdict: Verdict) -> None:
        rows = [r for r in verdict[table] if all(r[name] == x for name, x in fields.items())]
        assert rows
        for row in rows:
            row.update(ends)

    return change


def test_the_readmes_answers_are_those_of_the_results(tmp_path: Path) -> None:
    copy = tmp_path / "README.md"
    shutil.copyfile(ROOT / "README.md", copy)
    write_answers(Sources(PAPER), copy)
    assert copy.read_text("utf-8") == (ROOT / "README.md").read_text("utf-8")


def test_only_what_stands_between_the_comments_is_written(paper: Path) -> None:
    assert len(answers(paper)) == 5
    text = (paper / "README.md").read_text("utf-8")
    assert text.startswith("# Title\n\n<!-- answers: x -->\n\n1. **")
    assert text.endswith(".\n\n<!-- end of answers -->\n\nRest.\n")
    (paper / "README.md").write_text("# Title\n", "utf-8")
    with pytest.raises(TextError, match=r"README\.md: <!-- answers: … --> and .* are missing"):
        answers(paper)


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        (DECIDED_LOWER, r"LayerNorm lowers validation perplexity by 1\.050 \[1\.000, 2\.000\]"),
        (DECIDED_HIGHER, r"LayerNorm raises validation perplexity by 1\.050 \[1\.500, 2\.000\]"),
        (UNDECIDED, r"LayerNorm does not detectably change validation perplexity: \+1\.050 \[−1"),
        (UNDEFINED, r"LayerNorm changes validation perplexity by \+1\.050 \(no interval: too few"),
    ],
)
def test_a_change_is_said_in_the_form_that_its_interval_asks_for(paper, ends, sentence):
    fields = {"arm": "layernorm", "baseline": "none", "measure": "perplexity"}
    first, second, *_ = answers(paper, confirmatory=setting("contrasts", ends, **fields))
    assert re.search(sentence, first)
    words = {-1.0: "Mostly fixed scale:", 2.0: "Undecided:", None: "Not tested:"}
    decided = ends in (DECIDED_LOWER, DECIDED_HIGHER)
    assert f"** {words[-1.0] if decided else words[ends['t_high']]}" in second


@pytest.mark.parametrize(
    ("decisions", "word"),
    [
        (["keep the baseline"] * 2, "No"),
        (["adopt the arm"] * 2, "Yes"),
        (["replicate before adopting"] * 2, "Perhaps"),
        (["keep the baseline", "adopt the arm"], "It depends"),
    ],
)
def test_the_first_answer_is_the_plans_decision(paper, decisions, word):
    def decide(verdict: Verdict) -> None:
        for arm, decision in zip(("layernorm", "rmsnorm"), decisions, strict=True):
            next(row for row in verdict["decisions"] if row["arm"] == arm)["decision"] = decision

    assert f"** {word}: LayerNorm" in answers(paper, confirmatory=decide)[0]


@pytest.mark.parametrize(
    ("at_first", "elsewhere", "word"),
    [
        (DECIDED_HIGHER, DECIDED_LOWER, "Yes"),
        (DECIDED_HIGHER, DECIDED_HIGHER, "No"),
        (DECIDED_HIGHER, UNDECIDED, "No, but it can hide it"),
        (UNDECIDED, UNDECIDED, "Undecided"),
        (UNDECIDED, UNDEFINED, "Undecided"),
        (UNDEFINED, UNDEFINED, "Not tested"),
    ],
)
def test_initialisation_flips_the_effect_only_where_both_signs_are_found(
    paper, at_first, elsewhere, word
):
    def change(verdict: Verdict) -> None:
        for row in verdict["contrasts"]:
            row.update(at_first if row["arm"] == "layernorm,embedding_std=0.02" else elsewhere)

    assert f"** {word}: LayerNorm" in answers(paper, initialisation=change)[2]


@pytest.mark.parametrize(
    ("h1b", "word"),
    [
        ("supported", "Yes"),
        ("not supported", "Not shown"),
        ("not tested: the baseline is stable at every rate", "Not tested"),
    ],
)
def test_the_range_of_rates_is_answered_as_the_plan_answers_h1b(paper, h1b, word):
    change = setting("sensitivity", {"H1b": h1b}, variant="layernorm")
    assert f"** {word}: LayerNorm's runs" in answers(paper, stability=change)[3]


@pytest.mark.parametrize(
    ("short", "long", "word"),
    [
        ({"t_low": 0.7, "t_high": 0.9}, {"t_low": 0.7, "t_high": 0.9}, "Yes"),
        (DECIDED_HIGHER, DECIDED_HIGHER, "No"),
        (UNDECIDED, UNDECIDED, "Undecided"),
        (UNDEFINED, UNDEFINED, "Not tested"),
        (DECIDED_HIGHER, {"t_low": 0.7, "t_high": 0.9}, "It depends on the budget"),
    ],
)
def test_tokens_are_saved_where_the_ratio_is_below_one(paper, short, long, word):
    last = answers(
        paper,
        confirmatory=setting("efficiency", short, arm="layernorm"),
        horizon=setting("efficiency", long, arm="layernorm,fraction=1"),
    )[-1]
    assert f"** {word}: for the same dev loss" in last


def test_a_question_whose_study_has_no_results_is_left_out_and_named(paper: Path) -> None:
    (paper / "results" / "horizon.verdict.json").unlink()
    assert [line[0] for line in answers(paper)] == ["1", "2", "3", "4"]
    sources = Sources(paper)
    sources.render("templates/answers.md")
    assert list(sources.left_out) == ["horizon"]
