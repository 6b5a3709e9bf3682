"""The code that a sweep executes: a copy of this checkout, and commits that are arms.

A sweep copies `lib` and `notebooks` to `runs/.code/` when it starts, and executes notebooks from
there. So you may edit the code while it runs. Everything else (parameters, plans, texts, task
files, git) is looked up in the checkout.

A level of the factor `code` is a branch, a tag or a hash. A sweep resolves levels to commits when
it starts, and writes them to `runs/<study>/commits.json`. Each commit is checked out below
`runs/.code/`. Its own notebooks are executed there, with the parameters of this checkout.
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
    """The code was edited after this process imported it."""


def copy_code(studies: Iterable[Study]) -> Path:
    """Copy the code that this process imported to `runs/.code/`; return the folder. Write
    `runs/sweep.json` for the processes that run from it: the checkout, its git state, and hashes of
    each study's files. Delete other copies: only call this while no other sweep runs.

    Raises EditedError if the code was edited after this process started.
    """
    copy = COPIES / digest(imported_code())[:16]
    # Delete older copies, and this one if it was damaged; worktrees of commits stay.
    for other in COPIES.glob("*/"):
        is_commit = re.match("[0-9a-f]{40}", other.name)
        if not is_commit and (other != copy or hash_code(copy) != imported_code()):
            shutil.rmtree(other)
    if not copy.is_dir():
        with atomic_write(copy) as temporary:
            for name in imported_code():
                target = temporary / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(
                    ROOT / name, target
                )  # without the mode: Kaggle's inputs are read-only
                target.chmod(0o444)  # so that nobody edits the copy by mistake
    hashes = {study.name: files_of(study) for study in studies}
    write_json(SWEEP, {"checkout": str(CHECKOUT), "git": ask_git(), "files": hashes})
    # Compare after asking git: if nothing changed until now, its answer is true of the copy.
    if not imported_code() == hash_code(copy) == hash_code(ROOT):
        fault = "lib or notebooks were edited while this command started"
        raise EditedError(f"code: {fault}; run it again when you have finished editing")
    return copy


def files_of(study: Study) -> dict[str, str]:
    """Hash the files that define a study: parameters, plan, tokenizers and tasks. Texts are left
    out because they may be large; the analysis compares their hashes."""
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
    """Raise ConfigError if a study's parameters, plan, tokenizers or tasks were edited after the
    sweep started."""
    now, before = files_of(study), read_json(SWEEP)["files"].get(study.name, {})
    for name in before | now:
        if now.get(name) != before.get(name):
            fault = f"{name}: was edited while the sweep ran"
            raise ConfigError(f"{fault}; restore it, or start the sweep again when it has ended")


def resolve(study: Study) -> dict[str, str]:
    """Return the commit of each level of the factor `code`; {} if code is not a factor.

    Raises ConfigError if git knows no commit or two commits by that name, or if two levels are one
    commit.
    """
    field = "factors.code"
    levels = dict.fromkeys(str(arm.levels[CODE]) for arm in study.arms() if CODE in arm.levels)
    if levels and not is_checkout():
        raise ConfigError(f"{field}: its levels are commits, but this is not a git clone; clone it")
    named: dict[str, str] = {}
    for level in levels:
        try:
            commit = _hash_of(level)
        except ConfigError as error:
            raise ConfigError(f"{field}: {error}") from None
        if not commit:
            raise ConfigError(
                f"{field}: '{level}' is not a commit, branch or tag here; `git fetch` it, or "
                "commit your change"
            )
        if (other := named.setdefault(commit, level)) != level:
            raise ConfigError(
                f"{field}: '{other}' and '{level}' are one commit, {commit[:12]}; commit your "
                "change to one of them"
            )
    return {level: commit for commit, level in named.items()}


def _hash_of(level: str) -> str:
    """Return the commit that a branch, a tag or a hash names; "" if there is none. Raises
    ConfigError if the name stands for two commits."""
    kinds = {
        # A fresh clone knows most branches only as origin/BRANCH.
        "branch": _commit(f"refs/heads/{level}") or _commit(f"refs/remotes/origin/{level}"),
        "tag": _commit(f"refs/tags/{level}"),
        "remote branch": _commit(f"refs/remotes/{level}"),
    }
    found = {kind: commit for kind, commit in kinds.items() if commit}
    if len({*found.values()}) > 1:
        both = ", ".join(f"{kind} {commit[:12]}" for kind, commit in found.items())
        raise ConfigError(
            f"'{level}' names two commits ({both}); write refs/heads/{level}, refs/tags/{level}, "
            "or the hash"
        )
    return next(iter(found.values()), "") or _commit(level)


def _commit(name: str) -> str:
    """Return the commit to which git resolves a name; "" if there is none."""
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    return (git(*words) or "").strip()


def with_commits(study: Study) -> Study:
    """Resolve the levels of `code` and print their commits; return the study with them."""
    commits = resolve(study)
    for level, commit in commits.items():
        print(f"{study.name}: {level} is commit {commit[:12]}")
    return study.model_copy(update={"commits": commits})


def write_commits(study: Study) -> None:
    """Write the commits of a study's levels to the file where its runs look them up."""
    if study.commits:
        write_json(study_folder(study.name) / COMMITS, study.commits)


def tree_of(commit: str) -> Path:
    """Check out a commit below `runs/.code/` if it is not there yet; return its folder. Raises
    UserError if that folder was edited."""
    tree = RUNS / ".code" / commit
    tree.parent.mkdir(parents=True, exist_ok=True)
    with locked(tree.with_suffix(".lock")):
        if not (tree / "lib").is_dir():
            # --force, because git still lists a worktree if its folder was deleted.
            git("worktree", "add", "--force", "--detach", str(tree), commit)
        texts = tree / "data"
        if not (texts.exists() or texts.is_symlink()):  # older code looks for texts in its own tree
            texts.symlink_to(output_root() / "data")
        # An edited worktree would not be the commit that results name.
        head = (git("-C", str(tree), "rev-parse", "HEAD") or "").strip()
        if head != commit or not is_as_committed("lib", "notebooks", top=tree):
            raise UserError(f"code: runs/.code/{commit} was edited; delete that folder")
    return tree


def execute_in(tree: Path, output: str, *words: str) -> None:
    """Execute a notebook with the code of a checkout, and write what it makes to the folder
    `output`. `words` are the arguments of `lib.sweep.execute`. Raises UserError with the last error
    that the code printed."""
    try:
        run_module(tree, output, "lib.sweep.execute", *words)
    except UserError as error:
        raise UserError(f"{'/'.join(words[1:])}: {error}") from None


def run_module(tree: Path, output: str, *words: str) -> None:
    """Run a module of `lib` with the code of a checkout, like `execute_in`."""
    variables = environment(PYTHONPATH=str(tree), **{OUTPUT: output})
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=tree, env=variables, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        # Our own errors are one line; anything else ends with the exception's line.
        errors = [line for line in lines if line.startswith(("error: ", "FAILED "))] or lines[-1:]
        raise UserError(errors[0].removeprefix("error: "))
