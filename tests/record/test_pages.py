"""What an executed notebook may bring onto a page."""

import json
import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from lib.publish.pages import notebook_html, sanitise
from lib.results import status_of
from tests.record.samples import HOSTILE, PIXEL, hostile_notebook, plain_notebook, write_notebook


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<script>alert(1)</script>kept", "kept"),
        ("<style>p { color: red }</style>kept", "kept"),
        ('<img src="x" onerror="alert(1)">', "<img>"),
        ('<img src="http://elsewhere.invalid/a.png" alt="a">', '<img alt="a">'),
        ('<img src="//elsewhere.invalid/a.png">', "<img>"),
        ('<img src="data:text/html;base64,PHNjcmlwdD4=">', "<img>"),
        ('<a href="javascript:alert(1)">a</a>', '<a rel="noopener noreferrer">a</a>'),
        ('<a href=" java\nscript:alert(1)">a</a>', '<a rel="noopener noreferrer">a</a>'),
        ('<a href="data:text/html,a">a</a>', '<a rel="noopener noreferrer">a</a>'),
        ('<p id="content" style="color: red" onclick="a()">a</p>', "<p>a</p>"),
        ("<svg><a xlink:href='javascript:alert(1)'>a</a></svg>b", "b"),
        ("</div></main><p>a", "<p>a</p>"),
        ("<math><mtext><style><img src=x onerror=alert(1)></style></mtext></math>", ""),
    ],
)
def test_what_executes_or_loads_is_gone(html: str, expected: str) -> None:
    assert sanitise(html) == expected


@pytest.mark.parametrize(
    "html",
    [
        f'<img src="data:image/png;base64,{PIXEL}" alt="a">',
        '<a href="https://arxiv.org/abs/1910.07467" rel="noopener noreferrer">a</a>',
        '<table class="a"><tbody><tr><th colspan="2" scope="row">a</th></tr></tbody></table>',
    ],
)
def test_what_only_shows_is_kept(html: str) -> None:
    assert sanitise(html) == html


def test_a_hostile_notebook_is_reduced_to_what_shows(tmp_path: Path) -> None:
    write_notebook(tmp_path / "a.ipynb", hostile_notebook())
    html = notebook_html(tmp_path / "a.ipynb")
    outside = re.sub(r"<pre[^>]*>.*?</pre>", "", html, flags=re.DOTALL)  # code is shown as text
    assert "struck" not in outside
    assert "elsewhere.invalid" not in outside
    for tag in ("script", "style", "link", "meta", "base", "iframe", "form", "svg", "object"):
        assert f"<{tag}" not in html, tag
    assert not re.search(r"<[^>]*\son\w+=", html)
    assert html.count("kept") == HOSTILE.count("kept") * 4  # cell, raw cell, two outputs
    assert "&lt;script&gt;" in html
    assert re.findall(r'id="([^"]*)"', html) == ["cell-1", "cell-3", "result"]  # and none of theirs
    assert "plain instead" in html
    assert f"data:image/png;base64,{PIXEL}" in html


def test_nothing_of_nbconverts_own_is_fetched(tmp_path: Path) -> None:
    write_notebook(tmp_path / "a.ipynb", plain_notebook("a line"))
    html = notebook_html(tmp_path / "a.ipynb")
    assert "a line" in html
    assert not re.search(r"<script|<link|<style|https?://", html)


def test_a_styled_table_keeps_its_cells(tmp_path: Path) -> None:
    styled = pd.DataFrame({"share": [0.25]}, index=["train"]).style.format("{:.1%}")
    output = nbformat.v4.new_output("display_data", data={"text/html": styled.to_html()})
    cell = nbformat.v4.new_code_cell("table", outputs=[output])
    write_notebook(tmp_path / "a.ipynb", nbformat.v4.new_notebook(cells=[cell]))
    cells = re.findall(r"<(t[hd])[^>]*>([^<]*)</", notebook_html(tmp_path / "a.ipynb"))
    assert ("th", "share") in cells
    assert ("th", "train") in cells
    assert ("td", "25.0%") in cells


def test_a_figure_is_described_by_the_heading_above_it(tmp_path: Path) -> None:
    output = nbformat.v4.new_output("display_data", data={"image/png": PIXEL})
    cells = [
        nbformat.v4.new_markdown_cell('## Trends "quoted"\nText.'),
        nbformat.v4.new_code_cell("figure", outputs=[output]),
    ]
    write_notebook(tmp_path / "a.ipynb", nbformat.v4.new_notebook(cells=cells))
    assert 'alt="Figure of Trends &quot;quoted&quot;"' in notebook_html(tmp_path / "a.ipynb")


@pytest.mark.parametrize("text", ["", "{", '{"cells": ['])
def test_a_notebook_cut_short_is_said_to_be(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text(text, "utf-8")
    assert "does not appear to be JSON" in notebook_html(tmp_path / "a.ipynb")


def notebook(*cells: object, **fields: object) -> dict[str, object]:
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells)} | fields


def code(**fields: object) -> dict[str, object]:
    cell: dict[str, object] = {"cell_type": "code", "id": "a", "execution_count": 1, "source": "x"}
    return cell | {"metadata": {}, "outputs": []} | fields


def shows(**fields: object) -> dict[str, object]:
    output = {"output_type": "display_data", "data": {"image/png": PIXEL}, "metadata": {}}
    return notebook(code(outputs=[output | fields]))


BROKEN: list[object] = [
    *(notebook(cells=cells) for cells in (None, {}, "abc", [3], [None], [[]])),
    *(notebook(code(outputs=outputs)) for outputs in (None, {}, ["x"], [None])),
    *(notebook(code(source=source)) for source in (3, None, [["a"]], {})),
    *(shows(**fields) for fields in ({"data": []}, {"metadata": None}, {"output_type": "odd"})),
    shows(data={"text/html": 7}),
    shows(metadata={"image/png": []}),
    notebook(metadata=[]),
    notebook(code(metadata=[])),
    notebook(code(execution_count=float("nan"))),
    notebook({"cell_type": "odd", "id": "a", "metadata": {}, "source": ""}),
    notebook(nbformat=99),
    notebook(nbformat="4"),
    *([1], 3, None, "x"),
]


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_notebook_becomes_a_page_that_says_so(content: object, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text(json.dumps(content), "utf-8")
    assert "cannot be shown as a notebook. Reading it failed with" in notebook_html(
        tmp_path / "a.ipynb"
    )
    assert status_of(tmp_path / "a.ipynb")["status"] == "unfinished"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(range(256)), "UnicodeDecodeError"),
        (json.dumps(notebook()).encode("utf-16"), "UnicodeDecodeError"),
        (b"[" * 100_000, "RecursionError"),
        (b"\0" * 100, "does not appear to be JSON"),
        (b'{"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": []}', "has no cells"),
        (b'{"cells": []}', "has no cells"),
    ],
)
def test_so_does_what_is_no_notebook(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_bytes(content)
    assert message in notebook_html(tmp_path / "a.ipynb")


@pytest.mark.parametrize("stamp", [3, "completed", [], ["status"], {"reason": "x"}])
def test_an_odd_stamp_is_none(stamp: object, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text(json.dumps(notebook(metadata={"study": stamp})), "utf-8")
    assert status_of(tmp_path / "a.ipynb")["status"] == "unfinished"
