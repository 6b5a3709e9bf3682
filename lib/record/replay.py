"""A study's notebooks executed again from its record, by the code that they were executed with.

The tree of the recorded commit is laid out in a temporary folder, with the runs as the record holds
them. Code that was never committed, or lies outside git, is that of this checkout.
"""

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.record import asked, protocol_1, warm
from lib.record.archive import unpack_raw
from lib.record.record import Record
from lib.results import status_of
from lib.study.code import CODE_REF, git, is_checkout
from lib.study.digests import analysing_digest
from lib.study.io import ROOT, corpus_places, write_json
from lib.study.preregistration import ATTEMPTS
from lib.study.study import write_commits
from lib.study.yaml import HEADLESS, UserError

_CODE = ("lib", "notebooks", "params")
_BESIDE = "papers/*/*.yaml"
"""Reported numbers, which an analysis may set beside its own."""
_REPLAY = "runpy.run_module('lib.replay', run_name='__main__')"


class ReplayError(UserError):
    """What could not be executed again."""


def committed(environment: dict[str, Any]) -> str | None:
    """Return the commit that a result or a notebook names as what it was made from; None where
    there were uncommitted changes, or outside git. Of an arm that is a commit, it is that of the
    parameters."""
    return environment.get("commit") if environment.get("clean") and is_checkout() else None


def made_by(environment: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the commit as `committed` does, and of an arm that is a commit, that of its code."""
    return committed(environment), environment.get("code")


@contextmanager
def tree_at(environment: dict[str, Any], prefix: str = "record-") -> Iterator[Path]:
    """Lay out the code and parameters of an environment in a temporary folder: those of its commit,
    or, where they were not committed, of this checkout; and code by its commit of code, where it
    names one.

    It is a repository of its own, with the history up to the commit: what an analysis says of a
    plan's history, it says again.
    """
    commit, clean = str(environment.get("commit") or ""), committed(environment) is not None
    code = environment.get("code")
    in_git = bool(commit) and is_checkout()
    is_known = in_git and git("cat-file", "-e", f"{commit}^{{commit}}") is not None
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        tree = Path(folder, "tree")
        if clean or is_known:
            arguments = ("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(tree))
            execute(ROOT, "git", *arguments)
            execute(tree, "git", "update-ref", "--no-deref", "HEAD", commit)
        # All that `git_state` looks at: what is executed here says that it was committed. Nothing
        # compiled, which Python would take for the source beside it.
        but = (":!tests", ":(exclude,glob)papers/*/*/**", ":(exclude,glob)**/__pycache__/**")
        if code:
            execute(tree, "git", "checkout", "--quiet", code, "--", ".", ":!params", *but)
            execute(tree, "git", "checkout", "--quiet", commit, "--", "params")
            execute(tree, "git", "update-ref", CODE_REF, code)
        elif clean:
            execute(tree, "git", "checkout", "--quiet", commit, "--", ".", *but)
        if not clean:
            shutil.rmtree(tree / "params", ignore_errors=True)
            for name in ["params"] if code else _CODE:
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, tree / name, ignore=ignored)
            for path in [] if code else ROOT.glob(_BESIDE):
                (tree / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, tree / path.relative_to(ROOT))
        yield tree


def link_inputs(tree: Path, configs: Iterable[dict[str, Any]]) -> None:
    """Link in a tree the texts that lie where this checkout finds them: the known ones, and what
    configs name by a path in this folder, texts, tokenizers and tasks, that is not there yet."""
    for corpus in ("tinyshakespeare.txt", "input.txt"):
        for source in [path for path in corpus_places(corpus) if path.is_file()][:1]:
            link(tree / "data" / corpus, source)
    for config in configs:
        corpus, tasks = config["corpus"], config.get("evaluation", {}).get("include_path")
        inputs = [*(corpus.get("sources") or [corpus["source"]]), corpus.get("tokenizer"), tasks]
        for name in filter(None, inputs):
            if not Path(name).is_absolute() and (ROOT / name).exists():
                link(tree / name, ROOT / name)


def link(path: Path, to: Path) -> None:
    """Link what lies elsewhere into a tree, unless something is there."""
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
        raise ReplayError(_last_word(done.stderr or done.stdout) or f"{command[0]} failed")
    return done.stdout


def _last_word(text: str) -> str:
    return text.strip().rpartition("\n")[2].partition("; see ")[0].removeprefix("error: ")


def restore(record: Record, tree: Path) -> None:
    """Lay out a study's texts, runs, suite and verdict in a tree as its sweep left them."""
    folder = tree / "runs" / record.study
    unpack_raw(record, folder)
    write_commits(record.parameters.commits, folder)
    for run in record.runs:
        link_inputs(tree, [run["config"]])
        result = folder / run["arm"] / f"seed-{run['seed']}" / "result.json"
        if not result.is_file():  # older records hold it among the results
            write_json(result, run)
    write_json(folder / "verdict.json", record.verdict)
    if (record.folder / ATTEMPTS).is_file():
        shutil.copyfile(record.folder / ATTEMPTS, folder / ATTEMPTS)


def environment_of(record: Record, notebook: str) -> dict[str, Any]:
    """Return what executed a notebook of a whole study."""
    environment = status_of(record.notebook(notebook))
    if record.verdict.get("analysing_digest", analysing_digest()) != analysing_digest():
        # The code at hand did not make it. Its commit's may have, whatever else was not committed.
        environment["clean"] = True
    return environment


@contextmanager
def executed_again(record: Record, notebook: str) -> Iterator[dict[str, Path]]:
    """Execute a notebook of a whole study again; give what it left by name: notebook, result and,
    where there are, verdict and figures. ReplayError when it cannot be executed."""
    with tree_at(environment_of(record, notebook)) as tree:
        restore(record, tree)
        written = ask(tree, "execute", record.study, notebook)
        yield {what: tree / path for what, path in written.items()}


def ask_code_of(environment: dict[str, Any], question: str, record: Record) -> Any:
    """Ask the code of an environment, with the study's runs restored, what `lib.replay` prints, or
    with "analysis" for what 03_analysis shows and writes. What `ask_ahead` asked is known."""
    if question not in record.answers.get(_by(environment), {}):
        _ask_at_once(record, environment, [question])
    answer, fault = record.answers[_by(environment)][question]
    if fault:
        raise ReplayError(_last_word(fault))
    return answer


def ask_ahead(record: Record) -> None:
    """Ask the code of each environment, in one process, all that verifying a record asks of it."""
    environments: dict[Any, dict[str, Any]] = {}
    questions: dict[Any, list[str]] = {}

    def ask_of(environment: dict[str, Any], question: str) -> None:
        environments.setdefault(by := _by(environment), environment)
        state = ["state"] if committed(environment) else []
        questions[by] = list(dict.fromkeys([*state, *questions.get(by, []), question]))

    asked_suite = [run for run in record.runs if run["suite_hash"]]
    for part, question, runs in (
        ("trained", "begin", record.runs),
        ("executed", "suite", asked_suite),
    ):
        parts = [run["provenance"][part] for run in reversed(runs)]
        for environment in {made_by(each): each for each in parts}.values():
            ask_of(environment, question)
    ask_of(status_of(record.notebook("04_figures")), "figures")
    ask_of(environment_of(record, "03_analysis"), "analysis")  # it rewrites what figures show
    for by, environment in environments.items():
        _ask_at_once(record, environment, questions[by])


def _by(environment: dict[str, Any]) -> tuple[Any, ...]:
    """Tell by which code and history an environment is laid out."""
    return environment.get("commit"), *made_by(environment)


def _ask_at_once(record: Record, environment: dict[str, Any], questions: list[str]) -> None:
    with tree_at(environment) as tree:
        restore(record, tree)
        programs = {name: _program(tree, name, record.study) for name in questions}
        python = ("-c", inspect.getsource(asked), record.study, json.dumps(programs))
        answers = _printed(tree, python, {HEADLESS: "1"})
    record.answers.setdefault(_by(environment), {}).update(answers)


def _program(tree: Path, command: str, study: str) -> str:
    """Return what prints an answer of the code in a tree; that of older commits, by protocol 1."""
    if command == "analysis":
        return ""
    if (tree / "lib" / "replay.py").is_file():
        return f"import runpy, sys; sys.argv[1:] = {[command, study]}; {_REPLAY}"
    return protocol_1.PROGRAMS[command]


def ask(tree: Path, command: str, *arguments: str, **environment: str) -> Any:
    """Ask the code in a tree what `lib.replay` prints; that of older commits, by protocol 1."""
    if (tree / "lib" / "replay.py").is_file():
        return _printed(tree, ("-m", "lib.replay", command, *arguments), environment)
    return _printed(tree, ("-c", protocol_1.PROGRAMS[command], *arguments), environment)


def _printed(tree: Path, words: tuple[str, ...], environment: dict[str, str]) -> Any:
    variables = [f"{name}={value}" for name, value in environment.items()]
    python = [sys.executable, *words]
    output = warm.printed(tree, python, environment) or execute(tree, "env", *variables, *python)
    return json.loads(output.rstrip().rpartition("\n")[2])
