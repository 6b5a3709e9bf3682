"""The answers in the README and the table of studies: made from the results, whatever these are."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lib.publish.paper import PAGES, with_computed, write_pages
from lib.publish.sources import Sources, TextError
from lib.record.archive import Record
from lib.study.io import PAPER, PARAMS, ROOT
from lib.study.study import load_study
from lib.study.yaml import ConfigError, read_yaml

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
    shutil.copytree(PAPER / "templates", tmp_path / "templates")
    for name in ("studies.yaml", "findings.json", "published.yaml"):
        shutil.copyfile(PAPER / name, tmp_path / name)
    return tmp_path


def answers(paper: Path, **changes: Callable[[Verdict], None]) -> list[str]:
    """The answer in one line, then those of the table, after changes to verdicts."""
    for study, change in changes.items():
        record = Record(study.replace("_", "-"), paper)
        verdict = record.verdict
        change(verdict)
        record.verdict_file.write_text(json.dumps(verdict), "utf-8")
    page = with_computed(Sources(paper), "answers", README)
    lines = page.split("-->")[1].split("<!--")[0].strip().split("\n")
    rows = [line.split(" | ") for line in lines if line.startswith("| ")][1:]
    assert lines[1] == ""
    assert {len(row) for row in rows} <= {3}
    return [lines[0], *(answer for _, answer, _ in rows)]


def setting(table: str, ends: dict[str, Any], **fields: Any) -> Callable[[Verdict], None]:
    """A change: the interval of every row with these fields."""

    def change(verdict: Verdict) -> None:
        rows = [r for r in verdict[table] if all(r[name] == x for name, x in fields.items())]
        assert rows
        for row in rows:
            row.update(ends)

    return change


def test_the_computed_parts_are_those_of_the_results(tmp_path: Path) -> None:
    for place in PAGES.values():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        text = (ROOT / place).read_text("utf-8")
        old = re.sub("(?s)(?<=-->\n\n).+?(?=\n\n<!-- end of)", "Old.", text)
        assert "Old." in old
        (tmp_path / place).write_text(old, "utf-8")
    write_pages(Sources(PAPER), tmp_path)
    for place in PAGES.values():
        assert (tmp_path / place).read_text("utf-8") == (ROOT / place).read_text("utf-8")


def test_only_what_stands_between_the_comments_is_written(paper: Path) -> None:
    page = with_computed(Sources(paper), "answers", README)
    assert page.startswith("# Title\n\n<!-- answers: x -->\n\n**")
    assert page.endswith(".\n\n<!-- end of answers -->\n\nRest.\n")
    with pytest.raises(TextError, match=r"README\.md lacks a computed part, between <!-- answers"):
        with_computed(Sources(paper), "answers", "# Title\n")


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        (DECIDED_LOWER, r"LayerNorm lowers perplexity by 1\.04 \[1\.00, 2\.00\]\."),
        (DECIDED_HIGHER, r"LayerNorm raises perplexity by 1\.04 \[1\.50, 2\.00\]\."),
        (UNDECIDED, r"a cost in perplexity is undecided: \+1\.04 \[−1"),
        (UNDEFINED, r"changes perplexity by \+1\.04 \(no interval: too few"),
    ],
)
def test_a_change_is_said_in_the_form_that_its_interval_asks_for(paper, ends, sentence):
    fields = {"family": "primary", "arm": "layernorm", "baseline": "none"}
    line, row, *_ = answers(
        paper, confirmatory_2=setting("tests", ends, measure="perplexity", **fields)
    )
    assert re.search(sentence, row)
    assert ("raises the loss early in training" in line) == (ends == DECIDED_HIGHER)


@pytest.mark.parametrize(
    ("decisions", "word", "begins"),
    [
        (["keep the baseline"] * 2, "No", "raises the loss early in training"),
        (["adopt the arm"] * 2, "Yes", "helps early in training"),
        (["replicate before adopting"] * 2, "Perhaps", "may help early in training"),
        (["undecided"] * 2, "Undecided", "has an undecided effect early in training"),
        (["keep the baseline", "adopt the arm"], "It depends", "helps early or not, by its kind"),
    ],
)
def test_the_first_answer_is_the_plans_decision(paper, decisions, word, begins):
    def decide(verdict: Verdict) -> None:
        for arm, decision in zip(("layernorm", "rmsnorm"), decisions, strict=True):
            next(row for row in verdict["decisions"] if row["arm"] == arm)["decision"] = decision

    line, row, *_ = answers(paper, confirmatory_2=decide)
    assert line.startswith(f"**In small GPTs, one LayerNorm after the embeddings {begins}; ")
    assert row.startswith(f"**{word}.** ")


EQUAL = "no difference beyond ± 0.1"


@pytest.mark.parametrize(
    ("perplexity", "rescued", "word"),
    [
        (EQUAL, EQUAL, "Its scale, in perplexity"),
        (EQUAL, "undecided", "Undecided"),
        ("undecided", EQUAL, "Undecided"),
        ("not tested", "not tested", "Undecided"),
    ],
)
def test_it_is_the_scale_where_both_equivalences_are_shown(paper, perplexity, rescued, word):
    found = {("scale", "perplexity"): perplexity, ("none", "perplexity"): rescued}

    def change(verdict: Verdict) -> None:
        for row in verdict["tests"]:
            place = (row["baseline"], row["measure"])
            if row["family"] == "equivalence" and place in found:
                row["answer"] = found[place]

    _, _, second, *_ = answers(paper, confirmatory_2=change)
    assert second.startswith(f"**{word}.** ")
    assert second.startswith(f"**{word}.** LayerNorm and") == (perplexity == EQUAL)
    assert ("every residual branch multiplied by as much, perplexity is equivalent" in second) == (
        rescued == EQUAL
    )


@pytest.mark.parametrize(
    ("begin", "speed", "word"),
    [
        ("supported", "refuted", "How large they begin"),
        ("refuted", "supported", "How fast they learn"),
        ("supported", "supported", "Either"),
        ("refuted", "refuted", "Neither alone"),
        ("supported", "undecided", "Undecided"),
    ],
)
def test_the_half_that_costs_is_named_where_both_are_decided(paper, begin, speed, word):
    def decide(verdict: Verdict) -> None:
        for row in verdict["hypothesis_tests"]:
            row["answer"] = {"begin": begin, "speed": speed}.get(row["hypothesis"], row["answer"])

    said = [row for row in answers(paper, start_or_speed=decide) if "A multiplier makes" in row]
    assert [row.partition(" A multiplier")[0] for row in said] == [f"**{word}.**"]


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (DECIDED_HIGHER, "Ten steps of warm-up do not replace the layer."),
        (UNDECIDED, "lower it, too, but do not beat the layer by the plan's smallest effect; "),
    ],
)
def test_what_is_refuted_by_the_smallest_effect_alone_is_said_to_be_no_more(paper, ends, said):
    refuted = ends | {"answer": "refuted"}
    rows = answers(paper, turn=setting("hypothesis_tests", refuted, hypothesis="instead"))
    (row,) = (row for row in rows if row.startswith("**Yes, with clipping and without.** "))
    assert ("replace the layer" in row, "beat the layer" in row) == (
        ends == DECIDED_HIGHER,
        ends == UNDECIDED,
    )
    assert said in row


def test_that_a_schedule_without_the_layer_ends_lower_is_said_where_it_does(paper: Path) -> None:
    said = "the model without the layer ends lower than any of these"
    assert said in " ".join(answers(paper))
    found = json.loads((paper / "findings.json").read_text("utf-8"))
    found["schedule"][0]["t_high"] = 0.01  # of one of the two arms with the layer, zero is inside
    (paper / "findings.json").write_text(json.dumps(found), "utf-8")
    assert said not in " ".join(answers(paper))


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ("supported", "It may be kept or left out"),
        ("refuted", "It changes the loss"),
        ("undecided", "Undecided"),
    ],
)
def test_the_answer_about_a_trained_model_is_that_of_its_plan(paper, answer, word):
    decide = setting("hypothesis_tests", {"answer": answer}, hypothesis="no cost")
    assert answers(paper, modern=decide)[-1].startswith(f"**{word}.** An RMSNorm")


@pytest.mark.parametrize(
    ("equal", "cost", "word", "said"),
    [
        ("supported", "supported", "It hardly matters", "it raises the loss by less than the"),
        ("supported", "refuted", "It hardly matters", "it changes the loss by less than the"),
        ("refuted", "supported", "It matters", "it raises the loss by more than the"),
        ("refuted", "refuted", "It matters", "it changes the loss by more than the"),
        ("undecided", "supported", "A cost is left", "whether by the plan's margin is undecided."),
        ("undecided", "refuted", "No cost as large as the plan's margin", "does not raise"),
        ("undecided", "undecided", "Undecided", "a cost is undecided."),
    ],
)
def test_each_arm_at_its_best_is_answered_by_both_tests(paper, equal, cost, word, said):
    def decide(verdict: Verdict) -> None:
        for row in verdict["hypothesis_tests"]:
            row["answer"] = {"equal": equal, "cost": cost}.get(row["hypothesis"], row["answer"])

    row = answers(paper, trained=decide)[-2]
    assert row.startswith(f"**{word}.** LayerNorm changes the loss by ")
    assert said in row


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (DECIDED_LOWER, "LayerNorm's loss is lower there than a fixed multiplier's, by "),
        (DECIDED_HIGHER, "LayerNorm's loss is higher there than a fixed multiplier's, by "),
        (UNDECIDED, "Whether LayerNorm and a fixed multiplier are equivalent there is undecided: "),
    ],
)
def test_an_undecided_equivalence_is_told_with_what_its_interval_excludes(paper, ends, said):
    undecided = ends | {"answer": "undecided"}
    rows = answers(paper, trained=setting("hypothesis_tests", undecided, hypothesis="scale alone"))
    assert said in rows[-2]
    assert ("whether by more than the plan's margin" in rows[-2]) == (ends != UNDECIDED)


def test_questions_whose_study_has_no_results_are_left_out_and_named(paper: Path) -> None:
    (paper / "results" / "start-or-speed.verdict.json").unlink(missing_ok=True)
    sources = Sources(paper)
    assert "Is it how large embeddings begin" not in sources.render("templates/answers.md")
    assert "start-or-speed" in sources.left_out


def studies(paper: Path) -> dict[str, list[str]]:
    """The rows of the table of studies: its link → what asks, runs and recorded say."""
    page = README.replace("answers", "studies")
    lines = with_computed(Sources(paper), "studies", page).split("\n")
    rows = [line.strip("| ").split(" | ") for line in lines]
    return {cells[0]: cells[1:] for cells in rows if len(cells) == 4}


def test_a_study_is_recorded_in_the_table_when_it_has_results(paper: Path) -> None:
    name = "[`confirmatory-2`](confirmatory-2.yaml)"
    *_, runs, recorded = studies(paper)[name]
    place = "../papers/embedding-norm/record/confirmatory-2/03_analysis.ipynb"
    assert runs == "40"
    assert re.fullmatch(rf"\[confirmatory: [\w ,()]+\]\({place}\), under `second\.yaml`", recorded)
    (paper / "results" / "confirmatory-2.verdict.json").unlink()
    *_, runs, recorded = studies(paper)[name]
    assert (runs, recorded) == ("40", "not yet")  # five arms, eight seeds


def test_every_study_under_a_plan_says_what_it_asks(paper: Path) -> None:
    asked = set()
    for name in NAMES:
        with suppress(ConfigError):  # of a plan that is not frozen yet
            asked |= {name} if load_study(name).plan else set()
    recorded = {
        path.name.removesuffix(".verdict.json") for path in paper.glob("results/*.verdict.json")
    }
    assert set(read_yaml(paper / "studies.yaml")) >= asked | recorded
    named = set(re.findall(r"`([\w-]+)`", " ".join(studies(paper))))
    assert named >= recorded
