"""Write the record of a study: archive it, seal it, and keep manifest and index true."""

import argparse
import io
import json
import re
import shutil
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

from lib.analysis.runs import collect
from lib.record.notebook import code_hash, without_warnings
from lib.record.record import (
    MANIFEST,
    RAW_ZIP,
    SHARED,
    Record,
    as_table,
    index_file,
    read_index,
)
from lib.results import raw_file, raw_names, status_of
from lib.study.inputs import ZipError, unpack
from lib.study.io import (
    PLANS,
    ROOT,
    executed_notebook,
    read_json,
    relative,
    result_file,
    run_folder,
    sha256,
    study_folder,
    write_json,
    write_text,
)
from lib.study.schema import digest
from lib.study.study import Study, load_study
from lib.study.yaml import UserError, exit_status

_HEADER, _ENTRY, _END = 30, 46, 22
"""Bytes of the parts of a zip beside names and contents: before a file, in the list, at the end."""
WHOLE_ZIP = "record.zip"


def archive(study: Study) -> None:
    """Copy a finished study from `runs/` into the record, replacing its former record at once.

    Raises ResultError for missing or mixed runs and UserError for a notebook that did not
    complete, naming it.
    """
    runs, source = collect(study), study_folder(study.name)
    notebooks = [executed_notebook(name, study.name) for name in SHARED]
    notebooks += [executed_notebook("02_train", study.name, run.arm, run.seed) for run in runs]
    for notebook in notebooks:
        status = status_of(notebook)
        if status["status"] != "completed":
            name = notebook.relative_to(source).as_posix()
            raise UserError(f"{name} is {status['status']}: {status.get('reason')}")

    record = Record(study.name)
    final = record.place
    partial, former = final.with_name(f".{study.name}.new"), final.with_name(f".{study.name}.old")
    for leftover in (partial, former):
        shutil.rmtree(leftover, ignore_errors=True)
    for path in [*notebooks, result_file("04_figures", study.name)]:
        content = without_warnings(read_json(path))
        write_json(partial / path.relative_to(source), content, indent=None)
    folders = [(run_folder(study.name, run.arm, run.seed), run.config) for run in runs]
    raw = [folder / name for folder, config in folders for name in _run_files(config)]
    raw += [path for path in (source / "suite").glob("*/*.*") if path.is_file()]
    pack(raw, source, partial / RAW_ZIP)
    parameters = yaml.safe_dump(study.model_dump(), sort_keys=False, allow_unicode=True)
    (partial / "parameters.yaml").write_text(parameters, "utf-8")
    if study.plan:
        shutil.copyfile(PLANS / study.plan, partial / "plan.yaml")
    if final.exists():
        final.rename(former)
    record.sealed_file.unlink(missing_ok=True)
    partial.rename(final)
    shutil.rmtree(former, ignore_errors=True)

    shutil.rmtree(record.figures, ignore_errors=True)
    shutil.copytree(source / "figures", record.figures)
    results = read_json(result_file("03_analysis", study.name))
    results.pop("runs")  # which `raw.zip` holds
    write_json(record.results_file, results, indent=None)
    verdict = read_json(source / "verdict.json")
    tables = {name: as_table(each) for name, each in verdict.items()}
    write_json(record.verdict_file, tables, indent=None)
    write_manifest(study.name)


def write_manifest(study: str) -> None:
    """Write the hash of every file of a study, and bring the index up to date."""
    record = Record(study)
    write_text(record.place / MANIFEST, record.manifest_text())
    write_index_entry(study)


def write_index_entry(study: str) -> None:
    """Bring the index up to date for a study."""
    record = Record(study)
    index = index_file(record.paper)
    with FileLock(index.with_name(".index.lock")):
        content = read_index(record.paper) | {study: index_entry(record)}
        write_json(index, dict(sorted(content.items())))


def index_entry(record: Record) -> dict[str, Any]:
    """Say what a record holds: the hash of its manifest, the seeds of every arm, the hashes of the
    code that each of its notebooks executed (of 02, of all runs together), and, of a sealed one,
    that of its file."""
    folder = record.folder
    runs = sorted(folder.glob("*/seed-*/02_train.ipynb"), key=lambda p: int(p.parent.name[5:]))
    seeds: dict[str, list[int]] = {}
    for path in runs:
        seeds.setdefault(path.parent.parent.name, []).append(int(path.parent.name[5:]))
    shared = [path for name in SHARED if (path := record.notebook(name)).is_file()]
    code = {path.stem: [code_hash(record.read(path))] for path in shared}
    code["02_train"] = sorted({code_hash(record.read(path)) for path in runs})
    entry: dict[str, Any] = {"manifest": sha256(folder / MANIFEST)}
    entry |= {"seeds": dict(sorted(seeds.items())), "code": dict(sorted(code.items()))}
    return entry | ({"sealed": sha256(record.sealed_file)} if record.is_sealed else {})


def seal(study: str, whole: bool = False) -> Path:
    """Replace the record of a study, but for the notebooks of the whole study, by one file,
    `record/<study>.zip`; return it. With `whole`, that file takes these notebooks as well, also
    those of a record that is sealed already. Both are verified and shown as the folder is. Of its
    figures those are kept that the paper or the README shows: 04_figures holds all, and `verify
    --redraw` compares what it draws with the manifest. UserError where its files are not as that
    says."""
    record = Record(study)
    if record.is_sealed and not (whole and record.place.is_dir()):
        return record.sealed_file
    for fault in record.check_files():
        raise UserError(f"{study}: {fault}; nothing was sealed")
    partial, aside = (
        record.sealed_file.with_name(f".{study}.{end}") for end in ("zip.new", "open")
    )
    files = {path for path in record.folder.rglob("*") if path.is_file()}
    shared = set() if whole else files & {record.notebook(name) for name in SHARED}
    with tempfile.TemporaryDirectory() as folder:
        inner = Path(folder, WHOLE_ZIP)
        pack(files - shared, record.folder, inner)
        pack([inner], inner.parent, partial, zipfile.ZIP_LZMA)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for path in shared:
        shutil.copyfile(path, aside / path.name)
    partial.replace(record.sealed_file)
    shutil.rmtree(record.place)
    if shared:
        aside.rename(record.place)
    else:
        aside.rmdir()
    write_index_entry(study)
    pages = [page for page in (ROOT / "README.md", record.paper / "paper.md") if page.is_file()]
    texts = "".join(page.read_text("utf-8") for page in pages)
    for path in record.figures.glob("*"):
        if f"{study}/{path.name}" not in texts:
            path.unlink()
    return record.sealed_file


def pack(
    files: Iterable[Path], source: Path, target: Path, method: int = zipfile.ZIP_STORED
) -> None:
    """Write files of the folder `source` to a zip, as they are: sealed, or by git, they become
    smaller together than one by one. The same files give the same bytes."""
    with zipfile.ZipFile(target, "w") as packed:
        for path in sorted(files):
            member = zipfile.ZipInfo(path.relative_to(source).as_posix())  # of no time
            packed.writestr(member, path.read_bytes(), method)


def unpack_raw(record: Record, folder: Path) -> None:
    """Lay out the raw files and suites of a record in a folder. UserError for damaged ones."""
    try:
        unpack(record.folder / RAW_ZIP, folder)
    except ZipError as error:
        raise UserError(
            f"{relative(record.place / RAW_ZIP)}: {error}; restore it from git"
        ) from None


def check_raw_zip(record: Record) -> Iterator[str]:
    """Yield files in the archive that are neither of a run nor of a suite that one was asked, or
    there twice, and bytes of it that `pack` does not write."""
    archives = {RAW_ZIP: (record.folder / RAW_ZIP).read_bytes()}
    if record.is_sealed:
        archives[record.sealed_file.name] = sealed = record.sealed_file.read_bytes()
        with zipfile.ZipFile(io.BytesIO(sealed)) as packed:
            if len(packed.namelist()) > 1 and WHOLE_ZIP in packed.namelist():
                yield f"{record.sealed_file.name} holds files beside {WHOLE_ZIP}"
            if WHOLE_ZIP in packed.namelist():
                unpacked = record.folder.with_name(WHOLE_ZIP)  # to unpack it takes long
                archives[f"{WHOLE_ZIP} in {record.sealed_file.name}"] = unpacked.read_bytes()
    for name, content in archives.items():
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            if not _is_packed(packed, len(content)):
                yield f"{name} holds bytes beside its files"
    with zipfile.ZipFile(io.BytesIO(archives[RAW_ZIP])) as packed:
        names = packed.namelist()
        suites = [name for name in names if re.fullmatch(r"suite/[^/]+/suite\.json", name)]
        contents = {name: json.loads(packed.read(name)) for name in suites}
    # Where no suite is asked, one of no question may be left.
    suite_hashes = {run["suite_hash"] for run in record.runs if run["suite_hash"]}
    expected = {
        f"{run['arm']}/seed-{run['seed']}/{name}"
        for run in record.runs
        for name in _run_files(run["config"])
    }
    for name, suite in contents.items():
        files = suite.get("files", {})
        if suite.get("hash") in suite_hashes or (suite.get("hash"), files) == (digest([]), {}):
            expected |= {name, *(name.removesuffix("suite.json") + each for each in files)}
    for name, times in Counter(names).items():
        if name not in expected:
            yield f"{RAW_ZIP} holds {name}, which is of no run in the results"
        if times > 1:
            yield f"{RAW_ZIP} holds {name} twice"


def _run_files(config: dict[str, Any]) -> list[str]:
    """Name the files that a run leaves behind, and `raw.zip` holds of it."""
    return ["result.json", *(raw_file(Path(), name).name for name in raw_names(config))]


def _is_packed(packed: zipfile.ZipFile, size: int) -> bool:
    """Tell whether files stand one behind the other from the first byte, each with a name, its
    content and nothing else, and their list behind them: whatever else is there, no reader would
    see."""
    end = list_size = 0
    for member in packed.infolist():
        name = len(member.filename.encode())
        if member.header_offset != end or _fields(member) != _fields(zipfile.ZipInfo()):
            return False
        end += _HEADER + name + member.compress_size
        list_size += _ENTRY + name
    return packed.start_dir == end and size == end + list_size + _END


def _fields(member: zipfile.ZipInfo) -> list[Any]:
    return [member.date_time, member.comment, member.extra, member.internal_attr]


def is_replaceable(record: Record) -> bool:
    """Tell whether a sweep may replace the record of a study: there is none, or it was archived
    from `runs/` here."""
    file, entry = result_file("archive", record.study), record.entry
    return not entry or (file.is_file() and entry["manifest"] in file.read_text("utf-8"))


def mark_replaceable(study: str) -> None:
    """Write into `runs/` that the record of a study is of the runs there."""
    manifest = Record(study).entry.get("manifest")
    write_json(result_file("archive", study), {"manifest": manifest})


@exit_status
def main(arguments: list[str] | None = None) -> None:
    """Archive studies, or seal the records of some. A record that came from elsewhere
    stays as it is."""
    parser = argparse.ArgumentParser(prog="python -m lib.record.archive", description=main.__doc__)
    parser.add_argument("studies", nargs="+", help="names of studies")
    parser.add_argument("--seal", action="store_true", help="keep runs of each record in one file")
    parser.add_argument("--whole", action="store_true", help="with --seal, its notebooks, too")
    options = parser.parse_args(arguments)
    if options.whole and not options.seal:
        parser.error("--whole goes with --seal")
    for name in options.studies:
        if options.seal:
            print(f"{name}: sealed as {relative(seal(name, options.whole))}")
        elif is_replaceable(Record(name)):
            archive(load_study(name))
            mark_replaceable(name)
        else:
            result_file("archive", name).touch()


if __name__ == "__main__":
    sys.exit(main())
