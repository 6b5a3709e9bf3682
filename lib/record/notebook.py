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
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from lib.study.fields import digest

Text = str | list[str]
Nothing = Annotated[dict[str, Any], Field(max_length=0)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_ROUNDED = 1e-5
"""Seconds within which a duration is that between its times."""
_AROUND = 600
"""Seconds that starting its kernel and writing it may take beside its execution."""


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Times(_Exact):
    start_time: AwareDatetime
    end_time: AwareDatetime
    duration: float | None = None
    exception: Literal[False] | None = None

    @model_validator(mode="after")
    def _lasts_from_start_to_end(self) -> Self:
        seconds = (self.end_time - self.start_time).total_seconds()
        lasted = seconds if self.duration is None else self.duration
        if seconds < 0 or abs(lasted - seconds) > _ROUNDED:
            raise ValueError("its start, end and duration do not fit")
        return self


class _CellTimes(_Times):
    status: Literal["completed"]


class _Papermill(_Times):
    """What Papermill notes; of a notebook run by hand, parameters and times."""

    parameters: dict[str, str | int]
    default_parameters: Nothing = {}
    environment_variables: Nothing = {}
    input_path: str = ""
    output_path: str = ""
    version: Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")] = "0"


class _Stamp(_Exact):
    """What `lib.workflow` stamps on it."""

    status: Literal["completed"]
    seconds: Annotated[float, Field(ge=0)] | None = None
    preregistration: Hash | None
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None
    clean: bool | None
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    by_hand: Literal[True] | None = None


class _Mode(_Exact):
    name: Literal["ipython"]
    version: Literal[3]


class _Language(_Exact):
    codemirror_mode: _Mode
    file_extension: Literal[".py"]
    mimetype: Literal["text/x-python"]
    name: Literal["python"]
    nbconvert_exporter: Literal["python"]
    pygments_lexer: Literal["ipython3"]
    version: Annotated[str, Field(pattern=r"^3\.\d+\.\d+((a|b|rc)\d+)?\+?$")]


class _Metadata(_Exact):
    jupytext: dict[str, Any]
    kernelspec: dict[str, Any]
    language_info: _Language | None = None
    papermill: _Papermill
    study: _Stamp


class _Printed(_Exact):
    output_type: Literal["stream"]
    name: Literal["stdout"]
    text: Text


class _Data(_Exact):
    html: Text | None = Field(None, alias="text/html")
    markdown: Text | None = Field(None, alias="text/markdown")
    plain: Text | None = Field(None, alias="text/plain")
    png: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/\n]+=*\n?$")] | None = Field(
        None, alias="image/png"
    )
    result: dict[str, Any] | None = Field(None, alias="application/json")

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if len(self.model_fields_set - {"result"}) != 1:
            raise ValueError("it must be one kind of output, or that and a result")
        return self


class _Width(_Exact):
    width: Annotated[int, Field(gt=0)] | None = None
    height: Annotated[int, Field(gt=0)] | None = None


class _Pictured(_Exact):
    png: _Width | None = Field(None, alias="image/png")


class _Rich(_Exact):
    data: _Data
    metadata: _Pictured

    @model_validator(mode="after")
    def _is_shown_in_its_own_size(self) -> Self:
        if given := self.metadata.png:
            begin = b64decode((self.data.png or "").replace("\n", "")[:32])
            width, height = struct.unpack(">16x2I", begin) if len(begin) == 24 else (0, 0)
            if given.width not in (None, width) or given.height not in (None, height):
                raise ValueError("its picture is to be shown in another size than its own")
        return self


class _Displayed(_Rich):
    output_type: Literal["display_data"]


class _Returned(_Rich):
    output_type: Literal["execute_result"]
    execution_count: int


class _TextMetadata(_Exact):
    tags: Annotated[list[str], Field(max_length=0)] = []
    papermill: _CellTimes | None = None


class _CodeMetadata(_Exact):
    tags: list[Literal["parameters", "injected-parameters"]] = []


class _TextCell(_Exact):
    cell_type: Literal["markdown"]
    id: str
    metadata: _TextMetadata
    source: Text


class _CodeCell(_Exact):
    cell_type: Literal["code"]
    id: str
    metadata: _CodeMetadata
    source: Text
    execution_count: int
    outputs: list[Annotated[_Printed | _Displayed | _Returned, Field(discriminator="output_type")]]

    @model_validator(mode="after")
    def _shows_what_its_code_can(self) -> Self:
        code = ast.parse("".join(self.source)).body
        returned = [output for output in self.outputs if isinstance(output, _Returned)]
        if self.outputs and all(isinstance(each, _SILENT) for each in code):
            raise ValueError("its code shows nothing, and it has outputs")
        if len(returned) > (isinstance(code[-1], ast.Expr) if code else 0):
            raise ValueError("it has more results than its last line gives")
        if any(output.execution_count != self.execution_count for output in returned):
            raise ValueError("its result has another count than the cell")
        return self


_SILENT = ast.Import | ast.ImportFrom | ast.Assign | ast.AugAssign | ast.AnnAssign


class _Notebook(_Exact):
    nbformat: Literal[4]
    nbformat_minor: int
    metadata: _Metadata
    cells: list[Annotated[_TextCell | _CodeCell, Field(discriminator="cell_type")]]

    @model_validator(mode="after")
    def _ran_once_from_top_to_bottom(self) -> Self:
        code = [cell for cell in self.cells if isinstance(cell, _CodeCell)]
        if self.metadata.study.by_hand:  # what was written in afterwards has the count before it
            code = [cell for cell in code if "injected-parameters" not in cell.metadata.tags]
        if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
            raise ValueError("its cells were not executed once each, from top to bottom")
        whole, stamped = self.metadata.papermill, self.metadata.study.seconds
        if stamped is not None and not 0 <= stamped - (whole.duration or 0) <= _AROUND:
            raise ValueError("it was stamped with another time than it took")
        cells = [cell.metadata for cell in self.cells if isinstance(cell, _TextCell)]
        times = [whole.start_time]
        for each in cells:
            times += [each.papermill.start_time, each.papermill.end_time] if each.papermill else []
        if any(one > other for one, other in pairwise([*times, whole.end_time])):
            raise ValueError("the times of its cells are not in order")
        return self


def foreign_content(text: str) -> Iterator[str]:
    """What an executed notebook, given as its file's text, holds that no execution writes."""
    try:
        _Notebook.model_validate_json(text)
    except ValidationError as error:
        for fault in error.errors(include_input=False, include_url=False):
            where = ".".join(map(str, fault["loc"]))
            said = fault["msg"].removeprefix("Value error, ")
            yield f"holds what no execution writes: {where or 'as a whole'}: {said}"


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
    """SHA-256 of a notebook's code."""
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


def has_parameters(notebook: dict[str, Any], given: dict[str, Any]) -> bool:
    """Tell whether the one cell that Papermill writes, after that of the parameters, gives these
    and nothing else."""
    tags = [cell["metadata"].get("tags", []) for cell in notebook["cells"]]
    places = [number for number, of in enumerate(tags) if "injected-parameters" in of]
    if len(places) != 1 or not places[0] or "parameters" not in tags[places[0] - 1]:
        return False
    cell = notebook["cells"][places[0]]
    lines = ["# Parameters", *(f"{name} = {json.dumps(value)}" for name, value in given.items())]
    silent = cell["cell_type"] == "code" and not cell["outputs"]
    own = source(cell).strip().split("\n")
    return bool(silent and own == lines and re.fullmatch("[0-9a-f]{8}", cell["id"]))


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


def shown(notebook: dict[str, Any], *, pictures: bool = False) -> list[list[Any]]:
    """List what each cell of code shows, without what differs from one execution to the next: in
    order, what it printed (warnings no record holds) as text, and what it displayed by kind; what
    pictures show only if asked for."""
    found = []
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
        found.append(of_cell)
    return found


def _stable(content: Any) -> Any:
    """Take out the names that pandas draws for styled tables, and addresses of objects."""
    if not isinstance(content, str):
        return content
    return re.sub(r"T_[0-9a-f]{5}(?=_|[\"' ])|(?<= at )0x[0-9a-f]+(?=>)", "", content)
