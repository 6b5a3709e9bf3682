"""What the temporary tree of an import holds, and how what it archived is brought home."""

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lib.publish import archive, replay
from lib.study import config, git, provenance
from lib.study.errors import UserError
from lib.workflow import importing
from tests.conftest import TINY


def test_a_parameter_file_not_yet_committed_is_in_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, packed, executed = tmp_path / "home", tmp_path / "probe.zip", []
    for name in ("lib/file", "notebooks/file", "params/file"):
        (home / name).parent.mkdir(parents=True)
        (home / name).touch()
    person = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (["init"], ["add", "--all"], [*person, "commit", "--message", "x"]):
        subprocess.run(["git", "-C", home, *words], check=True, capture_output=True)
    study = TINY | {"name": "probe", "seeds": [0]}
    (home / "params" / "probe.yaml").write_text(json.dumps(study), "utf-8")
    with zipfile.ZipFile(packed, "w") as content:
        content.writestr("runs/probe/none/seed-0/result.json", "{}")

    for module in (replay, git, provenance):
        monkeypatch.setattr(module, "ROOT", home)
    for module in (archive, config):
        monkeypatch.setattr(module, "PARAMS", home / "params")
    monkeypatch.setattr(archive, "PAPERS", home / "papers")
    monkeypatch.setattr(importing, "output_root", lambda: home)
    monkeypatch.setattr(importing, "_file_by_hand", lambda *_: None)
    monkeypatch.setattr(importing, "_bring_home", lambda *_: None)
    execute = replay.execute

    def stub(folder: Path, *command: str) -> str:
        if command[0] != sys.executable:
            return execute(folder, *command)
        executed.append((folder / "params" / "probe.yaml").is_file())
        return ""

    monkeypatch.setattr(replay, "execute", stub)
    provenance.git_state.cache_clear()
    try:
        assert importing.take_in(packed) == "probe"
    finally:
        provenance.git_state.cache_clear()
    assert executed == [True]


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zip with runs of `smoke`, which whatever is executed in a tree archives there."""
    monkeypatch.setattr(archive, "PAPERS", tmp_path / "home" / "papers")
    monkeypatch.setattr(importing, "output_root", lambda: tmp_path / "home")
    monkeypatch.setattr(replay, "lend_corpora", lambda *_: None)

    @contextmanager
    def tree_at(*_: Any) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            yield Path(folder)

    def execute(tree: Path, *_: Any) -> None:
        for place in (
            *("record/smoke/MANIFEST.sha256", "results/smoke.json"),
            *("results/smoke.verdict.json", "figures/smoke/loss.pdf"),
        ):
            path = tree / "papers" / "smoke" / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("new", "utf-8")

    monkeypatch.setattr(replay, "tree_at", tree_at)
    monkeypatch.setattr(replay, "execute", execute)
    file = tmp_path / "smoke.zip"
    with zipfile.ZipFile(file, "w") as content:
        for name in ("result.json", "02_train.ipynb"):
            content.writestr(f"runs/smoke/none/seed-0/{name}", "{}")
    return file


def test_an_import_that_was_interrupted_is_repeated_and_a_whole_one_is_not(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(study: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(importing, "write_index_entry", killed)
        with pytest.raises(KeyboardInterrupt):
            importing.take_in(packed)
    record = archive.record_folder("smoke")
    (record / "MANIFEST.sha256").write_text("half", "utf-8")
    assert importing.take_in(packed) == "smoke"
    assert (record / "MANIFEST.sha256").read_text("utf-8") == "new"
    assert (archive.figures_folder("smoke") / "loss.pdf").is_file()
    assert archive.read_index(record.parents[1])["smoke"] == archive.index_entry("smoke")
    assert [path.name for path in record.parent.iterdir() if path.is_dir()] == ["smoke"]
    with pytest.raises(UserError, match="already holds 'smoke', and nothing is replaced"):
        importing.take_in(packed)
