"""Take a study into the record that ran elsewhere, or analyse a recorded one again.

    ./run_all.sh import FILE
    ./run_all.sh analyse NAME …

Both happen in a temporary tree with this checkout's code: the notebooks that read all runs are
executed there, and the study is archived. Runs of a zip are held to what a sweep asks of its own,
and verified; those of a record stay as they are. Only then is the record here touched.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from lib.record import replay
from lib.record.archive import archive, write_index_entry
from lib.record.record import SHARED, Record, paper_of, read_index
from lib.record.verify import FIRST_RECORD, verify
from lib.results import RunResult, status_of
from lib.study.code import git_state
from lib.study.inputs import ZipError, unpack
from lib.study.io import PAPERS, PARAMS, RUNS, atomic_write, output_root, relative, study_folder
from lib.study.study import Study, load_study
from lib.study.yaml import ConfigError, UserError, exit_status
from lib.workflow import by_hand
from lib.workflow.execution import execute
from lib.workflow.staleness import stale
from lib.workflow.sweep import only_sweep


def import_study(packed: Path) -> None:
    """Take the study that a zip holds into the record. Raises UserError, naming the zip."""
    if not packed.is_file():
        raise UserError(f"file: {packed} is no file; give the zip that 00_kaggle leaves")
    original = {path: path.read_bytes() for path in PARAMS.rglob("*.yaml")}
    try:
        study = _import(packed)
    except UserError as error:  # loading a study of one's own wrote its parameters and its plan
        for path in PARAMS.rglob("*.yaml"):
            if path not in original:
                path.unlink()
            elif path.read_bytes() != original[path]:
                path.write_bytes(original[path])
        raise UserError(f"{packed.name}: {error}") from None
    record = Record(study)
    print(f"{study}: imported, and its {len(record.manifest)} files verified")
    print(f"Executed notebooks  {relative(record.place)}/")
    print("To bring the pages and the paper up to date: ./run_all.sh record, ./run_all.sh paper")


def _import(packed: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="import-") as folder:
        try:
            unpack(packed, Path(folder))
        except ZipError as error:
            raise ZipError(f"{error}; give the zip that 00_kaggle leaves") from None
        runs = _runs_in(Path(folder))
        parameter_file = runs.parents[1] / "params" / f"{runs.name}.yaml"  # of a study of one's own
        study = load_study(parameter_file if parameter_file.is_file() else runs.name)
        if study.name != runs.name:
            raise UserError(f"its parameters are of '{study.name}', and its runs of '{runs.name}'")
        if study.name in read_index(paper_of(study.name)):
            raise UserError(f"the record already holds '{study.name}', and nothing is replaced")
        for arm in study.arms():
            for seed in study.seeds:
                _file_by_hand(runs / arm.id / f"seed-{seed}", Path(folder))
        with _staging_tree("import", study) as tree:
            without = shutil.ignore_patterns("checkpoints")
            for path in [*runs.glob("suite"), *runs.glob("*/seed-*")]:
                target = tree / "runs" / study.name / path.relative_to(runs)
                shutil.copytree(path, target, ignore=without)
    return study.name


def analyse_again(name: str) -> None:
    """Execute 03 and 04 of a recorded study again, and archive it.

    Raises ConfigError for a study without a record or of the first record, and UserError while a
    sweep runs or when a notebook fails; the record then stays as it was.
    """
    study, record = load_study(name), Record(name)
    if not record.folder.is_dir() or not record.results_file.is_file():
        recorded = [path.name for path in PAPERS.glob("*/record/*") if path.is_dir()]
        raise ConfigError(f"study: '{name}' has no record; there are {', '.join(sorted(recorded))}")
    if name in FIRST_RECORD:
        raise ConfigError(
            f"study: '{name}' is of the first record, whose format this code does not analyse; its "
            "record stays as it is"
        )
    with only_sweep(), _staging_tree("analyse", study) as tree:
        shutil.copytree(record.folder, tree / "runs" / name)
        replay.restore(record, tree)


@contextmanager
def _staging_tree(command: str, study: Study) -> Iterator[Path]:
    """Give a tree with this checkout's code, in which to lay out a study's runs; then stage them
    there, and bring the record home. A notebook that fails is kept beside `runs/STUDY`."""
    with replay.tree_at(git_state()) as tree:
        replay.link_inputs(tree, (arm.config.model_dump() for arm in study.arms()))
        yield tree
        words = ("-m", "lib.workflow.importing", command, study.name)
        try:
            replay.execute(tree, sys.executable, *words)
        except replay.ReplayError as error:
            message = str(error)
            for path in (tree / "runs" / study.name).glob("*.ipynb"):
                if status_of(path)["status"] == "failed":
                    copy = RUNS / f"{study.name}.failed.ipynb"
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copy)
                    message += f" (kept: {relative(copy)})"
            raise UserError(message) from None
        _copy_record(tree / paper_of(study.name).relative_to(output_root()), study.name)


@exit_status
def main(command: str, name: str) -> None:
    """Check the runs of an import, execute the notebooks that read all runs, archive, and verify an
    import: all in the temporary tree. Raises UserError."""
    is_import, study = command == "import", load_study(name)
    for path, reason in stale(study) if is_import else ():
        name = path.relative_to(study_folder(study.name)).as_posix()
        raise UserError(f"{name}: {reason.rpartition(': ')[0]}")
    for notebook in SHARED:
        if is_import or notebook != "01_data":
            execute(notebook, study)
    archive(study)
    for fault in verify(study.name) if is_import else ():
        raise UserError(fault)


def _runs_in(folder: Path) -> Path:
    """Find the one study that an unpacked zip holds."""
    folders = {path.parents[2] for path in folder.glob("**/runs/[!.]*/*/seed-*/result.json")}
    if len(folders) != 1:
        names = ", ".join(sorted(path.name for path in folders)) or "none"
        raise UserError(f"it must hold the runs of one study, as runs/STUDY/, and holds {names}")
    return folders.pop()


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


def _copy_record(paper: Path, study: str) -> None:
    """Copy a study's record from its paper in a tree to that of this one; the index comes last, so
    that an import that was interrupted can be repeated."""
    record = Record(study)
    for path in (record.results_file, record.verdict_file, record.figures, record.place):
        source = paper / path.relative_to(record.paper)
        with atomic_write(path) as temporary:
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, temporary)
            shutil.rmtree(path, ignore_errors=True)  # a folder does not take another's place
    record.sealed_file.unlink(missing_ok=True)
    write_index_entry(study)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
