"""What is kept below `data/`: made once, and again if it is of something else or damaged."""

import time
from pathlib import Path

import pytest

from lib.data.cache import cached


def write(calls, text="a"):
    def make(folder):
        calls.append(folder)
        (folder / "a.txt").write_text(text)
        return {"of": [0.1, "ü"]}

    return make


def forget(folder):
    (folder / "index.json").write_text((folder / "index.json").read_text().replace("0.1", "0.2"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "a.txt").write_text("b"),
        lambda folder: (folder / "a.txt").unlink(),
        lambda folder: (folder / "more").write_text(""),
        lambda folder: (folder / "index.json").write_text("["),
        lambda folder: (folder / "index.json").unlink(),
        forget,
    ],
)
def test_cache_is_made_once_and_rebuilt_if_damaged(kept, damage):
    calls = []
    made = [cached("things", "own", ["x", 1], write(calls)) for _ in range(3)]
    folder, index = made[0]
    assert made == [(folder, {"of": [0.1, "ü"]})] * 3
    assert len(calls) == 1
    time.sleep(0.02)  # the clock of a file system may tick as seldom
    damage(folder)
    assert cached("things", "own", ["x", 1], write(calls)) == (folder, index)
    assert len(calls) == 2
    assert (folder / "a.txt").read_text() == "a"
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "index.json"]


def test_cache_check_does_not_read_large_files(kept, monkeypatch):
    made = cached("things", "own", "x", write([]))
    opened, open_ = [], Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, *a, **k: opened.append(path) or open_(path, *a, **k)
    )
    assert cached("things", "own", "x", write([])) == made
    assert {path.name for path in opened} <= {"index.json"}


def test_cache_of_another_origin_has_its_own_folder(kept):
    calls = []
    folders = {cached("things", "own", of, write(calls))[0] for of in (["x", 1], ["x", 2], ["y"])}
    assert len(folders) == len(calls) == 3


def test_cache_ignores_what_a_killed_process_left(kept):
    calls = []

    def stopped(folder):
        write(calls, "half")(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("things", "own", "x", stopped)
    assert not [path for path in (kept.parent / "things").iterdir() if path.is_dir()]
    folder, _ = cached("things", "own", "x", write(calls))
    assert (folder / "a.txt").read_text() == "a"


def test_cache_follows_a_link_to_a_missing_folder(tmp_path, monkeypatch):
    """A trial in a fresh clone has its `data/` as such a link."""
    monkeypatch.setattr("lib.data.cache.output_root", lambda: tmp_path / "trial")
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "data").symlink_to(tmp_path / "data")
    folder, _ = cached("things", "own", "x", write([]))
    assert folder.parent == tmp_path / "data" / "things"
