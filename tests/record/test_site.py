"""The pages built from a made-up record."""

import html
import json
import math
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from filelock import FileLock

from lib.publish import paper
from lib.publish.catalogue import catalogue, lines_of, neighbours
from lib.publish.overlay import columns
from lib.publish.site import DamagedError, build_site, main
from lib.record import archive
from lib.record.record import Record
from lib.results import live_file
from lib.study.metrics import MAIN, MEASURES
from lib.study.yaml import exit_status
from tests.record.samples import (
    move_to,
    plain_notebook,
    write_notebook,
)
from tests.study.samples import CONTENT

pytestmark = pytest.mark.slow


def rows(page: Path) -> list[str]:
    return re.findall(r"<tr.*?</tr>", page.read_text("utf-8"), re.DOTALL)


def row_of(page: Path, *words: str) -> str:
    """The one row of a page that holds all words, without its tags."""
    plain = [re.sub(r"<[^>]+>", " ", row.replace("<wbr>", "")).split() for row in rows(page)]
    found = [" ".join(row) for row in plain if all(word in " ".join(row) for word in words)]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def own(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the made-up record and its site, to be changed."""
    shutil.copytree(samples, tmp_path, dirs_exist_ok=True)
    move_to(tmp_path, monkeypatch)
    return tmp_path


def test_every_run_and_study_is_on_the_index(pages: Path) -> None:
    text = (pages / "index.html").read_text("utf-8")
    assert text.count("<tr class=") == 6 + 12 + 2
    assert row_of(pages / "index.html", "alpha", "recorded", "6 1 0")
    assert row_of(pages / "index.html", "beta", "recorded", "12 2 0")
    assert row_of(pages / "index.html", "gamma", "failed", "2 0 1")
    assert "20.400" in row_of(pages / "index.html", "none seed 2", "alpha")
    assert row_of(pages / "index.html", "layernorm seed 2", "alpha").split()[3] == "s3"


def test_columns_are_measures_then_factors_with_what_a_study_leaves_alone(samples: Path) -> None:
    studies = catalogue(samples / "paper")
    norm, source = [column for column in columns(studies) if not column.is_measure]
    assert (norm.label, norm.common, norm.words) == ("embedding norm", True, ("none", "layernorm"))
    assert (source.label, source.common) == ("source", False)
    assert source.words == ("synthetic", "a b (1).txt", "a+b.txt")  # alpha's by its configuration
    assert columns(studies)[0].plain(studies[0].runs[0]) == 20.0


def test_every_link_leads_to_a_page_and_every_page_can_be_reached(pages: Path) -> None:
    reached, waiting = set(), [pages / "index.html"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for href in re.findall(r'<a [^>]*href="([^"]+)"', page.read_text("utf-8")):
            if href != "#content":
                address, _, part = unquote(unescape(href)).partition("#")
                target = (page.parent / address).resolve() if address else page
                assert target.is_file(), f"{page}: {href}"
                if part and "=" not in part:  # else a script reads it
                    assert f'id="{part}"' in target.read_text("utf-8"), f"{page}: {href}"
                waiting.append(target)
    assert reached == set(pages.rglob("*.html"))
    assert (pages / "beta" / "none,source=a b (1).txt" / "seed-0.html") in reached


def test_pages_name_nothing_outside_and_forbid_it(pages: Path) -> None:
    for page in pages.rglob("*.html"):
        text = page.read_text("utf-8")
        assert (
            "default-src 'none'; img-src data: 'self'; style-src 'self'; script-src 'self'" in text
        )
        for address in re.findall(r'\s(?:src|href|srcset|action|content)="([^"]*)"', text):
            assert not re.match(r"\s*(https?:|//|javascript:)", address), f"{page}: {address}"
    scripts = ("state.js", "record.js", "curves.js", "overlay.js", "initial-rms.js")
    for name in ("record.css", *scripts):
        assert not re.search(r"https?:|//\w|@import|url\(", (pages / name).read_text("utf-8"))


def test_the_confirmatory_verdict_stands_first_and_alone(pages: Path) -> None:
    text = (pages / "index.html").read_text("utf-8")
    verdict = text[text.index('id="verdict"') : text.index('id="studies"')]
    assert "keep the baseline" in verdict
    assert "confirmatory" in verdict
    answer = '<a class="source" href="alpha/03_analysis.html#verdict">supported</a>'
    assert f"<b>H1a: {answer}</b> <small>(layernorm).</small>" in verdict
    assert "exploratory" not in verdict
    assert "beta" not in verdict
    assert re.search(r"\+0\.0\d+ .*\[.*Holm p 0\.012", re.sub(r"\s+", " ", verdict))
    assert verdict.index("<img") < verdict.index("keep the baseline")
    assert 'alt="Effects of alpha"' in verdict
    assert "exploratory" in row_of(pages / "index.html", "beta", "recorded")


def test_an_exploratory_study_shows_contrasts_and_no_decision_whatever_its_verdict_holds(
    samples: Path, pages: Path
) -> None:
    held = json.loads(Record("beta").verdict_file.read_text("utf-8"))
    assert held["decisions"]
    assert held["answers"]
    text = (pages / "beta" / "index.html").read_text("utf-8")
    for word in ("keep the baseline", "not decided", "rule ", "H1a", "Holm"):
        assert word not in text, word
    assert "An exploratory study decides nothing" in text
    order = [text.index(part) for part in ('id="answer"', '<table class="forest">', "<figure")]
    assert order == sorted(order)
    for row in held["contrasts"]:
        if row["measure"] == "perplexity":
            number = f"{row['mean_delta']:+.3f} [".replace("-", "−")
            assert f">{number}" in text
            assert f'<td class="number n">{row["n"]}</td>' in text


def test_a_confirmatory_study_without_rules_shows_its_answers_and_no_decision(own: Path) -> None:
    path = Record("alpha").verdict_file
    verdict = json.loads(path.read_text("utf-8"))
    reason = "It is slower. layernorm - none: +0.1, claimed is > 0. So be it."
    verdict |= {"decisions": [], "answers": {"slower": {"answer": "refuted", "reason": reason}}}
    row = {"hypothesis": "slower", "says": "It is slower.", "answer": "refuted", "claim": "> 0.03"}
    verdict["hypothesis_tests"] = [row | {"arm": "layernorm", "n": 3}]
    for evidence in verdict["evidence"]:
        evidence["primary"] = {}
    path.write_text(json.dumps(verdict), "utf-8")
    archive.write_manifest("alpha")
    build_site()
    for page in ("index.html", "alpha/index.html"):
        text = (own / "paper/site" / page).read_text("utf-8")
        said = html.unescape(re.sub(r"<[^>]+>", "", text))
        assert f"slower: refuted {reason.replace('-', '−')}\n" in said
        assert "<small><q>It is slower.</q> layernorm − none" in text
        assert "Every contrast, over every seed" in said
        assert "no decision" not in said
        item = text[text.index('<ul class="decisions">') :].partition("</li>")[0]
        assert "layernorm" in item
        assert MEASURES[MAIN].label in item  # its difference in the main measure


@pytest.mark.parametrize("study", ["alpha", "beta"])
def test_answer_and_figures_stand_before_the_runs(pages: Path, study: str) -> None:
    text = (pages / study / "index.html").read_text("utf-8")
    order = [text.index(part) for part in ('id="answer"', "<figure", '<table class="grid">')]
    assert order == sorted(order)
    assert text.count("<figure") == 2
    assert f"<p>What does <code>Loss</code> of {study} <em>show</em>? </p>" in text
    assert "struck" not in text


def test_the_same_contrast_of_several_studies_stands_in_one_plot(
    samples: Path, pages: Path
) -> None:
    text = (pages / "compare.html").read_text("utf-8")
    plot = text[text.index('<table class="forest">') : text.index("<details>")]
    names = re.findall(r'scope="rowgroup">([^<]+)<', plot)
    assert names == ["LayerNorm − none"]
    studies = re.findall(r'href="(\w+)/index.html">', plot)
    assert studies == ["alpha", "beta", "beta"]
    row = next(
        r
        for r in json.loads(Record("alpha").verdict_file.read_text("utf-8"))["contrasts"]
        if r["measure"] == "perplexity"
    )
    (reach,) = re.findall(r"<span>\+([\d.]+)</span>", plot)
    mark = float(re.search(r'<circle class="\w+" cx="([\d.]+)%"', plot)[1])
    clipped = max(-1, min(1, row["mean_delta"] / float(reach)))
    assert mark == pytest.approx(50 + 48 * clipped, abs=0.02)


def test_a_contrast_that_several_studies_hold_is_tested_over_all_their_seeds(own: Path) -> None:
    for study, seed in (("alpha", 0), ("beta", 2)):  # whose runs have one configuration
        path = Record(study).results_file
        content = json.loads(path.read_text("utf-8"))
        for run in content["runs"]:
            run["status"] = "completed" if run["seed"] == seed else "diverged"
        path.write_text(json.dumps(content), "utf-8")
        archive.write_manifest(study)
    assert 'id="pooled"' not in (own / "paper" / "site" / "compare.html").read_text("utf-8")
    build_site()
    text = (own / "paper" / "site" / "compare.html").read_text("utf-8")
    tables = re.findall(r'aria-label="([^"]+) over all seeds">(.*?)</table>', text, re.DOTALL)
    names = [name for name, _ in tables]
    assert names[0] == "Validation perplexity"
    assert names[1:] == re.findall(r"<summary>(.*?)</summary>", text[text.index('id="pooled"') :])
    row = " ".join(re.sub(r"<[^>]+>", " ", tables[0][1]).split())
    beta = "beta (source=a b (1).txt); beta (source=a+b.txt)"
    assert f"Δ validation perplexity LayerNorm − none alpha; {beta} 2 " in row


def test_runs_curves_are_in_the_page_with_their_spikes(pages: Path) -> None:
    text = (pages / "compare.html").read_text("utf-8")
    block = text[text.index('id="curve-data">') + 16 :].partition("</script>")[0]
    runs = json.loads(block)["runs"]
    assert len(runs) == 18  # none of those that left no trace
    for seed in (0, 2):
        steps, losses = runs[f"alpha/layernorm/{seed}"]["lines"]["loss"]
        assert len(steps) <= 102
        assert dict(zip(steps, losses, strict=True))[150 + seed] == max(losses) == 9.0
        assert (steps[0], steps[-1]) == (1, 300)
        assert losses[0] == pytest.approx(2 + 2 * math.exp(-1 / 50), rel=1e-3)
        steps, losses = runs[f"alpha/layernorm/{seed}"]["lines"]["dev_loss"]
        assert steps == [50, 100, 150, 200, 250, 300]


def test_a_run_in_training_is_shown_with_its_curve_so_far(own: Path) -> None:
    place = own / "runs/gamma/none/seed-2"
    write_notebook(place / "02_train.ipynb", plain_notebook("a line"))
    content = json.loads((place / "02_train.ipynb").read_text("utf-8"))
    del content["metadata"]["study"]
    (place / "02_train.ipynb").write_text(json.dumps(content), "utf-8")
    live_file(place).write_text("1,4.0,2.0,64,0.5\n2,3.5,1.5,128,1.0\n3,3.", "utf-8")
    index = own / "paper/site/index.html"
    with FileLock(place / "02_train.lock"):
        build_site()
    assert "running" in row_of(index, "none seed 2", "gamma")
    text = (own / "paper/site/gamma/index.html").read_text("utf-8")
    assert "Curves so far" in text
    block = text[text.index('id="curve-data">') + 16 :].partition("</script>")[0]
    lines = json.loads(block)["runs"]["gamma · none, seed 2"]["lines"]
    assert lines == {"loss": [[1, 2], [4.0, 3.5]], "grad_norm": [[1, 2], [2.0, 1.5]]}
    build_site()
    assert "unfinished" in row_of(index, "none seed 2", "gamma")


def test_the_first_page_begins_with_the_answers_of_the_readme(own: Path) -> None:
    template = own / "paper/templates/answers.md"
    template.parent.mkdir()
    link = "[tested](papers/paper/record/alpha/03_analysis.ipynb)"
    template.write_text(
        f"**No.** It does not. [else](javascript:x)\n\n| Does it? | {link} |\n|---|---|\n"
        "{% if has('alpha') %}\n| {{ recorded | words }} <script>x()</script> |\n  more |\n"
        "{% endif %}",
        "utf-8",
    )
    build_site()
    index = own / "paper/site/index.html"
    text = index.read_text("utf-8")
    assert text.index("<strong>No.</strong> It does not.") < text.index("Verdicts of the plans")
    assert '<a href="alpha/03_analysis.html" rel="noopener noreferrer">tested</a>' in text
    assert "<td>more</td>" in text  # of the same row
    assert "javascript:" not in text
    assert "x()" not in text
    box = text[text.index('aria-label="Answers"') : text.index("Verdicts of the plans")]
    assert 'alt="Effects of alpha"' in box  # of the first evidence, not of the first link
    assert (own / "paper/site/alpha/03_analysis.html").is_file()
    assert "No answers" not in text


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("templates/answers.md", "**No.**\n\n{{ nothing.runs }}", "templates/answers.md, line 3: "),
        (
            "templates/answers.md",
            "{% if %}",
            "templates/answers.md, line 1: Expected an expression",
        ),
        ("findings.json", "{", "findings.json cannot be read"),
        ("results/alpha.verdict.json", "{", "alpha.verdict.json cannot be read"),
    ],
)
def test_without_its_answers_the_first_page_says_why(
    own: Path, file: str, content: str, why: str
) -> None:
    (own / "paper/templates").mkdir()
    (own / "paper/templates/answers.md").write_text("**No.** It does not.", "utf-8")
    (own / "paper" / file).write_text(content, "utf-8")
    with suppress(DamagedError):  # the page of a study whose verdict is broken says it too
        build_site()
    text = unescape((own / "paper/site/index.html").read_text("utf-8"))
    assert f'<p class="trouble">No answers: {why}' in text
    assert "<strong>No.</strong>" not in text


def test_without_a_confirmatory_study_the_index_says_so(own: Path) -> None:
    shutil.rmtree(Record("alpha").place)
    Record("alpha").results_file.unlink()
    Record("alpha").verdict_file.unlink()
    with pytest.raises(DamagedError, match="alpha"):  # its figures are still there
        build_site()
    text = (own / "paper/site/index.html").read_text("utf-8")
    assert "confirmatory study is not in this record" in text
    assert "keep the baseline" not in text


def test_diverged_and_failed_runs_are_stamped(pages: Path) -> None:
    index = pages / "index.html"
    assert "diverged at step 7 n/a n/a" in row_of(index, "layernorm seed 1", "alpha")
    assert "failed" in row_of(index, "none seed 0", "gamma")
    page = (pages / "alpha/layernorm/seed-1.html").read_text("utf-8")
    assert '<span class="stamp diverged">diverged</span>' in page
    page = (pages / "gamma/none/seed-0.html").read_text("utf-8")
    assert '<span class="stamp failed">failed</span>' in page
    assert "DeadKernelError: &lt;b&gt;Kernel&lt;/b&gt; died" in page
    assert "as far as it came" in page


def test_runs_are_shown_only_of_studies_without_a_complete_record(own: Path) -> None:
    copied = own / "runs/alpha/none/seed-0/02_train.ipynb"
    write_notebook(copied, plain_notebook("a copy"), status="failed", reason="a copy")
    assert build_site() == []
    (Record("alpha").place / "none/seed-2/02_train.ipynb").unlink()
    with pytest.raises(DamagedError, match=r"^alpha: none/seed-2/02_train\.ipynb is missing; "):
        build_site()
    assert "failed" in row_of(own / "paper/site/index.html", "none seed 0", "alpha")


def test_what_is_no_notebook_becomes_a_page_that_says_so(own: Path) -> None:
    texts = {
        "{": "does not appear to be JSON",
        "null": "has no attribute",
        '{"cells": null, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}': "not iterable",
        "[" * 100_000: "RecursionError",
        "[1]": "has no attribute",
    }
    for seed, text in enumerate(texts, 10):
        (own / f"runs/gamma/none/seed-{seed}").mkdir()
        (own / f"runs/gamma/none/seed-{seed}/02_train.ipynb").write_text(text, "utf-8")
    (own / "runs/gamma/01_data.ipynb").write_text("{", "utf-8")
    whole = {f"none/seed-{seed}.html": why for seed, why in enumerate(texts.values(), 10)}
    whole |= {"01_data.html": texts["{"]}
    neighbour = "gamma/none/seed-1.html"  # of which the next seed is a new one
    assert set(build_site()) == {neighbour, *(f"gamma/{page}" for page in whole)}
    for page, why in whole.items():
        text = (own / "paper/site/gamma" / page).read_text("utf-8")
        assert "cannot be shown as a notebook" in text
        assert why in text
        assert "unfinished" in text
    for seed in range(10, 15):
        row = row_of(own / "paper/site/index.html", f"none seed {seed}", "gamma")
        assert "unfinished" in row


def test_odd_characters_end_no_build(own: Path) -> None:
    seen = {
        "half a pair: \\ud800.": "half a pair: ?.",  # JSON's escape of a lone surrogate
        "plain\\u001b[m again": "plain again",
        "\\u001b[38;5;1mred\\u001b[39;49m again": "red again",
        # nbconvert fails on a colour cut short.
        "\\u001b[38m": "cannot be shown as a notebook",
    }
    for seed, printed in enumerate(seen, 10):
        place = own / f"runs/gamma/none/seed-{seed}/02_train.ipynb"
        write_notebook(place, plain_notebook("PRINTED"), status="failed", reason="REASON")
        text = place.read_text("utf-8").replace("PRINTED", printed).replace("REASON", printed)
        place.write_text(text, "utf-8")
    pages = [f"gamma/none/seed-{seed}.html" for seed in range(10, 14)]
    assert build_site() == ["gamma/none/seed-1.html", *pages]  # seed 1 has a neighbour now
    for page, shown in zip(pages, seen.values(), strict=True):
        text = (own / "paper/site" / page).read_text("utf-8")
        assert shown in re.sub(r"<[^>]+>", "", text)
        seed = page.removesuffix(".html").rpartition("-")[2]
        row = row_of(own / "paper/site/index.html", f"none seed {seed}", "gamma")
        assert "failed" in row


def test_neighbours_differ_in_one_thing(samples: Path) -> None:
    runs = {study.name: study.runs for study in catalogue(samples / "paper")}
    run = next(r for r in runs["beta"] if r.arm == "layernorm,source=a b (1).txt" and r.seed == 1)
    found = {
        axis: [other and (other.arm, other.seed) for other in pair]
        for axis, pair in neighbours(run, lines_of(runs["beta"])).items()
    }
    assert found == {
        "model.embedding_norm": [("none,source=a b (1).txt", 1), None],
        "corpus.source": [None, ("layernorm,source=a+b.txt", 1)],
        "seed": [(run.arm, 0), (run.arm, 2)],
    }
    alone = neighbours(runs["gamma"][0], lines_of(runs["gamma"][:1]))
    assert alone == {}
    # An included arm may set a field that the grid leaves alone.
    included = replace(run, arm="included", levels=run.levels | {"model.branch_multiplier": 2.0})
    ends = neighbours(included, lines_of([*runs["beta"], included]))
    assert "model.branch_multiplier" not in ends
    assert included not in [end for pair in ends.values() for end in pair]


def test_a_rebuild_renders_no_unchanged_notebook(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lib.publish.pages.notebook_html", lambda path: pytest.fail(f"rendered {path}")
    )
    assert build_site() == []


def test_a_page_that_is_not_its_notebooks_is_rendered_again(own: Path) -> None:
    page = own / "paper/site/alpha/03_analysis.html"
    whole = page.read_text("utf-8")
    forgeries = {
        "alpha": "alpha, as hoped",  # around the notebook
        "03_analysis of alpha": "It helps.",  # within it
        "</article>": "<p>It helps.</p></article>",
        "<!-- ": "<p>It helps.</p><!-- ",
        " -->\n": " -->\n<p>It helps.</p>",
    }
    parts = {old: whole.rpartition(old) for old in forgeries}
    others = [parts[old][0] + new + parts[old][2] for old, new in forgeries.items()]
    others += [whole[: len(whole) // 2], page.with_name("01_data.html").read_text("utf-8")]
    for other in others:
        assert other != whole
        page.write_text(other, "utf-8")
        assert build_site() == ["alpha/03_analysis.html"], other
        assert page.read_text("utf-8") == whole


@pytest.mark.parametrize("name", ["results", "verdict"])
def test_damaged_results_end_the_build_of_the_paper_in_one_line(
    name: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = getattr(Record("alpha"), f"{name}_file")
    path.write_text('{"runs": [', "utf-8")
    (own / "paper/paper.md").touch()
    assert exit_status(paper.main)([]) == 1
    said = f"error: {path.name} cannot be read; restore it, or delete it\n"
    assert capsys.readouterr() == ("", said)


def test_a_run_that_was_set_aside_is_not_shown(own: Path) -> None:
    run = own / "runs/gamma/none/seed-0"
    shutil.copytree(run, run.with_name("seed-0-backup"))
    assert build_site() == []


def test_a_changed_number_changes_the_pages_that_show_it_and_a_zero_has_no_sign(own: Path) -> None:
    results = Record("beta").results_file
    content = json.loads(results.read_text("utf-8"))
    assert content["runs"][0]["measures"]["perplexity"] == 20.0
    for run, value in zip(content["runs"], (19.5, -0.0001), strict=False):
        run["measures"]["perplexity"] = value
    results.write_text(json.dumps(content), "utf-8")
    archive.write_manifest("beta")
    arm, index = "none,source=a b (1).txt", own / "paper/site/index.html"
    assert build_site() == [f"beta/{arm}/seed-{seed}.html" for seed in (0, 1)]
    assert " 19.500 " in row_of(index, f"{arm} seed 0", "beta")
    assert " 0.000 " in row_of(index, f"{arm} seed 1", "beta")


def test_a_record_made_before_a_measure_was_added_is_shown_without_it(own: Path) -> None:
    results = Record("beta").results_file
    content = json.loads(results.read_text("utf-8"))
    for measures in [*content["summary"].values(), *(run["measures"] for run in content["runs"])]:
        measures.pop("ece", None)
    results.write_text(json.dumps(content), "utf-8")
    archive.write_manifest("beta")
    build_site()
    page = (own / "paper/site/beta/index.html").read_text("utf-8")
    assert '<td class="number">n/a</td>' in page.partition("<h2>Arms</h2>")[2]


def test_a_changed_notebook_changes_its_page(own: Path) -> None:
    place = Record("alpha").place / "none/seed-0/02_train.ipynb"
    write_notebook(place, plain_notebook("another line"))
    archive.write_manifest("alpha")
    assert build_site() == ["alpha/none/seed-0.html"]
    assert "another line" in (own / "paper/site/alpha/none/seed-0.html").read_text("utf-8")


def test_the_same_record_gives_the_same_bytes(own: Path) -> None:
    shutil.move(own / "paper/site", own / "before")
    build_site()
    first, second = (
        {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        for folder in (own / "before", own / "paper/site")
    )
    assert first == second


def test_the_paper_is_linked_where_there_is_one(own: Path) -> None:
    index = own / "paper/site/index.html"
    assert "paper.pdf" not in index.read_text("utf-8")
    (own / "paper/paper.pdf").write_bytes(b"%PDF-1.7")
    build_site()
    assert 'href="paper.pdf"' in index.read_text("utf-8")
    assert (own / "paper/site/paper.pdf").read_bytes() == b"%PDF-1.7"


def test_an_empty_record_still_has_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    move_to(tmp_path, monkeypatch)
    main([])
    assert (tmp_path / "paper/site/index.html").is_file()
    assert "python -m http.server --directory" in capsys.readouterr().out


def test_a_verdict_names_the_study_of_its_plan_that_has_no_record(own: Path) -> None:
    plan = own / "paper" / "record" / "alpha" / "plan.yaml"
    plan.write_text(yaml.safe_dump(CONTENT | {"confirmatory": ["alpha", "hidden"]}), "utf-8")
    archive.write_manifest("alpha")
    build_site()
    said = "its plan also names &#39;hidden&#39;, of which there is no record under it"
    site = own / "paper" / "site"
    for page in ("index.html", "alpha/index.html", "alpha/03_analysis.html"):
        badge = '<span class="standing confirmatory">confirmatory</span> <span class="reason">'
        assert f"{badge}({said})" in (site / page).read_text("utf-8")
    assert said not in (site / "beta" / "index.html").read_text("utf-8")


def test_a_sealed_record_is_shown_as_the_open_one_was(own: Path) -> None:
    def shown(path: Path) -> str:
        """A page without the root and its own mark, and without the folders of its notebook."""
        text = re.sub(r"(plans: <code>|<!-- )\w{64}", "", path.read_text("utf-8"))
        return re.sub(r"(?<=<dd>)\S*?(\w+\.ipynb)( in alpha\.zip)?(?=</dd>)", r"\1", text)

    pages = sorted((own / "paper/site").rglob("*.html"))
    before = [shown(page) for page in pages]
    archive.seal("alpha")
    rendered = build_site()
    assert Record("alpha").is_sealed
    assert len(rendered) == 6  # the pages of runs say where their notebooks lie
    assert [shown(page) for page in pages] == before
    assert build_site() == []
