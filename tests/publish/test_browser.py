"""The site in a browser, from files, as a reader opens it: table, curves, accessibility."""

import shutil

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


def test_the_table_of_runs_is_sorted_and_filtered_and_leads_to_notebooks(page, address):
    page.goto(f"{address}/index.html")
    rows = page.locator("table.dataTable tbody tr:visible")
    expect(rows).to_have_count(8)
    arm = page.get_by_placeholder("arm").first
    arm.press_sequentially("warmup")
    expect(rows).to_have_count(4)
    measured = [run["measures"]["perplexity"] for run in Record("example").runs]
    arm.clear()
    expect(rows).to_have_count(8)
    head = page.locator("th", has=page.get_by_placeholder("held-out perplexity"))
    head.first.get_by_role("button").click()
    texts = rows.locator("td:nth-child(7)").all_inner_texts()
    assert [float(text) for text in texts] == pytest.approx(sorted(measured), abs=1e-3)
    rows.first.get_by_role("link").click()
    expect(page.locator("h1").first).to_contain_text("example, ")


def test_curves_are_drawn_for_the_measure_that_is_chosen(page, address):
    page.goto(f"{address}/curves.html")
    expect(page.locator("#vis svg")).to_be_visible()
    before = page.locator("#vis svg").screenshot()
    page.get_by_label("Measure").select_option("residual_norm_2")
    page.wait_for_timeout(500)
    assert page.locator("#vis svg").screenshot() != before
    page.locator("#vis svg text", has_text="warmup_cosine").click()
    constant, warmup = page.locator("#vis .mark-line path").all()
    expect(constant).to_have_attribute("opacity", "0.05")
    expect(warmup).to_have_attribute("opacity", "1")


@pytest.mark.parametrize(
    ("place", "widths"),
    [
        ("index.html", [1300, 390]),
        ("curves.html", [1300, 390]),
        ("example/03_analysis.html", [390]),
        ("example/constant/seed-0.html", [390]),
    ],
)
def test_axe_finds_nothing_and_a_phone_scrolls_only_down(page, address, place, widths):
    page.goto(f"{address}/{place}")
    rules = {"empty-table-header": {"enabled": False}}  # as pandas leaves one over an index
    for width in widths:
        page.set_viewport_size({"width": width, "height": 800})
        found = Axe().run(page, options={"preload": False, "rules": rules}).response["violations"]
        told = [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found]
        assert told == [], width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
