"""An executed notebook as safe HTML, whatever its cells printed.

Only listed tags, attributes and image data are kept. Scripts, styles, forms, frames, event handlers
and whatever would load something are removed, even where nbconvert's own template lets them through
(it writes an image's width without quotes, so a width may carry a handler).
"""

import re
from functools import lru_cache
from html import escape
from pathlib import Path

import nbformat
import nh3
from nbconvert import HTMLExporter
from traitlets.config import Config

SHOWN = ("text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain")
"""Kinds of output that a page shows, best first: of each output, the first kind that it has."""
_TABLE = {"caption", "col", "colgroup", "table", "tbody", "td", "tfoot", "th", "thead", "tr"}
_TEXT = (
    "a abbr b blockquote br code dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 "
    "hr i img kbd li mark ol p pre s samp small span strong sub summary sup tt u ul var"
)
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml);base64,", re.IGNORECASE)
_HEADING = re.compile(r"^#+ +(.+)", re.MULTILINE)
_LINK = re.compile(r"https?://", re.IGNORECASE)


def _attribute(tag: str, name: str, value: str) -> str | None:
    """Keep links to the web, which only a click follows, and images embedded in the page."""
    if name == "href":
        return value if _LINK.match(value) else None
    if name == "src":
        return value if _IMAGE.match(value) else None
    return value


_CLEANER = nh3.Cleaner(
    tags=_TABLE | set(_TEXT.split()),
    clean_content_tags={"script", "style", "iframe", "object", "template", "noscript", "title"},
    attributes={
        "*": {"class", "title"},
        "a": {"href"},
        "img": {"src", "alt", "width", "height"},
        "td": {"colspan", "rowspan"},
        "th": {"colspan", "rowspan", "scope"},
        "ol": {"start"},
    },
    attribute_filter=_attribute,
    url_schemes={"http", "https", "data"},
)


def sanitise(html: str) -> str:
    """Remove from a fragment of HTML whatever could execute or load something."""
    encodable = html.encode("utf-8", "replace").decode()  # a notebook's JSON may hold half a pair
    return _CLEANER.clean(encodable)


@lru_cache(maxsize=1)
def _exporter() -> HTMLExporter:
    config = Config({"NbConvertBase": {"display_data_priority": list(SHOWN)}})
    exporter = HTMLExporter(
        config=config, template_name="basic", sanitize_html=True, exclude_anchor_links=True
    )
    exporter.register_filter("clean_html", sanitise)
    return exporter


def notebook_html(path: Path) -> str:
    """Render an executed notebook, its images within; where that fails, a note that says why."""
    try:
        notebook = nbformat.read(path, as_version=4)
        _describe_figures(notebook)
        html, _ = _exporter().from_notebook_node(notebook)
        html = html if notebook.cells else "<p>This notebook has no cells.</p>"
    except Exception as error:  # a file can be broken in any way, and the other pages are fine
        why = escape(f"{type(error).__name__}: {error}")
        html = f"<p>This file cannot be shown as a notebook. Reading it failed with {why}</p>"
    return sanitise(html)


def _describe_figures(notebook: nbformat.NotebookNode) -> None:
    """Give every image that has no description the heading above it."""
    heading = "the notebook"
    for cell in notebook.cells:
        if found := cell.cell_type == "markdown" and _HEADING.search(cell.source):
            heading = found[1]
        for output in cell.get("outputs", []):
            for kind in {"image/png", "image/jpeg"} & set(output.get("data", {})):
                output.metadata.setdefault(kind, {}).setdefault("alt", f"Figure of {heading}")
