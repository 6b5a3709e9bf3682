"""What a template may quote, and what it is told when it asks for something else."""

import re
import shutil
from functools import cache
from pathlib import Path

import pytest

from lib.publish.sources import (
    Sources,
    TextError,
    contrast,
    count,
    one,
    where,
)
from lib.study.io import PAPER, PLANS

ROWS = [
    {"arm": "none", "seed": 0, "unstable": False},
    {"arm": "none", "seed": 1, "unstable": True},
    {"arm": "scale", "seed": 0, "unstable": False},
]


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the record, its results and no text."""
    folder = tmp_path_factory.mktemp("paper")
    shutil.copytree(PAPER / "results", folder / "results")
    (folder / "record").symlink_to(PAPER / "record")
    shutil.copyfile(PAPER / "preliminary.yaml", folder / "preliminary.yaml")
    return folder


read = cache(Sources)  # of a folder whose record stays as it is


def rendered(paper: Path, text: str) -> str:
    (paper / "text.md").write_text(text, "utf-8")
    return read(paper).render("text.md")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{{ final.summary.layernorm.perplexiti | mean_sd('.2f') }}", "did you mean 'perplexity'"),
        ("{{ finale.summary }}", "did you mean 'final'"),
        ("{{ scale.summary }}", r"a study without results\? see has\(\)"),
        ("{{ one(confirmatory.verdict.decisions, arm='rmsnrom').rule }}", "did you mean 'rmsnorm'"),
        ("{{ one(confirmatory.verdict.decisions, amr='layernorm').rule }}", "'amr' is unknown"),
        ("{{ one(final.verdict.contrasts, arm='layernorm').t_p }}", "22 rows have"),
        ("{{ contrast(final, 'layernrom', 'ece').t_p }}", "did you mean 'layernorm'"),
        ("{{ contrast(final, 'layernorm', 'ecc').t_p }}", "did you mean 'ece'"),
        ("{{ final.runs[99].seed }}", "'99' is unknown"),
        ("{{ count(final.runs, amr='none') }}", "'amr' is unknown"),
        ("{{ final.summary.none.perplexity.mean }}", "needs a filter"),
        ("{{ final.summary.none.perplexity | number('.2f') }}", "unsupported format"),
        ("{{ 'ppl' | label }}", "ppl"),
        ("{{ 1.5 | numbr }}", "No filter named 'numbr'"),
        ("{{ params('final').training.iteration }}", "did you mean 'iterations'"),
        ("{{ params('finale').seeds }}", "did you mean 'final'"),
        ("{{ plan_of('final').alhpa }}", "did you mean 'alpha'"),
        ("{% if has('finale') %}{% endif %}", "did you mean 'final'"),
        ("{% if has('final') %}\n", "end of template"),
        ("{{ final.summary.none", "unexpected"),
    ],
)
def test_what_is_not_there_stops_the_build_by_name_and_line(paper, text, fault):
    with pytest.raises(TextError, match=fault) as error:
        rendered(paper, f"One line.\n\n{text}\n")
    assert re.match(r"text\.md, line [34]: ", str(error.value))


def test_a_study_without_results_is_left_out_and_named(paper):
    (paper / "text.md").write_text("Before.\n{% if has('scale') %}\n{{ scale.x }}\n{% endif %}\n")
    sources = Sources(paper)
    assert sources.render("text.md") == "Before.\n"
    assert list(sources.left_out) == ["scale"]


def test_a_second_plan_breaks_nothing(paper, tmp_path, monkeypatch):
    shutil.copytree(PLANS, tmp_path / "plans")
    text = (PLANS / "preregistration.yaml").read_text("utf-8")
    second = text.replace("alpha: 0.05", "alpha: 0.01")
    (tmp_path / "plans" / "second.yaml").write_text(second, "utf-8")
    monkeypatch.setattr("lib.study.plan.PLANS", tmp_path / "plans")
    assert rendered(paper, "{{ plan_of('confirmatory').alpha | number('g') }}\n") == "0.05\n"


def test_a_label_is_no_comment_and_a_text_of_the_plan_is_no_markup(paper):
    assert rendered(paper, "# A {#sec:a}\n<% gone %>") == "# A {#sec:a}\n"
    text = "{% set name = 'a_b & <c>' %}{{ name }} {{ name | code }}"
    assert rendered(paper, text) == r"a\_b & \<c\> `a_b & <c>`"
    macro = "{% macro m(x) %}{{ x | code }}{% endmacro %}{{ m('a_b') }}"
    assert rendered(paper, macro) == "`a_b`"


def test_names_of_studies_and_arms_are_written_as_the_results_have_them(paper):
    text = "{{ stability_warmup.summary[arm('none', learning_rate=0.0003)].perplexity.n }}"
    assert rendered(paper, text) == "3"
    assert rendered(paper, "{{ preliminary.measures.perplexity.note }}").startswith("the documents")


def test_rows_are_looked_up_by_their_fields():
    assert where(ROWS, arm="none") == ROWS[:2]
    assert where(ROWS, arm=["none", "scale"], seed=0) == [ROWS[0], ROWS[2]]
    assert one(ROWS, arm="none", seed=1) is ROWS[1]
    assert [count(ROWS, unstable=True), count(ROWS, arm="scale", unstable=True)] == [1, 0]
    assert count([], unstable=True) == 0
    with pytest.raises(ValueError, match="seed '7' is unknown"):
        where(ROWS, arm="none", seed=7)
    with pytest.raises(ValueError, match="'sale' is unknown; did you mean 'scale'"):
        where(ROWS, arm=["none", "sale"])
    with pytest.raises(ValueError, match="2 rows have"):
        one(ROWS, arm="none")


def test_a_contrast_is_with_the_arms_own_baseline_unless_another_is_named():
    def row(arm: str, baseline: str) -> dict[str, str]:
        return {"arm": arm, "baseline": baseline, "measure": "ece"}

    arms = {"none,f=1": "none,f=1", "scale,f=1": "none,f=1", "scale,f=2": "none,f=2"}
    runs = [
        {"arm": arm, "baseline": arms[arm], "levels": {"model.embedding_norm": arm.split(",")[0]}}
        for arm in arms
    ]
    rows = [row("scale,f=1", "none,f=1"), row("scale,f=2", "none,f=2"), row("scale,f=1", "other")]
    study = {"runs": runs, "verdict": {"contrasts": rows}}
    assert contrast(study, "scale,f=1", "ece") is rows[0]
    assert contrast(study, "scale,f=1", "ece", baseline="other") is rows[2]


def test_a_study_named_like_a_function_hides_none(paper, tmp_path):
    shutil.copytree(paper, tmp_path / "paper", symlinks=True)
    results = tmp_path / "paper" / "results"
    for end in (".json", ".verdict.json"):
        shutil.copyfile(results / f"final{end}", results / f"count{end}")
    text = "{{ count(final.runs, status='completed') }}"
    assert rendered(tmp_path / "paper", text) == "15"
