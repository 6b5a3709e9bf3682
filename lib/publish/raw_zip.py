"""The raw files and suites of a recorded study, in one archive: `raw.zip` in its record.

It is laid out like `runs/<study>/`. As files of their own they would take twice the room.
"""

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from lib.study.errors import UserError
from lib.study.fields import digest
from lib.study.inputs import ZipError, unpack
from lib.study.paths import shown
from lib.study.raw import RAW, Folder, raw_file

FILE = "raw.zip"
_HEADER, _ENTRY, _END = 30, 46, 22
"""Bytes of the parts of a zip beside names and contents: before a file, in the list, at the end."""


def pack(files: Iterable[Path], source: Path, record: Path) -> None:
    """Write files of a study's folder `source` to the archive in its record. The same files give
    the same bytes."""
    with zipfile.ZipFile(record / FILE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in sorted(files):
            member = zipfile.ZipInfo(path.relative_to(source).as_posix())  # of no time
            packed.writestr(member, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)


def restore(record: Path, folder: Path) -> None:
    """Lay out the archive of a record in a folder. Raises UserError for a damaged one."""
    try:
        unpack(record / FILE, folder)
    except ZipError as error:
        raise UserError(f"{shown(record / FILE)}: {error}; restore it from git") from None


def raw_folder(notebook: Path) -> Folder:
    """Where the raw files of a run are read: in the archive of the record that holds its notebook,
    or, of a run in `runs/`, beside it."""
    archive, place = notebook.parents[2] / FILE, notebook.parent
    if not archive.is_file():
        return place
    return _opened(archive, archive.stat().st_mtime_ns) / f"{place.parent.name}/{place.name}/"


@lru_cache(maxsize=8)
def _opened(archive: Path, _: int) -> zipfile.Path:
    """An archive as it was last written: that of a thousand runs takes 50 ms to open."""
    return zipfile.Path(archive)


def foreign_files(record: Path, runs: list[dict[str, Any]]) -> Iterator[str]:
    """Files in the archive that are neither of a run nor of a suite that one was asked, or there
    twice, and bytes of it that `pack` does not write."""
    with zipfile.ZipFile(record / FILE) as packed:
        names = packed.namelist()
        suites = [name for name in names if re.fullmatch(r"suite/[^/]+/suite\.json", name)]
        contents = {name: json.loads(packed.read(name)) for name in suites}
        if not _is_packed(packed, (record / FILE).stat().st_size):
            yield f"{FILE} holds bytes beside its files"
    # Where no suite is asked, one of no question may be left.
    asked = {run["suite_hash"] for run in runs if run["suite_hash"]}
    suites = [
        name
        for name in suites
        if (its := contents[name].get("hash")) in asked
        or (its == digest([]) and contents[name].get("files") == {})
    ]
    listed = {name: contents[name].get("files") for name in suites}
    folders = (Path(run["arm"], f"seed-{run['seed']}") for run in runs)
    known = {raw_file(folder, name).as_posix() for folder in folders for name in RAW}
    places = {suite: suite.removesuffix("suite.json") for suite in suites}
    known |= {f"{places[suite]}{name}" for suite in suites for name in listed[suite] or ()}
    known |= set(suites)
    unlisted = tuple(places[suite] for suite in suites if listed[suite] is None)  # the first record
    for name, times in Counter(names).items():
        if name not in known and not name.startswith(unlisted):
            yield f"{FILE} holds {name}, which is of no run in the results"
        if times > 1:
            yield f"{FILE} holds {name} twice"


def _is_packed(packed: zipfile.ZipFile, size: int) -> bool:
    """Whether files stand one behind the other from the first byte, each with a name, its content
    and nothing else, and their list behind them: whatever else is there, no reader would see."""
    end = listed = 0
    for member in packed.infolist():
        name = len(member.filename.encode())
        if member.header_offset != end or _fields(member) != _fields(zipfile.ZipInfo()):
            return False
        end += _HEADER + name + member.compress_size
        listed += _ENTRY + name
    return packed.start_dir == end and size == end + listed + _END


def _fields(member: zipfile.ZipInfo) -> list[Any]:
    return [member.date_time, member.comment, member.extra, member.internal_attr]
