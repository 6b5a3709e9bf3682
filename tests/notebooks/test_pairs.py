"""Notebooks come as pairs of .ipynb and .py, in sync, without outputs and without logic."""

import ast

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert.filters import strip_ansi

from lib.config.paths import NOTEBOOKS

STEMS = ["00_kaggle", "01_data", "02_train", "03_analysis", "04_figures"]


def cells(path):
    found = jupytext.read(path).cells
    return [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in found]


def code(stem):
    return [source for kind, source, _ in cells(NOTEBOOKS / f"{stem}.py") if kind == "code"]


def test_these_are_all_notebooks():
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == STEMS
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.py")) == STEMS


@pytest.mark.parametrize("stem", STEMS)
def test_pairs_are_in_sync(stem):
    assert cells(NOTEBOOKS / f"{stem}.ipynb") == cells(NOTEBOOKS / f"{stem}.py")


@pytest.mark.parametrize("stem", STEMS)
def test_sources_hold_no_outputs_and_name_their_kernel(stem):
    notebook = jupytext.read(NOTEBOOKS / f"{stem}.ipynb")
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.parametrize("stem", STEMS)
def test_notebooks_define_nothing(stem):
    source = "\n".join(code(stem))
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.AsyncFunctionDef)
    assert not [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


@pytest.mark.parametrize("stem", STEMS)
def test_parameters_are_declared_typed_and_nothing_else(stem):
    (tagged,) = [s for _, s, tags in cells(NOTEBOOKS / f"{stem}.py") if "parameters" in tags]
    names = [line.partition(":")[0] for line in tagged.splitlines()]
    beside = {"02_train": ["arm", "seed", "changes"], "00_kaggle": ["hours"]}
    assert names == ["study", *beside.get(stem, [])]


def test_all_notebooks_find_the_repository_with_the_same_cell():
    found = [[cell for cell in code(stem) if "import glob" in cell] for stem in STEMS]
    assert found == [found[0]] * len(STEMS)
    assert len(found[0]) == 1


def test_kaggle_says_in_one_line_that_the_repository_is_not_attached(tmp_path, monkeypatch):
    """Its parameters come first."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    first, *rest = code("00_kaggle")
    assert first.startswith("study: str")
    (check,) = [cell for cell in rest if "not attached" in cell]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(check)])
    client = NotebookClient(notebook, kernel_name="python3", allow_errors=True)
    client.execute(cwd=str(tmp_path))
    (error,) = notebook.cells[0].outputs
    said = strip_ansi("\n".join(error.traceback)).strip()
    fault = "this repository is not attached: Add Input → your dataset of it"
    assert said == f"FileNotFoundError: {fault}"
