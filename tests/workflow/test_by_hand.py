"""Notebooks that were run cell by cell."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from lib.results import attested
from lib.study.io import NOTEBOOKS
from lib.study.yaml import UserError
from lib.workflow import by_hand

ACCOUNT = {
    "commit": "1" * 40, "clean": True, "from_checkpoint": False, "plan": None,
    "started": "2026-01-01 00:00:00 UTC", "finished": "2026-01-01 01:00:00 UTC",
}  # fmt: skip
RESULT: dict[str, Any] = {
    "study": "s", "arm": "none", "seed": 1, "measures": {"loss": 2.5}, "resumed_at": [],
    "provenance": {"trained": ACCOUNT | {"commit": "0" * 40}, "executed": ACCOUNT},
}  # fmt: skip


def run_by_hand(source: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook as a session leaves it: counted cells, and the result shown by the last."""
    code = [cell for cell in source.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, start=1):
        cell.execution_count = number
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = 'study = "s"\narm = "none"\nseed = 1'
    shown = {"application/json": attested(RESULT), "text/plain": "a result"}
    code[-1].outputs = [nbformat.v4.new_output("execute_result", shown, execution_count=1)]
    nbformat.write(source, path)


def test_a_notebook_is_held_against_the_commit_that_its_result_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (NOTEBOOKS / "02_train.ipynb").read_text("utf-8")
    earlier = nbformat.reads(text, as_version=4)
    earlier.cells[0].source += "\n\nA sentence that has gone since."
    earlier.cells[-1].source += "\n# and code that has"
    committed = nbformat.writes(earlier)
    run_by_hand(earlier, tmp_path / "mine.ipynb")
    target = tmp_path / "record" / "02_train.ipynb"
    monkeypatch.setattr(by_hand, "committed", lambda account: account["commit"])
    at = f"{'1' * 40}:notebooks/02_train.ipynb"  # executed there, wherever its weights are from
    monkeypatch.setattr(by_hand, "git", lambda *words: committed if words[1] == at else None)
    by_hand.file([tmp_path / "mine.ipynb"], RESULT, target)
    filed = nbformat.read(target, as_version=4)
    assert filed.cells[0].source.endswith("A sentence that has gone since.")
    monkeypatch.setattr(by_hand, "git", lambda *words: None)
    with pytest.raises(UserError, match="is not the repository's"):
        by_hand.file([tmp_path / "mine.ipynb"], RESULT, target)


PARAMETERS = 'study = "s"\narm = "none"\nseed = 1'
Cells = list[nbformat.NotebookNode]


def own(cells: Cells) -> nbformat.NotebookNode:
    """The cell of parameters."""
    return next(cell for cell in cells if "parameters" in cell.metadata.get("tags", []))


def filed(tmp_path: Path, edit: Callable[[Cells], object]) -> nbformat.NotebookNode:
    """Edit the code cells of a notebook that was run by hand, and file it."""
    source = nbformat.read(NOTEBOOKS / "02_train.ipynb", as_version=4)
    run_by_hand(source, tmp_path / "mine.ipynb")
    ran = nbformat.read(tmp_path / "mine.ipynb", as_version=4)
    code = [cell for cell in ran.cells if cell.cell_type == "code"]
    edit(code)
    ran.cells = code
    nbformat.write(ran, tmp_path / "mine.ipynb")
    other = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    nbformat.write(other, tmp_path / "a.ipynb")
    target = tmp_path / "run" / "02_train.ipynb"
    try:
        by_hand.file([tmp_path / "a.ipynb", tmp_path / "mine.ipynb"], RESULT, target)
    except UserError:
        assert not target.exists()
        raise
    return nbformat.read(target, as_version=4)


def test_a_sound_notebook_is_filed_as_a_sweep_would_have_stamped_it(tmp_path: Path) -> None:
    def touch_up(cells: Cells) -> None:
        own(cells).source = 'study: str = "s"\narm = "none"\nseed: int = 1\nchanges: dict = {}'
        cells[1].source += "  \n"
        cells.insert(1, nbformat.v4.new_code_cell("  \n"))  # as notebooks end up with

    notebook = filed(tmp_path, touch_up)
    source = nbformat.read(NOTEBOOKS / "02_train.ipynb", as_version=4)
    (place,) = (n for n, c in enumerate(notebook.cells) if c.metadata.get("tags") == ["parameters"])
    injected = notebook.cells.pop(place + 1)
    assert injected.source == f"# Parameters\n{PARAMETERS}\n"
    assert injected.metadata.tags == ["injected-parameters"]
    assert injected.execution_count == notebook.cells[place].execution_count
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in source.cells]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert code[-1].outputs[0].data["application/json"] == attested(RESULT)
    assert notebook.metadata.papermill == {
        "parameters": {"study": "s", "arm": "none", "seed": 1},
        "start_time": "2026-01-01T00:00:00+00:00",
        "end_time": "2026-01-01T01:00:00+00:00",
    }
    assert notebook.metadata.study == {
        **{"status": "completed", "by_hand": True, "preregistration": None},
        **{"commit": "1" * 40, "clean": True},
    }


def set_counts(*counts: int | None) -> Callable[[Cells], None]:
    def change(cells: Cells) -> None:
        for cell, count in zip(cells, counts, strict=False):
            cell.execution_count = count

    return change


IN_ORDER = set_counts(*range(1, 99))


def fail(cells: Cells) -> None:
    cells[1].outputs = [nbformat.v4.new_output("error", ename="E", evalue="e", traceback=[])]


def set_parameters(text: str) -> Callable[[Cells], None]:
    return lambda cells: own(cells).update(source=text)


def another_cell(cells: Cells) -> None:
    cells.append(nbformat.v4.new_code_cell("1", execution_count=len(cells) + 1))


ORDER = "its notebook was not run from top to bottom; restart and run all"
CELLS = "its notebook has other cells than the repository's"
CODE = "code cell {} of its notebook is not the repository's"
OTHER = "the parameters cell of its notebook names another run"


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda cells: cells[-1].outputs.clear(), "no notebook shows its result"),
        (
            lambda cells: cells[-1].outputs[0].data["application/json"].update(sha256="0" * 64),
            "no notebook shows its result",
        ),
        (set_counts(2, 1), ORDER),
        (set_counts(2), ORDER),
        (set_counts(1, None), ORDER),
        (set_counts(*range(2, 99)), ORDER),
        (fail, "a cell of its notebook raised an error"),
        (another_cell, CELLS),
        (lambda cells: [cells.insert(-1, cells.pop()), IN_ORDER(cells)], CODE.format(r"\d+")),
        (lambda cells: [cells.pop(1), IN_ORDER(cells)], CELLS),
        (lambda cells: cells[-1].update(source="wishful = 1"), CODE.format(r"\d+")),
        (lambda cells: cells[0].update(source="wishful = 1"), CODE.format(1)),
        (set_parameters(PARAMETERS.replace("1", "2")), OTHER),
        (set_parameters(PARAMETERS.replace("none", "layernorm")), OTHER),
        (set_parameters(PARAMETERS.replace('"s"', '"t"')), OTHER),
        (set_parameters(f"{PARAMETERS}\nhours = 2"), OTHER),
        (set_parameters(f'{PARAMETERS}\nchanges = {{"training.batch_size": 8}}'), OTHER),
        (set_parameters(PARAMETERS.rpartition("\n")[0]), OTHER),
        (set_parameters(f"{PARAMETERS}\nprint(seed)"), OTHER),
        (set_parameters(PARAMETERS.replace("1", "0 + 1")), OTHER),
        (set_parameters(f"{PARAMETERS}\nseed = ("), OTHER),
    ],
)  # fmt: skip
def test_a_notebook_that_does_not_prove_its_result_is_refused(
    edit: Callable[[Cells], object], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=fault):
        filed(tmp_path, edit)


@pytest.mark.parametrize(("from_checkpoint", "resumed_at"), [(True, []), (False, [4])])
def test_a_run_that_was_not_made_in_one_go_is_not_said_to_have_begun_with_its_notebook(
    from_checkpoint: bool, resumed_at: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed = ACCOUNT | {"from_checkpoint": from_checkpoint}
    monkeypatch.setitem(RESULT, "provenance", {"trained": ACCOUNT, "executed": executed})
    monkeypatch.setitem(RESULT, "resumed_at", resumed_at)
    times = filed(tmp_path, lambda _: None).metadata.papermill
    assert times.start_time == times.end_time == "2026-01-01T01:00:00+00:00"
