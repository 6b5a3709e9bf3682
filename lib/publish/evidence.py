"""Whether a study's record says what its raw files, notebooks and code say.

Each check is a generator of faults, each a line that names a file or a run. They are in the order
in which one rests on another.
"""

import itertools
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lib.analysis.runs import summarise
from lib.publish import raw_zip, replay
from lib.publish.archive import (
    MANIFEST,
    SHARED,
    code_hash,
    figures_folder,
    files_of,
    read_manifest,
    record_folder,
    results_file,
    shown_result,
    verdict_file,
)
from lib.publish.executed import foreign_content
from lib.publish.recomputed import Run, close, named, place
from lib.study.attempts import KEPT
from lib.study.config import Study
from lib.study.errors import read_yaml
from lib.study.git import git, is_checkout
from lib.study.paths import NOTEBOOKS
from lib.study.record import attested, read_json, sha256, status_of


def changed_files(study: str) -> Iterator[str]:
    """Files that are not as the manifest says."""
    listed, present = read_manifest(study), files_of(study)
    if not listed:
        yield "its MANIFEST.sha256 is missing or empty"
    yield from (f"{name} is missing" for name in listed if name not in present)
    for name, path in present.items():
        if name not in listed:
            yield f"{name} is not in the manifest"
        elif sha256(path) != listed[name]:
            yield f"{name} has changed"


def rewritten_files(study: str) -> Iterator[str]:
    """Files whose text is not what the archive writes for their content."""
    for name, path in files_of(study).items():
        if path.suffix in (".ipynb", ".json") or path.name == "parameters.yaml":
            text = path.read_text("utf-8")
            if text != _rewritten(text, path.suffix):  # it holds a key twice, or a comment
                yield f"{name} is not written as the archive writes it"


def _rewritten(text: str, suffix: str) -> str:
    """What the archive would write for the content of a file."""
    if suffix == ".yaml":
        return str(yaml.safe_dump(yaml.safe_load(text), sort_keys=False, allow_unicode=True))
    return json.dumps(json.loads(text), separators=(",", ":")) + "\n"


def _notebooks(study: str) -> list[Path]:
    return sorted(record_folder(study).rglob("*.ipynb"))


def foreign_notebooks(study: str, code: dict[str, list[str]] | None) -> Iterator[str]:
    """Notebooks that did not complete, or did not execute the code that the index, or their commit,
    says, with the parameters of their place."""
    names = {path.relative_to(record_folder(study)).as_posix() for path in _notebooks(study)}
    yield from (f"{name}.ipynb is missing" for name in SHARED if f"{name}.ipynb" not in names)
    for path in _notebooks(study):
        name, status = path.relative_to(record_folder(study)).as_posix(), status_of(path)
        if status["status"] != "completed":
            yield f"{name} did not complete"
            continue
        if code is not None and code_hash(path) not in code.get(path.stem, []):
            yield f"{name} executed other code than the index says"
        content = read_json(path)
        if code is not None:
            yield from (f"{name} {fault}" for fault in foreign_content(path.read_text("utf-8")))
        given: dict[str, Any] = {"study": study}
        if path.stem == "02_train":
            given |= {"arm": path.parent.parent.name, "seed": int(path.parent.name[5:])}
        noted = content["metadata"]["papermill"]
        if noted["parameters"] != given or not _injected(content, given):
            yield f"{name} was executed with other parameters than those of its place"
        places = {"input_path": f"notebooks/{path.name}", "output_path": f"runs/{study}/{name}"}
        if any(noted.get(key, place) != place for key, place in places.items()):
            yield f"{name} names another place than its own"


def _injected(notebook: dict[str, Any], given: dict[str, Any]) -> bool:
    """Whether the one cell that Papermill writes, after that of the parameters, gives them and
    nothing else."""
    tags = [cell["metadata"].get("tags", []) for cell in notebook["cells"]]
    places = [number for number, of in enumerate(tags) if "injected-parameters" in of]
    if len(places) != 1 or not places[0] or "parameters" not in tags[places[0] - 1]:
        return False
    cell = notebook["cells"][places[0]]
    lines = ["# Parameters", *(f"{name} = {json.dumps(value)}" for name, value in given.items())]
    said = "".join(cell["source"]).strip().split("\n")
    silent = cell["cell_type"] == "code" and not cell["outputs"]
    return bool(silent and said == lines and re.fullmatch("[0-9a-f]{8}", cell["id"]))


def uncommitted_code(study: str, accounts: dict[Path, dict[str, Any]]) -> Iterator[str]:
    """Notebooks whose code and text are not those of the commit that they name (or, where the
    working tree was not as committed, of that commit or this checkout), or whose commit this
    repository's history does not hold. `accounts`: notebook → who executed it."""
    if not is_checkout():
        return
    source = cache(_source)
    held = cache(lambda commit: git("merge-base", "--is-ancestor", commit, "HEAD") is not None)
    for path, account in accounts.items():
        name, commit = path.relative_to(record_folder(study)).as_posix(), account.get("commit")
        if commit and not held(commit):
            yield f"{name} names commit {commit[:12]}, which this history does not hold"
            continue
        clean = replay.committed(account)
        sources = [source(at, path.name) for at in ([clean] if clean else [commit, None])]
        if _unexecuted(read_json(path)) not in sources:
            code = f"commit {clean[:12]}" if clean else "this checkout"
            yield f"{name} holds other code or text than that of {code}"


def _source(commit: str | None, notebook: str) -> list[Any]:
    """A notebook of `notebooks/` at a commit (None: in this checkout)."""
    committed = git("show", f"{commit}:notebooks/{notebook}") if commit else None
    return _unexecuted(json.loads(committed or (NOTEBOOKS / notebook).read_text("utf-8")))


def _unexecuted(notebook: dict[str, Any]) -> list[Any]:
    """All of a notebook but what its execution adds: the cell in which Papermill writes parameters,
    outputs, counts and times."""
    metadata, cells = notebook["metadata"], []
    for cell in notebook["cells"]:
        tags, source = cell["metadata"].get("tags") or [], "".join(cell["source"])
        if "injected-parameters" not in tags:
            added = {"execution_count": None, "outputs": None}
            cells.append(cell | added | {"metadata": tags, "source": source})
    head = [notebook["nbformat"], notebook["nbformat_minor"]]
    return [*head, metadata["kernelspec"], metadata["jupytext"], *cells]


def unfounded_results(study: str, runs: list[Run]) -> Iterator[str]:
    """Runs that their notebooks do not show, notebooks or raw files without a run, a summary not of
    the runs."""
    places = [place(study, run) / "02_train.ipynb" for run in runs]
    for run, path in zip(runs, places, strict=True):
        if shown_result(path) not in (attested(run), run):  # older notebooks show all of it
            yield f"{named(run)} in the results is not its notebook's"
    for path in sorted(set(record_folder(study).rglob("02_train.ipynb")) - set(places)):
        yield f"{path.relative_to(record_folder(study)).as_posix()} is of no run in the results"
    yield from wrong_summary(read_json(results_file(study)))
    yield from raw_zip.foreign_files(record_folder(study), runs)


def foreign_files(study: str, runs: list[Run]) -> Iterator[str]:
    """Files in a record that are none of a record's."""
    names = {f"{name}.ipynb" for name in SHARED} | {MANIFEST, raw_zip.FILE, "04_figures.json"}
    design = Study.model_validate(read_yaml(record_folder(study) / "parameters.yaml"))
    names |= {"parameters.yaml"} | ({"plan.yaml", KEPT} if design.plan else set())
    names |= {f"{run['arm']}/seed-{run['seed']}/02_train.ipynb" for run in runs}
    folder = record_folder(study)
    for path in sorted(p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()):
        if path.is_symlink() or path.relative_to(folder).as_posix() not in names:
            yield f"{path.relative_to(folder).as_posix()} is no file of a record"


def wrong_summary(results: dict[str, Any]) -> Iterator[str]:
    """Whether the summary in some results is that of their runs."""
    summary = results["summary"]
    if summarise(results["runs"], list(next(iter(summary.values()), {}))) != summary:
        yield "the summary in the results does not follow from the runs"


def other_analysis(study: str) -> Iterator[str]:
    """What 03_analysis says otherwise when it is executed again from the record."""
    with replay.replayed(study, "03_analysis") as folder:
        for name, file in (("03_analysis", results_file(study)), ("verdict", verdict_file(study))):
            again = read_json(folder / f"{name}.json")
            stated = read_json(file)
            for key in sorted({*again, *stated}):
                both = key in again and key in stated
                if not both or not _same(again[key], stated[key]):
                    yield f"{key} in {file.name} is not what the analysis says of the record"
        yield from _other_outputs(study, "03_analysis", folder)


def _same(one: Any, other: Any) -> bool:
    """Compare JSON, numbers up to the last digits, which differ between machines."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float | int):
        return close(one, other)
    return bool(one == other)


def _other_outputs(study: str, notebook: str, folder: Path, **kinds: bool) -> Iterator[str]:
    record = replay.outputs(record_folder(study) / f"{notebook}.ipynb", **kinds)
    again = replay.outputs(folder / f"{notebook}.ipynb", **kinds)
    for number, (stated, found) in enumerate(zip(record, again, strict=True), 1):
        if stated != found:
            yield f"code cell {number} of {notebook}.ipynb shows what executing it does not"


_DRAWN = """
import json, sys
from lib.figures.study import drawn
print(json.dumps(drawn(sys.argv[1])))
"""


def other_figures(study: str) -> Iterator[str]:
    """Figures whose data, or words, are not those of the record."""
    notebook = record_folder(study) / "04_figures.ipynb"
    again = replay.asked(study, status_of(notebook), _DRAWN)
    stated = read_json(record_folder(study) / "04_figures.json")
    for name in sorted({*again, *stated}):
        if again.get(name, {}).get("data") != stated.get(name):
            yield f"figure {name} was drawn from other data than the record holds"
    folder = figures_folder(study)
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    for file in sorted(there ^ {f"{name}.{kind}" for name in stated for kind in ("pdf", "png")}):
        yield f"figure {file} is {'not drawn by 04_figures' if file in there else 'missing'}"
    shown = [out for outs in replay.outputs(notebook) for out in outs if not isinstance(out, str)]
    drawn = [({"text/markdown": each["words"]}, {"image/png": None}) for each in again.values()]
    if shown != list(itertools.chain(*drawn)):
        yield "04_figures.ipynb says of its figures what the record does not"


def redrawn(study: str) -> Iterator[str]:
    """What 01_data and 04_figures show otherwise, pictures too, when they are executed again."""
    for notebook in ("01_data", "04_figures"):
        with replay.replayed(study, notebook) as folder:
            yield from _other_outputs(study, notebook, folder, pictures=True)
            for path in sorted((folder / "figures").glob("*")):
                if sha256(path) != read_manifest(study).get(f"../../figures/{study}/{path.name}"):
                    yield f"figure {path.name} is not what 04_figures draws"
