"""What the record hashes."""

from pathlib import Path

import pytest

from lib.publish import archive


def test_hidden_files_beside_the_plans_are_no_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "PLANS", tmp_path)
    (tmp_path / "p.yaml").write_text("title: a plan\n", "utf-8")
    root = archive.root_hash(tmp_path)
    (tmp_path / ".p.yaml.123.yaml").write_text("left by a kill\n", "utf-8")
    assert archive.root_hash(tmp_path) == root
    (tmp_path / "q.yaml").write_text("title: another\n", "utf-8")
    assert archive.root_hash(tmp_path) != root
