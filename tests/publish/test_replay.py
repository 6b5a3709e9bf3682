"""What a temporary tree is given to execute a record's notebooks again."""

from pathlib import Path

import pytest

from lib.publish import replay


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
