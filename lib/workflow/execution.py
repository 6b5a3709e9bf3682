"""Run one notebook under papermill and say honestly how it went.

A notebook is done only when papermill ended without an error, every cell completed, and the result
that the notebook declares was written. Papermill alone does not tell: a killed kernel or a timeout
leaves a notebook whose cells all read `completed`, and a misspelt parameter only warns.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
import papermill
from filelock import FileLock

from lib.record.notebook import COMPACT, slim
from lib.record.replay import ReplayError, ask
from lib.record.warm import WARM, over_sockets, prefer_forks
from lib.results import git_state, live_file
from lib.run.processes import exit_with_parent
from lib.study.io import NOTEBOOKS, ROOT, atomic_write, executed_notebook, relative, result_file
from lib.study.preregistration import load_plan
from lib.study.study import Study, load_study
from lib.study.yaml import HEADLESS, ConfigError, UserError, exit_status, suggest
from lib.workflow.commits import tree_of
from lib.workflow.forked import SOCKETS, variables
from lib.workflow.gpus import acquire_gpus

START_ATTEMPTS = 3


class ExecutionError(UserError):
    """A notebook that did not complete; the message says why and where it is kept."""


def execute(notebook: str, study: Study, arm: str = "", seed: int = 0) -> Path:
    """Execute `notebooks/<notebook>.ipynb` for a study (and a run of it); return the result's path.

    Raises ConfigError for an arm, a seed or a parameter that does not exist, and ExecutionError
    when the notebook fails; the notebook is kept, stamped with the reason.
    """
    source = NOTEBOOKS / f"{notebook}.ipynb"
    parameters: dict[str, Any] = {"study": study.name}
    if arm:
        parameters |= {"arm": study.arm(arm).id, "seed": study.require_seed(seed)}
    require_declared(source, parameters)
    plan = load_plan(study)
    output = executed_notebook(notebook, study.name, arm, seed)
    result = result_file(notebook, study.name, arm, seed)
    commit = study.commit_of(study.arm(arm)) if arm else None
    if commit and "code" not in git_state():  # the tree of that commit executes its own notebook
        try:
            with tree_of(study, commit.commit) as tree:
                ask(tree, "execute", study.name, notebook, *map(str, (arm, seed)))
        except ReplayError as failure:
            raise ExecutionError(f"{failure}; see {relative(output)}") from None
        return result
    output.parent.mkdir(parents=True, exist_ok=True)

    with FileLock(output.with_suffix(".lock")), acquire_gpus(study.machine) as devices:
        result.unlink(missing_ok=True)  # an earlier result must not pass for this one's
        os.environ.update(kernel_environment(study, devices))
        start = time.perf_counter()
        error = _run_papermill(source, output, parameters)
        reason = error or _fault(output)
        if not reason and not result.is_file():
            reason = f"the notebook wrote no {relative(result)}"
        _stamp(output, reason, time.perf_counter() - start, plan.hash if plan else None)
        if reason:
            result.unlink(missing_ok=True)
            raise ExecutionError(f"{reason}; see {relative(output)}")
        live_file(output.parent).unlink(missing_ok=True)  # the result has it all
    return result


def require_declared(source: Path, parameters: dict[str, Any]) -> None:
    """Raise ConfigError for a parameter that the notebook's parameters cell does not declare."""
    declared = list(papermill.inspect_notebook(str(source)))
    for name in parameters:
        if name not in declared:
            raise ConfigError(f"parameter of {source.stem}: {suggest(name, declared)}")


def kernel_environment(study: Study, devices: str | None = None) -> dict[str, str]:
    """Return what the kernel inherits: this Python whatever kernels the machine names, nobody
    watching, threads pinned, GPUs of its own."""
    environment = variables(study.machine.threads) | {HEADLESS: "1"}
    environment["JUPYTER_PATH"] = str(Path(sys.prefix, "share", "jupyter"))
    return environment if devices is None else environment | {"CUDA_VISIBLE_DEVICES": devices}


def _run_papermill(
    source: Path, output: Path, parameters: dict[str, Any], attempts: int = START_ATTEMPTS
) -> str | None:
    """Execute a notebook; return None, or what went wrong. Only a kernel that did not start is
    tried again, as an ordinary one."""
    prefer_forks()
    try:
        with tempfile.TemporaryDirectory(prefix=SOCKETS) as sockets:
            papermill.execute_notebook(
                str(source),
                str(output),
                parameters,
                kernel_name="python3",
                progress_bar=False,
                start_timeout=120,
                autosave_cell_every=5,
                cwd=str(ROOT),
                config=over_sockets(sockets),
            )
    except papermill.PapermillExecutionError as error:
        return f"{error.ename}: {error.evalue}"
    except Exception as error:
        started = (c.metadata.get("papermill", {}).get("start_time") for c in _code_cells(output))
        if attempts == 1 or any(started):
            return f"{type(error).__name__}: {error}"
        print(f"{source.stem}: kernel did not start ({error}); trying again", file=sys.stderr)
        os.environ.pop(WARM, None)
        return _run_papermill(source, output, parameters, attempts - 1)
    return None


def _code_cells(output: Path) -> list[Any]:
    if not output.is_file():
        return []
    return [cell for cell in nbformat.read(output, as_version=4).cells if cell.cell_type == "code"]


def _fault(output: Path) -> str | None:
    """Return why a notebook does not count as executed, or None."""
    for number, cell in enumerate(_code_cells(output), start=1):
        status = cell.metadata.get("papermill", {}).get("status")
        if status != "completed" or cell.execution_count is None:
            return f"code cell {number} is {status or 'not executed'}"
        if any(out.output_type == "error" for out in cell.outputs):
            return f"code cell {number} raised an error"
    return None


def _stamp(output: Path, reason: str | None, seconds: float, plan: str | None) -> None:
    """Write status, plan and commit into the notebook: as metadata, and a failure also as its first
    cell. Folders of this machine are taken out."""
    if not output.is_file():
        return
    notebook = nbformat.read(output, as_version=4)
    stamp: dict[str, Any] = {
        "status": "failed" if reason else "completed",
        "seconds": round(seconds, 2),
    }
    stamp |= {"preregistration": plan, **git_state()}
    notebook.metadata["study"] = stamp | ({"reason": reason} if reason else {})
    record = notebook.metadata.get("papermill", {})
    for key in ("input_path", "output_path"):
        if record.get(key):
            record[key] = relative(Path(record[key]))
    if reason:
        cell = nbformat.v4.new_markdown_cell(f"# FAILED\nThis run did not complete: `{reason}`")
        notebook.cells.insert(0, cell)
    slim(notebook)
    with atomic_write(output) as temporary:
        nbformat.write(notebook, temporary, **COMPACT)


@exit_status
def main(notebook: str, study: str, arm: str = "", seed: str = "0") -> None:
    """Execute a notebook: `python -m lib.workflow.execution 02_train final none 0`."""
    exit_with_parent()
    print(relative(execute(notebook, load_study(study), arm, int(seed))))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
