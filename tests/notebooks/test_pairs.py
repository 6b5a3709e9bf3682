"""Notebooks come as pairs of .ipynb and .py, in sync, without outputs and without logic."""

import ast

import jupytext
import pytest

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
    assert len({code(stem)[0] for stem in STEMS}) == 1
