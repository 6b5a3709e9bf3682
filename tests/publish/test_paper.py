"""The paper: it says what the results say, or it is not built."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pypdf
import pytest

from lib.publish.macros import MACRO, MacroError, Sources
from lib.publish.paper import Manuscript, PaperError, build, convert
from lib.study.paths import PAPER

SOURCE = (PAPER / "paper.md").read_text("utf-8")
BIBLIOGRAPHY = (PAPER / "references.bib").read_text("utf-8")


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    """A copy of all that the paper is built of."""
    folder = tmp_path / "paper"
    shutil.copytree(PAPER, folder, ignore=shutil.ignore_patterns("record"))
    return folder


def expanded(paper: Path, text: str) -> str:
    (paper / "paper.md").write_text(text, "utf-8")
    return Manuscript(paper).expanded()


def text_of(pdf: Path) -> str:
    return "\n".join(page.extract_text() for page in pypdf.PdfReader(pdf).pages)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{{final.summary.layernorm.perplexiti.mean:.2f}}", "did you mean 'perplexity'"),
        ("{{finale.summary.none.perplexity.mean:.2f}}", "did you mean 'final'"),
        ("{{final.verdict.contrasts[arm=layernrom].t_p:p}}", "did you mean 'layernorm'"),
        ("{{final.verdict.contrasts[amr=layernorm].t_p:p}}", "'amr' is unknown"),
        ("{{final.verdict.contrasts[arm=layernorm].t_p:p}}", "8 rows match"),
        ("{{final.verdict.contrasts[99].t_p:p}}", r"no item \[99\]"),
        ("{{count final.runs[amr=none]:words}}", "'amr' is unknown"),
        ("{{final.summary.none.perplexity.mean}}", "needs a format"),
        ("{{final.summary.none.perplexity:.2f}}", "cannot be written"),
        ("{{params.final.training.iteration}}", "did you mean 'iterations'"),
        ("{{plan.alhpa:g}}", "did you mean 'alpha'"),
        ("{{lib.run.calibration.N_BIN}}", "did you mean 'N_BINS'"),
        ("{{final.summary.none", "must open and close on one line"),
        ("as @nobody2020 said", "@'nobody2020' is unknown"),
        ("see @tbl:nothing", "@'tbl:nothing' is unknown"),
        ("::: {.figure #fig:a file=final/trends.pdf}\n:::", "did you mean 'final/trend.pdf'"),
        ("::: {.figure #fig:a}\n:::", ".figure needs file"),
        ("::: {.include file=params/finale.yaml}\n:::", "there is no params/finale.yaml"),
        ("::: {.needs study=final}\nwords", "still open"),
        ("::: {.table #tbl:a rows=final.runs}\n| {{row.seed}} |\n", "still open"),
        (":::", "nothing is open"),
    ],
)
def test_what_is_not_there_stops_the_build_by_name_and_line(paper, text, fault):
    with pytest.raises(PaperError, match=fault) as error:
        expanded(paper, f"One line.\n\n{text}\n")
    assert re.match(r"paper\.md, line [3-6]: ", str(error.value))


def test_a_study_without_results_leaves_its_blocks_out_and_says_so(paper):
    (paper / "paper.md").write_text(
        "Before.\n\n::: {.needs study=never}\n::: {.needs study=final}\n{{never.x}}\n:::\n"
        "::: {.figure #fig:x file=never/y.pdf}\n:::\n:::\n\nAfter.\n"
    )
    manuscript = Manuscript(paper)
    assert manuscript.expanded() == "Before.\n\n\nAfter.\n"
    assert manuscript.notices == ["lines 3–9 left out: 'never' has no results yet"]


def test_a_reference_into_a_block_that_is_left_out_stops_the_build(paper):
    text = "See @sec:x.\n\n::: {.needs study=never}\n\n# Title {#sec:x}\n\n:::\n"
    with pytest.raises(PaperError, match="line 1: @'sec:x' is unknown"):
        expanded(paper, text)


def test_a_study_with_results_and_no_verdict_stops_the_build(paper):
    (paper / "results/final.verdict.json").unlink()
    with pytest.raises(PaperError, match=r"no results/final\.verdict\.json"):
        expanded(paper, "{{final.study_hash}}")


def test_a_tables_last_line_is_written_once_per_row(paper):
    text = (
        "::: {.table #tbl:a rows=final.summary}\nCaption.\n\n| Variant | Accuracy |\n|--|--|\n"
        "| {{row}} | {{final.summary.(row).accuracy.mean:.1f}} |\n:::\n"
    )
    lines = expanded(paper, text).splitlines()
    assert lines[3:8] == [
        "| Variant | Accuracy |",
        "|--|--|",
        *[f"| {variant} | 0.3 |" for variant in ("none", "layernorm", "rmsnorm")],
    ]


def test_rows_may_be_words_a_mapping_or_a_look_up():
    sources = Sources(PAPER)
    assert sources.rows("ece brier") == ["ece", "brier"]
    assert sources.rows("final.summary") == ["none", "layernorm", "rmsnorm"]
    found = sources.rows("final.verdict.contrasts[measure=ece|brier]")
    assert {row["measure"] for row in found} == {"ece", "brier"}
    with pytest.raises(MacroError, match="rows must be a list"):
        sources.rows("final.study_hash")


def test_a_missing_measure_is_not_available_only_where_the_text_allows_it():
    sources = Sources(PAPER)
    assert sources.macro("final.runs[0].measures.nothing?:.3f") == "n/a"
    with pytest.raises(MacroError, match="'nothing' is unknown"):
        sources.macro("final.runs[0].measures.nothing:.3f")


def typed_digits(text: str) -> list[str]:
    """Lines that hold a digit typed by hand, reduced to what is not excused.

    Excused are macros and directives (they name keys, files and labels), citation keys, code (names
    of files and of a library's arguments), what names a thing and measures nothing (GPT-2, the
    hypotheses and rules of the plan), and in formulas 0, 1 and 2: exponents, indices, units.
    """
    names = r"GPT-[23]|GLM-130B|\bH0\b|\bH1[ab]\b|\bR[1-8]\b"
    excused = [MACRO.pattern, r"^:::.*$", r"`[^`\n]*`", r"@[A-Za-z][\w-]*", r"\{#[^}]*\}", names]
    for pattern in excused:
        text = re.sub(pattern, "", text, flags=re.MULTILINE)
    text = re.sub(r"\$\$?[^$]+\$\$?", lambda formula: re.sub("[012]", "", formula[0]), text)
    return [line for line in text.splitlines() if re.search(r"\d", line)]


def test_no_number_is_typed_by_hand():
    assert typed_digits(SOURCE) == []
    for typed in ("It is 11.3.", "$n = 5$", "in 300 steps", "a {{final.x}} of 3"):
        assert typed_digits(typed), typed


def test_one_changed_number_changes_that_number_and_nothing_else(paper):
    before = convert(Manuscript(paper).expanded(), "typst", paper).splitlines()
    build(paper)
    first = {p: p.read_bytes() for p in sorted(paper.rglob("*")) if p.is_file()}
    results = paper / "results/final.json"
    content = json.loads(results.read_text("utf-8"))
    content["summary"]["none"]["macro_accuracy_few_shot"]["mean"] = 0.98765
    results.write_text(json.dumps(content), "utf-8")

    after = convert(Manuscript(paper).expanded(), "typst", paper).splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 1
    assert changed[0][1] == changed[0][0].replace("0.5556", "0.9877")
    build(paper)
    second = {p: p.read_bytes() for p in sorted(paper.rglob("*")) if p.is_file()}
    assert first.keys() == second.keys()
    different = {path.name for path in first if first[path] != second[path]}
    assert different == {"paper.pdf", "paper.tex", "final.json"}
    assert "0.9877" in text_of(paper / "paper.pdf")


def test_the_same_files_give_the_same_bytes(paper):
    outputs = [paper / "paper.pdf", paper / "paper.tex"]
    build(paper)
    first = [path.read_bytes() for path in outputs]
    build(paper)
    assert [path.read_bytes() for path in outputs] == first


def test_the_committed_paper_is_what_its_source_gives(paper):
    committed = (paper / "paper.tex").read_text("utf-8"), text_of(paper / "paper.pdf")
    build(paper)
    rebuilt = (paper / "paper.tex").read_text("utf-8"), text_of(paper / "paper.pdf")
    assert rebuilt == committed, "run ./run_all.sh paper"


def test_nothing_unresolved_is_left_in_the_paper():
    tex, text = (PAPER / "paper.tex").read_text("utf-8"), text_of(PAPER / "paper.pdf")
    for output in (tex, text):
        assert "{{" not in re.sub(r"\\[a-z]+\{\{", "", output)
        assert "??" not in output
        assert ":::" not in output
        assert not re.search(r"@(fig|tbl|sec):", output)
    assert r"\citep{" in tex
    assert r"\bibliography{references}" in tex
    labels = set(re.findall(r"\\label\{([^}]*)\}", tex))
    assert set(re.findall(r"\\ref\{([^}]*)\}", tex)) <= labels


def test_every_reference_is_cited_complete_and_no_known_wrong_one():
    entries = re.findall(r"^@\w+\{([^,]+),(.*?)^\}", BIBLIOGRAPHY, re.MULTILINE | re.DOTALL)
    for key, fields in entries:
        assert f"@{key}" in SOURCE, f"{key} is not cited"
        for field in ("author", "title", "year"):
            assert re.search(rf"^  {field} = \{{.+\}},?$", fields, re.MULTILINE), (key, field)
    identifiers = {key: arxiv[1] for key, fields in entries
                   if (arxiv := re.search(r"arxiv\.org/abs/([\d.]+)", fields))}  # fmt: skip
    assert identifiers["wang2022"] == "2204.05832"
    assert identifiers["narang2021"] == "2102.11972"
    assert identifiers["zhang2019"] == "1910.07467"
    assert "2410.03730" not in BIBLIOGRAPHY  # the Teuken-7B report, once cited as RMSNorm


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex here")
def test_the_latex_compiles_without_a_warning_that_matters(paper):
    for command in ("pdflatex", "bibtex", "pdflatex", "pdflatex", "pdflatex"):
        words = ["-interaction=nonstopmode"] if command == "pdflatex" else []
        done = subprocess.run([command, *words, "paper"], cwd=paper, capture_output=True)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    log = (paper / "paper.log").read_text("latin-1")
    assert not re.search("undefined|multiply defined|Missing character|Overfull", log)
