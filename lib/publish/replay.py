"""A study's notebooks executed again from its record, by the code that they were executed with.

The tree of the recorded commit is laid out in a temporary folder, with the runs as the record holds
them. Code that was never committed, or lies outside git, is that of this checkout.
"""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat

from lib.publish import raw_zip
from lib.publish.archive import read_runs, record_folder, verdict_file
from lib.study.attempts import KEPT
from lib.study.errors import UserError
from lib.study.git import git, is_checkout
from lib.study.paths import ROOT, corpus_places
from lib.study.record import status_of, write_json

_CODE = ("lib", "notebooks", "params")
_BESIDE = "papers/*/*.yaml"
"""Reported numbers, which an analysis may set beside its own."""


class ReplayError(UserError):
    """What could not be executed again."""


def committed(account: dict[str, Any]) -> str | None:
    """The commit whose code an account (of a result or a notebook) names as its own; None where it
    was not committed or git cannot tell."""
    return account.get("commit") if account.get("clean") and is_checkout() else None


@contextmanager
def tree_at(account: dict[str, Any]) -> Iterator[Path]:
    """Lay out the code and parameters of an account in a temporary folder: those of its commit, or,
    where they were not committed, of this checkout.

    It is a repository of its own, with the history up to the commit: what an analysis says of a
    plan's history, it says again.
    """
    commit, clean = str(account.get("commit") or ""), committed(account) is not None
    known = commit and is_checkout() and git("cat-file", "-e", f"{commit}^{{commit}}") is not None
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        tree = Path(folder, "tree")
        if clean or known:
            words = ("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(tree))
            execute(ROOT, "git", *words)
            execute(tree, "git", "update-ref", "--no-deref", "HEAD", commit)
        if clean:
            # All that `git_state` looks at: what is executed here says that it was committed.
            but = (":!tests", ":(exclude,glob)papers/*/*/**")
            execute(tree, "git", "checkout", "--quiet", commit, "--", ".", *but)
        else:
            for name in _CODE:
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, tree / name, ignore=ignored)
            for path in ROOT.glob(_BESIDE):
                (tree / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, tree / path.relative_to(ROOT))
        yield tree


def lend_corpora(tree: Path, sections: Iterable[dict[str, Any]]) -> None:
    """Link in a tree the texts that lie where this checkout finds them: the known ones, and what
    sections `corpus` name by a path in this folder, texts and tokenizers, that is not there yet."""
    for corpus in ("tinyshakespeare.txt", "input.txt"):
        for source in [path for path in corpus_places(corpus) if path.is_file()][:1]:
            _link(tree / "data" / corpus, source)
    named = (
        [*(section.get("sources") or [section["source"]]), section.get("tokenizer", "characters")]
        for section in sections
    )
    for own in itertools.chain(*named):
        if not Path(own).is_absolute() and (ROOT / own).exists():
            _link(tree / own, ROOT / own)


def _link(path: Path, to: Path) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(to)


def execute(folder: Path, *command: str) -> str:
    """Run a command in a folder; return what it prints. ReplayError when it fails, with its last
    word, or with the signal that ended it."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode < 0:
        raise ReplayError(f"{command[0]} was ended by {signal.Signals(-done.returncode).name}")
    if done.returncode:
        said = (done.stderr or done.stdout).strip().rpartition("\n")[2].partition("; see ")[0]
        raise ReplayError(said.removeprefix("error: ") or f"{command[0]} failed")
    return done.stdout


def restore(study: str, tree: Path) -> Path:
    """Lay out a study's texts, runs, suite and verdict in a tree as its sweep left them; return
    where."""
    folder = tree / "runs" / study
    raw_zip.restore(record_folder(study), folder)
    for run in read_runs(study):
        lend_corpora(tree, [run["config"]["corpus"]])
        write_json(folder / run["arm"] / f"seed-{run['seed']}" / "result.json", run)
    shutil.copyfile(verdict_file(study), folder / "verdict.json")
    for known in record_folder(study).glob(KEPT):
        shutil.copyfile(known, folder / KEPT)
    return folder


@contextmanager
def replayed(study: str, notebook: str) -> Iterator[Path]:
    """Execute a notebook of a whole study again; give the folder in which it left its results.

    Raises ReplayError when it cannot be executed.
    """
    account = status_of(record_folder(study) / f"{notebook}.ipynb")
    with tree_at(account) as tree:
        folder = restore(study, tree)
        command = ("-m", "lib.workflow.execution", notebook, "--study", study)
        execute(tree, sys.executable, *command)
        yield folder


def asked(study: str, account: dict[str, Any], script: str) -> Any:
    """What a script prints as JSON where the code is that of an account and the study's runs are
    restored; it reads the study's name from its first argument."""
    with tree_at(account) as tree:
        restore(study, tree)
        return json.loads(execute(tree, sys.executable, "-c", script, study))


def outputs(notebook: Path, *, pictures: bool = False) -> list[list[Any]]:
    """What each code cell of an executed notebook shows, without what differs from one execution to
    the next: in order, what it printed (warnings no record holds) as text, and what it displayed by
    kind; what pictures show only if asked for."""
    shown = []
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type != "code" or "injected-parameters" in cell.metadata.get("tags", []):
            continue
        of_cell: list[Any] = []
        for out in cell.outputs:
            if out.output_type != "stream":
                of_cell.append(
                    {
                        kind: _stable(content)
                        if pictures or not kind.startswith("image/")
                        else None
                        for kind, content in out.get("data", {}).items()
                    }
                )
            elif out.name == "stdout" and of_cell and isinstance(of_cell[-1], str):
                of_cell[-1] += out.text
            elif out.name == "stdout":
                of_cell.append(out.text)
        shown.append(of_cell)
    return shown


def _stable(content: Any) -> Any:
    """Take out the names that pandas draws for styled tables, and addresses of objects."""
    if not isinstance(content, str):
        return content
    return re.sub(r"T_[0-9a-f]{5}(?=_|[\"' ])|(?<= at )0x[0-9a-f]+(?=>)", "", content)
