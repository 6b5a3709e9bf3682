"""Notebooks that were run cell by cell."""

from pathlib import Path
from typing import Any

import nbformat
import pytest

from lib.study.errors import UserError
from lib.study.paths import NOTEBOOKS
from lib.study.record import attested
from lib.workflow import by_hand

ACCOUNT = {
    "commit": "1" * 40, "clean": True, "from_checkpoint": False, "plan": None,
    "started": "2026-01-01 00:00:00 UTC", "finished": "2026-01-01 01:00:00 UTC",
}  # fmt: skip
RESULT: dict[str, Any] = {
    "study": "s", "arm": "none", "seed": 1, "measures": {"loss": 2.5}, "resumed_at": [],
    "provenance": {"trained": ACCOUNT, "executed": ACCOUNT},
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
    monkeypatch.setattr(by_hand, "git", lambda *words: committed)
    by_hand.file([tmp_path / "mine.ipynb"], RESULT, target)
    filed = nbformat.read(target, as_version=4)
    assert filed.cells[0].source.endswith("A sentence that has gone since.")
    monkeypatch.setattr(by_hand, "git", lambda *words: None)
    with pytest.raises(UserError, match="is not the repository's"):
        by_hand.file([tmp_path / "mine.ipynb"], RESULT, target)
