"""An executed notebook without what a record does not need: it keeps what was executed and shown.

A table stays as HTML and a picture as an image, without their plain texts. pandas' indentation and
style go, and of what Papermill notes the times of single cells.
"""

import re
from itertools import groupby
from typing import Any

from nbformat import NotebookNode

COMPACT: dict[str, Any] = {"indent": 0, "separators": (",", ":")}
"""How a notebook's JSON is written: in lines, which git compares, without their indentation."""
_PANDAS_STYLE = re.compile(r"<style scoped>.*?</style>", re.DOTALL)
_BETWEEN_TAGS = re.compile(r">\s+<")


def slim(notebook: NotebookNode) -> None:
    """Take out of an executed notebook what its record does not need."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            tags = cell.metadata.get("tags")
            cell.metadata = NotebookNode(tags=tags) if tags else NotebookNode()
            cell.outputs = _joined(cell.outputs)
            for output in cell.outputs:
                _slim_data(output.get("data", {}))


def _joined(outputs: list[Any]) -> list[Any]:
    """Join what was printed to one stream with no other output in between."""
    joined: list[Any] = []
    for name, group in groupby(outputs, key=lambda output: output.get("name")):
        first, *rest = group
        if name:
            first.text += "".join(each.text for each in rest)
        joined += [first] if name else [first, *rest]
    return joined


def _slim_data(data: dict[str, Any]) -> None:
    if set(data) - {"text/plain", "application/json"}:
        data.pop("text/plain", None)
    if "image/png" in data:
        data["image/png"] = "".join(data["image/png"].split())
    if 'class="dataframe"' in data.get("text/html", ""):
        data["text/html"] = _BETWEEN_TAGS.sub("><", _PANDAS_STYLE.sub("", data["text/html"]))
