"""The answers in the README: made from the results, whatever these may be."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lib.publish.paper import with_answers, write_answers
from lib.publish.sources import Sources, TextError
from lib.study.config import load_study
from lib.study.errors import read_yaml
from lib.study.paths import PAPER, PARAMS, ROOT

pytestmark = pytest.mark.slow  # every form over all results
NAMES = [path.stem for path in PARAMS.glob("*.yaml")]
Verdict = dict[str, Any]
README = "# Title\n\n<!-- answers: x -->\n\nold\n\n<!-- end of answers -->\n\nRest.\n"
DECIDED_LOWER = {"t_low": -2.0, "t_high": -1.0}
DECIDED_HIGHER = {"t_low": 1.5, "t_high": 2.0}
UNDECIDED = {"t_low": -1.0, "t_high": 2.0}
UNDEFINED = {"t_low": None, "t_high": None}


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    shutil.copytree(PAPER / "results", tmp_path / "results")
    (tmp_path / "record").symlink_to(PAPER / "record")
    (tmp_path / "templates").mkdir()
    for name in ("templates/answers.md", "templates/studies.md", "studies.yaml", "findings.json"):
        shutil.copyfile(PAPER / name, tmp_path / name)
    (tmp_path / "README.md").write_text(README, "utf-8")
    return tmp_path


def answers(paper: Path, **changes: Callable[[Verdict], None]) -> list[str]:
    """The answers after changes to verdicts or findings, one line per question."""
    for study, change in changes.items():
        path = paper / "results" / f"{study.replace('_', '-')}.verdict.json"
        path = paper / "findings.json" if study == "findings" else path
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


def test_the_readmes_computed_parts_are_those_of_the_results(tmp_path: Path) -> None:
    copy = tmp_path / "README.md"
    shutil.copyfile(ROOT / "README.md", copy)
    write_answers(Sources(PAPER), copy)
    assert copy.read_text("utf-8") == (ROOT / "README.md").read_text("utf-8")


def test_only_what_stands_between_the_comments_is_written(paper: Path) -> None:
    assert len(answers(paper)) >= 4
    text = (paper / "README.md").read_text("utf-8")
    assert text.startswith("# Title\n\n<!-- answers: x -->\n\n1. **")
    assert text.endswith(".\n\n<!-- end of answers -->\n\nRest.\n")
    (paper / "README.md").write_text("# Title\n", "utf-8")
    with pytest.raises(TextError, match=r"README\.md: <!-- answers: … --> and .* are missing"):
        answers(paper)


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        (DECIDED_LOWER, r"LayerNorm lowers validation perplexity by 1\.04 \[1\.00, 2\.00\]"),
        (DECIDED_HIGHER, r"LayerNorm raises validation perplexity by 1\.04 \[1\.50, 2\.00\]"),
        (UNDECIDED, r"LayerNorm does not detectably change validation perplexity: \+1\.04 \[−1"),
        (UNDEFINED, r"LayerNorm changes validation perplexity by \+1\.04 \(no interval: too few"),
    ],
)
def test_a_change_is_said_in_the_form_that_its_interval_asks_for(paper, ends, sentence):
    fields = {"family": "primary", "arm": "layernorm", "baseline": "none"}
    change = setting("tests", ends, measure="perplexity", **fields)
    first, *_ = answers(paper, confirmatory_2=change)
    assert re.search(sentence, first)


@pytest.mark.parametrize(
    ("decisions", "word"),
    [
        (["keep the baseline"] * 2, "No"),
        (["adopt the arm"] * 2, "Yes"),
        (["replicate before adopting"] * 2, "Perhaps"),
        (["undecided"] * 2, "Undecided"),
        (["keep the baseline", "adopt the arm"], "It depends"),
    ],
)
def test_the_first_answer_is_the_plans_decision(paper, decisions, word):
    def decide(verdict: Verdict) -> None:
        for arm, decision in zip(("layernorm", "rmsnorm"), decisions, strict=True):
            next(row for row in verdict["decisions"] if row["arm"] == arm)["decision"] = decision

    assert f"** {word}: LayerNorm" in answers(paper, confirmatory_2=decide)[0]


@pytest.mark.parametrize(
    ("perplexity", "accuracy", "ends", "word"),
    [
        ("no difference beyond ± 0.1", "no difference beyond ± 0.01", UNDECIDED, "Scale"),
        (
            "no difference beyond ± 0.1",
            "undecided",
            UNDECIDED,
            "Scale, in perplexity; not shown in zero-shot macro accuracy",
        ),
        (
            "no difference beyond ± 0.1",
            "undecided",
            DECIDED_LOWER,
            "Scale, in perplexity; not alone in zero-shot macro accuracy",
        ),
        ("undecided", "undecided", UNDECIDED, "Not shown"),
        ("not tested", "not tested", UNDEFINED, "Not shown"),
    ],
)
def test_it_is_the_scale_where_a_multiplier_is_shown_to_be_equal(
    paper, perplexity, accuracy, ends, word
):
    def change(verdict: Verdict) -> None:
        for row in verdict["tests"]:
            if (row["family"], row["arm"], row["baseline"]) == (
                "equivalence",
                "layernorm",
                "scale",
            ):
                row |= ends | {"answer": perplexity if row["measure"] == "perplexity" else accuracy}

    second = answers(paper, confirmatory_2=change)[1]
    assert f"** {word}: LayerNorm and a fixed multiplier" in second
    tested = {"undecided": "shown to be", "not tested": "tested for being"}.get(perplexity)
    said = f"and are not {tested} equivalent" if tested else "are equivalent in perplexity (margin"
    assert said in second


@pytest.mark.parametrize(
    ("ends", "word"),
    [
        (DECIDED_LOWER, "Not by this measure"), (DECIDED_HIGHER, "Yes"), (UNDECIDED, "Undecided"),
        (UNDEFINED, "Not tested"),
    ],
)  # fmt: skip
def test_training_is_smoother_where_gradients_agree_more(paper, ends, word):
    fields = {"arm": "layernorm", "baseline": "none", "measure": "gradient_cosine"}
    third = answers(paper, confirmatory_2=setting("contrasts", ends, **fields))[2]
    assert f"** {word}: averaged over training after the first step, LayerNorm" in third


@pytest.mark.parametrize(
    ("ends", "word"),
    [
        ({"t_low": 0.7, "t_high": 0.9}, "Yes"), (DECIDED_HIGHER, "No"), (UNDECIDED, "Undecided"),
        (UNDEFINED, "Not tested"),
    ],
)  # fmt: skip
def test_tokens_are_saved_where_the_ratio_is_below_one(paper, ends, word):
    fourth = answers(paper, findings=setting("token_ratios", ends, arm="layernorm"))[3]
    assert f"** {word}: for the same dev loss" in fourth


def test_questions_whose_study_has_no_results_are_left_out_and_named(paper: Path) -> None:
    (paper / "results" / "confirmatory-2.verdict.json").unlink()
    sources = Sources(paper)
    assert "standard setting" not in sources.render("templates/answers.md")
    assert "confirmatory-2" in sources.left_out


def studies(paper: Path) -> dict[str, list[str]]:
    """The rows of the README's table of studies: its link → what asks, runs and recorded say."""
    readme = "<!-- studies: x -->\n\nold\n\n<!-- end of studies -->"
    rows = [
        line.strip("| ").split(" | ") for line in with_answers(Sources(paper), readme).split("\n")
    ]
    return {cells[0]: cells[1:] for cells in rows if len(cells) == 4}


def test_a_study_is_recorded_in_the_readme_when_it_has_results(paper: Path) -> None:
    name = "[`confirmatory-2`](params/confirmatory-2.yaml)"
    *_, runs, recorded = studies(paper)[name]
    assert (runs, recorded) == ("40", "confirmatory, under `second.yaml`")
    (paper / "results" / "confirmatory-2.verdict.json").unlink()
    *_, runs, recorded = studies(paper)[name]
    assert (runs, recorded) == ("40", "not yet")  # five arms, eight seeds


def test_every_study_under_a_plan_says_what_it_asks(paper: Path) -> None:
    asked = {study.name for study in map(load_study, NAMES) if study.plan}
    recorded = {
        path.name.removesuffix(".verdict.json") for path in paper.glob("results/*.verdict.json")
    }
    assert set(read_yaml(paper / "studies.yaml")) >= asked | recorded
    named = set(re.findall(r"`([\w-]+)`", " ".join(studies(paper))))
    assert named >= recorded
