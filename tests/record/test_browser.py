"""The lab record in a browser, from files as a reader opens it and from a server."""

import functools
import http.server
import itertools
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from lib.publish.site import build_site
from lib.results import live_file
from tests.record.samples import (
    design,
    move_to,
    plain_notebook,
    write_initial_rms,
    write_notebook,
    write_record,
)

expect.set_options(timeout=30_000)  # other work on the machine may be long
CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no browser: install Debian's chromium to run the browser tests"
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


BOTH = pytest.mark.parametrize("address", ["files", "server"], indirect=True)
"""For what depends on where a page comes from: addresses, what is asked for, what may be stored."""


@pytest.fixture
def address(request: pytest.FixtureRequest, pages: Path) -> Iterator[str]:
    """Where the index is, without its name: among files, unless a test asks for both."""
    if getattr(request, "param", "files") == "files":
        yield pages.as_uri()
        return
    handler = functools.partial(_Quiet, directory=str(pages))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def requested() -> list[str]:
    """Every address that the browser asks for."""
    return []


@pytest.fixture
def page(browser: Browser, requested: list[str], request: pytest.FixtureRequest) -> Iterator[Page]:
    """A tab; a test may give its width by the mark's parameter. Any error in it fails the test."""
    width = getattr(request, "param", 1200)
    context = browser.new_context(viewport={"width": width, "height": 800})
    context.set_default_timeout(60_000)
    context.on("request", lambda asked: requested.append(asked.url))
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text))
    yield page
    context.close()
    assert complaints == []


def column(page: Page, number: int) -> list[str]:
    """The shown cells of a column of the table of runs."""
    rows = page.locator("#run-table tbody tr:visible")
    return [row.locator("th, td").nth(number).inner_text() for row in rows.all()]


@BOTH
def test_the_index_loads_and_asks_for_nothing_outside(
    page: Page, address: str, requested: list[str]
) -> None:
    page.goto(f"{address}/index.html")
    expect(page.locator("#shown")).to_have_text("20 of 20 runs")
    assert page.evaluate("getComputedStyle(document.querySelector('.stamp')).textTransform") == (
        "uppercase"
    )
    local = [url for url in requested if not url.startswith("data:")]
    assert {url.rpartition("/")[2] for url in local} == {
        *("index.html", "record.css", "record.js", "state.js")
    }
    assert all(url.startswith(f"{address}/") for url in local)


def test_a_column_sorts_by_click_and_by_key_with_what_is_missing_last(
    page: Page, address: str
) -> None:
    page.goto(f"{address}/index.html")
    header = page.locator("#run-table th", has_text="validation perplexity")
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    numbers = [text for text in column(page, 4) if text != "n/a"]
    assert numbers == sorted(numbers, key=float)
    assert column(page, 4)[-1] == "n/a"
    page.keyboard.press("Enter")
    expect(header).to_have_attribute("aria-sort", "descending")
    assert column(page, 4)[: len(numbers)] == numbers[::-1]
    assert column(page, 4)[-1] == "n/a"

    page.locator("#run-table th", has_text="Study").get_by_role("button").click()
    assert page.locator("#run-table th[aria-sort]").count() == 1
    assert column(page, 2) == ["alpha"] * 6 + ["beta"] * 12 + ["gamma"] * 2


def test_runs_are_filtered_by_words_study_and_status(page: Page, address: str) -> None:
    page.goto(f"{address}/index.html")
    page.get_by_label("Filter").fill("LAYERNORM alpha")
    expect(page.locator("#shown")).to_have_text("3 of 20 runs")
    page.get_by_label("Filter").fill("")
    page.get_by_label("Study").select_option("beta")
    expect(page.locator("#shown")).to_have_text("12 of 20 runs")
    page.get_by_label("Status").select_option("diverged")
    expect(page.locator("#shown")).to_have_text("2 of 20 runs")
    assert set(column(page, 2)) == {"beta"}
    page.keyboard.press("Enter")  # must not leave the page
    page.get_by_label("Filter").fill("no such run")
    expect(page.locator("#shown")).to_have_text("0 of 20 runs")


def test_a_run_is_opened_and_its_neighbours_followed(page: Page, address: str) -> None:
    page.goto(f"{address}/index.html")
    page.get_by_label("Study").select_option("beta")
    page.locator("#run-table a", has_text="none,source=a b (1).txt seed 1").click()
    expect(page.locator("h1").first).to_have_text("none,source=a b (1).txt, seed 1")
    beside = page.get_by_role("navigation", name="Neighbouring runs").first
    beside.get_by_role("link", name="next seed: 2").click()
    expect(page.locator("h1").first).to_have_text("none,source=a b (1).txt, seed 2")
    beside.get_by_role("link", name="next embedding_norm: layernorm").click()
    expect(page.locator("h1").first).to_have_text("layernorm,source=a b (1).txt, seed 2")
    beside.get_by_role("link", name="previous embedding_norm: none").click()
    beside.get_by_role("link", name="previous seed: 1").click()
    expect(page.locator(".notebook")).to_contain_text("none,source=a b (1).txt, seed 1")
    page.get_by_role("link", name="beta").click()
    expect(page.locator("h1")).to_have_text("Study beta")
    page.get_by_role("link", name="03_analysis").click()
    expect(page.locator(".notebook")).to_contain_text("03_analysis of beta")
    page.get_by_role("link", name="Lab record").click()
    expect(page.locator("#shown")).to_have_text("20 of 20 runs")


def test_a_failed_run_shows_its_stamp(page: Page, address: str) -> None:
    page.goto(f"{address}/index.html")
    page.get_by_label("Status").select_option("failed")
    page.locator("#run-table tbody tr:visible a").click()
    expect(page.locator(".stamp.failed")).to_be_visible()
    expect(page.locator(".opening")).to_contain_text("DeadKernelError: <b>Kernel</b> died")


@BOTH
def test_a_hostile_notebook_neither_executes_nor_loads(
    page: Page, address: str, requested: list[str]
) -> None:
    page.goto(f"{address}/gamma/none/seed-1.html")
    expect(page.get_by_text("plain instead")).to_be_visible()
    page.get_by_text("a link").first.click()
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.struck") is None
    assert page.url == f"{address}/gamma/none/seed-1.html"
    assert not [url for url in requested if not url.startswith((address, "data:"))]
    images = page.locator(".notebook img[src]")
    assert images.evaluate_all("all => all.every(image => image.src.startsWith('data:'))")
    assert images.first.evaluate("image => image.naturalWidth") == 1


def test_what_slipped_through_would_be_stopped_by_the_policy(
    browser: Browser, pages: Path, tmp_path: Path
) -> None:
    text = (pages / "gamma" / "none" / "seed-1.html").read_text("utf-8")
    evil = "<script>window.struck = 1</script><img src='http://elsewhere.invalid/a.png' "
    evil += "onerror='window.struck = 2'>"
    (tmp_path / "page.html").write_text(text.replace("<article", evil + "<article"), "utf-8")
    page = browser.new_page()
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text))
    page.goto((tmp_path / "page.html").as_uri())
    assert page.evaluate("window.struck") is None
    assert len([text for text in refused if "Content Security Policy" in text]) >= 3
    page.close()


@pytest.mark.parametrize("page", [360], indirect=True)
@pytest.mark.parametrize(
    "place",
    [
        *("index.html", "beta/index.html", "compare.html"),
        *("alpha/none/seed-0.html", "gamma/none/seed-1.html"),
    ],
)
def test_on_a_phone_no_page_scrolls_sideways(page: Page, pages: Path, place: str) -> None:
    page.goto(f"{pages.as_uri()}/{place}")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    boxes = page.locator(".scroll").all()
    pictures = page.locator(".frame img").all()  # whole; the notebook's page has them large
    assert all(box.bounding_box()["width"] <= 360 for box in [*boxes, *pictures])
    if place == "index.html":
        assert page.locator(".scroll").last.evaluate("box => box.scrollWidth > box.clientWidth")


@pytest.mark.parametrize("page", [390], indirect=True)
def test_on_a_phone_a_run_with_a_long_name_does_not_scroll_sideways(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_to(tmp_path, monkeypatch)
    rates, decays = [1e-4, 3e-4], [0.01, 0.1]
    wide = design("wide", training__learning_rate=rates, training__weight_decay=decays)
    write_record(wide, "EXPLORATORY")
    build_site()
    runs = (tmp_path / "paper" / "site" / "wide").glob("*/seed-0.html")
    page.goto(max(runs, key=lambda run: len(run.parent.name)).as_uri())
    longest = page.locator(".legend span").first
    assert len(longest.inner_text()) > 50
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_keyboard_skips_to_the_content_and_focus_is_seen(page: Page, pages: Path) -> None:
    page.goto(f"{pages.as_uri()}/index.html")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    assert skip.bounding_box()["y"] >= 0
    assert skip.evaluate("link => getComputedStyle(link).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_light_and_dark_differ_and_print_shows_whole_tables(page: Page, pages: Path) -> None:
    page.goto(f"{pages.as_uri()}/index.html")
    colour = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(colour) != light
    page.emulate_media(media="print", color_scheme="light")
    assert page.locator(".tall").evaluate("box => getComputedStyle(box).maxHeight") == "none"
    expect(page.locator(".filters")).to_be_hidden()


def test_without_scripts_the_tables_still_read_whole(browser: Browser, pages: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{pages.as_uri()}/index.html")
    assert page.locator("#run-table tbody tr").count() == 20
    expect(page.locator(".filters")).to_be_hidden()
    page.goto(f"{pages.as_uri()}/compare.html")
    expect(page.get_by_role("heading", name="What two of them wrote")).to_be_hidden()
    context.close()


@BOTH
def test_the_runs_that_are_asked_for_stand_at_an_address(page: Page, address: str) -> None:
    """The two runs of beta's second text with the highest perplexity above 20."""
    page.goto(f"{address}/index.html")
    source = page.locator("#run-table thead th", has_text="source")
    expect(source).to_be_hidden()  # only beta varies it
    page.get_by_label("Study").select_option("beta")
    expect(source).to_be_visible()
    page.get_by_text("Filter by factor and measure").click()
    page.locator("[name='corpus.source']").select_option("a+b.txt")
    page.get_by_label("validation perplexity from").fill("19")
    expect(page.locator("#shown")).to_have_text("3 of 20 runs")
    page.get_by_label("validation perplexity from").fill(">1.9e1")
    expect(page.locator("#shown")).to_have_text("2 of 20 runs")
    header = page.locator("#run-table th", has_text="validation perplexity").get_by_role("button")
    header.click()
    header.click()
    seen = [column(page, number) for number in (1, 10, 4)]
    assert seen == [["s3", "s2"], ["none", "none"], ["19.800", "19.200"]]
    sent, _, state = page.url.partition("#")
    assert state == "study=beta&corpus.source=a%2Bb.txt&perplexity=%3E1.9e1..&sort=-perplexity"

    page.goto("about:blank")
    page.goto(f"{sent}#{state}")  # as who gets the link sees it
    assert [column(page, number) for number in (1, 10, 4)] == seen
    expect(page.get_by_label("validation perplexity from")).to_have_value(">1.9e1")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#shown")).to_have_text("20 of 20 runs")
    assert page.url.rstrip("#") == sent
    page.evaluate("location.hash = 'study=alpha'")
    expect(page.locator("#shown")).to_have_text("6 of 20 runs")


@pytest.mark.parametrize(
    ("asked", "told", "shown"),
    [
        ("perplexit=>19..", "perplexit: there is no such field; did you mean perplexity?", 20),
        ("xyz=1", "xyz: there is no such field; leave it out", 20),
        ("perplexity=high..", "perplexity: 'high' is no lower bound; write 3e-3 or >3e-3", 16),
        ("perplexity=<19..", "perplexity: '<19' is no lower bound; write 3e-3 or >3e-3", 16),
        ("perplexity=..>19", "perplexity: '>19' is no upper bound; write 3e-3 or <3e-3", 16),
        ("study=delta", "study: 'delta' is not among its choices; choose one", 0),
        ("sort=-perplexit", "sort: there is no column 'perplexit'; did you mean perplexity?", 20),
        ("run=beta/none/9", "run: there is no run beta/none/9; tick one in the table", 20),
    ],
)
def test_what_an_address_asks_for_in_vain_is_told_in_a_line(
    asked: str, told: str, shown: int, page: Page, address: str
) -> None:
    """Of a bound that is none, the runs are shown that have such a value: all but four."""
    page.goto(f"{address}/index.html#{asked}")
    expect(page.locator("#faults .trouble")).to_have_text([told])
    expect(page.locator("#shown")).to_have_text(f"{shown} of 20 runs")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#faults")).to_be_empty()
    if not asked.startswith("sort"):
        page.goto(f"{address}/compare.html#{asked}")
        expect(page.locator("#faults .trouble")).to_have_text([told])


def test_an_address_with_a_lower_bound_alone_filters_as_its_field_shows(
    page: Page, address: str
) -> None:
    page.goto(f"{address}/index.html#study=beta&corpus.source=a%2Bb.txt&perplexity=>19.2")
    expect(page.get_by_label("validation perplexity from")).to_have_value(">19.2")
    expect(page.locator("#shown")).to_have_text("1 of 20 runs")  # of 18.6, 19.2 and 19.8
    expect(page.locator("#faults")).to_be_empty()
    page.evaluate("location.hash = 'study=*&perplexity=>19.2'")  # as compare.html links to it
    expect(page.get_by_label("validation perplexity from")).to_have_value(">19.2")
    expect(page.locator("#faults")).to_be_empty()


@BOTH
def test_a_link_to_the_view_is_copied(page: Page, address: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{address}/index.html#study=alpha")
    page.get_by_role("button", name="Copy link to this view").click()
    expect(page.locator(".actions output")).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"{address}/index.html#study=alpha"


@BOTH
def test_curves_of_the_filtered_runs_show_paired_differences(
    page: Page, address: str, requested: list[str]
) -> None:
    """Samples of seeds 0 and 2 are 0.1 and 0.3 above their baseline, at every step."""
    page.goto(f"{address}/index.html#study=alpha")
    page.locator("#overlay").click()
    said = page.locator("output.values")
    expect(said).to_have_text("Step 300LayerNorm (2): +0.2 [−1.071, +1.471]")  # t of one degree
    expect(page.locator("#chosen")).to_contain_text("6 of 18 runs chosen; 2 of them drawn")
    assert page.locator("svg .dots").get_attribute("d").count("M") == 2 * 6
    slider = page.locator("[name=step]")
    slider.press("ArrowLeft")
    expect(said).to_contain_text("Step 250")
    assert page.url == f"{address}/compare.html#study=alpha&step=4"
    page.get_by_label("Show").select_option("dev_loss")
    expect(said).to_contain_text("none (3): 2.013 [2.013, 2.013]")
    expect(said).to_contain_text("LayerNorm (2): 2.213 [2.113, 2.313]")
    page.get_by_label("One line for each").select_option("run")
    assert page.locator(".curves polyline").count() == 6
    assert page.url.endswith("#study=alpha&step=4&view=dev_loss&by=run")
    page.reload()
    expect(said).to_contain_text("alpha · layernorm, seed 2 (1): 2.313")
    page.locator(".curves svg").hover(position={"x": 60, "y": 50})
    expect(said).to_contain_text("Step 50")
    local = {url.rpartition("/")[2].partition("#")[0] for url in requested if url[:5] != "data:"}
    assert local >= {"compare.html", "record.css", "state.js", "curves.js", "overlay.js"}


def test_numbers_in_names_are_ordered_by_their_value(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 before 16, though not as texts; 0.003 before 0.01, though 3 comes after 1."""
    move_to(tmp_path, monkeypatch)
    factors = {"training__batch_size": [16, 4], "training__learning_rate": [1e-2, 3e-3]}
    study = design("wide", **factors).model_copy(update={"seeds": [0]})
    write_record(study, "EXPLORATORY")
    build_site()
    arms = [
        f"{norm},batch_size={size},learning_rate={rate}"
        for norm, size, rate in itertools.product(("layernorm", "none"), (4, 16), (0.003, 0.01))
    ]
    site = (tmp_path / "paper" / "site").as_uri()
    page.goto(f"{site}/compare.html#view=dev_loss&by=arm")
    legend = page.locator("output.values span")
    expect(legend).to_have_count(8)
    assert [name.partition(" (")[0] for name in legend.all_inner_texts()] == arms
    page.locator("[name=by]").select_option("training.batch_size")
    expect(legend).to_have_count(2)
    assert [name.partition(" (")[0] for name in legend.all_inner_texts()] == ["4", "16"]

    page.goto(f"{site}/index.html#sort=arm")
    assert [name.split()[0] for name in column(page, 0)] == arms


def test_ticked_runs_are_drawn_beside_a_pinned_baseline_with_their_texts(
    page: Page, address: str
) -> None:
    page.goto(f"{address}/index.html#study=beta")
    for arm in ("layernorm", "none"):
        page.get_by_label(f"Draw the curves of {arm},source=a+b.txt seed 2, beta").check()
    expect(page.locator("#overlay")).to_have_text("Curves of the 2 ticked")
    page.locator("#overlay").click()
    said = page.locator("output.values")
    expect(said).to_have_text("Step 300LayerNorm (1): +0.6")
    expect(page.locator("[name=study]")).to_have_value("beta")
    page.locator("[name=base]").select_option("none,source=a+b.txt")
    expect(said).to_have_text("Step 300LayerNorm (1): +0.6")
    page.locator("[name=base]").select_option("layernorm,source=a+b.txt")
    expect(said).to_have_text("Step 300none (1): −0.6")
    texts = [text.inner_text() for text in page.locator(".samples pre").all()]
    assert texts == [f"{arm},source=a+b.txt, seed 2" for arm in ("layernorm", "none")]
    page.evaluate("location.hash = 'corpus.source=a%2Bb.txt'")
    expect(page.locator("[name=study]")).to_have_value("*")
    page.get_by_label("Filter").fill("gamma")
    expect(page.locator(".curves")).to_have_text("No run passes the filter.")


def test_a_runs_page_begins_with_its_curve_and_folds_its_code(
    page: Page, browser: Browser, pages: Path
) -> None:
    address = (pages / "alpha" / "layernorm" / "seed-2.html").as_uri()
    page.goto(address)
    expect(page.locator(".legend")).to_have_text("layernorm, seed 2none, seed 2")
    assert page.locator(".charts svg").count() == 3
    assert page.locator(".charts polyline.pale").count() == 3
    assert page.evaluate(
        "document.querySelector('.charts').compareDocumentPosition("
        "document.querySelector('.notebook')) === Node.DOCUMENT_POSITION_FOLLOWING"
    )
    page.goto((pages / "alpha" / "none" / "seed-2.html").as_uri())
    expect(page.locator(".legend")).to_have_text("none, seed 2")

    context = browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto(address)
    code = still.get_by_text("print(continuations(text))")
    expect(code).to_be_hidden()
    expect(still.locator(".notebook").get_by_text("layernorm, seed 2")).to_be_visible()
    still.get_by_label("Show code").check()
    expect(code).to_be_visible()
    still.goto(f"{address}#result")
    still.get_by_label("Show code").uncheck()
    expect(still.get_by_text("write_result(design)")).to_be_visible()
    expect(code).to_be_hidden()
    still.emulate_media(media="print")
    expect(code).to_be_visible()
    context.close()


def assert_accessible(page: Page) -> None:
    """axe-core finds nothing serious on the page, light and dark, on a desktop and on a phone."""
    for scheme, width in itertools.product(("light", "dark"), (1280, 390)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        # Not preloading style sheets: the policy of the pages lets nothing be fetched.
        options = {"resultTypes": ["violations"], "preload": False}
        found = Axe().run(page, options=options).response["violations"]
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        told = [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious]
        assert told == [], (scheme, width)


@pytest.mark.parametrize(
    "place",
    [
        *("index.html#study=beta", "beta/index.html", "alpha/index.html", "compare.html"),
        *("alpha/layernorm/seed-2.html", "gamma/none/seed-1.html"),
    ],
)
def test_axe_finds_nothing_serious(page: Page, pages: Path, place: str) -> None:
    page.goto(f"{pages.as_uri()}/{place}")
    for folded in page.locator("details").all():
        folded.evaluate("details => { details.open = true }")
    assert_accessible(page)


def test_a_study_in_progress_draws_its_runs_as_far_as_they_are(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_to(tmp_path, monkeypatch)
    place = tmp_path / "runs" / "begun"
    for seed in (0, 1):
        run = place / "none" / f"seed-{seed}"
        write_notebook(run / "02_train.ipynb", plain_notebook("a line"))
        live_file(run).write_text(
            "1,4.0,2.0,64,0.5\n2,3.0,nan,128,1.0\n3,2.5,1.0,192,1.5\n", "utf-8"
        )
    build_site()
    study = tmp_path / "paper" / "site" / "begun" / "index.html"
    page.goto(study.as_uri())
    expect(page.locator(".legend")).to_have_text("none")
    names = page.locator(".charts figcaption").all_inner_texts()
    assert names == ["training loss (nats), by step", "gradient norm, by step"]
    for chart, points in enumerate((3, 2)):  # a step that fp16 skipped has no norm
        lines = page.locator(".charts svg").nth(chart).locator("polyline")
        assert lines.count() == 2
        assert len(lines.first.get_attribute("points").split()) == points
    for run in place.glob("none/*"):
        live_file(run).unlink()
    build_site()
    page.reload()
    expect(page.locator(".curves")).to_have_text("No run has left a curve yet.")


@pytest.mark.parametrize("page", [390], indirect=True)
def test_the_slider_over_the_initial_rms_is_moved_by_keys_and_shows_one_value(
    page: Page, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_to(tmp_path, monkeypatch)
    write_initial_rms()
    build_site()
    address = (tmp_path / "paper" / "site" / "initial-rms.html").as_uri()
    page.goto(address)
    slider, said = page.get_by_label("Initial RMS of the residual stream"), page.locator("output")
    expect(said).to_have_text(
        "0.05: dev loss ends at 2.05, and blocks multiply the RMS by 6.0. "
        "Dev loss minus that without a layer: 0."
    )
    chosen = page.locator("g.chosen")
    assert [g.get_attribute("data-arm") for g in chosen.all()] == ["none"] * 3
    slider.press("ArrowRight")
    expect(said).to_have_text(
        "1: dev loss ends at 3.00, and blocks multiply the RMS by 1.5. "
        "Dev loss minus that without a layer: +0.950."
    )
    assert page.url == f"{address}#dose=1"
    expect(slider).to_have_attribute("aria-valuetext", "1")
    assert [g.get_attribute("data-arm") for g in chosen.all()] == ["layernorm"] * 3
    assert page.locator("g.pale").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    heights = [row.bounding_box()["height"] for row in page.locator(".initial-rms tbody tr").all()]
    assert len(heights) == 2
    assert heights == pytest.approx([heights[0]] * 2, abs=1)  # a line each, but for a border
    page.goto("about:blank")
    page.goto(f"{address}#dose=1")
    expect(said).to_contain_text("1: dev loss ends at 3.00")
    assert_accessible(page)

    context = browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto(address)
    expect(still.locator("form")).to_be_hidden()
    assert still.locator("polyline").count() == 3 * 2 * 3
    assert all(g.is_visible() for g in still.locator("g:not([data-arm=none])").all())  # no flat one
    context.close()


def many(folder: Path, seeds: int) -> Path:
    """The pages of a study of two arms and so many seeds; what its notebooks show is left out."""
    with pytest.MonkeyPatch.context() as patch:
        move_to(folder, patch)
        patch.setattr("lib.publish.pages.notebook_html", lambda path: "")
        study = design("many").model_copy(update={"seeds": list(range(seeds))})
        write_record(study, "EXPLORATORY")
        build_site()
    return folder / "paper" / "site"


@pytest.mark.long
def test_a_thousand_runs_are_seen_within_two_seconds(page: Page, tmp_path: Path) -> None:
    """Of the processor's time, which other work on the machine does not lengthen."""
    pages = many(tmp_path, 500)
    for place in ("index.html", "many/index.html", "compare.html"):
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(f"{pages.as_uri()}/{place}", timeout=60_000)
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        took = {metric["name"]: metric["value"] for metric in metrics}
        print(place, took["TaskDuration"], took["LayoutDuration"], took["ScriptDuration"])
        assert took["TaskDuration"] < 2, place
        devtools.detach()


def test_a_long_table_is_read_page_by_page(page: Page, browser: Browser, tmp_path: Path) -> None:
    address = f"{many(tmp_path, 60).as_uri()}/index.html"
    context = browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto(address)
    assert still.locator("#run-table tbody tr:visible").count() == 120
    context.close()
    page.route("**/record.js", lambda route: route.fulfill(body=""))  # as before it is there
    page.goto(address)
    shown = page.locator("#run-table tbody tr:visible")
    assert shown.count() == 100
    page.unroute("**/record.js")

    page.goto(address)
    expect(page.locator("#part")).to_have_text("1 to 100 of 120")
    assert shown.count() == 100
    page.get_by_role("button", name="After").click()
    expect(page.locator("#part")).to_have_text("101 to 120 of 120")
    expect(shown.first).to_contain_text("seed 40")
    expect(page.get_by_role("button", name="After")).to_be_disabled()
    page.get_by_role("button", name="Before").click()
    expect(page.get_by_role("button", name="Before")).to_be_disabled()
    header = page.locator("#run-table th", has_text="Seed").get_by_role("button")
    header.click()
    header.click()
    expect(shown.first).to_contain_text("seed 59")
    page.get_by_label("Filter").fill("layernorm 49")
    assert 0 < shown.count() < 20
    expect(page.locator(".pager")).to_be_hidden()
