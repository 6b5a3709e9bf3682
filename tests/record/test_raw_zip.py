"""The archive of raw files in a record."""

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lib.record.archive import check_raw_zip, pack, unpack_raw
from lib.record.record import RAW_ZIP, Record, raw_folder
from lib.results import raw_file, read_raw_file, write_raw
from lib.study.io import sha256
from lib.study.schema import digest
from lib.study.yaml import UserError

RUN = {"arm": "none", "seed": 3, "suite_hash": "1a", "config": {"evaluation": {}}}
TABLE = pd.DataFrame({"step": [1, 2], "loss": [4.0, 0.1 + 0.2]})


def of(folder: Path, runs: list[dict[str, Any]]) -> Record:
    """A record in a folder, with these runs in its results."""
    record = Record("example")
    record.folder, record.runs = folder, runs
    return record


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The folder of a study with one run and a suite."""
    (tmp_path / "runs/none/seed-3").mkdir(parents=True)
    (tmp_path / "runs/suite/1").mkdir(parents=True)
    (tmp_path / "runs/suite/1/suite.json").write_text('{"hash": "1a", "files": {}}', "utf-8")
    write_raw(tmp_path / "runs/none/seed-3", "trace", TABLE)
    return tmp_path / "runs"


@pytest.fixture
def record(runs: Path) -> Path:
    record = runs.with_name("record")
    record.mkdir()
    pack((path for path in runs.rglob("*") if path.is_file()), runs, record / RAW_ZIP)
    return record


def test_raw_files_come_out_as_they_went_in(record: Path, runs: Path) -> None:
    folder = raw_folder(record / "none/seed-3/02_train.ipynb")
    assert read_raw_file(folder, "trace").equals(TABLE)
    assert sha256(raw_file(folder, "trace")) == sha256(runs / "none/seed-3/trace.parquet")
    assert not raw_file(folder, "curve").is_file()
    unpack_raw(of(record, []), again := record.with_name("again"))
    for path in runs.rglob("*.*"):
        assert (again / path.relative_to(runs)).read_bytes() == path.read_bytes()


def test_an_archive_is_opened_once_until_it_is_written_again(record: Path, runs: Path) -> None:
    notebooks = [record / f"none/seed-{seed}/02_train.ipynb" for seed in (3, 4)]
    one, other = (raw_folder(notebook) for notebook in notebooks)
    assert one.root is other.root  # type: ignore[union-attr]
    write_raw(runs / "none/seed-3", "trace", TABLE[:1])
    pack([runs / "none/seed-3/trace.parquet"], runs, record / RAW_ZIP)
    assert len(read_raw_file(raw_folder(notebooks[0]), "trace")) == 1


def test_of_a_run_that_is_not_recorded_they_are_read_beside_its_notebook(runs: Path) -> None:
    folder = raw_folder(runs / "none/seed-3/02_train.ipynb")
    assert folder == runs / "none/seed-3"
    assert read_raw_file(folder, "trace").equals(TABLE)


def test_the_same_files_give_the_same_bytes(record: Path, runs: Path) -> None:
    before = hashlib.sha256((record / RAW_ZIP).read_bytes()).digest()
    files = sorted(path for path in runs.rglob("*") if path.is_file())
    for path in files:
        path.touch()
    pack(reversed(files), runs, record / RAW_ZIP)
    assert hashlib.sha256((record / RAW_ZIP).read_bytes()).digest() == before


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_files_of_no_run_and_files_of_one_name_are_named(record: Path) -> None:
    assert list(check_raw_zip(of(record, [RUN]))) == []
    assert list(check_raw_zip(of(record, []))) == [
        f"raw.zip holds {name}, which is of no run in the results"
        for name in ("none/seed-3/trace.parquet", "suite/1/suite.json")
    ]
    with zipfile.ZipFile(record / RAW_ZIP, "a") as packed:
        packed.writestr(zipfile.ZipInfo("suite/1/suite.json"), '{"hash": "1a"}')
    assert list(check_raw_zip(of(record, [RUN]))) == ["raw.zip holds suite/1/suite.json twice"]


@pytest.mark.parametrize(
    "suite",
    [
        {"files": {}},
        {"hash": "2b", "files": {"RESULTS.md": ""}},
        {"hash": digest([]), "files": {"a": ""}},
    ],
)
def test_a_suite_that_no_run_was_asked_is_named(suite: dict[str, Any], record: Path) -> None:
    with zipfile.ZipFile(record / RAW_ZIP, "a") as packed:
        member = zipfile.ZipInfo("suite/better/suite.json")
        packed.writestr(member, json.dumps(suite))
    for run in (RUN, RUN | {"suite_hash": None}):
        faults = list(check_raw_zip(of(record, [run])))
        assert "raw.zip holds suite/better/suite.json, which is of no run in the results" in faults


def rewrite(path: Path, change: Callable[[zipfile.ZipInfo], object]) -> None:
    with zipfile.ZipFile(path) as packed:
        members = [(member, packed.read(member)) for member in packed.infolist()]
    with zipfile.ZipFile(path, "w") as packed:
        for member, content in members:
            change(member)
            packed.writestr(member, content)


@pytest.mark.parametrize(
    "change",
    {
        "bytes before it": lambda path: path.write_bytes(b"It helps." + path.read_bytes()),
        "bytes behind it": lambda path: path.write_bytes(path.read_bytes() + b"It helps."),
        "a comment on a file": lambda path: rewrite(
            path, lambda member: setattr(member, "comment", b"It helps.")
        ),
        "a field on a file": lambda path: rewrite(
            path, lambda member: setattr(member, "extra", b"\xff\xff\x04\x00help")
        ),
        "a date": lambda path: rewrite(
            path, lambda member: setattr(member, "date_time", (2020, 1, 1, 0, 0, 0))
        ),
    }.values(),
)
def test_an_archive_holds_nothing_beside_its_files(
    change: Callable[[Path], None], record: Path
) -> None:
    change(record / RAW_ZIP)
    assert list(check_raw_zip(of(record, [RUN]))) == ["raw.zip holds bytes beside its files"]


def test_a_damaged_archive_is_named(record: Path) -> None:
    path = record / RAW_ZIP
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"raw\.zip: it cannot be read as a zip"):
        unpack_raw(of(record, []), record.with_name("again"))
