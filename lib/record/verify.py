"""Verify the record: everything that is published follows, by this command, from raw files.

    ./run_all.sh verify [STUDY …] [--redraw] [--retrain N | --retrain STUDY/ARM/SEED …]

A study is verified in three steps: its files are those of manifest and index; they come from the
commits, plan and times that they name; and what they say is built again from raw files, by the code
of these commits, and compared. Without a study, all that the index names is verified, what was made
of it (paper, READMEs), and whether something vanished. What no record can show stands in
papers/README.md.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lib.record import build, provenance, receipts, runs
from lib.record.archive import check_raw_zip, index_entry
from lib.record.notebook import code_hash, foreign_content, has_parameters, shown_result
from lib.record.record import (
    MANIFEST,
    RAW_ZIP,
    SHARED,
    Record,
    index_file,
    paper_of,
    papers,
    raw_folder,
    read_index,
    run_name,
)
from lib.record.replay import ReplayError, ask_ahead
from lib.results import attested, status_of
from lib.study import io as paths
from lib.study.code import git, is_checkout
from lib.study.io import relative
from lib.study.preregistration import ATTEMPTS
from lib.study.study import load_study
from lib.study.yaml import ConfigError, UserError

FIRST_RECORD = {
    "confirmatory": "f1769b474189e268ba23e12bd704f4edd5b3f5cc26ffd04688a7a7f865391d6e",
    "horizon": "eeaad013e701ba4ed8805d90ad22a33e3b2290743e06717e45d21a9b4469f52f",
    "initialisation": "3a36a30f4ce79e5ec56202a25dca6ce43bf53a6d4c3177e40dda4193d2e72547",
    "stability": "5912c34cf499a806e56579b07ae1573830e7c188d57fdd17f22b532a0d49b075",
    "stability-warmup": "0fa1972363bb3dd85ab275f6d709bcc6ae3b20258598a245d4d3ecfb369f61ba",
}
"""Studies of the first record, made before raw files sufficed to compute every measure: study →
SHA-256 of what a manifest lists of it. No more of them is verified, and no other study so. Of four,
whose claims later studies withdrew, only results are kept. What they were at first is in git."""


def verify(
    study: str,
    *,
    again: bool = True,
    redraw: bool = False,
    around: dict[str, Any] | None = None,
) -> list[str]:
    """Check the record of a study; return every fault. What takes longest, the beginnings of its
    runs, its analysis and its figures, is made `again` unless told otherwise, and its pictures are
    drawn again if asked for. `around`: `receipts.surroundings`, where they are known.

    What rests on something faulty is not looked at: the faults of a kind end the search. That there
    is none is noted, where nothing was left out and nothing changed meanwhile.
    """
    try:
        if (paths.PARAMS / f"{study}.yaml").is_file():
            load_study(study)  # without which nobody knows where its record is
        record = Record(study)
        before = receipts.study_key(study, around) if again else None
        for check in _checks(record, again, redraw):
            if faults := list(check):
                return faults
        if again and record.is_whole and receipts.study_key(study, around) == before:
            receipts.note(before)
        return []
    except FileNotFoundError as error:
        return [f"{relative(Path(str(error.filename)))} is missing"]
    except ConfigError as error:
        return [f"its parameters or its plan cannot be read: {error}"]
    except ReplayError as error:
        return [f"it cannot be executed again: {error}"]
    except UserError as error:
        return [str(error)]
    except Exception as error:  # a file can be broken in any way
        return [f"a file of it cannot be read as what it is: {error!r}"]


def _checks(record: Record, again: bool, redraw: bool) -> Iterator[Iterator[str]]:
    """Give every check of a record, in the order in which one rests on another."""
    if record.study in FIRST_RECORD:
        yield check_first_record(record)
        return
    # Its files are those of manifest and index.
    yield record.check_files()
    yield check_format(record)
    yield check_index(record)
    yield check_notebooks(record)
    yield check_names(record)
    yield check_results(record)
    yield check_raw_zip(record)
    yield runs.check_raw_files(record)
    # They come from the commits, plan and times that they name.
    yield provenance.check_code(record)
    yield provenance.check_origins(record)
    yield provenance.check_plan(record)
    yield provenance.check_versions(record)
    yield provenance.check_times(record)
    yield provenance.check_copies(record)
    # What they say follows from raw files, and is built again by the code of these commits.
    yield runs.check_runs(record)
    yield runs.check_windows(record)
    if again:
        ask_ahead(record)
    yield provenance.check_commits(record)
    if again:
        yield build.check_beginnings(record)
        yield build.check_suites(record)
        yield build.check_analysis(record)
        yield build.check_figures(record)
    if redraw:
        yield build.check_pictures(record)


def check_first_record(record: Record) -> Iterator[str]:
    """Yield what is wrong with a study of the first record: its files are as they were."""
    path = record.folder / MANIFEST
    listed = path.read_text("utf-8") if path.is_file() else record.manifest_text()
    if hashlib.sha256(listed.encode()).hexdigest() != FIRST_RECORD[record.study]:
        yield "its files have changed"
    if path.is_file():
        yield from record.check_files()
    if not record.entry:
        yield "the index does not name it"


def check_format(record: Record) -> Iterator[str]:
    """Yield files whose text is not what the archive writes for their content."""
    for name, path in record.files.items():
        text = written = path.read_text("utf-8") if path.suffix in (".ipynb", ".json") else ""
        if name == "parameters.yaml":
            text = path.read_text("utf-8")
            written = yaml.safe_dump(yaml.safe_load(text), sort_keys=False, allow_unicode=True)
        elif text:
            written = json.dumps(json.loads(text), separators=(",", ":")) + "\n"
        if text != written:  # it holds a key twice, or a comment
            yield f"{name} is not written as the archive writes it"
    listed = "".join(f"{stated}  {name}\n" for name, stated in record.manifest.items())
    if (record.folder / MANIFEST).read_text("utf-8") != listed:  # it holds a line twice
        yield f"{MANIFEST} is not written as the archive writes it"
    for run in record.runs:
        result = raw_folder(record.run_notebook(run)) / "result.json"
        if result.is_file() and result.read_bytes() != f"{json.dumps(run, indent=1)}\n".encode():
            yield f"the result of {run_name(run)} is not written as the archive writes it"


def check_index(record: Record) -> Iterator[str]:
    """Yield what the index says otherwise of a study."""
    stated, expected = record.entry, index_entry(record)
    if not stated:
        yield "the index does not name it"
    for key in sorted({*stated, *expected} if stated else ()):
        if expected.get(key) != stated.get(key):
            yield f"the index says otherwise of its {key}"


def check_notebooks(record: Record) -> Iterator[str]:
    """Yield notebooks that did not complete, hold what no execution writes, or did not execute the
    code that the index says with the parameters of their place."""
    for name in SHARED:
        if not record.notebook(name).is_file():
            yield f"{name}.ipynb is missing"
    for path in sorted(record.folder.rglob("*.ipynb")):
        name = record.name(path)
        if status_of(path)["status"] != "completed":
            yield f"{name} did not complete"
            continue
        content = record.read(path)
        if code_hash(content) not in record.entry["code"].get(path.stem, []):
            yield f"{name} executed other code than the index says"
        yield from (f"{name} {fault}" for fault in foreign_content(path.read_text("utf-8")))
        parameters: dict[str, Any] = {"study": record.study}
        if path.stem == "02_train":
            parameters |= {"arm": path.parent.parent.name, "seed": int(path.parent.name[5:])}
        papermill = content["metadata"]["papermill"]
        if papermill["parameters"] != parameters or not has_parameters(content, parameters):
            yield f"{name} was executed with other parameters than those of its place"
        expected = {"input_path": f"notebooks/{path.name}"}
        expected["output_path"] = f"runs/{record.study}/{name}"
        if any(papermill.get(key, place) != place for key, place in expected.items()):
            yield f"{name} names another place than its own"


def check_names(record: Record) -> Iterator[str]:
    """Yield files that are none of a record's."""
    names = {*(f"{name}.ipynb" for name in SHARED), MANIFEST, RAW_ZIP, "04_figures.json"}
    names |= {"parameters.yaml", *(("plan.yaml", ATTEMPTS) if record.parameters.plan else ())}
    names |= {record.name(record.run_notebook(run)) for run in record.runs}
    for path in sorted(record.folder.rglob("*")):
        if path.is_symlink() or (not path.is_dir() and record.name(path) not in names):
            yield f"{record.name(path)} is no file of this record"


def check_results(record: Record) -> Iterator[str]:
    """Yield runs whose result is not the one that their notebook shows."""
    for run in record.runs:
        path = record.run_notebook(run)
        if not path.is_file() or shown_result(record.read(path)) != attested(run):
            yield f"the result of {run_name(run)} is not its notebook's"


def vanished() -> Iterator[str]:
    """Yield studies and runs that a committed version of an index names, and no record holds, and
    committed sources of a paper or of the READMEs without which nothing would be checked."""
    if not is_checkout():
        return
    indexed = {
        study: entry if isinstance(entry, dict) else {}
        for paper in papers()
        for study, entry in read_index(paper).items()
    }
    indexes = ":(glob)papers/*/record/index.json"
    log = ("log", "--full-history")  # of branches, too, of which a merge took nothing
    names = set((git(*log, "--format=", "--name-only", "--", indexes) or "").split())
    sources = (f":(glob)papers/*/{name}" for name in ("paper.md", "templates/answers.md"))
    written = (git(*log, "--format=", "--name-only", "--", *sources) or "").splitlines()
    gone = [
        name for name in sorted({*written} - {""}) if not (paths.PAPERS.parent / name).is_file()
    ]
    faults = dict.fromkeys(f"{name}, which was committed, has vanished" for name in gone)
    versions = [
        (commit, _index(git("show", f"{commit}:{name}")))
        for name in sorted(names)
        for commit in (git(*log, "--format=%H", "--", name) or "").split()
    ]
    for commit, index in versions:
        for study, entry in index.items():
            if study not in indexed:
                faults[f"study '{study}', recorded at commit {commit[:12]}, has vanished"] = None
                continue
            for arm, seeds in entry["seeds"].items():
                for seed in set(seeds) - set(indexed[study].get("seeds", {}).get(arm, [])):
                    line = f"run {arm} seed {seed} of '{study}', recorded at {commit[:12]}, "
                    faults[line + "has vanished"] = None
    yield from faults


def _index(content: str | None) -> dict[str, Any]:
    """Read a committed version of an index; empty where it was deleted, or committed broken."""
    try:
        return dict(json.loads(content or "{}"))
    except ValueError:
        return {}


def strays(paper: Path) -> Iterator[str]:
    """Yield records, results and figures of a paper that are of no study in its index, and an index
    that holds a name twice, or anything else that is not read."""
    index = index_file(paper)
    if index.is_file():
        written = json.dumps(dict(sorted(read_index(paper).items())), indent=1) + "\n"
        if index.read_text("utf-8") != written:
            yield f"{relative(index)} is not written as the archive writes it"
    studies = {study for study in read_index(paper) if paper_of(study) == paper}
    results = {f"{study}{end}" for study in studies for end in (".json", ".verdict.json")}
    records = studies | {f"{study}.zip" for study in studies} | {"index.json"}
    for folder, names in {
        "record": records,
        "results": results,
        "figures": studies | {"findings"},
    }.items():
        for path in sorted(paper.glob(f"{folder}/[!.]*")):
            if path.name not in names:
                yield f"{relative(path)} is of no study that the index of its paper names"
