"""A file is written whole or not at all, and one that is damaged is named."""

import json
import math
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from lib.study.io import atomic_write, read_json, write_bytes, write_json, write_text
from lib.study.yaml import UserError

KILLED = """
import os, signal, sys
from pathlib import Path
from lib.study.io import write_text

Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_text(Path(sys.argv[1]), "new")
"""


def test_who_is_killed_between_writing_and_replacing_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file.txt"
    write_text(file, "old")
    done = subprocess.run([sys.executable, "-c", KILLED, file])
    assert done.returncode == -9
    assert file.read_text() == "old"
    (left,) = set(file.parent.iterdir()) - {file}
    assert (left.name.startswith("."), left.suffix, left.read_text()) == (True, ".txt", "new")
    write_bytes(file, b"newer")
    assert file.read_text() == "newer"


def test_an_error_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    write_json(file, {"a": 1})
    with pytest.raises(TypeError):
        write_json(file, {"b": 1, "a": object()})
    with suppress(KeyError), atomic_write(file) as temporary:
        temporary.write_text("half")
        raise KeyError
    with pytest.raises(FileNotFoundError), atomic_write(file):
        pass  # writes nothing
    assert (list(tmp_path.iterdir()), read_json(file)) == ([file], {"a": 1})


def test_what_has_its_name_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def brought(descriptor: int) -> None:
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name.rpartition(".")[2])
        fsync(descriptor)

    def replaced(path: Path, target: Path) -> Path:
        done.append(f"-> {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", brought)
    monkeypatch.setattr(Path, "replace", replaced)
    with atomic_write(tmp_path / "checkpoints" / "last") as temporary:
        temporary.mkdir()
        (temporary / "weights").write_bytes(b"1")
    assert done == ["weights", "last", "-> last", "checkpoints"]
    with pytest.raises(OSError, match="not empty"), atomic_write(tmp_path / "checkpoints") as other:
        other.mkdir()
    assert [path.name for path in tmp_path.rglob("*")] == ["checkpoints", "last", "weights"]


def test_numbers_that_json_lacks_are_written_as_null(tmp_path: Path) -> None:
    numbers = {"a": [math.nan, (1.5, -math.inf)], "b": {"c": math.inf}, "d": "nan", "e": 3}
    write_json(tmp_path / "n.json", numbers)
    written = json.loads((tmp_path / "n.json").read_text("utf-8"))
    assert written == {"a": [None, [1.5, None]], "b": {"c": None}, "d": "nan", "e": 3}


@pytest.mark.parametrize("content", [b"", b'{"a": [1,', b"\xff", b"[" * 100_000])
def test_damaged_json_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "n.json").write_bytes(content)
    with pytest.raises(UserError, match=r"^n\.json cannot be read; restore it, or delete it$"):
        read_json(tmp_path / "n.json")
