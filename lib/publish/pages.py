"""An executed notebook as safe HTML, whatever its cells printed.

Only listed tags, attributes and image data are kept. Scripts, styles, forms, frames, event handlers
and whatever would load something are removed, even where nbconvert's own template lets them through
(it writes an image's width without quotes, so a width may carry a handler).
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

import nbformat
import nh3
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html
from traitlets.config import Config

SHOWN = ("text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain")
"""Kinds of output that a page shows, best first: of each output, the first kind that it has."""
CELLS = {
    "result": ("write_result(",),
    "verdict": (", analysis)", "in_words("),
    "summary": ("summary_table(",),
    "contrasts": ("contrast_overview(contrasts", "contrast_summary("),
}
"""Cells that numbers elsewhere are linked to: address on the notebook's page → code of the first
cell that holds it; where none does, the next in the list, as in older notebooks."""
_TABLE = {"caption", "col", "colgroup", "table", "tbody", "td", "tfoot", "th", "thead", "tr"}
_TEXT = (
    "a abbr b blockquote br code dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 "
    "hr i img kbd li mark ol p pre s samp small span strong sub summary sup tt u ul var"
)
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml);base64,", re.IGNORECASE)
_HEADING = re.compile(r"^#+ +(.+)", re.MULTILINE)
_LINK = re.compile(r"https?://", re.IGNORECASE)
_OF_STUDY = re.compile(r"[\w-]+/\w+\.html")
_SCROLLING = re.compile(r'(?<=<div )(?=class="output_(png|jpeg|svg|html|markdown)\b)')
"""Blocks of output that a sheet lets scroll sideways."""
_UNDESCRIBED = re.compile(r"<img(?![^>]* alt=)")
_CELL = re.compile(r"cell-id=([\w-]+)")


def _attribute(tag: str, name: str, value: str) -> str | None:
    """Keep links to the web, which only a click follows, and images embedded in the page."""
    if name == "href":
        return value if _LINK.match(value) else None
    if name == "src":
        return value if _IMAGE.match(value) else None
    return value


def _page_attribute(tag: str, name: str, value: str) -> str | None:
    """Keep also what nbconvert calls a cell, by the name alone."""
    if name == "id":
        return cell[1] if (cell := _CELL.fullmatch(value)) else None
    return _attribute(tag, name, value)


def _linking_attribute(tag: str, name: str, value: str) -> str | None:
    """Keep also links from the first page to that of a study's notebook."""
    if name == "href" and _OF_STUDY.fullmatch(value):
        return value
    return _attribute(tag, name, value)


def _cleaner(keep: Callable[[str, str, str], str | None]) -> nh3.Cleaner:
    return nh3.Cleaner(
        tags=_TABLE | set(_TEXT.split()),
        clean_content_tags={"script", "style", "iframe", "object", "template", "noscript", "title"},
        attributes={
            "*": {"class", "title"},
            "a": {"href"},
            "img": {"src", "alt", "width", "height"},
            "td": {"colspan", "rowspan"},
            "th": {"colspan", "rowspan", "scope"},
            "ol": {"start"},
        }
        | ({"div": {"id"}} if keep is _page_attribute else {}),
        attribute_filter=keep,
        set_tag_attribute_values={"pre": {"tabindex": "0"}},  # scrolled by its keys
        url_schemes={"http", "https", "data"},
    )


_FRAGMENT, _PAGE, _LINKING = map(_cleaner, (_attribute, _page_attribute, _linking_attribute))


def sanitise(html: str, cleaner: nh3.Cleaner = _FRAGMENT) -> str:
    """Remove from a fragment of HTML whatever could execute or load something."""
    return cleaner.clean(html)


def linked_html(markdown: str) -> str:
    """Turn a text into safe HTML whose links to the notebooks of studies stay."""
    return sanitise(markdown2html(markdown), _LINKING)


@lru_cache(maxsize=1)
def _exporter() -> HTMLExporter:
    config = Config({"NbConvertBase": {"display_data_priority": list(SHOWN)}})
    exporter = HTMLExporter(
        config=config, template_name="basic", sanitize_html=True, exclude_anchor_links=True
    )
    exporter.register_filter("clean_html", sanitise)
    return exporter


def _read(path: Path) -> nbformat.NotebookNode:
    """Read a notebook. Half a pair of surrogates, which JSON may hold and UTF-8 may not, becomes a
    question mark wherever it stands."""
    text = json.dumps(nbformat.read(path, as_version=4), ensure_ascii=False)
    read: nbformat.NotebookNode = nbformat.from_dict(json.loads(text.encode("utf-8", "replace")))
    return read


def notebook_html(path: Path) -> str:
    """Render an executed notebook, its images within; where that fails, a note that says why."""
    try:
        notebook = _read(path)
        _describe_figures(notebook)
        _name_cells(notebook)
        html, _ = _exporter().from_notebook_node(notebook)
        html = html if notebook.cells else "<p>This notebook has no cells.</p>"
    except Exception as error:  # a file can be broken in any way, and the other pages are fine
        why = escape(f"{type(error).__name__}: {error}")
        html = f"<p>This file cannot be shown as a notebook. Reading it failed with {why}</p>"
    html = _SCROLLING.sub('tabindex="0" ', sanitise(html, _PAGE))
    return _UNDESCRIBED.sub("<img alt", html)  # no quotes: they would end an attribute that says so


def _name_cells(notebook: nbformat.NotebookNode) -> None:
    """Give every cell an address on its page: a name of `CELLS`, or its number."""
    sources = [cell.source if cell.cell_type == "code" else "" for cell in notebook.cells]
    names: dict[int, str] = {}
    for name, codes in CELLS.items():
        matches = [i for code in codes for i, source in enumerate(sources) if code in source]
        names |= dict.fromkeys(matches[:1], name)
    for i, cell in enumerate(notebook.cells):
        cell["id"] = names.get(i, f"cell-{i + 1}")


def _texts_and_images(notebook: nbformat.NotebookNode) -> Iterator[tuple[Any, str, Any]]:
    """Yield every text in Markdown, and every output that holds an image (else None), each with its
    cell, in the order in which they are shown."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield cell, cell.source, None
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/markdown" in data:
                yield cell, data["text/markdown"], None
            elif {"image/png", "image/jpeg"} & set(data):
                yield cell, "", output


def _describe_figures(notebook: nbformat.NotebookNode) -> None:
    """Give every image that has no description the heading above it."""
    heading = "the notebook"
    for _, text, output in _texts_and_images(notebook):
        if output is None:
            match = _HEADING.search(text)
            heading = match[1] if match else heading
            continue
        for kind in {"image/png", "image/jpeg"} & set(output.data):
            output.metadata.setdefault(kind, {}).setdefault("alt", f"Figure of {heading}")


@dataclass(frozen=True)
class Picture:
    """A figure that an executed notebook shows."""

    title: str
    words: str
    """What to look for and how it is made, as safe HTML."""
    source: str
    """The image itself, as an address."""
    cell: str
    """Where it stands on the notebook's page."""


def pictures(path: Path) -> list[Picture]:
    """Find the figures of an executed notebook, each with the text above it; none in a file that is
    no notebook."""
    figures, title, words = [], path.stem, ""
    try:
        notebook = _read(path)
        _name_cells(notebook)
        for cell, text, output in _texts_and_images(notebook):
            if heading := _HEADING.match(text):
                title, words = heading[1], sanitise(markdown2html(text[heading.end() :]))
            if output is not None and "image/png" in output.data:
                source = f"data:image/png;base64,{''.join(output.data['image/png'].split())}"
                figures.append(Picture(title, words, source, cell["id"]))
    except Exception:  # its own page says what is wrong with it
        return []
    return figures
