"""Take a study that ran elsewhere into the record.

    ./run_all.sh import FILE

The zip is unpacked in a temporary tree with this checkout's code. There its runs are held to what
a sweep asks of its own, the notebooks that read them all (01, 03, 04) are executed, and the study
is archived and verified. Only then is the record here touched.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from pydantic import ValidationError

from lib.publish import replay
from lib.publish.archive import (
    SHARED,
    archive,
    figures_folder,
    paper_of,
    read_index,
    read_manifest,
    record_folder,
    results_file,
    verdict_file,
    write_index_entry,
)
from lib.publish.verify import verify
from lib.study.config import Study, load_study
from lib.study.errors import UserError, exit_status
from lib.study.inputs import unpack
from lib.study.paths import output_root, shown, study_folder
from lib.study.provenance import git_state
from lib.study.record import RunResult
from lib.workflow import by_hand
from lib.workflow.execution import execute
from lib.workflow.staleness import corpus_hashes, stale

STAGED = "--staged"
"""What tells this module that it runs in the temporary tree."""


def take_in(packed: Path) -> str:
    """Import the study that a zip holds; return its name. Raises UserError."""
    with tempfile.TemporaryDirectory(prefix="import-") as folder:
        unpack(packed, Path(folder))
        runs = _runs_in(Path(folder))
        study = load_study(runs.name)
        if study.name in read_index(paper_of(study.name)):
            raise UserError(f"the record already holds '{study.name}', and nothing is replaced")
        for arm in study.arms():
            for seed in study.seeds:
                _file_by_hand(runs / arm.id / f"seed-{seed}", Path(folder))
        with replay.tree_at(git_state()) as tree:
            replay.lend_corpora(tree, (arm.config.corpus.model_dump() for arm in study.arms()))
            for path in [runs / "suite", *runs.glob("*/seed-*")]:
                without = shutil.ignore_patterns("checkpoints")
                to = tree / "runs" / study.name / path.relative_to(runs)
                if path.is_dir():
                    shutil.copytree(path, to, ignore=without)
            replay.execute(tree, sys.executable, "-m", "lib.workflow.importing", STAGED, study.name)
            _bring_home(tree / paper_of(study.name).relative_to(output_root()), study.name)
    return study.name


def _runs_in(folder: Path) -> Path:
    """Find the one study that an unpacked zip holds."""
    found = {path.parents[2] for path in folder.glob("**/runs/*/*/seed-*/result.json")}
    if len(found) != 1:
        names = ", ".join(sorted(path.name for path in found)) or "none"
        raise UserError(f"it must hold the runs of one study, as runs/STUDY/, and holds {names}")
    return found.pop()


def _file_by_hand(run: Path, folder: Path) -> None:
    """Put the notebook of a run that no sweep executed where a sweep would have put it. Raises
    UserError for a result that is none, whoever executed it."""
    name, target = run.relative_to(run.parents[1]).as_posix(), run / "02_train.ipynb"
    try:
        result = (run / "result.json").read_bytes()
        RunResult.model_validate_json(result)
    except FileNotFoundError:
        return  # which is missed where the study is analysed
    except (OSError, ValidationError):
        fault = "result.json cannot be read, or is of another version"
        raise UserError(f"{name}: {fault}; pack the study again") from None
    if target.is_file():
        return
    try:
        by_hand.file(sorted(folder.rglob("*.ipynb")), json.loads(result), target)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{name}: {error}") from None


def stage(study: Study) -> None:
    """Check the runs in this temporary tree, then analyse, archive and verify them. Raises
    UserError."""
    for path, why in stale(study, corpus_hashes([study])):
        name = path.relative_to(study_folder(study.name)).as_posix()
        raise UserError(f"{name}: {why.rpartition(': ')[0]}")
    for notebook in SHARED:
        execute(notebook, study)
    archive(study)
    for fault in verify(study.name)[1]:
        raise UserError(fault)


def _bring_home(paper: Path, study: str) -> None:
    """Copy a study's record from its paper in a tree to that of this one; the index comes last, so
    that an import that was interrupted can be repeated."""
    here, record = paper_of(study), record_folder(study)
    partial = record.with_name(f".{study}.new")
    results_file(study).parent.mkdir(parents=True, exist_ok=True)
    for path in (results_file(study), verdict_file(study)):
        shutil.copyfile(paper / path.relative_to(here), path)
    for folder, target in ((figures_folder(study), figures_folder(study)), (record, partial)):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(paper / folder.relative_to(here), target)
    shutil.rmtree(record, ignore_errors=True)
    partial.rename(record)
    write_index_entry(study)


@exit_status
def main(words: list[str]) -> None:
    """Import a zip, or with `--staged STUDY` do what happens in the temporary tree."""
    if words[0] == STAGED:
        stage(load_study(words[1]))
        return
    packed = Path(words[0])
    try:
        study = take_in(packed)
    except UserError as error:
        raise UserError(f"{packed.name}: {error}") from None
    print(f"{study}: imported, and its {len(read_manifest(study))} files verified")
    print(f"Executed notebooks  {shown(record_folder(study))}/")
    print("To bring the pages and the paper up to date: ./run_all.sh record, ./run_all.sh paper")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
