"""The code that a sweep executes: a copy, so that edits meanwhile change nothing; and commits as
arms.

A sweep copies `lib` and `notebooks` to `runs/.code/` when it starts, and executes notebooks from
there. What is not code (parameters, plans, texts, task files, git) stays in the checkout.

A level of the factor `code` is a branch, a tag or a hash. Levels are resolved to commits when a
sweep starts, and written to `runs/<study>/commits.json`. Each commit is checked out below
`runs/.code/`, and executes its own notebooks there, with the parameters of this checkout.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from lib.config.environment import environment
from lib.config.errors import ConfigError, UserError
from lib.config.files import atomic_write, locked, read_json, sha256, write_json
from lib.config.paths import (
    CHECKOUT,
    COPIES,
    OUTPUT,
    PARAMS,
    PLANS,
    ROOT,
    RUNS,
    SWEEP,
    find,
    output_root,
    relative,
    study_folder,
)
from lib.config.provenance import (
    ask_git,
    git,
    hash_code,
    imported_code,
    is_as_committed,
    is_checkout,
    tasks_hash,
)
from lib.config.schema import CODE, digest
from lib.config.study import COMMITS, Study


class EditedError(UserError):
    """Code that was edited since this process imported it."""


def copy_code(studies: Iterable[Study]) -> Path:
    """Copy the code that this process imported to `runs/.code/`; return the copy. Its processes
    find in `runs/sweep.json` the checkout, what git says of it, and hashes of each study's files.
    Other copies are deleted, so call it only while no other sweep runs.

    Raises EditedError if the code was edited since this process began.
    """
    copy = COPIES / digest(imported_code())[:16]
    for other in COPIES.glob("*/"):
        is_commit = re.match("[0-9a-f]{40}", other.name)
        if not is_commit and (other != copy or hash_code(copy) != imported_code()):
            shutil.rmtree(other)
    if not copy.is_dir():
        with atomic_write(copy) as temporary:
            for name in imported_code():
                target = temporary / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, target)  # the bytes alone: Kaggle's are read-only
                target.chmod(0o444)  # so that nobody mends the copy in place of the code
    asked = {study.name: files_of(study) for study in studies}
    write_json(SWEEP, {"checkout": str(CHECKOUT), "git": ask_git(), "files": asked})
    # After git was asked: what it said of the checkout is then true of the copy.
    if not imported_code() == hash_code(copy) == hash_code(ROOT):
        fault = "lib or notebooks were edited since this command began"
        raise EditedError(f"{fault}; when they are as you want them, give it once more")
    return copy


def files_of(study: Study) -> dict[str, str]:
    """Hash the files that define a study: parameters, plan, tokenizers and tasks. Texts are not
    among them, as they may be large; the analysis compares their hashes."""
    files = [PARAMS / f"{study.name}.yaml"]
    if study.plan:
        files.append(PLANS / study.plan)
    tokenizers = {arm.config.corpus.tokenizer for arm in study.arms()}
    named = [find(name) for name in sorted(tokenizers) if name.endswith(".json")]
    files += [file for file in named if file and file.is_file()]
    tasks = study.evaluation.include_path
    hashes = {relative(file): sha256(file) for file in files}
    return hashes | ({tasks: str(tasks_hash(tasks))} if tasks else {})


def require_as_asked(study: Study) -> None:
    """Raise ConfigError if a study's parameters, plan, tokenizers or tasks were edited since the
    sweep began."""
    now, asked = files_of(study), read_json(SWEEP)["files"].get(study.name, {})
    for name in asked | now:
        if now.get(name) != asked.get(name):
            fault = f"{name}: was edited while the sweep ran"
            raise ConfigError(f"{fault}; restore it, or let the sweep end and start it again")


def resolve(study: Study) -> dict[str, str]:
    """Resolve the levels of the factor `code` to commits; return none if code is no factor.

    Raises ConfigError if git has no such commit, or several, or if two levels are the same.
    """
    field = f"{study.name}.yaml: factors.code"
    levels = dict.fromkeys(str(arm.levels[CODE]) for arm in study.arms() if CODE in arm.levels)
    if levels and not is_checkout():
        raise ConfigError(f"{field}: names commits, and this folder is no clone; clone it")
    named: dict[str, str] = {}
    for level in levels:
        try:
            commit = _hash_of(level)
        except ConfigError as error:
            raise ConfigError(f"{field}: {error}") from None
        if not commit:
            raise ConfigError(
                f"{field}: '{level}' is no commit, branch or tag here; `git fetch` it, or commit "
                "your change"
            )
        if (other := named.setdefault(commit, level)) != level:
            raise ConfigError(
                f"{field}: '{other}' and '{level}' are one commit, {commit[:12]}; commit the "
                "change that is to be tested on one of them"
            )
    return {level: commit for commit, level in named.items()}


def _hash_of(level: str) -> str:
    """Return the commit that a name stands for, as a branch, a tag, or a hash; "" if there is none.
    In a clone, a branch may be known only where it came from. Raises ConfigError if it stands for
    two."""
    kinds = {
        "branch": _commit(f"refs/heads/{level}") or _commit(f"refs/remotes/origin/{level}"),
        "tag": _commit(f"refs/tags/{level}"),
        "remote branch": _commit(f"refs/remotes/{level}"),
    }
    found = {kind: commit for kind, commit in kinds.items() if commit}
    if len({*found.values()}) > 1:
        both = ", ".join(f"{kind} {commit[:12]}" for kind, commit in found.items())
        raise ConfigError(
            f"'{level}' is two commits ({both}); write refs/heads/{level}, refs/tags/{level}, or "
            "the hash"
        )
    return next(iter(found.values()), "") or _commit(level)


def _commit(name: str) -> str:
    """Return the commit that git knows by a name; "" if there is none."""
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    return (git(*words) or "").strip()


def with_commits(study: Study) -> Study:
    """Resolve the levels of `code` and print their commits; return the study with them."""
    commits = resolve(study)
    for level, commit in commits.items():
        print(f"{study.name}: {level} is commit {commit[:12]}")
    return study.model_copy(update={"commits": commits})


def write_commits(study: Study) -> None:
    """Write the commits of a study's levels, for its runs to find."""
    if study.commits:
        write_json(study_folder(study.name) / COMMITS, study.commits)


def tree_of(commit: str) -> Path:
    """Check out a commit below `runs/.code/`, if it is not there; return its folder. Raises
    UserError if that folder was changed."""
    tree = RUNS / ".code" / commit
    tree.parent.mkdir(parents=True, exist_ok=True)
    with locked(tree.with_suffix(".lock")):
        if not (tree / "lib").is_dir():
            # Forced, as git still lists one whose folder was deleted.
            git("worktree", "add", "--force", "--detach", str(tree), commit)
        texts = tree / "data"
        if not (texts.exists() or texts.is_symlink()):  # older code looks for texts there
            texts.symlink_to(output_root() / "data")
        head = (git("-C", str(tree), "rev-parse", "HEAD") or "").strip()
        if head != commit or not is_as_committed("lib", "notebooks", top=tree):
            raise UserError(f"runs/.code/ does not hold {commit[:12]} as it is; delete that folder")
    return tree


def execute_in(tree: Path, output: str, *words: str) -> None:
    """Execute a notebook, given as to `lib.sweep.execute`, by the code of a checkout; what it makes
    goes to the folder `output`. Raises UserError, with what that code said last, if it fails."""
    try:
        run_module(tree, output, "lib.sweep.execute", *words)
    except UserError as error:
        raise UserError(f"{'/'.join(words[1:])}: {error}") from None


def run_module(tree: Path, output: str, *words: str) -> None:
    """Run a module of `lib` with arguments, as `execute_in` does."""
    variables = environment(PYTHONPATH=str(tree), **{OUTPUT: output})
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=tree, env=variables, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        said = [line for line in lines if line.startswith(("error: ", "FAILED "))] or lines[-1:]
        raise UserError(said[0].removeprefix("error: "))
