"""Commits as arms: what the levels of the factor `code` are, and the tree that each is run in."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

from lib.record.replay import ReplayError, ask, link, link_inputs, tree_at
from lib.results import git_state
from lib.study.code import git, is_checkout
from lib.study.io import RUNS, output_root
from lib.study.plan import Commit
from lib.study.schema import CODE, digest
from lib.study.study import Study, fixed_commits
from lib.study.yaml import ConfigError

TREES = f"arm-{digest(str(RUNS))[:8]}-"
"""How the folders of trees begin: a sweep removes those that a killed one left."""
_CODE = ("lib", "notebooks", "*.py", ":!tests", ":!papers")


def with_commits(study: Study) -> Study:
    """Return a study whose levels of `code`, if it is a factor, are the commits that its plan has
    fixed, or else those that they name now. Raises ConfigError as `find_commits` does."""
    if CODE not in study.factors:
        return study
    return study.model_copy(update={"commits": find_commits(study, fixed_commits(study))})


def find_commits(study: Study, fixed: Mapping[str, Commit]) -> dict[str, Commit]:
    """Find which commit each level of `code` is, as `fixed` or by its name, and what its code
    decides; nothing where code is no factor.

    Raises ConfigError where git has no such commit, two are the same, changes are not committed, or
    the code of one does not know the study's parameters.
    """
    field = f"{study.name}.yaml: factors.code"
    levels = dict.fromkeys(str(arm.levels[CODE]) for arm in study.arms() if CODE in arm.levels)
    if levels and not is_checkout():
        raise ConfigError(f"{field}: names commits, and this folder is no clone; clone it")
    shas = {level: fixed[level].commit if level in fixed else _resolve(level) for level in levels}
    for level, commit in shas.items():
        if not commit or git("cat-file", "-e", f"{commit}^{{commit}}") is None:
            missing = f"'{level}' is no commit, branch or tag here"
            missing = f"commit {commit[:12]} of '{level}' is not here" if commit else missing
            raise ConfigError(f"{field}: {missing}; `git fetch` it, or commit your change")
    for one, other in combinations(shas, 2):
        if shas[one] == shas[other]:
            raise ConfigError(
                f"{field}: '{one}' and '{other}' are one commit, {shas[one][:12]}; commit "
                "the change that is to be tested on one of them"
            )
    head, changes = git_state()["commit"], git("status", "--porcelain", "--", *_CODE) or ""
    if head in shas.values() and changes:
        level = next(level for level, commit in shas.items() if commit == head)
        raise ConfigError(
            f"{field}: changes that are not committed cannot be an arm, and '{level}' is the "
            f"commit that is changed here ({', '.join(changes.split()[1::2])}); commit or undo them"
        )
    known = {c.commit: c for c in (*study.commits.values(), *fixed.values())}
    return {
        level: known.get(commit) or _query(study, level, commit) for level, commit in shas.items()
    }


def moved(study: Study) -> Iterator[str]:
    """Yield each level of `code` that the study's plan has fixed and that names other code now."""
    for level, fixed in fixed_commits(study).items():
        now = _resolve(level)
        if now and git("diff", "--quiet", fixed.commit, now, "--", *_CODE) is None:
            yield (
                f"{study.name}: '{level}' is now at {now[:12]}, with other code; what runs is "
                f"{fixed.commit[:12]}, which {study.plan} fixed"
            )


def _resolve(level: str) -> str:
    """Return the commit that a name stands for; "" where there is none. In a clone, a branch may be
    known only where it came from."""
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options")
    shas = (git(*words, f"{name}^{{commit}}") for name in (level, f"origin/{level}"))
    return next(filter(None, shas), "").strip()


def _query(study: Study, level: str, commit: str) -> Commit:
    """Ask the code of a commit for its digests; it must know the study's parameters."""
    prefix = f"{study.name}.yaml: factors.code: '{level}' (commit {commit[:12]})"
    if "def digests(" not in (git("show", f"{commit}:lib/replay.py") or ""):
        raise ConfigError(f"{prefix} is older than the factor code, which it does not know")
    try:
        with tree_of(study, commit) as tree:
            return Commit(commit=commit, **ask(tree, "digests", study.name))
    except ReplayError as error:
        raise ConfigError(f"{prefix} cannot run this study: {error}") from None


@contextmanager
def tree_of(study: Study, commit: str) -> Iterator[Path]:
    """Lay out a tree with the code of a commit, and the parameters, texts and runs of this one."""
    with tree_at(git_state() | {"code": commit}, TREES) as tree:
        RUNS.mkdir(parents=True, exist_ok=True)
        link(tree / "runs", RUNS)
        for path in (output_root() / "data").glob("*"):
            link(tree / "data" / path.name, path)
        link_inputs(tree, [arm.config.model_dump() for arm in study.arms()])
        yield tree
