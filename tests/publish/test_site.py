"""Sites of a record, and of runs in progress."""

import fcntl
import json
import os
import re
import shutil
import time
from html import unescape
from urllib.parse import unquote
from urllib.request import urlopen

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lib.config.errors import UserError
from lib.config.paths import PAPERS
from lib.config.plan import read_plan
from lib.config.study import SCRATCH, Study, load_study
from lib.publish import site
from lib.publish.curves import curves_of
from lib.publish.site import notebook_html, read_study
from lib.record.archive import RAW, Record
from lib.results import STEP_FILE, STEPS_FILE
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
    r"|@import|url\(\s*[\"']?\s*(?:https?:)?//",
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


def write_steps(run, last):
    """Write the steps that a run has made so far. It was evaluated after the fourth."""
    rows = [
        {"step": step, "loss": 4 - step / 10, "tokens": 64 * step} for step in range(1, last + 1)
    ]
    points = [{"step": 4, "dev_loss": 3.5} if row["step"] == 4 else None for row in rows]
    lines = (json.dumps(line) + "\n" for line in zip(rows, points, strict=True))
    (run / STEPS_FILE).write_text("".join(lines), "utf-8")


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
    write_steps(runs / "mine/none/seed-3", 4)
    write(runs / "mine/none/seed-3/02_train.ipynb", new_markdown_cell("so far"))
    write(runs / "mine/center/seed-7/02_train.ipynb", status="failed", reason="<b> & c")
    done, record = runs / "mine/none/seed-7", Record("example", paper)
    write(done / "02_train.ipynb", new_markdown_cell("done"), status="completed")
    arm = OWN.arm("none")
    result = {"arm": arm.id, "seed": 7, "variant": arm.variant, "levels": arm.levels}
    (done / "result.json").write_text(json.dumps(record.runs[0] | result), "utf-8")
    for name in ("trace.parquet", "curve.parquet"):
        raw = (record.raw_folder("none,tied=true", 0) / name).read_bytes()
        for run in (done, runs / "mine/scale/seed-3"):
            (run / name).write_bytes(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "RUNS", runs)
        patch.setattr(site, "RECENT", 900.0)  # the tests may be slow
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


@pytest.mark.parametrize(("which", "n"), [("built", 16), ("own", 3)])
def test_every_page_is_reached_from_the_index(which, n, request):
    folder = request.getfixturevalue(which)
    reached, waiting = set(), [folder / "index.html"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            text = page.read_text("utf-8")
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
    assert [(row["arm"], row["seed"], row["status"]) for row in rows] == [
        ("none", "7", "completed"),
        ("none", "3", "running, step 4 of 12"),
        ("scale", "7", "stopped, step 4 of 12"),
        ("scale", "3", "trained again, step 12 of 12"),
        ("center", "7", "failed: <b> & c"),
        ("center", "3", "not begun"),
        ("elsewhere", "0", "stopped, step 12 of ?"),
        ("mine,none,clip=1", "7", "running, step 5 of ?"),
    ]


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


def on_page(path):
    """Return the curves that a page draws."""
    text = path.read_text("utf-8").partition("const study = ")[2]
    return json.JSONDecoder().raw_decode(text)[0]


def test_curves_are_those_of_every_seed(built):
    """Against the raw tables: each seed's values, or their means over blocks of steps."""
    curves = on_page(built / "example/curves.html")
    for name, ys in (("trace", ["loss", "grad_norm"]), ("curve", ["dev_loss", "residual_norm_2"])):
        raw = Record("example").joined(name).query("arm == 'none,tied=true'")
        steps = curves["steps"][name]
        assert 10 < len(steps) <= 200
        raw["block"] = np.array(steps)[np.searchsorted(steps, raw["step"])]
        for y in ys:
            for seed, values in raw.groupby(["seed", "block"])[y].mean().unstack().iterrows():
                drawn = curves["arms"]["none,tied=true"]["seeds"][str(seed)][y]
                np.testing.assert_allclose(drawn, values[steps], rtol=1e-4)


def test_any_measure_is_drawn_the_loss_first_and_the_baseline_is_black_and_solid(own, built):
    of_all = Record("example").joined("curve").query("arm == 'none,tied=true'")
    columns = {*of_all.dropna(axis="columns", how="all")} - {"arm", "variant", "setting", "seed"}
    for page, baseline in ((own / "mine", "none"), (built / "example", "none")):
        curves = on_page(page / "curves.html")
        measures = curves["measures"]["curve"] | curves["measures"]["trace"]
        assert measures.keys() > columns - {"seconds", "step", "second_moment_lm_head"}
        assert next(iter(measures.items())) == ("dev_loss", "dev loss (nats)")
        looks = curves["looks"]
        assert next(iter(looks)) == baseline
        assert (looks[baseline]["colour"], looks[baseline]["dashes"]) == ("#000000", [1, 0])
        assert len({str(look) for look in looks.values()}) == len(looks)


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


def test_curves_are_read_again_only_if_a_result_changed_or_a_run_went_on(own, monkeypatch):
    read, place = [], site.RUNS / "mine/none/seed-7"

    def count(runs, root):
        read.append(root.name)
        return curves_of(runs, root)

    monkeypatch.setattr(site, "curves_of", count)
    read_study(own, None, "mine")
    assert read == []
    result = json.loads((place / "result.json").read_bytes()) | {"setting": "another"}
    (place / "result.json").write_text(json.dumps(result), "utf-8")
    read_study(own, None, "mine")
    assert read == ["mine"]
    assert on_page(own / "mine/curves.html")["arms"]["none"]["setting"] == "another"
    write_steps(site.RUNS / "mine/none/seed-3", 6)
    read_study(own, None, "mine")
    assert read == ["mine", "mine"]
    drawn = on_page(own / "mine/curves.html")
    values = drawn["arms"]["none"]["seeds"]["3"]["loss"]
    shown = [(step, y) for step, y in zip(drawn["steps"]["trace"], values, strict=True) if y]
    assert shown[-1] == (6, 3.45)  # of steps 5 and 6: a block


def test_a_run_that_trains_has_its_curve(own, tmp_path, monkeypatch):
    """Also the first run of a study, even before its first evaluation."""
    arm = on_page(own / "mine/curves.html")["arms"]["none"]
    assert arm["training"] == ["3"]
    assert arm["seeds"].keys() == {"7", "3"}
    assert [y for y in arm["seeds"]["3"]["dev_loss"] if y] == [3.5]
    monkeypatch.setattr(site, "RUNS", tmp_path)
    (run := tmp_path / "mine/scale/seed-3").mkdir(parents=True)
    (run / STEP_FILE).write_text("2", "utf-8")
    assert read_study(tmp_path / "_site", None, "mine")["curves"] == ""
    write_steps(run, 2)
    page = read_study(tmp_path / "_site", None, "mine")["curves"]
    drawn = on_page(tmp_path / "_site" / page)
    assert drawn["steps"] == {"trace": [1, 2]}
    assert drawn["arms"]["scale"]["seeds"] == {"3": {"loss": [3.9, 3.8]}}
    assert (drawn["arms"]["scale"]["baseline"], next(iter(drawn["looks"]))) == ("none", "none")


def test_all_is_made_again_after_an_edit_of_what_makes_it(own, monkeypatch):
    page = own / "mine/none/seed-7.html"
    before = page.stat().st_ino
    monkeypatch.setattr(site, "CODE", ["edited"])
    site.main([])
    assert page.stat().st_ino != before


def test_own_runs_are_served_at_one_address_until_the_sweep_ends(own, monkeypatch, capsys):
    """While the sweep is on, all that may change loads itself again; a last look follows."""
    assert "location.reload" not in (own / "index.html").read_text("utf-8")
    sweeps, seen, step = (
        iter([False, True, True, False]),
        [],
        site.RUNS / UNDER_WAY[0][0] / STEP_FILE,
    )

    def look(seconds):
        said = capsys.readouterr().out
        address = said.split()[3] if said else seen[-1][0]
        index, curves = (
            urlopen(address + page).read().decode() for page in ("index.html", "mine/curves.html")
        )
        left = re.search(r"1 of 7 runs done, about \d+ min left", index)
        seen.append((address, "location.reload" in index, "location.reload" in curves, bool(left)))
        step.write_text("8", "utf-8")

    monkeypatch.setattr(site, "is_sweeping", lambda: next(sweeps))
    monkeypatch.setattr(time, "sleep", look)
    site.serve()
    (address,) = {each[0] for each in seen}
    assert re.fullmatch(r"http://localhost:\d+/", address)
    looks = [(True, True, False), (True, True, False), (True, True, True), (False, False, True)]
    assert [each[1:] for each in seen] == looks
    assert "running, step 8 of 12" in (own / "index.html").read_text("utf-8")
    assert "The sweep ended" in capsys.readouterr().out
    step.write_text("4", "utf-8")


def test_a_sweep_is_told_by_its_lock(own, monkeypatch, tmp_path):
    monkeypatch.setattr(site, "RUNS", tmp_path)
    assert not site.is_sweeping()
    with (tmp_path / "sweep.log").open("ab") as log:
        assert not site.is_sweeping()
        fcntl.flock(log, fcntl.LOCK_EX)
        assert site.is_sweeping()
    assert not site.is_sweeping()


def test_the_page_of_a_paper_opens_with_its_abstract(tmp_path):
    (tmp_path / "results").mkdir()
    text = "# T\n\n::: {.abstract}\nIt *costs*<script>x</script>.\nBut {{ 1 + 1 }}.\n:::\n\nMore.\n"
    (tmp_path / "paper.md").write_text(text)
    shown = site.abstract_of(tmp_path).split("\n")
    assert [*filter(None, shown)] == ["<p>It <em>costs</em>.</p>", "<p>But 2.</p>"]
    assert site.abstract_of(None) == site.abstract_of(tmp_path / "another") == ""


def test_a_study_s_line_names_what_does_not_vary():
    line = "tinyshakespeare, 8 blocks, 128 features, 2,400 steps, rate 0.00518, warm-up + cosine"
    assert site.setting_of(load_study("tying")) == line
    assert "rate" not in site.setting_of(load_study("tuning"))


def row(arm, low, high, measure="loss"):
    ends = {"mean_delta": (low + high) / 2, "t_low": low, "t_high": high}
    return {"arm": arm, "baseline": "none", "measure": measure, "n": 4, **ends}


def test_an_exploratory_study_tells_its_differences_in_the_loss_first():
    rows = [row("a", 1, 2, "perplexity"), row("a", 0.1, 0.3), row("b", -0.3, -0.1), row("c", -1, 1)]
    found = site.answers_of({"contrasts": rows}, None)
    assert [(each["answer"], each["claim"], each["colour"]) for each in found] == [
        ("higher", "a − no layer", "costs"),
        ("lower", "b − no layer", "helps"),
        ("undecided", "c − no layer", "neither"),
    ]
    assert found[0]["estimate"] == "+0.2000 [+0.1000, +0.3000]"
    higher = site.answers_of({"contrasts": [row("a", 0.1, 0.3, "accuracy")]}, None)
    assert [(each["answer"], each["colour"]) for each in higher] == [("higher", "helps")]


def test_a_planned_study_tells_its_answers_and_studies_keep_the_order_of_their_table():
    turn = Record("turn")
    plan = read_plan(turn.parameters.plan)
    found = site.answers_of(turn.verdict, plan)
    told = {name: each["answer"] for name, each in turn.verdict["answers"].items()}
    assert [each["answer"] for each in found] == [*told.values()]
    assert found[0]["claim"] == plan.hypotheses["benefit"].says
    assert "in its plan's words" in found[3]["more"]
    ranks = [site.question_of(name, None, None, turn.paper) for name in ("tuning", "turn", "mine")]
    assert ranks == sorted(ranks)
    assert ranks[1][1].startswith("does the layer help at a high constant rate")


def test_a_run_s_page_names_the_commit_that_executed_its_notebook(built):
    commit = Record("example").runs[0]["provenance"]["executed"]["commit"][:12]
    said = f"Executed at commit {commit}; imports are of that commit."
    for run in ("none,tied=true/seed-0", "layernorm,tied=true/seed-1"):
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
    assert (own / "site/example/none,tied=true/seed-0.html").is_file()


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
    for page in ("index.html", "mine/curves.html"):
        text = (tmp_path / "_site" / page).read_text("utf-8")
        assert "struck" in text
        assert "<script>window.struck" not in text
