"""A training notebook that somebody ran cell by cell, filed like one that a sweep executed.

Its code, its order and its result are checked. What cannot be known: whether a cell was changed and
changed back while the kernel ran, or an output edited afterwards. Measures are computed again from
raw files; `verify --retrain` repeats the rest.
"""

import ast
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
from papermill.parameterize import parameterize_notebook

from lib.record.notebook import COMPACT, shown_result, slim
from lib.record.replay import committed
from lib.results import attested, parse_time
from lib.study.code import git
from lib.study.inputs import own_text, split_plan
from lib.study.io import NOTEBOOKS, atomic_write, read_json
from lib.study.yaml import UserError, parse_yaml


def file(candidates: list[Path], result: dict[str, Any], target: Path) -> None:
    """Find the notebook that shows a result (as JSON) among some, check it, and write it to
    `target` with the stamps that a sweep would have given it.

    Raises UserError where there is none, or where it ran other code than that of the commit that
    the result names (of this checkout, where it names none), or not from top to bottom.
    """
    matches = [path for path in candidates if shown_result(read_json(path)) == attested(result)]
    if not matches:
        raise UserError("no notebook shows its result")
    executed = [c for c in nbformat.read(matches[0], as_version=4).cells if c.cell_type == "code"]
    executed = [cell for cell in executed if cell.source.strip()]
    if [cell.execution_count for cell in executed] != list(range(1, len(executed) + 1)):
        raise UserError("its notebook was not run from top to bottom; restart and run all")
    if any(output.output_type == "error" for cell in executed for output in cell.outputs):
        raise UserError("a cell of its notebook raised an error")

    commit = committed(result["provenance"]["executed"])  # by which `verify` will judge it
    text = git("show", f"{commit}:notebooks/{target.name}") if commit else None
    text = text or (NOTEBOOKS / target.name).read_text("utf-8")
    notebook = nbformat.reads(text, as_version=4)
    source = [cell for cell in notebook.cells if cell.cell_type == "code"]
    parameters = {name: result[name] for name in ("study", "arm", "seed")}
    if len(executed) != len(source):
        raise UserError("its notebook has other cells than the repository's")
    for number, (cell, original) in enumerate(zip(executed, source, strict=True), start=1):
        if "parameters" in original.metadata.get("tags", []):
            values = {"changes": {}} | _values(cell.source)
            if text := own_text(str(values.get("study", ""))):  # of a study of one's own
                own_study = parse_yaml(split_plan(text)[0].encode(), "study")
                values["study"] = own_study.get("name")
            if values != parameters | {"changes": {}}:
                raise UserError("the parameters cell of its notebook names another run")
        elif cell.source.strip() != original.source.strip():
            raise UserError(f"code cell {number} of its notebook is not the repository's")
        original.outputs, original.execution_count = cell.outputs, cell.execution_count
    for cell in notebook.cells:
        cell.metadata.setdefault("tags", [])
    notebook.metadata["papermill"] = nbformat.NotebookNode()
    notebook = parameterize_notebook(
        notebook, parameters
    )  # as a sweep does: in a cell of their own
    for previous, cell in pairwise(notebook.cells):
        if "injected-parameters" in cell.metadata["tags"]:
            cell.execution_count = previous.execution_count
    _stamp(notebook, result)
    slim(notebook)
    with atomic_write(target) as temporary:
        nbformat.write(notebook, temporary, **COMPACT)


def _values(source: str) -> dict[str, Any]:
    """Read the literals that a parameters cell assigns; nothing from any other cell."""
    values = {}
    try:
        for line in ast.parse(source).body:
            match line:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    values[name] = ast.literal_eval(value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    values[name] = ast.literal_eval(value)
                case _:
                    return {}
    except (SyntaxError, ValueError):
        return {}
    return values


def _stamp(notebook: nbformat.NotebookNode, result: dict[str, Any]) -> None:
    """Stamp it with what the result says of its plan, commit and times."""
    trained, executed = result["provenance"]["trained"], result["provenance"]["executed"]
    fresh = not (executed["from_checkpoint"] or result["resumed_at"])
    start, end = trained["started"] if fresh else executed["finished"], executed["finished"]
    times = {"start_time": start, "end_time": end}
    notebook.metadata["papermill"] |= {
        name: parse_time(text).isoformat() for name, text in times.items()
    }
    notebook.metadata["study"] = {
        "status": "completed",
        "by_hand": True,
        "preregistration": trained["plan"],
        "commit": executed["commit"],
        "clean": executed["clean"],
    }
