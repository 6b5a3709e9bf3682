"""The paper: it says what the results say, or it is not built."""

import io
import json
import math
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import numpy as np
import pikepdf
import pypdf
import pytest
import typst
from PIL import Image

from lib.publish.paper import begin, build, convert, filled_in, main, make_files, uncompressed
from lib.publish.sources import Sources, TextError
from lib.study.io import PAPER, PAPERS, ROOT, write_json

SOURCE = (PAPER / "paper.md").read_text("utf-8")
BIBLIOGRAPHY = (PAPER / "references.bib").read_text("utf-8")


def copy_of_paper(folder: Path) -> Path:
    """A copy of all that the paper is built of, without its outputs."""
    built = shutil.ignore_patterns("record", "site", "paper.pdf", "paper.tex")
    shutil.copytree(PAPER, folder, ignore=built)
    (folder / "record").symlink_to(PAPER / "record")
    return folder


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to change."""
    return copy_of_paper(tmp_path_factory.mktemp("paper") / "copy")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which the paper has been built."""
    folder = copy_of_paper(tmp_path_factory.mktemp("built") / "paper")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def sources(paper: Path) -> Sources:
    return Sources(paper)


def markdown(paper: Path, text: str = SOURCE, sources: Sources | None = None) -> str:
    (paper / "paper.md").write_text(text, "utf-8")
    return filled_in(paper, sources or Sources(paper))


@lru_cache
def text_of(pdf: Path) -> str:
    return "\n".join(page.extract_text() for page in pypdf.PdfReader(pdf).pages)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{{ final.summery }}", "did you mean 'summary'"),
        ("as @nobody2020 said", "@'nobody2020' is unknown"),
        ("as @lescao202 said", "did you mean 'lescao2022'"),
        ("see @tbl:nothing", "@'tbl:nothing' is unknown"),
        ("see @sec:x\n\n{% if has('scale') %}\n# A {#sec:x}\n{% endif %}", "@'sec:x' is unknown"),
        (
            "::: {.figure #fig:a file=horizon-2/losses.pdf}\n:::",
            "did you mean 'horizon-2/loss.pdf'",
        ),
        ("::: {.table #tbl:a}\n| a |\n", "not closed"),
        (":::", "nothing is open"),
    ],
)
def test_what_is_not_there_stops_the_build_by_name_and_line(paper, sources, text, fault):
    with pytest.raises(TextError, match=fault) as error:
        markdown(paper, f"One line.\n\n{text}\n", sources)
    assert str(error.value).startswith("paper.md, line 3: ")


def test_what_stands_in_code_or_after_a_backslash_is_no_reference(paper, sources):
    text = "```\n@nobody2020\n```\nA \\@sign, me@there.\n"
    assert markdown(paper, text, sources) == text


def typed_digits(text: str) -> list[str]:
    """Lines that hold a digit typed by hand, reduced to what is not excused.

    Excused are expressions and directives (they name keys, files and labels), citation keys, code
    (names of files and of a library's arguments), where links lead, what names a thing and measures
    nothing (GPT-2, the hypotheses and rules of the plan), and in formulas 0, 1 and 2: exponents,
    indices, units.
    """
    names = r"GPT-[23]|GLM-130B|OLMo 2|\bH0\b|\bH1[ab]\b|\bR[1-8]\b"
    templates = [r"\{\{.*?\}\}", r"\{%.*?%\}"]
    excused = [
        *templates,
        r"^:::.*?$",
        r"`[^`\n]*`",
        r"\]\([^)]*\)",
        r"@[A-Za-z][\w-]*",
        r"\{#[^}]*\}",
        names,
    ]
    for pattern in excused:
        flags = re.MULTILINE | (re.DOTALL if pattern in templates else 0)
        text = re.sub(pattern, "", text, flags=flags)
    text = re.sub(r"\$\$?[^$]+\$\$?", lambda formula: re.sub("[012]", "", formula[0]), text)
    return [line for line in text.splitlines() if re.search(r"\d", line)]


def test_no_number_is_typed_by_hand():
    answers = (PAPER / "templates" / "answers.md").read_text("utf-8")
    assert typed_digits(SOURCE) == typed_digits(re.sub(r"^\d\. ", "", answers, flags=re.M)) == []
    for typed in ("It is 11.3.", "$n = 5$", "in 300 steps", "a {{ final.x }} of 3"):
        assert typed_digits(typed), typed


@pytest.mark.slow
def test_one_changed_number_changes_that_number_and_nothing_else(paper):
    results = paper / "results" / "confirmatory-2.json"
    original = results.read_text("utf-8")
    before = markdown(paper).splitlines()
    content = json.loads(original)
    content["summary"]["none"]["macro_accuracy_few_shot"]["mean"] = 0.98765
    results.write_text(json.dumps(content), "utf-8")
    after = markdown(paper).splitlines()
    results.write_text(original, "utf-8")
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 1
    assert changed[0][1] == changed[0][0].replace("0.5479", "0.9877")


@pytest.mark.slow
def test_the_paper_shows_the_means_of_the_results():
    results = json.loads((PAPER / "results" / "confirmatory-2.json").read_text("utf-8"))
    summary = results["summary"]
    text = text_of(PAPER / "paper.pdf")
    for variant in ("none", "layernorm", "rmsnorm"):
        found = summary[variant]["perplexity"]
        assert f"{found['mean']:.3f} ± {found['sd']:.3f}" in text


@pytest.mark.slow
def test_the_committed_paper_is_what_its_source_gives(built):
    for name in ("paper.tex", "paper.pdf"):
        same = (built / name).read_bytes() == (PAPER / name).read_bytes()
        assert same, f"{name}: run ./run_all.sh paper"


def test_a_first_manuscript_of_any_study_is_built_and_to_the_same_bytes(tmp_path):
    example = PAPER.with_name("example")
    for name in ("2024", "count", "of-one-arm"):
        shutil.copytree(example / "figures" / "example", tmp_path / "figures" / name)
        for end in ("json", "verdict.json"):
            content = json.loads((example / "results" / f"example.{end}").read_text("utf-8"))
            if name == "of-one-arm":
                content |= {"contrasts": []}
            write_json(tmp_path / "results" / f"{name}.{end}", content)
    begin(tmp_path)
    first = make_files(tmp_path, Sources(tmp_path))
    assert first["paper.pdf"].startswith(b"%PDF")
    assert make_files(tmp_path, Sources(tmp_path)) == first


def copy_of_example(folder: Path) -> Path:
    example = PAPER.with_name("example")
    shutil.copytree(example, folder, ignore=shutil.ignore_patterns("record", "site", "paper.*"))
    return folder


def test_a_first_manuscript_fills_the_width_of_its_page(tmp_path):
    paper = copy_of_example(tmp_path / "example")
    begin(paper)
    source = convert(filled_in(paper, Sources(paper)), "typst", paper).encode()
    page = typst.compile(source, root=paper, ignore_system_fonts=True, format="png", ppi=40)
    ink = np.asarray(Image.open(io.BytesIO(page)).convert("L")) < 200
    left, right = np.hsplit(ink[:, : ink.shape[1] // 2 * 2], 2)
    written = ink.any(axis=1)
    assert written.sum() > 100
    assert right[written].any(axis=1).mean() > 0.8
    assert left[written].any(axis=1).mean() > 0.8


@pytest.mark.slow
def test_a_study_of_which_the_paper_says_nothing_is_named_with_the_remedy(
    tmp_path, monkeypatch, capsys
):
    paper = copy_of_example(tmp_path / "example")
    begin(paper)
    monkeypatch.setattr("lib.publish.paper.papers_named", lambda names: [paper])
    for end in ("json", "verdict.json"):
        shutil.copyfile(paper / f"results/example.{end}", paper / f"results/the-second.{end}")
    for name in ("example", "the-second"):
        shutil.copytree(PAPERS / "example/record/example", paper / "record" / name)
    main(["example"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Not in the paper the-second: recorded, but paper.md quotes nothing of it" in said
    assert "write a section, as papers/embedding-norm/templates/manuscript.md begins one" in said
    text = (paper / "paper.md").read_text("utf-8")
    for quoted in (
        "{{ the_second.study.seeds | words }}",
        '{{ recorded["the-second"].runs | words }}',
        "{% for name in recorded %}{{ recorded[name].runs | words }}{% endfor %}",
        '{{ contrast(the_second, "warmup_cosine", "ece") | estimate("+.3f") }}',
    ):
        markdown(paper, f"{text}\n{quoted}\n", sources := Sources(paper))
        assert sources.unused == [], quoted
    markdown(paper, text + '\n{{ has("the-second") }} second\n', sources := Sources(paper))
    assert sources.unused == ["the-second"]


def test_a_paper_is_the_same_however_it_was_compressed(tmp_path):
    committed, other = PAPER / "paper.pdf", io.BytesIO()
    with pikepdf.open(committed) as pdf:
        pdf.save(other, deterministic_id=True, compress_streams=False)
    assert other.getvalue() != committed.read_bytes()
    assert uncompressed(other.getvalue()) == uncompressed(committed.read_bytes())
    changed = io.BytesIO()
    with pikepdf.open(committed) as pdf:
        pdf.docinfo["/Author"] = "another"
        pdf.save(changed, deterministic_id=True)
    assert uncompressed(changed.getvalue()) != uncompressed(committed.read_bytes())


@pytest.mark.slow
def test_nothing_unresolved_is_left_in_the_paper():
    tex, text = (PAPER / "paper.tex").read_text("utf-8"), text_of(PAPER / "paper.pdf")
    for output in (tex, text):
        assert not re.search(r"\{\{ |\{% |&lt;|&amp;|&#|\?\?|:::|@(fig|tbl|sec):", output)
    assert r"\citep{" in tex
    assert r"\bibliography{references}" in tex
    labels = set(re.findall(r"\\label\{([^}]*)\}", tex))
    assert set(re.findall(r"\\ref\{([^}]*)\}", tex)) <= labels


def test_no_sentence_states_a_direction_against_its_number():
    text = text_of(PAPER / "paper.pdf") + (ROOT / "README.md").read_text("utf-8")
    text = " ".join(text.split())
    assert not re.search(r"(lowers?|raises?|higher|lower) (\w+ )*by [+−-]\d", text)
    assert not re.search(r"supported and supported|rejected and rejected", text)
    assert "[n/a" not in text
    assert not re.search(r"[+−]0\.?0*(?![\d.])", text)


def test_every_reference_is_cited_complete_and_no_known_wrong_one():
    entries = re.findall(r"^@\w+\{([^,]+),(.*?)^\}", BIBLIOGRAPHY, re.MULTILINE | re.DOTALL)
    for key, fields in entries:
        assert f"@{key}" in SOURCE, f"{key} is not cited"
        for field in ("author", "title", "year"):
            assert re.search(rf"^  {field} = \{{.+\}},?$", fields, re.MULTILINE), (key, field)
    identifiers = {key: arxiv[1] for key, fields in entries
                   if (arxiv := re.search(r"arxiv\.org/abs/([\d.]+)", fields))}  # fmt: skip
    assert identifiers["zhang2019"] == "1910.07467"
    assert identifiers["takase2025"] == "2312.16903"
    assert len(set(identifiers.values())) == len(identifiers)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex here")
def test_the_latex_compiles_without_a_warning_that_matters(built):
    for command in ("pdflatex", "bibtex", "pdflatex", "pdflatex", "pdflatex"):
        words = ["-interaction=nonstopmode", "-jobname=latex"] if command == "pdflatex" else []
        name = "paper" if command == "pdflatex" else "latex"
        done = subprocess.run([command, *words, name], cwd=built, capture_output=True)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    log = (built / "latex.log").read_text("latin-1")
    assert not re.search("undefined|multiply defined|Missing character|Overfull", log)


COLUMN, PAGE = 235.0, 488.0
"""Widths of the printed text, in points."""


def test_figures_stand_as_large_as_drawn_with_text_of_seven_points():
    figures = re.findall(r"^::: \{(.*?\.figure.*?) file=([^\s}]+)", SOURCE, re.MULTILINE)
    recorded = [(place, PAPER / "figures" / name) for place, name in figures]
    assert len(recorded) > 3
    for place, path in recorded:
        if not path.is_file():  # of a study that is not recorded yet
            continue
        page = pypdf.PdfReader(path).pages[0]
        assert float(page.mediabox.width) <= (PAGE if ".wide" in place else COLUMN), path.name
        small = []

        def look(text, _, matrix, __, size, small=small):
            size *= math.hypot(matrix[2], matrix[3])  # of rotated text too
            if text.strip() and size < 6.99 and not re.fullmatch(r"[−\d\s]+", text):
                small.append((text, size))  # exponents alone may be smaller

        page.extract_text(visitor_text=look)
        assert not small, (path.name, small)
