"""What a temporary tree is given to execute a record's notebooks again."""

import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from lib.record import replay
from lib.record.notebook import _stable, cell_outputs
from lib.record.record import Record
from lib.study.code import git_state
from lib.study.io import read_json
from lib.study.preregistration import ATTEMPTS
from tests.conftest import run_git


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two commits, whose files then change again."""
    for name in (
        *("lib/file", "notebooks/file", "params/file", "tests/file", "run_all.sh"),
        *("papers/one/reported.yaml", "papers/one/record/file"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(replay, "ROOT", tmp_path)
    monkeypatch.setattr("lib.results.ROOT", tmp_path)
    monkeypatch.setattr("lib.study.code.ROOT", tmp_path)
    run_git(tmp_path, "init", "--quiet")
    for text in ("one", "two"):
        (tmp_path / "lib" / "file").write_text(text, "utf-8")
        run_git(tmp_path, "add", "--all")
        run_git(tmp_path, "commit", "--quiet", "--message", text)
    return tmp_path


def state() -> dict[str, object]:
    git_state.cache_clear()
    try:
        return git_state()
    finally:
        git_state.cache_clear()


def test_code_is_clean_whatever_else_lies_around(checkout: Path) -> None:
    head = run_git(checkout, "rev-parse", "HEAD")
    assert state() == {"commit": head, "clean": True}
    (checkout / "README.md").write_text("answers of a study", "utf-8")
    (checkout / ".venv").symlink_to("/nowhere")
    assert state()["clean"] is True
    for name in ("params/own.yaml", "torch.py"):
        (checkout / name).touch()
        assert state()["clean"] is False
        (checkout / name).unlink()


def test_a_tree_has_the_code_of_its_commit_or_else_this_one_and_the_history_of_both(
    checkout: Path,
) -> None:
    first = run_git(checkout, "rev-parse", "HEAD^")
    (checkout / "lib" / "file").write_text("three", "utf-8")
    for clean, text in ((True, "one"), (False, "three")):
        with replay.tree_at({"commit": first, "clean": clean}) as tree:
            assert (tree / "lib" / "file").read_text("utf-8") == text
            assert run_git(tree, "rev-parse", "HEAD") == first
    for account in ({"commit": "0" * 40, "clean": False}, {}):
        with replay.tree_at(account) as tree:
            assert (tree / "lib" / "file").read_text("utf-8") == "three"
            assert not (tree / ".git").exists()


def test_a_tree_holds_nothing_that_was_compiled(checkout: Path) -> None:
    """Python would take it for the source, from which the digests are computed."""
    compiled = checkout / "lib" / "__pycache__" / "file.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"other code")
    run_git(checkout, "add", "--force", "lib")
    run_git(checkout, "commit", "-m", "compiled")
    commit = run_git(checkout, "rev-parse", "HEAD")
    with replay.tree_at({"commit": commit, "clean": True}) as tree:
        assert (tree / "lib" / "file").is_file()
        assert not (tree / "lib" / "__pycache__").exists()


def test_a_tree_of_a_commit_is_clean_and_lacks_only_tests_and_records(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replay.tree_at({"commit": run_git(checkout, "rev-parse", "HEAD"), "clean": True}) as tree:
        there = {path.name for path in tree.iterdir()} - {".git"}
        assert there == {"lib", "notebooks", "params", "papers", "run_all.sh"}
        assert [path.name for path in (tree / "papers" / "one").iterdir()] == ["reported.yaml"]
        for module in ("lib.results", "lib.study.code"):
            monkeypatch.setattr(f"{module}.ROOT", tree)
        assert state()["clean"] is True


def test_a_restored_study_is_lent_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("To be", "utf-8")
    monkeypatch.setattr(replay, "corpus_places", lambda name: [tmp_path / "text"])
    replay.restore(Record("example"), tmp_path / "tree")
    assert (tmp_path / "tree/data/tinyshakespeare.txt").read_text("utf-8") == "To be"


def printed(text: str, name: str = "stdout") -> nbformat.NotebookNode:
    return nbformat.v4.new_output("stream", name=name, text=text)


def test_every_printed_line_counts_where_it_stands_and_warnings_do_not(tmp_path: Path) -> None:
    def shown(*outputs: nbformat.NotebookNode) -> list[list[Any]]:
        cell = nbformat.v4.new_code_cell("1", outputs=list(outputs))
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "one.ipynb")
        return cell_outputs(read_json(tmp_path / "one.ipynb"))

    fonts = "Matplotlib is building the font cache; this may take a moment.\n"
    told = shown(printed("few seeds\n"))
    assert told == shown(printed("few seeds\n"), printed(fonts, "stderr"))
    for line in ("many seeds\n", f"{fonts}few seeds\n", "a.py:3: UserWarning: few seeds\n"):
        assert told != shown(printed(line))
    table = nbformat.v4.new_output("display_data", data={"text/plain": "a table"})
    told = shown(printed("a\n"), printed("b\n"), table)
    assert told == shown(printed("a\nb\n"), table)
    assert told != shown(printed("a\n"), table, printed("b\n"))
    assert told != shown(table, printed("a\nb\n"))


def test_only_the_address_of_an_object_is_left_out(tmp_path: Path) -> None:
    assert _stable("<Styler at 0x7f00ab>") == _stable("<Styler at 0x7f00cd>")
    for text in ("**0xbad**", "1 at 0x5", "0x5>"):
        assert _stable(text) == text


def test_a_tree_is_lent_the_texts_tokenizers_and_tasks_of_its_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tree = tmp_path / "here", tmp_path / "tree"
    files = ("data/own.txt", "texts/a.txt", "texts/more/b.txt", "data/other.txt", "data/own.json")
    files += ("tasks/own/own.yaml",)
    for name in files:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name, "utf-8")
    monkeypatch.setattr(replay, "ROOT", here)
    monkeypatch.setattr(replay, "corpus_places", lambda name: [])
    elsewhere = str(tmp_path / "elsewhere.txt")
    for _ in range(2):  # what is there already stays
        own = {"source": "data/own.txt", "sources": {}, "tokenizer": "data/own.json"}
        mixture = {"source": "mix", "sources": {"texts": 0.5, elsewhere: 0.5}}
        corpora = [own, mixture, {"source": "tinyshakespeare"}]
        replay.link_inputs(tree, [{"corpus": corpus} for corpus in corpora])
        asked = {"include_path": "tasks/own"}
        replay.link_inputs(tree, [{"corpus": own, "evaluation": asked}])
    assert {path.relative_to(tree).as_posix() for path in tree.glob("*/*")} == {
        *("data/own.txt", "data/own.json", "texts/a.txt", "texts/more", "tasks/own")
    }
    assert (tree / "texts/more/b.txt").read_text("utf-8") == "texts/more/b.txt"


def test_what_a_record_keeps_of_other_versions_of_its_plan_is_laid_out_with_its_runs(
    tmp_path: Path,
) -> None:
    """So that the analysis, repeated, gives the reasons that it gave."""
    record = Record("example")
    record.folder = shutil.copytree(record.folder, tmp_path / "record")
    (record.folder / ATTEMPTS).write_text("[]", "utf-8")
    replay.restore(record, tmp_path / "tree")
    assert (tmp_path / "tree/runs/example" / ATTEMPTS).read_text("utf-8") == "[]"


def test_a_child_that_a_signal_ends_has_failed(tmp_path: Path) -> None:
    script = "import os; print('{}', flush=True); os.kill(os.getpid(), 9)"
    with pytest.raises(replay.ReplayError, match=r"was ended by SIGKILL$"):
        replay.execute(tmp_path, sys.executable, "-c", script)


LAST_OF_PROTOCOL_1 = "7f5c5e5e4a88897ee6b15c4080c16e8b7a1e14d7"


@pytest.mark.slow
def test_this_code_and_that_of_older_commits_give_the_same_answers() -> None:
    here = {"commit": LAST_OF_PROTOCOL_1, "clean": False}
    with replay.tree_at(here) as new, replay.tree_at(here | {"clean": True}) as old:
        assert (new / "lib/replay.py").is_file()
        assert not (old / "lib/replay.py").exists()
        for tree in (new, old):
            replay.restore(Record("example"), tree)
        for command in ("begin", "suite"):
            assert replay.ask(new, command, "example") == replay.ask(old, command, "example")
