"""Notes of what was verified and is sound, so that a second `verify` need not do it again.

A note is a file in `runs/.verified/`, named by a hash over all that its checks can have read: one
byte of the record, of what it rests on, or of the code that verifies, and there is no such note.
In doubt something is part of the hash. A note says nothing that its reader's own disk does not say:
whoever can write there can write a note, and `verify --fresh` ignores them.
"""

import hashlib
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from lib.record.record import Record, paper_of, papers, read_index, root_hash
from lib.study import io as paths
from lib.study.code import git, is_checkout, is_shallow
from lib.study.io import NOTEBOOKS, ROOT, corpus_places, walk, write_text
from lib.study.preregistration import ATTEMPTS, RUN_FILES, TELLING
from lib.study.schema import digest
from lib.study.study import Study

Part = Any
"""What JSON holds."""
_VARIABLES = ("ATEN_", "BLAS", "CUDA", "HF_", "MKL_", "MPL", "OMP_", "OPENBLAS_", "PYTHON", "TORCH")
_DERIVED = {"__pycache__", ".ipynb_checkpoints", "site"}


def study_key(study: str, around: dict[str, Part] | None = None) -> str | None:
    """Hash all that verifying a study rests on; None where it cannot be read."""
    return _key(around, lambda: of_study(Record(study)))


def paper_key(paper: Path, around: dict[str, Part] | None = None) -> str | None:
    """Hash all that verifying the texts and findings of a paper rests on, as `study_key` does."""
    return _key(around, lambda: of_paper(paper))


def _key(around: dict[str, Part] | None, of: Callable[[], dict[str, Part]]) -> str | None:
    try:
        return digest((around or surroundings()) | of())
    except Exception:  # a file can be broken in any way, and a check says in which
        return None


def is_noted(key: str | None) -> bool:
    """Tell whether a note of this hash says that nothing was wrong."""
    return key is not None and _note(key).is_file()


def note(key: str | None) -> None:
    """Note that a whole check of what has this hash found nothing wrong."""
    if key:
        write_text(_note(key), "sound\n")


def forget(key: str | None) -> None:
    """Take back what was noted of what has this hash."""
    if key:
        _note(key).unlink(missing_ok=True)


def _note(key: str) -> Path:
    return paths.RUNS / ".verified" / key


def surroundings() -> dict[str, Part]:
    """Say what any verification rests on beside the record: the code at hand, parameters, plans,
    packages, machine, what git names, and what records and `runs/` tell of other runs."""
    code = [ROOT / "lib", NOTEBOOKS, paths.PARAMS, *paths.PAPERS.glob("*/*.yaml")]
    files = [*paths.PAPERS.glob("*/results/*.json"), *paths.PAPERS.glob("*/record/*.zip")]
    files += [path for n in (TELLING, ATTEMPTS) for path in paths.PAPERS.glob(f"*/record/**/{n}")]
    git_folder = Path((git("rev-parse", "--absolute-git-dir") or "").strip() or ROOT / ".git")
    return {
        "code": _bytes(code),
        "packages": sorted(f"{each.name}=={each.version}" for each in distributions()),
        "python": [sys.version, sys.prefix, importlib.util.find_spec("torch") is not None],
        "cpu": processor(),
        "variables": {n: v for n, v in sorted(os.environ.items()) if n.startswith(_VARIABLES)},
        "git": [is_checkout(), is_shallow(), git("rev-parse", "HEAD"), git("for-each-ref")],
        "grafts": _bytes(git_folder / name for name in ("shallow", "info/grafts")),
        "runs": sorted(_in_runs()),
        "told": _bytes(files),
    }


def processor() -> list[str]:
    """Name the CPU and its flags."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
    facts = (line for line in lines if line.startswith(("model name", "flags", "Features")))
    return [platform.machine(), platform.processor(), *sorted(set(facts))]


def of_study(record: Record) -> dict[str, Part]:
    """Say what a study's verification reads: the bytes of its record, figures and results, its
    entry in the index, and the texts and tokenizers of its arms."""
    record_files = [record.place, record.sealed_file, record.figures]
    parameters = record.parameters if (record.folder / "parameters.yaml").is_file() else None
    return {
        "study": record.study,
        "record": _bytes([*record_files, record.results_file, record.verdict_file]),
        "index": [paper_of(record.study).name, read_index(record.paper).get(record.study)],
        "texts": _bytes(_texts(parameters)) if parameters else None,
    }


def of_paper(paper: Path) -> dict[str, Part]:
    """Say what verifying the texts and findings of a paper reads: the folder of every paper, and
    pages."""
    pages = [ROOT / "README.md", *ROOT.glob("*/README.md")]
    roots = [root_hash(each) for each in papers()]
    return {"paper": paper.name, "papers": _bytes(papers()), "roots": roots, "pages": _bytes(pages)}


def _texts(study: Study) -> Iterator[Path]:
    """List the texts and tokenizers that trees are lent for a study, there or not."""
    for file in ("tinyshakespeare.txt", "input.txt"):
        yield from corpus_places(file)
    for arm in study.arms():
        corpus = arm.config.corpus.model_dump()
        for name in [*(corpus.get("sources") or [corpus["source"]]), corpus.get("tokenizer")]:
            yield ROOT / str(name)


def _bytes(roots: Iterable[Path]) -> dict[str, str]:
    """Hash each file in some folders, or given itself, by its path: its bytes, and where a link
    leads."""
    hashes = {}
    for root in roots:
        for path in [root, *(root.rglob("*") if root.is_dir() else ())]:
            if _DERIVED.isdisjoint(path.parts):
                link = os.readlink(path) if path.is_symlink() else ""  # noqa: PTH115
                hashes[str(path)] = f"{link} {_content(path)}"
    return hashes


def _content(path: Path) -> str:
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return "folder" if path.is_dir() else "nothing"


def _in_runs() -> Iterator[list[Part]]:
    """List what `runs/` tells of runs, by path, size and time."""
    for path in walk(paths.RUNS):
        if (path.name in RUN_FILES or path.suffix == ".ipynb") and path.is_file():
            facts = path.stat()
            yield [str(path), facts.st_size, facts.st_mtime_ns]
