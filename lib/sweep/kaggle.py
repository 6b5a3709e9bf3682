"""Run a whole study in a notebook session on Kaggle or Colab, and bring its runs home.

The sweep is that of `./run_all.sh`. Its runs are packed into one zip. Another session can continue
from that zip, and `./run_all.sh import` adds it to the record.
"""

import re
import shutil
import signal
import subprocess
import tempfile
import zipfile
from pathlib import Path

import nbformat
from IPython.display import display

from lib.config import files, paths
from lib.config.environment import environment
from lib.config.errors import TIME_UP, UsageError, UserError
from lib.config.files import read_json, sha256
from lib.config.paths import PARAMS, ROOT, RUNS, kaggle_folder, listed, relative, study_folder
from lib.config.study import COPY, Study, load_study
from lib.config.yaml import read_yaml
from lib.record.archive import (
    MANIFEST,
    Record,
    archive,
    is_replaceable,
    recorded_studies,
)
from lib.record.verify import Report, verify_record, verify_run
from lib.results import status_of
from lib.sweep.estimate import begin_again
from lib.sweep.execute import archived_file


def resume_from_inputs(study: str) -> str:
    """Copy the runs of earlier sessions from the attached inputs to the working folder. If several
    sessions have the same run, take the one that got furthest. Return how many, as a sentence."""
    inputs, number = (kaggle_folder() or ROOT) / "input", 0
    with tempfile.TemporaryDirectory() as folder:
        for file in listed(inputs, f"**/{study}.zip"):
            unpack(file, Path(folder, str(hash(file))))
        found = listed(inputs, f"**/runs/{study}/*/seed-*")
        found += listed(Path(folder), f"*/runs/{study}/*/seed-*")
        for run in sorted(found, key=progress, reverse=True):
            target = study_folder(study) / run.parent.name / run.name
            if not target.exists() and run.parent.name != "suite":
                shutil.copytree(run, target, copy_function=shutil.copyfile)
                number += 1
    return f"{number} runs continue from earlier sessions"


def progress(run: Path) -> tuple[bool, int]:
    """Return whether a run is finished, and the step of its last checkpoint, or -1."""
    steps = [int(path.name.split("-")[1]) for path in run.glob("checkpoints/*/step-*.pt")]
    return (run / "result.json").is_file(), max(steps, default=-1)


def run_study(study: str, hours: float) -> int:
    """Run a study for at most `hours`, and print its progress; return its exit status. Stopping the
    cell stops the study."""
    command = ["bash", str(ROOT / "run_all.sh"), study, "--here", "--stop-after", f"{hours:g}"]
    with subprocess.Popen(
        command,
        env=environment(),  # without FORCE_COLOR, which kernels set
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
    return process.returncode


def show(study: str, notebook: str) -> None:
    """Display the outputs of an executed notebook."""
    path = paths.executed_notebook(notebook, study)
    if status_of(path)["status"] != "completed":
        print(f"{notebook} has not been executed yet")
        return
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            display(output.get("data", {"text/plain": output.get("text", "")}), raw=True)


def pack(study: str, status: int) -> None:
    """Write a study to `STUDY.zip`: its runs, parameters and plan, without the checkpoints of
    finished runs. Print what to do with it. Raises UserError if the sweep failed."""
    folder, target, plan = study_folder(study), RUNS.parent / f"{study}.zip", load_study(study).plan
    params = {f"{study}.yaml": PARAMS / f"{study}.yaml"}
    if plan:
        params[f"plans/{plan}"] = paths.PLANS / plan
    with (
        files.atomic_write(target) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name, path in params.items():
            packed.writestr(f"params/{name}", path.read_text("utf-8").removeprefix(COPY))
        for path in (path for path in listed(folder, "**/*") if path.is_file()):
            parts = path.relative_to(folder).parts
            is_done = folder.joinpath(*parts[:2], "result.json").is_file()
            if path.suffix != ".lock" and not (is_done and "checkpoints" in parts):
                packed.write(path, Path("runs", study, *parts))
    print(f"{target.name}: {target.stat().st_size / 1e6:.1f} MB")
    if status not in (0, TIME_UP):
        raise UserError(f"sweep: failed (status {status}); its output above says why")
    home = f"Download it, and run at home: ./run_all.sh import {target.name}"
    more = "To continue, attach this version's output as an input of the next session."
    print(more if status else home)


def export_study(name: str) -> None:
    """Pack a finished study. Raises UserError if it is not finished, or if a run is named."""
    if re.fullmatch(r"[^/]+/[^/]+/\d+", name):
        raise UsageError(
            f"export: {name} is a run; add --to DIR to export its model, or name the study"
        )
    study = load_study(name)
    if not archived_file(study.name).is_file():
        raise UserError(
            f"study: {study.name} is not finished; run ./run_all.sh params/{study.name}.yaml"
        )
    pack(study.name, 0)


def unpack(file: Path, folder: Path) -> None:
    """Unpack a zip into a folder, and never outside it. Raises UserError with its name if it is
    damaged."""
    try:
        with zipfile.ZipFile(file) as content:
            content.extractall(folder)
    except Exception as error:  # zipfile passes on the errors of its decompressors
        raise UserError(f"{file.name}: cannot be unpacked ({error}); copy it again") from None


def import_study(file: Path) -> Study:
    """Add the study in a zip from `pack` to `runs/` and to the record; return it.

    Raises UserError with the zip's name if its runs were changed, or if another study of that name
    is here. Then nothing of it is kept. What a killed import left is removed first.
    """
    with tempfile.TemporaryDirectory() as folder:
        unpack(file, Path(folder))
        studies = {path.parents[2] for path in listed(Path(folder), "runs/*/*/seed-*/result.json")}
        if len(studies) != 1:
            raise UserError(
                f"{file.name}: does not hold one study as runs/STUDY/; pack it by export"
            )
        try:
            return _import(studies.pop(), Path(folder, "params"))
        except Exception as error:  # a file can be broken in any way
            reason = str(error) if isinstance(error, UserError | OSError) else repr(error)
            raise UserError(f"{file.name}: {' '.join(reason.split())[:300]}") from None


def _import(source: Path, params: Path) -> Study:
    """Add the runs in the folder `source`, with parameters and plan from the folder `params`.
    Return the study."""
    name, runs, plans = source.name, study_folder(source.name), params / "plans"
    # Check the runs before anything is written here.
    for run in listed(source, "*/seed-*"):
        result, notebook = read_json(run / "result.json"), run / "02_train.ipynb"
        for fault in verify_run(result, run, notebook, Report(name)):
            raise UserError(fault)
    study = Study.model_validate(read_yaml(params / f"{name}.yaml"))
    record = Record(name, paths.PAPERS / study.paper)
    evidence = [record.folder, record.figures, record.results_file, record.verdict_file]
    text = (params / f"{name}.yaml").read_text("utf-8")
    copies = {PARAMS / f"{name}.yaml": f"{COPY}{text}".encode()}
    if study.plan:
        copies[paths.PLANS / study.plan] = (plans / study.plan).read_bytes()
    places = [*evidence, runs, *copies]
    # Lists what this import makes. If it is killed, the next import removes that first.
    begun = RUNS / f".import-{name}.json"

    def undo() -> None:
        """Remove what an import made, except what was changed later."""
        changed = [path for path in copies if path.is_file() and path.read_bytes() != copies[path]]
        changed += [] if is_replaceable(name) else evidence
        if _files(runs).items() <= _files(source).items():
            made = [path for path in places if str(path) in read_json(begun)]
            for path in made:
                if path not in changed:
                    shutil.rmtree(path, ignore_errors=True)
                    path.unlink(missing_ok=True)
        begun.unlink()

    if begun.is_file():
        undo()
    is_here = (record.folder / MANIFEST).is_file() and is_replaceable(name)
    if is_here and _files(runs) == _files(source):
        print(f"{name}: was imported before; its record is {relative(record.folder)}/")
        return load_study(name)
    if runs.exists() or name in recorded_studies():
        raise UserError(f"'{name}' is already in runs/ or in the record; nothing was imported")
    own = PARAMS / f"{name}.yaml"
    if own.exists() and own.read_text("utf-8").removeprefix(COPY) != text:
        raise UserError(f"params/{name}.yaml: is another study; rename yours, or delete it")
    files.write_json(begun, [str(path) for path in places if not path.exists()])
    try:
        load_study(params / f"{name}.yaml", undrawn=True)  # copies the file to params/
        if study.plan and not (paths.PLANS / study.plan).exists():
            files.write_bytes(paths.PLANS / study.plan, copies[paths.PLANS / study.plan])
        with files.atomic_write(runs, only_writer=True) as partial:
            # Leave out its suite, because a task file from elsewhere may run Python.
            ignored = shutil.ignore_patterns("suite", "archive.json")
            shutil.copytree(source, partial, ignore=ignored)
        archive(
            load_study(name), suite=False
        )  # loaded again: runs/ now has the commits of its arms
        report = verify_record(record, begin_again)
        for fault in report.faults or filter(None, [report.refused]):
            raise UserError(fault)
    except BaseException:  # also KeyboardInterrupt
        undo()
        raise
    begun.unlink()
    print(f"{name}: imported; its record is {relative(record.folder)}/")
    return load_study(name)


def _files(folder: Path) -> dict[Path, str]:
    """Hash the files that an import takes from a study's folder."""
    found = {path.relative_to(folder): path for path in folder.rglob("[!.]*") if path.is_file()}
    left_out = ("suite", "archive.json")
    return {name: sha256(path) for name, path in found.items() if name.parts[0] not in left_out}
