"""The same sources and results give the same bytes of a paper."""

import re
import shutil
from pathlib import Path

import pytest

from lib.config.errors import UsageError
from lib.config.files import read_json, write_json
from lib.config.paths import PAPER, PAPERS
from lib.publish import paper as publishing
from lib.publish.paper import check, convert, main, make_files, write_manuscript
from lib.publish.template import Template, TextError


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Copy the example's paper to a tree of its own, with a README that it fills."""
    copy = tmp_path / "papers" / "example"
    ignored = shutil.ignore_patterns("record", "*.png")
    shutil.copytree(PAPERS / "example", copy, ignore=ignored)
    (copy / "templates").mkdir()
    (copy / "templates" / "answers.md").write_text("Arms: {{ example.arms | length }}\n")
    page = "Before.\n\n<!-- answers: of it -->\n\nold\n\n<!-- end of answers -->\n\nAfter.\n"
    (tmp_path / "README.md").write_text(page)
    monkeypatch.setattr(publishing, "CHECKOUT", tmp_path)
    monkeypatch.setattr(publishing, "papers_named", lambda names: [copy])
    return copy


def test_a_paper_builds_to_the_same_bytes_twice(example):
    first, second = make_files(example), make_files(example)
    assert first == second
    assert [path.name for path in first] == ["paper.pdf", "paper.tex", "README.md"]
    assert first[example / "paper.pdf"].startswith(b"%PDF")
    assert b"0.112" in first[example / "paper.tex"]  # a difference that its abstract quotes


def test_what_was_changed_by_hand_is_named(example):
    readme = example.parents[1] / "README.md"
    main([])
    assert list(check(example)) == []
    assert readme.read_text().endswith("-->\n\nArms: 4\n\n<!-- end of answers -->\n\nAfter.\n")
    for path in (example / "paper.pdf", example / "paper.tex", readme):
        right = path.read_bytes()
        path.write_bytes(right.replace(b"4", b"5", 1))
        assert [path.name in fault for fault in check(example)] == [True]
        path.write_bytes(right)
    readme.write_text("no comments")
    assert [fault.partition(":")[0] for fault in check(example)] == ["README.md"]


def test_a_changed_result_changes_the_paper(example):
    main([])
    results = example / "results" / "example.json"
    content = read_json(results)
    content["summary"]["none,tied=true"]["loss"]["mean"] += 0.001
    write_json(results, content)
    named = [fault.partition(":")[0].rpartition("/")[2] for fault in check(example)]
    assert named == ["paper.pdf", "paper.tex"]


@pytest.mark.parametrize(
    ("added", "fault"),
    [
        ("See @fig:los.", "line 48: @'fig:los' is unknown; did you mean 'fig:loss'?"),
        ("As @vaswani says.", "line 48: @'vaswani' is unknown"),
        ("::: {.figure #fig:x file=example/los.pdf}\nx\n:::", "file not found"),
        ("{{ exampel }}", "line 48: 'exampel' is unknown; did you mean 'example'?"),
    ],
)
def test_what_a_manuscript_names_and_is_not_there_stops_the_build(example, added, fault):
    manuscript = example / "paper.md"
    lines = manuscript.read_text().splitlines()
    manuscript.write_text("\n".join([*lines, *[""] * (47 - len(lines)), added]) + "\n")
    with pytest.raises(TextError, match=f"^paper.md.*{re.escape(fault)}"):
        make_files(example)
    assert [fault in each for each in check(example)] == [True]


def test_a_first_manuscript_builds(example):
    for name in ("paper.md", "references.bib", "paper.pdf"):
        (example / name).unlink()
    write_manuscript(example)
    text = (example / "paper.md").read_text()
    assert 'title: "example"' in text
    assert "STUDY" not in text
    files = make_files(example)
    latex = files[example / "paper.tex"].decode()
    assert "example/loss.pdf" in latex
    assert "layernorm,tied=true" in latex


def test_a_first_manuscript_tells_an_effect_that_changes_sign_by_setting(example):
    verdict = example / "results" / "example.verdict.json"
    content = read_json(verdict)
    row = {"measure": "loss", "n": 4, "budget": ""}
    effects = [
        ("b - a", "main", 0.0312, 0.01, 0.05),
        ("b - a at tied=true", "simple", -0.2, -0.3, -0.1),
        ("b - a at tied=false", "simple", 0.26, 0.1, 0.4),
        ("a × tied=false", "interaction", 0.46, 0.4, 0.5),
    ]
    names = ("effect", "kind", "mean_delta", "t_low", "t_high")
    content["effects"] = [row | dict(zip(names, values, strict=True)) for values in effects]
    planned = {"hypothesis": "h", "says": "…", "answer": "supported", "measure": "loss"}
    settings = {"tied=true": {"mean_delta": -0.4, "t_low": -0.5, "t_high": -0.3}}
    mean = {"mean_delta": 0.02, "t_low": 0.01, "t_high": 0.03, "changes_sign": True}
    content["hypothesis_tests"] = [planned | mean | {"settings": settings}]
    write_json(verdict, content)
    write_manuscript(example)
    text = Template(example).render("paper.md")
    assert "changes sign.)\n    - at `tied=true`: −0.4000 [−0.5000, −0.3000]." in text
    assert "- `b - a`: changes sign in loss.\n    - at `tied=true`: −0.2000 [−0.3000, " in text
    assert "- `a × tied=false`: +0.4600 [" in text
    assert "0.0312" not in text
    assert "3 intervals; none is adjusted for their number. Changes sign: " in text
    assert make_files(example)


def test_main_begins_only_the_paper_that_is_named(example, capsys):
    (example / "paper.md").unlink()
    main([])
    assert not (example / "paper.md").exists()
    main(["example"])
    assert "a draft for you to rewrite" in capsys.readouterr().out
    written = (example / "paper.md").read_bytes()
    main(["example"])
    assert (example / "paper.md").read_bytes() == written


def test_a_second_study_is_named_and_reaches_the_manuscript_when_asked(example, capsys):
    for file in (example / "results").glob("example.*"):
        shutil.copy(file, file.with_name(file.name.replace("example", "second", 1)))
    figures = example / "figures"
    shutil.copytree(figures / "example", figures / "second")
    before = (example / "paper.md").read_text("utf-8")
    main(["example"])
    how = "./run_all.sh paper example --add second"
    assert f"Not in paper.md     second ({how} adds a section)\n" in capsys.readouterr().out
    assert (example / "paper.md").read_text("utf-8") == before
    for _ in range(2):
        main(["example"], "second")
        assert (example / "paper.md").read_text("utf-8").count("# second {#sec:second}") == 1
    assert "Not in paper.md" not in capsys.readouterr().out
    for names, study, fault in (
        (["example"], "secnd", "did you mean 'second'"),
        ([], "second", ""),
    ):
        with pytest.raises(UsageError, match=f"^--add: .*{fault}"):
            main(names, study)


@pytest.mark.parametrize("folder", ["a%20b", "a b#?:;&"])
def test_a_paper_builds_wherever_its_checkout_lies(folder, tmp_path, monkeypatch):
    shutil.copytree(publishing.TEMPLATES / "paper", tmp_path / folder / "paper")
    monkeypatch.setattr(publishing, "TEMPLATES", tmp_path / folder)
    here = Path.cwd()
    assert "A title" in convert("---\ntitle: A title\n---\n", "latex")
    assert Path.cwd() == here


def test_latex_cites_and_places_as_a_reader_of_latex_expects():
    markdown = "# A {#sec:a}\n\nAs @ba2016 say [@holm1979], see @sec:a and $x^2$.\n"
    latex = convert(markdown, "latex")
    for part in (r"\citet{ba2016}", r"\citep{holm1979}", r"Section~\ref{sec:a}", "x^2"):
        assert part in latex


@pytest.mark.slow
def test_the_published_paper_and_readmes_are_what_the_results_give():
    for paper in (PAPER, PAPERS / "example"):
        assert list(check(paper)) == []
