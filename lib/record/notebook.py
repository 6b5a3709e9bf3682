"""What an executed notebook holds: its code, what it shows, and nothing that no execution writes.

Every key of its JSON is named here: what is not, no record holds. Counts are those of one execution
from top to bottom, and its times fit into each other. Notebooks are passed as JSON.
"""

import ast
import json
import re
import struct
from base64 import b64decode
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, groupby, pairwise, zip_longest
from typing import Any

from lib.study.schema import digest

COMPACT: dict[str, Any] = {"indent": 0, "separators": (",", ":")}
"""How a notebook's JSON is written: in lines, which git compares, without their indentation."""
_PANDAS_STYLE = re.compile(r"<style scoped>.*?</style>", re.DOTALL)
_TEXT = r'"[^"\\]*(\\.[^"\\]*)*"'
_LINES = rf"{_TEXT}|\[({_TEXT}(, {_TEXT})*)?\]"
_WIDTH, _SECONDS = r"[1-9]\d*|null", r"\d+(\.\d+)?(e-\d+)?|null"
_COMMIT = r'"[0-9a-f]{40}"|null'
_TIMES = {
    **dict.fromkeys(("start_time", "end_time"), r'"[\d-]{10}T[\d:]{8}(\.\d+)?(\+00:00|Z)"'),
    "duration": _SECONDS,
    "exception": "false|null",
}
_CELL = {"cell_type": _TEXT, "id": _TEXT, "source": _LINES}
_RICH = {
    "output_type": _TEXT,
    "data": {
        **dict.fromkeys(("text/html", "text/markdown", "text/plain"), _LINES),
        "image/png": r'"([A-Za-z0-9+/]|\\n)+=*(\\n)?"',
        "application/json": r"\{.*\}",
    },
    "metadata": {"image/png": {"width": _WIDTH, "height": _WIDTH}},
}
_WRITTEN = {
    "nbformat": "4",
    "nbformat_minor": r"\d+",
    "metadata": {
        # Which are those of the notebook that was executed: see `unexecuted`.
        **{"jupytext": r"\{.*\}", "kernelspec": r"\{.*\}"},
        "language_info": {
            "codemirror_mode": {"name": '"ipython"', "version": "3"},
            "file_extension": r'"\.py"',
            "mimetype": '"text/x-python"',
            "name": '"python"',
            "nbconvert_exporter": '"python"',
            "pygments_lexer": '"ipython3"',
            "version": r'"3\.\d+\.\d+((a|b|rc)\d+)?\+?"',
        },
        "papermill": _TIMES
        | {
            # Which are those of its place: see `lib.record.verify.check_notebooks`.
            **{"parameters": r"\{.*\}", "input_path": _TEXT, "output_path": _TEXT},
            **dict.fromkeys(("default_parameters", "environment_variables"), r"\{\}"),
            "version": r'"\d+(\.\d+)*"',
        },
        "study": {
            "status": '"completed"',
            "seconds": _SECONDS,
            "preregistration": '"[0-9a-f]{64}"|null',
            **{"commit": _COMMIT, "code": _COMMIT},
            "clean": "true|false|null",
            "by_hand": "true|null",
        },
    },
    "cells": {
        "markdown": _CELL
        | {"metadata": {"tags": r"\[\]", "papermill": _TIMES | {"status": '"completed"'}}},
        "code": _CELL
        | {
            "metadata": {"tags": r'\[("(injected-)?parameters")?\]'},
            "execution_count": r"\d+",
            "outputs": {
                "stream": {"output_type": _TEXT, "name": '"stdout"', "text": _LINES},
                "display_data": _RICH,
                "execute_result": _RICH | {"execution_count": r"\d+"},
            },
        },
    },
}
"""Every key of a notebook's JSON, with a pattern of what it may hold; cells and outputs by kind."""
_ROUNDED = 1e-5
"""Seconds within which a duration is that between its times."""
_AROUND = 600
"""Seconds that starting its kernel and writing it may take beside its execution."""
_SILENT = ast.Import | ast.ImportFrom | ast.Assign | ast.AugAssign | ast.AnnAssign


def foreign_content(text: str) -> Iterator[str]:
    """Name what an executed notebook, given as its file's text, holds that no execution writes."""
    try:
        notebook = json.loads(text)
        faults = [*_unwritten(notebook, _WRITTEN)] or [*_impossible(notebook)]
    except (ValueError, LookupError, TypeError, AttributeError, SyntaxError) as error:
        faults = [f"as a whole: {error!r}"]
    yield from (f"holds what no execution writes: {fault}" for fault in faults)


def _unwritten(value: Any, written: Any, *where: str) -> Iterator[str]:
    """Name where some JSON holds another key or content than is `written`."""
    if isinstance(written, str):
        if not re.fullmatch(written, json.dumps(value)):
            yield ".".join(where)
    elif where and where[-1] in ("cells", "outputs"):
        for number, each in enumerate(value):
            kind = each.get("cell_type", each.get("output_type"))
            yield from _unwritten(each, written.get(kind, _NOTHING), *where, str(number))
    else:
        for key, each in value.items():
            yield from _unwritten(each, written.get(key, _NOTHING), *where, key)


_NOTHING = "(?!)"


def _impossible(notebook: dict[str, Any]) -> Iterator[str]:
    """Say what no single execution from top to bottom leaves: counts, times, sizes, outputs."""
    stamp, papermill = notebook["metadata"]["study"], notebook["metadata"]["papermill"]
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    # Of one run by hand, what was written in afterwards has the count before it.
    counted = code_cells(notebook) if stamp.get("by_hand") else code
    if [cell["execution_count"] for cell in counted] != list(range(1, len(counted) + 1)):
        yield "its cells were not executed once each, from top to bottom"
    of_cells = [cell["metadata"]["papermill"] for cell in notebook["cells"]
             if "papermill" in cell["metadata"]]  # fmt: skip
    stamps = (papermill, *of_cells)
    spans = [(_time(each["start_time"]), _time(each["end_time"])) for each in stamps]
    for each, (start, end) in zip(stamps, spans, strict=True):
        seconds, lasted = (end - start).total_seconds(), each.get("duration")
        if seconds < 0 or abs((seconds if lasted is None else lasted) - seconds) > _ROUNDED:
            yield "its start, end and duration do not fit"
    seconds = stamp.get("seconds")
    if seconds is not None and not 0 <= seconds - (papermill.get("duration") or 0) <= _AROUND:
        yield "it was stamped with another time than it took"
    (first, last), *inner = spans
    times = [first, *chain(*inner), last]
    if any(one > other for one, other in pairwise(times)):
        yield "the times of its cells are not in order"
    for cell in code:
        yield from _impossible_outputs(cell)


_time = datetime.fromisoformat


def _impossible_outputs(cell: dict[str, Any]) -> Iterator[str]:
    code, outputs = ast.parse(source(cell)).body, cell["outputs"]
    returned = [output for output in outputs if output["output_type"] == "execute_result"]
    if outputs and all(isinstance(each, _SILENT) for each in code):
        yield "its code shows nothing, and it has outputs"
    if len(returned) > (isinstance(code[-1], ast.Expr) if code else 0):
        yield "it has more results than its last line gives"
    if any(output["execution_count"] != cell["execution_count"] for output in returned):
        yield "its result has another count than the cell"
    for output in outputs:
        if output["output_type"] != "stream":
            if len(output["data"].keys() - {"application/json"}) != 1:
                yield "it must be one kind of output, or that and a result"
            begin = b64decode(output["data"].get("image/png", "").replace("\n", "")[:32])
            png_size = struct.unpack(">16x2I", begin) if len(begin) == 24 else (0, 0)
            size = output["metadata"].get("image/png", {})
            if any(size.get(side) not in (None, length) for side, length in
                   zip(("width", "height"), png_size, strict=True)):  # fmt: skip
                yield "its picture is to be shown in another size than its own"


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """List the cells of code, without the one in which Papermill writes parameters."""
    return [
        cell
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
        and "injected-parameters" not in (cell["metadata"].get("tags") or [])
    ]


def source(cell: dict[str, Any]) -> str:
    """Return the code or text of a cell."""
    return "".join(cell["source"])


def code_hash(notebook: dict[str, Any]) -> str:
    """Return the SHA-256 of a notebook's code."""
    return digest(list(map(source, code_cells(notebook))))


def unexecuted(notebook: dict[str, Any]) -> list[Any]:
    """Return all of a notebook but what its execution adds: the cell in which Papermill writes
    parameters, outputs, counts and times."""
    metadata, cells = notebook["metadata"], []
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags") or []
        if "injected-parameters" not in tags:
            added = {"execution_count": None, "outputs": None, "source": source(cell)}
            cells.append(cell | added | {"metadata": tags})
    head = [notebook["nbformat"], notebook["nbformat_minor"]]
    return [*head, metadata["kernelspec"], metadata["jupytext"], *cells]


def has_parameters(notebook: dict[str, Any], values: dict[str, Any]) -> bool:
    """Tell whether the one cell that Papermill writes, after that of the parameters, gives these
    and nothing else."""
    tags = [cell["metadata"].get("tags", []) for cell in notebook["cells"]]
    positions = [number for number, of in enumerate(tags) if "injected-parameters" in of]
    if len(positions) != 1 or not positions[0] or "parameters" not in tags[positions[0] - 1]:
        return False
    cell = notebook["cells"][positions[0]]
    lines = ["# Parameters", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    silent = cell["cell_type"] == "code" and not cell["outputs"]
    written = source(cell).strip().split("\n")
    return bool(silent and written == lines and re.fullmatch("[0-9a-f]{8}", cell["id"]))


def data(output: dict[str, Any]) -> dict[str, Any]:
    """Return what an output displays by kind, each text as one."""
    return {
        kind: "".join(content) if isinstance(content, list) else content
        for kind, content in output.get("data", {}).items()
    }


def shown_result(notebook: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a training notebook shows of its result; None when it shows nothing."""
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", []))
    return next((of["application/json"] for of in map(data, outputs) if "application/json" in of),
                None)  # fmt: skip


def cell_outputs(notebook: dict[str, Any], *, pictures: bool = False) -> list[list[Any]]:
    """List what each cell of code shows, without what differs from one execution to the next: in
    order, what it printed (warnings no record holds) as text, and what it displayed by kind; what
    pictures show only if asked for."""
    by_cell = []
    for cell in code_cells(notebook):
        of_cell: list[Any] = []
        for out in cell["outputs"]:
            if out["output_type"] != "stream":
                of_cell.append(
                    {
                        kind: _stable(content)
                        if pictures or not kind.startswith("image/")
                        else None
                        for kind, content in data(out).items()
                    }
                )
            elif out["name"] == "stdout" and of_cell and isinstance(of_cell[-1], str):
                of_cell[-1] += "".join(out["text"])
            elif out["name"] == "stdout":
                of_cell.append("".join(out["text"]))
        by_cell.append(of_cell)
    return by_cell


def differing_cells(
    notebook: dict[str, Any], again: dict[str, Any], *, pictures: bool = False
) -> Iterator[int]:
    """Number (1, 2, …) the cells of code that show something else in another execution."""
    outputs = (cell_outputs(each, pictures=pictures) for each in (notebook, again))
    yield from (n for n, (one, other) in enumerate(zip_longest(*outputs), 1) if one != other)


def _stable(content: Any) -> Any:
    """Take out the names that pandas draws for styled tables, and addresses of objects."""
    if not isinstance(content, str):
        return content
    return re.sub(r"T_[0-9a-f]{5}(?=_|[\"' ])|(?<= at )0x[0-9a-f]+(?=>)", "", content)


def without_warnings(notebook: dict[str, Any]) -> dict[str, Any]:
    """Take warnings and progress bars out of an executed notebook: they differ from one execution
    to the next, and nothing can be checked against them."""
    for cell in notebook.get("cells", []):
        if "outputs" in cell:
            cell["outputs"] = [o for o in cell["outputs"] if o.get("name") != "stderr"]
    return notebook


def slim(notebook: dict[str, Any]) -> None:
    """Leave of an executed notebook, as nbformat reads it, what was executed and shown.

    A table stays as HTML and a picture as an image, without their plain texts. pandas' indentation
    and style go, and what Papermill notes of single cells.
    """
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            tags = cell["metadata"].get("tags")
            cell["metadata"] = {"tags": tags} if tags else {}
            cell["outputs"] = _joined(cell["outputs"])
            for output in cell["outputs"]:
                _slim_data(output.get("data", {}))


def _joined(outputs: list[Any]) -> list[Any]:
    """Join what was printed to one stream with no other output in between."""
    joined: list[Any] = []
    for name, group in groupby(outputs, key=lambda output: output.get("name")):
        first, *rest = group
        if name:
            first["text"] += "".join(each["text"] for each in rest)
        joined += [first] if name else [first, *rest]
    return joined


def _slim_data(data: dict[str, Any]) -> None:
    if set(data) - {"text/plain", "application/json"}:
        data.pop("text/plain", None)
    if "image/png" in data:
        data["image/png"] = "".join(data["image/png"].split())
    if 'class="dataframe"' in data.get("text/html", ""):
        data["text/html"] = re.sub(r">\s+<", "><", _PANDAS_STYLE.sub("", data["text/html"]))
