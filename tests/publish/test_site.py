"""The site of a record that lies here, of its older form in one zip, and of runs in progress."""

import json
import re
import shutil
import zipfile
from html import unescape
from urllib.parse import unquote

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lib.config.io import PAPERS
from lib.config.yaml import UserError
from lib.publish import site
from lib.publish.site import build_site, notebook_html, read_study
from lib.record.archive import RAW_ZIP, Record

pytestmark = pytest.mark.slow

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
HOSTILE = """
<script>window.struck = "script"</script>
<img src="x" onerror="window.struck = 'handler'">
<img src="http://elsewhere.invalid/a.png" alt="from elsewhere">
<svg onload="window.struck = 'svg'"><script>window.struck = 'svg script'</script></svg>
<iframe srcdoc="<script>parent.struck = 'frame'</script>"></iframe>
<style>@import "http://elsewhere.invalid/a.css"; main { display: none }</style>
<link rel="stylesheet" href="http://elsewhere.invalid/b.css">
<meta http-equiv="refresh" content="0; url=http://elsewhere.invalid/">
<a href="javascript:window.struck = 'link'">a link</a>
<form action="http://elsewhere.invalid/"><input name="a"><button>send</button></form>
<p style="background: url(http://elsewhere.invalid/c.png)" onclick="struck = 'click'">kept</p>
</div></main></body><table><tr><td>4.2</td></tr></table>
"""
LOADS = re.compile(
    r"""<(?!a\b)[^>]*\s(?:src|href|srcset|action|data)\s*=\s*["']?\s*(?:https?:)?//"""
    r"|<script[^>]*\ssrc|@import|url\(\s*[\"']?\s*(?:https?:)?//",
    re.IGNORECASE,
)
"""What would fetch something from elsewhere; a link is only followed by a click."""


def write(path, *cells, **stamp):
    notebook = new_notebook(cells=list(cells), metadata={"study": stamp} if stamp else {})
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """A paper with the record of `example`, and a study of which one run has ended; runs are looked
    for beside it, and no record but its own."""
    folder = tmp_path_factory.mktemp("site")
    paper = folder / "papers" / "example"
    for name in ("record/example", "results"):
        shutil.copytree(PAPERS / "example" / name, paper / name)
    record = Record("example", paper)
    run = folder / "runs" / "begun" / "none" / "seed-0"
    write(run / "02_train.ipynb", new_markdown_cell("so far"))
    done = folder / "runs" / "begun" / "layernorm" / "seed-0"
    write(done / "02_train.ipynb", new_markdown_cell("done"), status="completed")
    result = record.runs[0] | {"arm": "layernorm", "baseline": "none", "variant": "layernorm"}
    (done / "result.json").write_text(json.dumps(result), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "RUNS", folder / "runs")
        patch.setattr(site, "paper_of", lambda name: paper)
        patch.setattr(site, "recorded_studies", lambda paper: ["example"])
        yield paper


@pytest.fixture(scope="module")
def built(paper):
    rendered = build_site(paper)
    assert len(rendered) == 8 + 3 + 2
    return paper / "site"


def test_every_page_is_reached_from_the_index(built):
    reached, waiting = set(), [built / "index.html"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            text = page.read_text("utf-8").replace('\\"', '"').replace("\\/", "/")
            for href in re.findall(r'<a href="([^"]+)"', text):
                if not href.startswith("http"):
                    target = (page.parent / unquote(unescape(href))).resolve()
                    assert target.is_file(), f"{page}: {href}"
                    waiting.append(target)
    assert reached == set(built.rglob("*.html"))
    for name in ("record/example", "runs/begun"):
        place = (built.parent if name.startswith("record") else built.parents[2]) / name
        for notebook in place.glob("*/seed-*/02_train.ipynb"):
            run = notebook.parent.relative_to(place)
            assert built / place.name / run.with_suffix(".html") in reached


def test_pages_hold_all_that_they_show(built):
    for page in built.rglob("*.html"):
        assert LOADS.findall(page.read_text("utf-8")) == [], page
    assert LOADS.findall((built / "site.css").read_text("utf-8")) == []
    assert LOADS.findall('<script src="https://x">')
    assert LOADS.findall("<img src=//x>")


def test_a_study_shows_its_verdict_its_figures_and_what_is_in_progress(built):
    study = (built / "example" / "index.html").read_text("utf-8")
    assert "EXPLORATORY" in study
    assert study.count('src="data:image/png') >= 6
    assert "import " not in study  # outputs only
    begun = (built / "begun" / "index.html").read_text("utf-8")
    assert "no verdict yet" in begun
    assert "unfinished: killed" in (built / "begun/none/seed-0.html").read_text("utf-8")
    assert "example" in (built / "index.html").read_text("utf-8")


def test_curves_are_mean_and_range_over_seeds(paper):
    """Against the raw tables, seed by seed."""
    study = read_study("example", paper)
    curves = site.curve_table(study)
    record = Record("example", paper)
    for y, name in site.CURVES.items():
        raw = record.joined(name).query("variant == 'constant'")
        seeds = raw.pivot(index="step", columns="seed", values=y)
        mine = curves.query("measure == @y and variant == 'constant'").set_index("step")
        assert len(mine) <= 200
        if len(seeds) <= 200:
            np.testing.assert_allclose(mine["mean"], seeds.mean(axis=1))
        last = seeds.iloc[-2:] if len(seeds) > 200 else seeds.iloc[-1:]
        assert mine["min"].iloc[-1] == last.to_numpy().min()
        assert mine["max"].iloc[-1] == last.to_numpy().max()


def test_only_what_changed_is_rendered_again(built, paper):
    assert build_site(paper) == []
    notebook = paper.parents[1] / "runs/begun/none/seed-0/02_train.ipynb"
    write(notebook, new_markdown_cell("farther"))
    assert build_site(paper) == ["begun/none/seed-0.html"]
    assert "farther" in (built / "begun/none/seed-0.html").read_text("utf-8")


def test_a_damaged_study_says_so_and_the_others_are_shown(built, paper, tmp_path, monkeypatch):
    own = tmp_path / "paper"
    shutil.copytree(paper, own)
    shutil.copytree(own / "record/example", own / "record/broken")
    (own / "record/broken" / RAW_ZIP).write_bytes(b"no zip")
    monkeypatch.setattr(site, "recorded_studies", lambda paper: ["broken", "example"])
    with pytest.raises(UserError, match=r"^broken: .*zip"):
        build_site(own)
    assert "cannot be shown" in (own / "site/broken/index.html").read_text("utf-8")
    assert "damaged" in (own / "site/index.html").read_text("utf-8")
    assert (own / "site/example/constant/seed-0.html").is_file()


def test_an_older_record_in_one_zip_has_the_same_pages(built, paper, tmp_path):
    own = tmp_path / "paper"
    shutil.copytree(paper / "results", own / "results")
    (own / "record").mkdir()
    with zipfile.ZipFile(own / "record/example.zip", "w") as packed:
        for path in (paper / "record/example").rglob("*"):
            packed.write(path, path.relative_to(paper / "record/example"))
    build_site(own)
    for page in built.glob("example/**/*.html"):
        other = own / "site" / page.relative_to(built)
        assert other.read_text("utf-8") == page.read_text("utf-8")


def test_a_hostile_notebook_is_reduced_to_what_shows(tmp_path):
    width = {"image/png": {"width": "1 onload=window.struck='width'"}}
    outputs = [
        new_output("display_data", {"text/html": HOSTILE}),
        new_output("display_data", {"text/markdown": HOSTILE}),
        new_output("display_data", {"application/javascript": "struck = 1", "text/plain": "plain"}),
        new_output("display_data", {"image/png": PIXEL}, metadata=width),
        new_output("display_data", {"image/svg+xml": "<svg onload='top.struck=1'/>"}),
        new_output("stream", text="\x1b[31m<script>window.struck = 1</script>\x1b[0m"),
    ]
    code = new_code_cell("'<script>window.struck = 1</script>'", outputs=outputs)
    write(tmp_path / "a.ipynb", new_markdown_cell(HOSTILE), code)
    text = notebook_html(tmp_path / "a.ipynb")
    outside = re.sub(r"<pre[^>]*>.*?</pre>", "", text, flags=re.DOTALL)  # code is shown as text
    assert "struck" not in outside
    assert "elsewhere.invalid" not in outside
    for tag in ("script", "style", "link", "meta", "base", "iframe", "form", "svg", "object"):
        assert f"<{tag}" not in text, tag
    assert not re.search(r"<[^>]*\s(on\w+|style)=", text)
    assert text.count("kept") == 3
    assert text.count("<div") == text.count("</div")
    assert f"data:image/png;base64,{PIXEL}" in text


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b'{"cells": [', b"[" * 100_000, bytes(range(256)), b"\0" * 100, b"[1]"),
        *(
            b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [3]}',
            b'{"nbformat": 99}',
        ),
    ],
)
def test_what_is_no_notebook_becomes_a_page_that_says_so(content, tmp_path):
    (tmp_path / "a.ipynb").write_bytes(content)
    assert "cannot be shown as a notebook" in notebook_html(tmp_path / "a.ipynb")
