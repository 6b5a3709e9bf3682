"""A file is written whole or not at all. Outputs go to a folder that is kept, and no path of the
machine is printed."""

import errno
import fcntl
import json
import math
import os
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from lib.config import environment, files, paths
from lib.config.errors import UserError
from lib.config.files import atomic_write, read_json, write_bytes, write_json, write_text

KILLED = """
import os, signal, sys
from pathlib import Path
from lib.config.files import write_text

Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_text(Path(sys.argv[1]), "new")
"""


def test_kill_before_replacing_leaves_the_old_file(tmp_path):
    file = tmp_path / "folder" / "file.txt"
    write_text(file, "old")
    done = subprocess.run([sys.executable, "-c", KILLED, file])
    assert done.returncode == -9
    assert file.read_text() == "old"
    (left,) = set(file.parent.iterdir()) - {file}
    assert (left.name.startswith("."), left.suffix, left.read_text()) == (True, ".txt", "new")
    write_bytes(file, b"newer")
    assert file.read_text() == "newer"


def test_only_writer_removes_leftovers_of_killed_writers(tmp_path):
    mine, others = tmp_path / "a[1]", [tmp_path / n for n in (".my-notes.a[1]", ".0123abcd.a1")]
    for folder in (tmp_path / ".0123abcd.a[1]", *others):
        folder.mkdir()
    with atomic_write(mine, only_writer=True) as temporary:
        temporary.mkdir()
    assert set(tmp_path.iterdir()) == {mine, *others}


def test_hidden_files_are_not_listed_even_in_a_hidden_folder(tmp_path):
    top = tmp_path / ".top"
    for name in ("a.yaml", "b/c.yaml", ".#a.yaml", "._a.yaml", "b/.c.yaml", ".b/c.yaml"):
        write_text(top / name, "")
    found = [path.relative_to(top).as_posix() for path in paths.listed(top, "**/*.yaml")]
    assert found == ["a.yaml", "b/c.yaml"]


def test_an_error_leaves_the_old_file_and_nothing_beside_it(tmp_path):
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


def test_renamed_files_are_flushed_to_the_disk(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, Path.replace

    def brought(descriptor):
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name.rpartition(".")[2])
        fsync(descriptor)

    def replaced(path, target):
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


@pytest.mark.parametrize(
    ("error", "of_folders", "stops"),
    [("EINVAL", 1, False), ("ENOTSUP", 1, False), ("EIO", 1, True), ("EINVAL", 0, True)],
)
def test_a_folder_that_cannot_be_flushed_stops_nothing(
    error, of_folders, stops, tmp_path, monkeypatch
):
    """Shares and drives of Windows do so. The file itself must still be on the disk."""

    def fsync(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").is_dir() == of_folders:
            raise OSError(getattr(errno, error), error)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match=error) if stops else nullcontext():
        write_text(tmp_path / "folder" / "file", "text")


NO_FLOCK = """
import errno, fcntl, os, sys
from pathlib import Path
from lib.config.files import file_lock
def flock(*_):
    raise OSError(errno.ENOSYS, "")
fcntl.flock = flock
file_lock(Path(sys.argv[1])).acquire()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("error", ["", "ENOTSUP"])
def test_lock_is_exclusive_and_waiting_is_reported(error, tmp_path, monkeypatch, capsys):
    """With flock, and without it as on Lustre, where the file of a dead process does not count."""

    def flock(*_):
        raise OSError(getattr(errno, error), "")

    path, order = tmp_path / "a.lock", []
    if error:
        monkeypatch.setattr(fcntl, "flock", flock)
        subprocess.run([sys.executable, "-c", NO_FLOCK, str(path)], cwd=paths.ROOT)

    def wait():
        with files.locked(path):
            order.append("second")

    with files.locked(path):
        other = threading.Thread(target=wait, daemon=True)
        other.start()
        other.join(1.1)
        order.append("first")
    other.join(10)
    assert order == ["first", "second"]
    said = capsys.readouterr().err
    assert said == "a.lock is held by another process; waiting for it to end\n"


def test_numbers_that_json_lacks_are_written_as_null(tmp_path):
    numbers = {"a": [math.nan, (1.5, -math.inf)], "b": {"c": math.inf}, "d": "nan", "e": 3}
    write_json(tmp_path / "n.json", numbers)
    text = (tmp_path / "n.json").read_text("utf-8")
    assert text.endswith('\n "d": "nan",\n "e": 3\n}\n')  # one field per line, for git
    written = json.loads(text)
    assert written == {"a": [None, [1.5, None]], "b": {"c": None}, "d": "nan", "e": 3}


@pytest.mark.parametrize("content", [b"", b'{"a": [1,', b"\xff", b"[" * 100_000])
def test_damaged_json_is_named(content, tmp_path):
    (tmp_path / "n.json").write_bytes(content)
    with pytest.raises(UserError, match=r"^n\.json cannot be read; restore it, or delete it$"):
        read_json(tmp_path / "n.json")


KAGGLE_INPUTS = ["input/slug/repo", "input/datasets/owner/slug", "input/slug/input/repo"]


@pytest.mark.parametrize("repository", KAGGLE_INPUTS)
def test_on_kaggle_outputs_go_to_the_working_folder(tmp_path, repository):
    kaggle = tmp_path
    (kaggle / "input").mkdir()
    (kaggle / "working").mkdir()
    assert paths.kaggle_folder(kaggle / repository) == kaggle
    assert paths.output_root(kaggle / repository) == kaggle / "working"
    assert paths.output_root(kaggle / "working" / "repo") == kaggle / "working" / "repo"
    (kaggle / "working").rmdir()  # then it is not on Kaggle
    assert paths.output_root(kaggle / repository) == kaggle / repository


def test_on_kaggle_paths_are_relative_and_a_corpus_is_sought_in_every_input(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path / "input" / "slug" / "repo")
    monkeypatch.setattr(paths, "kaggle_folder", lambda: tmp_path)
    monkeypatch.setattr(paths, "output_root", lambda: tmp_path / "working")
    attached = [tmp_path / "input" / "b" / "own.txt", tmp_path / "input" / "a" / "deep/own.txt"]
    for path in attached:
        path.parent.mkdir(parents=True)
        path.touch()
    assert paths.corpus_places("own.txt")[4:] == sorted(attached)
    assert paths.relative(tmp_path / "working/runs/final") == "runs/final"
    assert paths.relative(tmp_path / "input/slug/repo/params/final.yaml") == "params/final.yaml"
    assert paths.relative(attached[0]) == "own.txt"  # no path of the machine


def test_a_corpus_is_sought_in_the_repository_then_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CHECKOUT", tmp_path / "repo")
    monkeypatch.setattr(paths, "output_root", lambda: tmp_path / "elsewhere" / "out")
    monkeypatch.setattr(paths, "kaggle_folder", lambda: None)
    assert paths.corpus_places("own.txt") == [
        tmp_path / "repo" / "data" / "own.txt",
        tmp_path / "elsewhere" / "out" / "data" / "own.txt",
        tmp_path / "elsewhere" / "shared" / "data" / "own.txt",
        tmp_path / "shared" / "data" / "own.txt",
    ]


def test_where_the_repository_cannot_be_written_its_parameters_are_copied(tmp_path, monkeypatch):
    (tmp_path / "input" / "params" / "plans").mkdir(parents=True)
    (tmp_path / "input" / "params" / "plans" / "plän.yaml").write_text("a: 1", "utf-8")
    monkeypatch.setattr(files, "CHECKOUT", tmp_path / "input")
    monkeypatch.setattr(files, "PARAMS", tmp_path / "working" / "params")
    files.prepare_params()
    (files.PARAMS / "own.yaml").write_text("b: 1", "utf-8")
    files.prepare_params()  # existing files stay
    assert (files.PARAMS / "plans" / "plän.yaml").read_text("utf-8") == "a: 1"
    assert (files.PARAMS / "own.yaml").read_text("utf-8") == "b: 1"


def test_the_code_of_an_arm_writes_where_the_sweep_does(tmp_path, monkeypatch):
    monkeypatch.setenv("STUDY_OUTPUT", str(tmp_path))
    assert paths.output_root() == tmp_path


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({"cpu.max": "max 100000", "memory.max": "max"}, 8, 4096 * 10**6),
        ({"cpu.max": "350000 100000", "memory.max": "1000"}, 3, 1000),
        ({"a/b/cpu.max": "50000 100000", "a/memory.max": "5", "memory.max": "9"}, 1, 5),
        ({"a/cpu.max": "1600000 100000", "a/b/memory.max": "9" * 15}, 8, 4096 * 10**6),
        ({"memory/memory.limit_in_bytes": "1000"}, 8, 1000),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8, 4096 * 10**6),
        ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 2, 4096 * 10**6),
    ],
)
def test_cores_and_memory_are_those_of_the_container(files, cores, memory, tmp_path, monkeypatch):
    """Whichever control group sets the limit: the container's own, or one around it (Slurm,
    systemd)."""
    (tmp_path / "self").write_text("9:cpu:/x\n0::/a/b\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(environment, "CGROUPS", tmp_path)
    monkeypatch.setattr(
        environment, "Path", lambda p: tmp_path / "self" if p == "/proc/self/cgroup" else Path(p)
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 10**6, "SC_PAGE_SIZE": 4096}.get)
    assert (environment.cores(), environment.total_memory()) == (cores, memory)


def test_cores_are_those_that_the_process_may_use():
    few = "import os; os.sched_setaffinity(0, [*os.sched_getaffinity(0)][:1])"
    text = f"{few}; from lib.config.environment import cores; print(cores())"
    assert subprocess.check_output([sys.executable, "-c", text], cwd=paths.ROOT) == b"1\n"
