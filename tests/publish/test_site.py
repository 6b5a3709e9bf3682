"""Sites of a record, and of runs in progress."""

import json
import os
import re
import shutil
import time
from html import unescape
from urllib.parse import unquote

import nbformat
import numpy as np
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lib.config.errors import UserError
from lib.config.paths import PAPERS
from lib.config.study import SCRATCH, Study
from lib.publish import site
from lib.publish.site import notebook_html, read_study
from lib.record.archive import RAW, Record
from lib.results import STEP_FILE, read_raw_file
from tests.conftest import TINY

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


LEVELS = {"model.embedding_norm": ["none", "scale", "center"]}
OWN = Study.model_validate(TINY | {"name": "mine", "seeds": [7, 3], "factors": LEVELS})
UNDER_WAY = [
    # run, its last step, and seconds since then
    ("mine/none/seed-3", 4, 0),
    ("mine/scale/seed-7", 4, 999),
    ("mine/scale/seed-3", 12, 999),
    ("mine/elsewhere/seed-0", 12, 999),
    (f"{SCRATCH}/mine,none,clip=1/seed-7", 5, 0),
]


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """A paper with the record of `example`, and in `runs/` a study of which one run has ended."""
    folder = tmp_path_factory.mktemp("site")
    paper, runs = folder / "papers" / "example", folder / "runs"
    for name in ("record/example", "results"):
        shutil.copytree(PAPERS / "example" / name, paper / name)
    for place, step, age in UNDER_WAY:
        (runs / place).mkdir(parents=True)
        (runs / place / STEP_FILE).write_text(str(step), "utf-8")
        os.utime(runs / place / STEP_FILE, (time.time() - age,) * 2)
    write(runs / "mine/none/seed-3/02_train.ipynb", new_markdown_cell("so far"))
    write(runs / "mine/center/seed-7/02_train.ipynb", status="failed", reason="<b> & c")
    done, record = runs / "mine/none/seed-7", Record("example", paper)
    write(done / "02_train.ipynb", new_markdown_cell("done"), status="completed")
    arm = OWN.arm("none")
    result = {"arm": arm.id, "seed": 7, "variant": arm.variant, "levels": arm.levels}
    (done / "result.json").write_text(json.dumps(record.runs[0] | result), "utf-8")
    for name in ("trace.parquet", "curve.parquet"):
        raw = (record.raw_folder("constant", 0) / name).read_bytes()
        for run in (done, runs / "mine/scale/seed-3"):
            (run / name).write_bytes(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "RUNS", runs)
        patch.setattr(site, "load_study", lambda name: {"mine": OWN}.get(name))
        patch.setattr(site, "papers_named", lambda names: [paper])
        patch.setattr(site, "recorded_studies", lambda paper: ["example"])
        yield paper


@pytest.fixture(scope="module")
def built(paper):
    site.main(["example"])
    return paper / "site"


@pytest.fixture(scope="module")
def own(paper):
    site.main([])
    return site.RUNS / "_site"


@pytest.mark.parametrize(("which", "n"), [("built", 8), ("own", 3)])
def test_every_page_is_reached_from_the_index(which, n, request):
    folder = request.getfixturevalue(which)
    reached, waiting = set(), [folder / "index.html"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            text = page.read_text("utf-8").replace('\\"', '"').replace("\\/", "/")
            for href in re.findall(r'<a href="([^"#]+)"', text):
                if not href.startswith("http"):
                    target = (page.parent / unquote(unescape(href))).resolve()
                    assert target.is_file(), f"{page}: {href}"
                    waiting.append(target)
    assert reached == set(folder.rglob("*.html"))
    source = folder.parent / "record" if which == "built" else folder.parent
    runs = [path.parent.relative_to(source) for path in source.glob("*/*/seed-*/02_train.ipynb")]
    assert len(runs) == n
    assert {folder / run.with_suffix(".html") for run in runs} <= reached


def test_runs_stand_as_the_study_orders_them_and_say_how_far_they_are(own):
    rows = [row for name in ("mine", SCRATCH) for row in read_study(own, None, name)["rows"]]
    assert [(re.sub("<.*?>", "", row["arm"]), row["seed"], row["status"]) for row in rows] == [
        ("none", "7", "completed"),
        ("none", "3", "running, step 4 of 12"),
        ("scale", "7", "stopped, step 4 of 12"),
        ("scale", "3", "trained again, step 12 of 12"),
        ("center", "7", "failed: &lt;b&gt; &amp; c"),
        ("center", "3", "not begun"),
        ("elsewhere", "0", "stopped, step 12 of ?"),
        ("mine,none,clip=1", "7", "running, step 5 of ?"),
    ]
    assert [row["embedding_norm"] for row in rows[:6:2]] == LEVELS["model.embedding_norm"]


def test_pages_hold_all_that_they_show(built):
    for page in built.rglob("*.html"):
        assert LOADS.findall(page.read_text("utf-8")) == [], page
    assert LOADS.findall((built / "site.css").read_text("utf-8")) == []
    assert LOADS.findall('<script src="https://x">')
    assert LOADS.findall("<img src=//x>")


def test_a_study_shows_its_verdict_its_figures_and_what_is_in_progress(built, own):
    assert "exploratory" in (built / "index.html").read_text("utf-8")
    assert (built / "example/04_figures.html").read_text("utf-8").count("data:image/png") >= 6
    assert "in progress" in (own / "index.html").read_text("utf-8")
    assert "unfinished: killed" in (own / "mine/none/seed-3.html").read_text("utf-8")


def test_curves_are_mean_and_range_over_seeds(built, paper):
    """Against the raw tables, seed by seed."""
    curves = read_study(built, paper, "example")["curves"].query("variant == 'constant'")
    for name, ys in (("trace", ["loss", "grad_norm"]), ("curve", ["dev_loss", "residual_norm_2"])):
        raw = Record("example", paper).joined(name).query("variant == 'constant'")
        for y in ys:
            seeds = raw.pivot(index="step", columns="seed", values=y)
            mine = curves.dropna(subset=f"{y} mean").set_index("step")
            assert 10 < len(mine) <= 200
            if len(seeds) <= 200:
                np.testing.assert_allclose(mine[f"{y} mean"], seeds.mean(axis=1))
            last = seeds[seeds.index > mine.index[-2]]
            assert mine[f"{y} min"].iloc[-1] == last.to_numpy().min()
            assert mine[f"{y} max"].iloc[-1] == last.to_numpy().max()


def test_any_measure_of_training_is_drawn_and_none_is_black_and_solid(own, built):
    looks, columns = {}, set(Record("example").joined("curve")) - {"arm", "variant", "setting"}
    for folder in (own, built):
        text = (folder / "curves.html").read_text("utf-8").partition("const spec = ")[2]
        spec = json.JSONDecoder().raw_decode(text)[0]
        measures = next(each for each in spec["params"] if each["name"] == "measure")["bind"]
        assert {*measures["options"]} > columns - {"seed", "step"}
        drawn = spec.get("spec", spec)["layer"][0]["encoding"]
        colours, dashes = drawn["color"]["scale"], drawn["strokeDash"]["scale"]
        for i, key in enumerate(colours["domain"]):
            assert dashes["domain"][i] == key
            looks[key] = colours["range"][i], dashes["range"][i]
    assert looks["mine: none"] == looks["example: constant"] == ("#000000", [1, 0])
    assert len({str(look) for look in looks.values()}) == len(looks) - 1


def test_only_what_changed_is_rendered_again(own):
    def pages():
        return {path: path.stat().st_ino for path in own.rglob("*/*.html")}

    before = pages()
    site.main([])
    assert pages() == before
    write(site.RUNS / "mine/none/seed-3/02_train.ipynb", new_markdown_cell("farther"))
    site.main([])
    page = own / "mine/none/seed-3.html"
    assert [path for path, inode in pages().items() if inode != before[path]] == [page]
    assert "farther" in page.read_text("utf-8")


def test_curves_are_read_again_only_if_a_result_changed(own, monkeypatch):
    read, place = [], site.RUNS / "mine/none/seed-7"

    def count(folder, name):
        read.append((folder, name))
        return read_raw_file(folder, name)

    monkeypatch.setattr(site, "read_raw_file", count)
    before = read_study(own, None, "mine")["curves"]
    pd.testing.assert_frame_equal(read_study(own, None, "mine")["curves"], before)
    assert read == []
    result = json.loads((place / "result.json").read_bytes()) | {"setting": "another"}
    (place / "result.json").write_text(json.dumps(result), "utf-8")
    after = read_study(own, None, "mine")["curves"]
    assert read == [(place, "trace"), (place, "curve")]
    assert set(after["setting"]) == {"another"}


def test_all_is_made_again_after_an_edit_of_what_makes_it(own, monkeypatch):
    page = own / "mine/none/seed-7.html"
    before = page.stat().st_ino
    monkeypatch.setattr(site, "CODE", ["edited"])
    site.main([])
    assert page.stat().st_ino != before


def test_a_watched_study_shows_itself_again_and_again(own, monkeypatch, capsys):
    assert "refresh" not in (own / "index.html").read_text("utf-8")
    monkeypatch.setattr(time, "sleep", lambda seconds: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        site.main([], "mine")
    text = (own / "index.html").read_text("utf-8")
    assert '<meta http-equiv="refresh" content="10">' in text
    assert "running, step 4 of 12" in text
    assert "running, step 5 of ?" in text
    assert capsys.readouterr().out == "In a browser        _site/index.html\r"


def test_a_run_s_page_names_the_commit_that_executed_its_notebook(built):
    commit = Record("example").runs[0]["provenance"]["executed"]["commit"][:12]
    said = f"Executed at commit {commit}; imports are of that commit."
    for run in ("constant/seed-0", "warmup_cosine/seed-1"):
        assert said in (built / "example" / f"{run}.html").read_text("utf-8")
    assert said in (PAPERS / "example/record/example/README.md").read_text("utf-8")


def test_a_damaged_study_says_so_and_the_others_are_shown(built, paper, tmp_path, monkeypatch):
    own = tmp_path / "paper"
    shutil.copytree(paper, own)
    shutil.copytree(own / "record/example", own / "record/broken")
    (own / "record/broken" / RAW).write_bytes(b"no tar")
    monkeypatch.setattr(site, "recorded_studies", lambda paper: ["broken", "example"])
    monkeypatch.setattr(site, "papers_named", lambda names: [own])
    with pytest.raises(UserError, match=r"^broken: ReadError"):
        site.main(["paper"])
    assert "damaged" in (own / "site/index.html").read_text("utf-8")
    assert (own / "site/example/constant/seed-0.html").is_file()


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


NO_CELLS = b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [3]}'
NO_NOTEBOOKS = [b"", b"{", b'{"nbformat": 99}', NO_CELLS]


@pytest.mark.parametrize("content", NO_NOTEBOOKS)
def test_what_is_no_notebook_becomes_a_page_that_says_so(content, tmp_path):
    (tmp_path / "a.ipynb").write_bytes(content)
    assert "cannot be shown as a notebook" in notebook_html(tmp_path / "a.ipynb")


def test_a_name_is_text_in_every_page(paper, tmp_path, monkeypatch):
    """As of a branch: such names are levels of `code`."""
    name = "</script><script>window.struck = 'name'</script>"
    run = tmp_path / "mine/none/seed-7"
    shutil.copytree(site.RUNS / "mine/none/seed-7", run)
    result = json.loads((run / "result.json").read_bytes())
    result |= {"arm": name, "variant": name, "setting": name, "levels": {"code": name}}
    (run / "result.json").write_text(json.dumps(result), "utf-8")
    monkeypatch.setattr(site, "RUNS", tmp_path)
    site.build_site(None, ["mine"])
    for page in ("index.html", "curves.html"):
        text = (tmp_path / "_site" / page).read_text("utf-8")
        assert "struck" in text
        assert "<script>window.struck" not in text
