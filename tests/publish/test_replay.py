"""What a temporary tree is given to execute a record's notebooks again."""

import subprocess
from pathlib import Path

import pytest

from lib.publish import replay
from lib.study.provenance import git_state


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two commits, whose files then change again."""
    for name in ("lib", "notebooks", "params"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    monkeypatch.setattr(replay, "ROOT", tmp_path)
    monkeypatch.setattr("lib.study.provenance.ROOT", tmp_path)
    monkeypatch.setattr("lib.study.git.ROOT", tmp_path)
    git(tmp_path, "init", "--quiet")
    for text in ("one", "two"):
        (tmp_path / "lib" / "file").write_text(text, "utf-8")
        git(tmp_path, "add", "--all")
        person = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        git(tmp_path, *person, "commit", "--quiet", "--message", text)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def state() -> dict[str, object]:
    git_state.cache_clear()
    try:
        return git_state()
    finally:
        git_state.cache_clear()


def test_code_is_clean_whatever_else_lies_around(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
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
    first = git(checkout, "rev-parse", "HEAD^")
    (checkout / "lib" / "file").write_text("three", "utf-8")
    for clean, text in ((True, "one"), (False, "three")):
        with replay.tree_at({"commit": first, "clean": clean}) as tree:
            assert (tree / "lib" / "file").read_text("utf-8") == text
            assert git(tree, "rev-parse", "HEAD") == first
    for account in ({"commit": "0" * 40, "clean": False}, {}):
        with replay.tree_at(account) as tree:
            assert (tree / "lib" / "file").read_text("utf-8") == "three"
            assert not (tree / ".git").exists()


def test_a_tree_is_lent_the_texts_of_its_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tree = tmp_path / "here", tmp_path / "tree"
    for name in ("data/own.txt", "texts/a.txt", "texts/more/b.txt", "data/other.txt"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name, "utf-8")
    monkeypatch.setattr(replay, "ROOT", here)
    monkeypatch.setattr(replay, "corpus_places", lambda name: [])
    elsewhere = str(tmp_path / "elsewhere.txt")
    replay.lend_corpora(tree, ["data/own.txt", "texts", "tinyshakespeare", elsewhere])
    lent = {path.relative_to(tree).as_posix() for path in tree.rglob("*.txt")}
    assert lent == {"data/own.txt", "texts/a.txt", "texts/more/b.txt"}
