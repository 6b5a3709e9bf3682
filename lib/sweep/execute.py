"""Execute one notebook with papermill, and record how it ended.

A notebook has completed only if papermill ended without an error and the notebook wrote its result.
The status of its cells is not enough: after a killed kernel or a timeout, papermill marks all of
them `completed`.
"""

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from filelock import Timeout

from lib.config.claim import load_plan
from lib.config.environment import end_with_parent, kernel_environment
from lib.config.errors import UserError, exit_status
from lib.config.files import (
    file_lock,
    leave_out_indentation,
    read_json,
    sha256,
    slim,
    write_json,
    write_text,
)
from lib.config.paths import (
    COPIES,
    NOTEBOOKS,
    ROOT,
    RUNS,
    executed_notebook,
    listed,
    output_root,
    relative,
    result_file,
    study_folder,
)
from lib.config.provenance import git, git_state
from lib.config.schema import CorpusConfig, digest
from lib.config.study import SCRATCH, Study, load_study, scratch
from lib.config.yaml import Json
from lib.sweep.code import execute_in, require_as_asked, tree_of

if TYPE_CHECKING:
    from lib.data.text import Corpus

GPUS = "STUDY_GPUS"
"""Environment variable with the GPU of each run that trains at once, separated by semicolons. It is
not an argument, because older commits know only the arguments they have."""
MAX_TURNS = 16
"""Most turns of a study. All further seeds share the last one, because each rule costs time."""
_READS = {
    "01_data": ("config", "data"),
    "03_analysis": ("config", "stats", "figures"),
    "04_figures": ("config", "stats", "figures"),
}
"""Rooms of `lib` that decide the output of each notebook of a whole study."""


class ExecutionError(UserError):
    """A notebook did not complete; the message says why, and where the notebook is."""


def execute(
    notebook: str, study: Study, arm: str = "", seed: int = 0, changes: Json | None = None
) -> Path:
    """Execute `notebooks/<notebook>.ipynb` for a study, or for one run; return the result's path.
    With `changes` (dotted field → value) it is a scratch run.

    Raises ConfigError for an arm or a seed that does not exist, and ExecutionError if the notebook
    fails. A failed notebook is kept, with the reason in its first cell.
    """
    parameters: dict[str, Any] = {"study": study.name}
    result = result_file(notebook, study.name, arm, seed)
    if ROOT.parent == COPIES:  # this process runs from a sweep's copy of the code
        require_as_asked(study)
    if arm:
        parameters |= {"arm": study.arm(arm).id, "seed": study.require_seed(seed)}
        commit = study.commit_of(study.arm(arm))
        if commit and ROOT.name != commit:  # each commit executes its own notebook
            execute_in(tree_of(commit), str(output_root()), notebook, study.name, arm, str(seed))
            return result
        parameters["changes"] = changes or {}  # overrides what somebody left in the notebook
        study, this = scratch(study, study.arm(arm), parameters["changes"])
        arm, result = this.id, result_file(notebook, study.name, this.id, seed)
    output = executed_notebook(notebook, study.name, arm, seed)
    output.parent.mkdir(parents=True, exist_ok=True)
    # Delete the earlier result and everything made from it, so that none of it passes as current.
    made = [result, RUNS / "site.txt"]
    if study.name != SCRATCH:
        later = [name for name in ("03_analysis", "04_figures") if name > notebook]
        made += [archived_file(study.name), RUNS / f"paper-{study.paper}.txt"]
        made += [result_file(name, study.name) for name in later]
    for path in made:
        path.unlink(missing_ok=True)
    plan = load_plan(study)
    start = time.perf_counter()
    stamp: dict[str, Any] = {"preregistration": plan.hash if plan else None, **git_state()}
    # A run's own result has the hashes of its code and text; these notebooks have only the stamp.
    stamp |= {} if arm else {"made_from": made_from(notebook, study)}
    with own_gpu() if arm else nullcontext() as gpu:
        visible = {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
        with kernel_environment(study.machine.threads, **visible) as folder:
            reason = _run_papermill(notebook, output, parameters, folder)
    if not arm:
        from lib.record.archive import files_of  # imports pandas, which runs do not need

        stamp["files"] = files_of(notebook, study.name)
    if not reason and not result.is_file():
        reason = f"the notebook wrote no {relative(result)}"
    if arm and not reason:
        stamp["result"] = sha256(result)  # so that a result edited later is noticed
    _stamp(output, reason, stamp | {"seconds": round(time.perf_counter() - start, 2)})
    if reason:
        result.unlink(missing_ok=True)
        raise ExecutionError(f"{reason}; see {relative(output)}")
    return result


@contextmanager
def apart(studies: Iterable[Study]) -> Iterator[str]:
    """Yield a temporary output folder with the parameters of some studies, without their plans."""
    with tempfile.TemporaryDirectory(prefix="apart-") as folder:
        Path(folder, "data").symlink_to(output_root() / "data")
        for study in (study.model_copy(update={"plan": None}) for study in studies):
            content = study.model_dump_json(exclude={"commits"})
            write_text(Path(folder, "params", f"{study.name}.yaml"), content)
        try:
            yield folder
        finally:
            for tree in Path(folder).glob(
                "runs/.code/*/.git"
            ):  # worktrees of commits that are arms
                git("worktree", "remove", "--force", str(tree.parent))


def train_apart(study: Study, arm: str, seed: int) -> Any:
    """Execute 02_train for one run in a temporary folder, without a plan; return its result. Raises
    UserError with the last error that it printed."""
    with apart([study]) as folder:
        execute_in(ROOT, folder, "02_train", study.name, arm, str(seed))
        return read_json(Path(folder, "runs", study.name, arm, f"seed-{seed}", "result.json"))


@cache
def corpus_of(config: CorpusConfig) -> "Corpus":
    """Load a corpus, once per process. Raises CorpusError."""
    from lib.data.text import load_corpus  # slow, and the parent process of a run does not need it

    return load_corpus(config)


def made_from(notebook: str, study: Study) -> dict[str, str]:
    """Return a digest of each source of a notebook of a whole study, by its name in messages."""
    from lib.record.archive import results_read

    plan = load_plan(study)
    texts = {arm.config.corpus for arm in study.arms()}
    files = [NOTEBOOKS / f"{notebook}.ipynb", ROOT / "lib" / "results.py"]
    files += [path for room in _READS[notebook] for path in listed(ROOT, f"lib/{room}/*.py")]
    content: dict[str, Any] = {
        "code": {path.name: sha256(path) for path in files},
        "study": study.model_dump(mode="json"),
        "plan": plan and plan.model_dump(mode="json"),
    }
    if results := results_read(notebook, study):
        content["results"] = results
    if notebook == "01_data":
        content["corpus"] = sorted(corpus_of(text).sha256 for text in texts)
    return {name: digest(value) for name, value in content.items()}


def turns(studies: Iterable[Study]) -> dict[str, tuple[Study, list[str], list[int]]]:
    """Group runs by the order in which they start: study by study, seed by seed, baselines first.
    So a sweep that stops halfway has pairs. Each group is a Snakemake rule; return its study, arms
    and seeds by the rule's name."""
    parts = []
    for study in studies:
        arms = {arm.id: arm.baseline for arm in study.arms()}
        baselines = [arm for arm in arms if arm in arms.values()]
        seeds = [[seed] for seed in study.seeds[: MAX_TURNS - 1]]
        for of in filter(None, [*seeds, study.seeds[MAX_TURNS - 1 :]]):
            for names in filter(None, (baselines, [arm for arm in arms if arm not in baselines])):
                parts.append((study, names, of))
    return {f"train_{i}": part for i, part in enumerate(parts)}


def archived_file(study: str) -> Path:
    """Return the file with the output of archiving a study. If it exists, the study is archived."""
    return study_folder(study) / "archived.txt"


@contextmanager
def own_gpu() -> Iterator[str | None]:
    """Take one of the sweep's places on a GPU while the block runs; yield the GPU's name, or None
    if the sweep has no GPU. A place takes one run at a time."""
    names = list(filter(None, os.environ.get(GPUS, "").split(";")))
    for place, name in itertools.cycle(enumerate(names)):
        try:
            lock = file_lock(RUNS / f".gpu-{place}.lock").acquire(timeout=0.1)
        except Timeout:
            continue  # try the next place, in turn, until one is free
        with lock:
            yield name
        return
    yield None


def _run_papermill(notebook: str, output: Path, parameters: Any, folder: str) -> str | None:
    """Execute a notebook, with its sockets in `folder`; return None, or the error in one line."""
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    # Not over TCP: kernels that start at the same time sometimes get the same port.
    sockets = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/k"}})
    try:
        papermill.execute_notebook(
            str(NOTEBOOKS / f"{notebook}.ipynb"),
            str(output),
            parameters,
            progress_bar=False,
            start_timeout=120,
            shutdown_kernel="immediate",
            autosave_cell_every=5,
            cwd=str(ROOT),
            config=sockets,
        )
    except DeadKernelError:
        few = "most likely out of memory; run fewer at once (--jobs)"
        return f"DeadKernelError: the kernel was killed, {few}"
    except papermill.PapermillExecutionError as error:
        return " ".join(f"{error.ename}: {error.evalue}".split())
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def _stamp(output: Path, reason: str | None, stamp: dict[str, Any]) -> None:
    """Write status, plan and commit into the notebook's metadata, and a failure also into a first
    cell. Remove this machine's folders from it, so that a traceback shows `lib/…`."""
    if not output.is_file():
        return
    text = output.read_text("utf-8")
    for code in (f"{ROOT}/", f"{ROOT}/".replace(str(Path.home()), "~")):
        text = text.replace(code, "")
    notebook = json.loads(text)
    leave_out_indentation(notebook)
    stamp = {"status": "failed" if reason else "completed"} | stamp
    if "files" in stamp:
        from lib.record.archive import cells_digest

        stamp["cells"] = cells_digest(slim(notebook))
    notebook["metadata"]["study"] = stamp | ({"reason": reason} if reason else {})
    record = notebook["metadata"].get("papermill", {})
    for key in {"input_path", "output_path"} & record.keys():
        record[key] = relative(Path(record[key]))
    if reason:
        cell = nbformat.v4.new_markdown_cell(
            f"# FAILED\nThis notebook did not complete: `{reason}`"
        )
        notebook["cells"].insert(0, cell)
    write_json(output, slim(notebook))


@exit_status
def main(notebook: str, study: str, arm: str = "", seed: str = "0", changes: str = "{}") -> None:
    """Execute a notebook: `python -m lib.sweep.execute 02_train final none 0`. A scratch run takes
    its changes as one more argument, in JSON."""
    end_with_parent()
    print(relative(execute(notebook, load_study(study), arm, int(seed), json.loads(changes))))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
