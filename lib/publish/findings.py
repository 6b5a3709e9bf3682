"""Execute a paper's own notebook, `findings.ipynb`, which asks questions across recorded studies.

The notebook writes `findings.json`, which the paper quotes, and `figures/findings/` to the folder
in which it is executed. It is committed with its outputs; `check` executes it again and compares.
"""

import re
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from lib.config.environment import kernel_environment
from lib.config.files import leave_out_indentation, read_json, slim
from lib.config.paths import listed, relative
from lib.record.archive import papers_named
from lib.record.verify import differences

NOTEBOOK, TABLES = "findings.ipynb", "findings.json"
SHOWN = "answers.png"
"""The picture that the README shows."""


def execute(paper: Path, folder: Path) -> None:
    """Execute a paper's notebook in a folder, and write the notebook and its files there."""
    notebook = nbformat.read(paper / NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, kernel_name="python3", record_timing=False, resources=where)
    with kernel_environment(threads=1):
        client.execute()
    for picture in listed(folder, "figures/findings/*.png"):
        if picture.name != SHOWN:  # the others are also inside the notebook
            picture.unlink()
    notebook.metadata.pop("language_info", None)
    leave_out_indentation(notebook)
    nbformat.write(slim(notebook), folder / NOTEBOOK)


def check(paper: Path) -> Iterator[str]:
    """Execute a paper's notebook again; yield each table and figure that differs from the
    committed ones."""
    if not (paper / NOTEBOOK).is_file():
        return
    with tempfile.TemporaryDirectory(prefix="findings-") as temporary:
        folder = Path(temporary)
        try:
            execute(paper, folder)
        except DeadKernelError:
            raise MemoryError from None  # the likely cause, so no fault of the paper
        except CellExecutionError as error:
            if number := re.match(r"\[Errno (\d+)\] ", error.evalue):
                raise OSError(int(number[1]), error.evalue, NOTEBOOK) from None
            yield f"{NOTEBOOK}: {error.ename}: {' '.join(error.evalue.split())}"
            return
        stated, found = (read_json(root / TABLES) for root in (paper, folder))
        for name, old, new in differences(stated, found):
            yield f"{TABLES}: {name} is {old}, {NOTEBOOK} gives {new}; run ./run_all.sh paper"
        for path in listed(folder, "figures/findings/*.pdf"):
            drawing = path.relative_to(folder)
            if not same_drawing(paper / drawing, path):
                yield f"{drawing}: {NOTEBOOK} draws another; run ./run_all.sh paper"


def same_drawing(one: Path, other: Path) -> bool:
    """Return whether two PDFs of Matplotlib draw the same. Builds of zlib pack them differently."""
    return _drawn(one) == _drawn(other)


def _drawn(pdf: Path) -> list[bytes]:
    """Unpack the streams of a PDF; [] if there is no file."""
    if not pdf.is_file():
        return []
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf.read_bytes(), re.DOTALL)
    return [zlib.decompress(packed) for packed in streams]


def main(names: list[str]) -> None:
    """Execute the notebooks of the papers named, or of all papers that have one."""
    for paper in papers_named(names):
        if (paper / NOTEBOOK).is_file():
            execute(paper, paper)
            print(f"Findings            {relative(paper / NOTEBOOK)}, {relative(paper / TABLES)}")
