"""One process in a commit's tree answers all that is asked of it, each question by itself."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest

from lib.record import asked, replay
from lib.record.record import Record
from lib.record.replay import ReplayError


@pytest.mark.parametrize(
    ("program", "answer", "fault"),
    [
        ("import sys; print('by the way'); print(f'[\"{sys.argv[1]}\"]')", ["example"], ""),
        ("raise ValueError('two\\nlines')", None, "lines"),
        ("import sys; print('error: lost', file=sys.stderr); sys.exit(1)", None, "lost"),
        ("import sys; sys.exit('no result')", None, "no result"),
        ("import sys; sys.exit(3)", None, "begin failed"),
    ],
)  # fmt: skip
def test_a_program_that_fails_is_no_answer_and_says_why(
    program: str, answer: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["-c"])
    said, error = asked.answer("example", "begin", program)
    assert (said, replay._last_word(error)) == (answer, fault)


def test_a_wide_table_is_cut_as_in_a_kernel_though_pandas_was_imported_before(
    tmp_path: Path,
) -> None:
    cells = [nbformat.v4.new_code_cell("import pandas as pd; pd.DataFrame([range(30)])")]
    for name in ("notebooks/03_analysis.ipynb", "runs/t/03_analysis.json", "runs/t/verdict.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}", "utf-8")
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks/03_analysis.ipynb")
    programs = {"state": "import pandas; print(1)", "analysis": ""}
    command = [sys.executable, asked.__file__, "t", json.dumps(programs)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    answers = json.loads(done.stdout.splitlines()[-1])
    (cell,) = answers["analysis"][0]["notebook"]["cells"]
    (table,) = cell["outputs"]
    shown = re.findall("<td>(.*)</td>", table["data"]["text/html"])
    assert shown == [*map(str, range(10)), "...", *map(str, range(20, 30))]


def test_each_commit_is_asked_once_and_what_went_wrong_is_said_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, laid_out = Record("example"), list[str]()
    for run in record.runs:
        run["provenance"]["executed"] |= {"commit": "b" * 40, "clean": True}
        run["provenance"]["trained"] |= {"commit": "a" * 40, "clean": True}
    notebooks = {"commit": "b" * 40, "clean": True}

    @contextmanager
    def tree_at(environment: dict[str, Any]) -> Iterator[Path]:
        laid_out.append(environment["commit"][0])
        yield tmp_path

    questions: list[list[str]] = []

    def printed(_: Path, words: tuple[str, ...], __: dict[str, str]) -> dict[str, Any]:
        questions.append(list(json.loads(words[-1])))
        return {name: [name, "error: lost"[: 20 * (name == "suite")]] for name in questions[-1]}

    monkeypatch.setattr(replay, "status_of", lambda _: dict(notebooks))
    monkeypatch.setattr(replay, "is_checkout", lambda: True)
    monkeypatch.setattr(replay, "tree_at", tree_at)
    monkeypatch.setattr(replay, "restore", lambda *_: None)
    monkeypatch.setattr(replay, "_printed", printed)
    for run in record.runs:
        run["suite_hash"] = "c" * 64
    replay.ask_ahead(record)
    assert laid_out == ["a", "b"]
    assert questions == [["state", "begin"], ["state", "suite", "figures", "analysis"]]
    trained = record.runs[0]["provenance"]["trained"]
    assert replay.ask_code_of(trained, "begin", record) == "begin"
    with pytest.raises(ReplayError, match=r"^lost$"):
        replay.ask_code_of(notebooks, "suite", record)
    assert len(questions) == 2
    assert replay.ask_code_of(trained, "figures", record) == "figures"  # which nobody foresaw
    assert len(questions) == 3
