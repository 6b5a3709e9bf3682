"""The site in a browser, from files, as a reader opens it: table, curves, accessibility."""

import shutil
from itertools import product

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from lib.config.paths import PAPERS
from lib.publish.site import build_site
from lib.record.archive import Record

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser: install Debian's chromium"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where the site of `example` lies."""
    paper = tmp_path_factory.mktemp("site") / "example"
    for name in ("record/example", "results"):
        shutil.copytree(PAPERS / "example" / name, paper / name)
    analysis = paper / "record/example/03_analysis.ipynb"
    analysis.write_text(analysis.read_text("utf-8").replace("Analysis", 99 * "long", 1), "utf-8")
    build_site(paper, ["example"])
    return (paper / "site").as_uri()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A tab in which any error, and anything asked of the net, fails the test."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    page, complaints = context.new_page(), list[str]()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: complaints.append(asked.url) if "//" in asked.url[:8]
            and not asked.url.startswith(("file:", "blob:", "data:")) else None)  # fmt: skip
    yield page
    context.close()
    assert complaints == []


def test_the_table_of_runs_is_sorted_filtered_and_survives_a_reload(page, address):
    page.goto(f"{address}/index.html")
    rows = page.locator("#table tbody tr:visible")
    expect(rows).to_have_count(16)
    assert page.locator("#table thead th").count() == 5
    arm = page.get_by_label("Filter by arm")
    arm.fill("layernorm")
    expect(rows).to_have_count(8)
    arm.fill("")
    page.get_by_label("Measure").select_option("perplexity")
    page.get_by_role("button", name="measure").click()
    measured = sorted(run["measures"]["perplexity"] for run in Record("example").runs)
    for _ in range(2):
        texts = rows.locator("td:nth-child(5)").all_inner_texts()
        assert [float(text) for text in texts] == pytest.approx(measured, abs=1e-3)
        page.reload()
    rows.first.get_by_role("link").click()
    expect(page.locator("h1").first).to_contain_text("example, ")


def test_a_long_table_of_runs_is_shown_in_parts(page, address):
    page.goto(f"{address}/index.html#most=5")
    rows = page.locator("#table tbody tr:visible")
    expect(rows).to_have_count(5)
    page.get_by_label("Filter by seed").fill("3")
    expect(rows).to_have_count(4)
    assert page.locator("#more").is_hidden()
    page.get_by_label("Filter by seed").fill("")
    page.get_by_role("button", name="Show more (5 of 16 runs are shown)").click()
    for _ in range(2):
        expect(rows).to_have_count(16)
        assert page.locator("#more").is_hidden()
        page.reload()
    page.set_viewport_size({"width": 390, "height": 800})
    expect(rows).to_have_count(16)


def test_a_run_that_trains_is_a_thin_line_that_no_mean_includes(page, address):
    page.goto(f"{address}/example/curves.html")
    lines = page.locator("#vis svg .mark-line path")
    expect(lines).to_have_count(4)
    page.evaluate("""() => {
      const arm = study.arms["layernorm,tied=true"];
      arm.training = ["0"];
      arm.seeds[0].dev_loss = arm.seeds[0].dev_loss.map((y, i) => i < 3 ? y : null);
      draw();
    }""")
    expect(lines).to_have_count(5)
    expect(page.locator("#told")).to_contain_text("A thin line is a run that has not ended")
    assert page.locator('#vis svg .mark-line path[stroke-width="1"]').count() == 1
    for show in ("mean", "difference"):
        found = page.evaluate(f"points({{ ...chosen(), show: '{show}' }})")
        tied = [point for point in found if point["panel"].startswith("tied=true")]
        assert {point["n"] for point in tied if "n" in point} == {3}
        assert len([point for point in tied if point.get("seed") == "0"]) == 3


def test_curves_are_paired_over_the_seeds_that_all_shown_arms_have(page, address):
    """One seed of an arm stops early, as one that diverged."""
    page.goto(f"{address}/example/curves.html#show=difference")
    expect(page.locator("#vis svg")).to_be_visible()
    found = page.evaluate("""() => {
      const seeds = study.arms["layernorm,tied=true"].seeds;
      seeds[0].dev_loss = seeds[0].dev_loss.slice(0, 3);
      return points(chosen());
    }""")
    assert {point["variant"] for point in found} == {"layernorm"}
    panels = {point["panel"] for point in found}
    assert panels == {"tied=true · n = 3–4 seeds", "tied=false · n = 4 seeds"}
    found = [point for point in found if point["panel"].startswith("tied=true")]
    assert [point["n"] for point in found[:4]] == [4, 4, 4, 3]
    raw = Record("example").joined("curve").pivot(index="step", columns=["arm", "seed"])["dev_loss"]
    deltas = (raw["layernorm,tied=true"] - raw["none,tied=true"]).drop(columns=0)
    assert found[-1]["mean"] == pytest.approx(deltas.iloc[-1].mean(), abs=1e-4)
    means = page.evaluate(
        "points({ ...chosen(), show: 'mean' }).map(point => [point.variant, point.n])"
    )
    assert ["none", 3] in means
    alone = page.evaluate(
        "points({ ...chosen(), show: 'mean', shown: ['none'] }).map(point => point.n)"
    )
    assert set(alone) == {4}


def test_curves_follow_what_is_chosen_and_a_reload_keeps_it(page, address):
    page.goto(f"{address}/example/curves.html")
    lines = page.locator("#vis svg .mark-line path")
    expect(lines).to_have_count(4)
    page.get_by_label("Measure").select_option("residual_norm_2")
    page.get_by_label("Show").select_option("seeds")
    expect(lines).to_have_count(16)
    page.get_by_role("checkbox", name="no layer").uncheck()
    for _ in range(2):
        expect(lines).to_have_count(8)
        expect(page.locator("#vis svg text", has_text="residual norm 2").first).to_be_visible()
        page.reload()


@pytest.mark.parametrize(
    ("place", "widths"),
    [
        ("index.html", [1300, 390]),
        ("example/curves.html", [1300, 390]),
        ("example/03_analysis.html", [390]),
        ("example/none,tied=true/seed-0.html", [390]),
    ],
)
def test_axe_finds_nothing_and_a_phone_scrolls_only_down(page, address, place, widths):
    page.goto(f"{address}/{place}")
    rules = {"empty-table-header": {"enabled": False}}  # as pandas leaves one over an index
    for width, scheme in product(widths, ("light", "dark")):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        found = Axe().run(page, options={"preload": False, "rules": rules}).response["violations"]
        told = [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found]
        assert told == [], (width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
