"""A paper's notebook gives what is committed, or the difference is named."""

import ast
import json
import zlib
from importlib import import_module

import nbformat
import pytest

from lib.config.paths import PAPER
from lib.publish import findings

CODE = """
import json, zlib
from pathlib import Path
from lib.config.paths import ROOT

json.dump({"dose": [{"rms": 1.0, "loss": 0.25}]}, open("findings.json", "w"))
folder = Path("figures/findings")
folder.mkdir(parents=True, exist_ok=True)
drawing = zlib.compress(b"0 0 m 1 2 l S " * 9, level=6)
(folder / "dose.pdf").write_bytes(b"%PDF\\nstream\\n" + drawing + b"\\nendstream")
(folder / "dose.png").touch()
"""


def drawn(line):
    """Return a PDF of a drawing, packed as by another build of zlib."""
    return b"%PDF\nstream\n" + zlib.compress(line * 9, level=1) + b"\nendstream"


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """A paper with a notebook of one cell, executed."""
    folder = tmp_path_factory.mktemp("paper")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE)])
    nbformat.write(notebook, folder / findings.NOTEBOOK)
    findings.execute(folder, folder)
    return folder


@pytest.mark.slow
def test_findings_are_executed_again_and_compared_by_value(paper):
    assert not list(paper.glob("figures/findings/*.png"))  # the notebook shows them
    tables, figure = paper / findings.TABLES, paper / "figures/findings/dose.pdf"
    tables.write_text(json.dumps({"dose": [{"rms": 1.0, "loss": 0.25 * (1 + 1e-12)}]}))
    figure.write_bytes(drawn(b"0 0 m 1 2 l S "))
    assert list(findings.check(paper)) == []
    tables.write_text(json.dumps({"dose": [{"rms": 1.0, "loss": 0.2500001}]}))
    figure.write_bytes(drawn(b"0 0 m 1 3 l S "))
    wrong_table, wrong_figure = findings.check(paper)
    assert "dose.loss is 0.2500001" in wrong_table
    assert "dose.pdf: findings.ipynb draws another" in wrong_figure


def test_what_the_published_notebook_imports_from_lib_is_there():
    notebook = nbformat.read(PAPER / findings.NOTEBOOK, as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    asked = [(node.module or "", name.name) for node in imports for name in node.names]
    asked = [(module, name) for module, name in asked if module.startswith("lib.")]
    assert len(asked) > 5
    assert not [name for name in asked if not hasattr(import_module(name[0]), name[1])]
