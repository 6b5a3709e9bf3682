"""What became of a plan: its versions in git, what changed between them, and when each deviation
was written down."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import yaml
from pydantic import ValidationError

from lib.study.code import FileChange, GitError, changes, contents, git, is_shallow
from lib.study.io import PLANS
from lib.study.plan import Plan, rules_file
from lib.study.schema import digest
from lib.study.study import STUDY_NAME


@dataclass(frozen=True)
class PlanVersion:
    """A plan as it was committed."""

    commit: str
    date: str
    """When it was committed: ISO 8601, with the time zone."""
    plan: dict[str, Any]
    """The content, whatever the schema of its time; empty where it cannot be read."""

    @property
    def hash(self) -> str:
        """Hash of the plan, by the schema if it fits, else of the content as it stands."""
        try:
            return Plan.model_validate(self.plan).hash
        except ValidationError:
            return digest({k: value for k, value in self.plan.items() if k != "deviations"})

    @property
    def confirmatory(self) -> list[str]:
        """The studies that it names. A draft may hold anything in their place."""
        studies = self.plan.get("confirmatory")
        names = [str(study) for study in studies] if isinstance(studies, list) else []
        return [*filter(STUDY_NAME.fullmatch, names)]

    @property
    def deviations(self) -> list[dict[str, str]]:
        """How YAML folds a text is no content of it. A draft may hold anything in their place."""
        entries = self.plan.get("deviations")
        entries = entries if isinstance(entries, list) else []
        rows = [entry for entry in entries if isinstance(entry, dict)]
        return [{name: str(text).strip() for name, text in row.items()} for row in rows]


def plan_provenance(
    file: str | None, plan: Plan | None, commits: Iterable[str | None]
) -> dict[str, Any]:
    """Say, as plain values, all that git knows of a study's plan and of the commits that its runs
    were made by: whether it stood before them, its deviations, and what changed in it."""
    if file is None or plan is None:
        return {"plan_precedes": "unknown: no plan is named", "deviations": [], "plan_changes": []}
    commits = list(commits)
    return {
        "plan_precedes": plan_precedes(file, plan, commits),
        "deviations": dated_deviations(file, commits),
        "plan_changes": plan_changes(file),
    }


def plan_history(file: str) -> list[PlanVersion]:
    """List the committed versions of a plan of `params/plans/`, newest first, wherever the file
    was before, also those that only a merge holds; empty without git."""
    return list(map(_version, _followed(file)))


def every_version(file: str) -> list[PlanVersion]:
    """List the versions of a plan on every branch, newest first, under any name it ever had."""
    names = dict.fromkeys(f":(top,literal){each.name}" for each in _followed(file, "--all"))
    return list(map(_version, changes("--all", "--full-history", "--", *names) if names else ()))


def _followed(file: str, *options: str) -> list[FileChange]:
    try:
        history = list(changes("--follow", *options, "--", str(PLANS / file)))
    except GitError:
        if git("rev-parse", "--verify", "--quiet", "HEAD"):
            raise
        return []  # nothing is committed yet
    # Before it was copied from another plan, the history is not this one's; copied from one that is
    # no more, it was renamed.
    copies = (
        i
        for i, c in enumerate(history, 1)
        if c.copied and git("cat-file", "-e", f"HEAD:{c.copied}") is not None
    )
    return history[: next(copies, None)]


def _version(change: FileChange) -> PlanVersion:
    return PlanVersion(change.commit, change.date, _committed(change.blob))


def _committed(blob: str) -> dict[str, Any]:
    return _read(contents((blob,))[0].decode("utf-8", "surrogateescape")) if blob.strip("0") else {}


def _now(file: str) -> PlanVersion:
    return PlanVersion("uncommitted", "", _read((PLANS / file).read_text("utf-8")))


@lru_cache(maxsize=256)
def _read(text: str) -> dict[str, Any]:
    """Read a plan as it stands; nobody changes what is returned. Numbers that JSON lacks are text,
    and half a pair of surrogates is a question mark: neither can be shown, nor hashed."""
    with suppress(yaml.YAMLError, ValueError, TypeError, RecursionError):
        written = json.dumps(yaml.safe_load(text), default=str, ensure_ascii=False)
        content = json.loads(written.encode("utf-8", "replace"), parse_constant=str)
        return content if isinstance(content, dict) else {}
    return {}


def plan_changes(file: str) -> list[dict[str, Any]]:
    """List every field that changed between two versions of a plan, oldest first: commit, date,
    field, before, after (None where there is none). What is not committed yet comes last."""
    rows = []
    for old, new in pairwise([*plan_history(file)[::-1], _now(file)]):
        before, after = dict(_flat(old.plan)), dict(_flat(new.plan))
        rows += [
            {"commit": new.commit[:12], "date": new.date, "field": field}
            | {"before": before.get(field), "after": after.get(field)}
            for field in dict.fromkeys([*before, *after])
            if before.get(field) != after.get(field)
        ]
    return rows


def _flat(value: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    """Write nested fields as dotted ones: `cost.accuracy`, `deviations.0.what`."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = {str(i): item for i, item in enumerate(value)}
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else key)
    elif value != []:
        yield name, value.strip() if isinstance(value, str) else value


def dated_deviations(file: str, commits: Iterable[str | None]) -> list[dict[str, str]]:
    """List a plan's deviations, each with when it was committed, and whether that was before the
    first run: before means that every one of the runs' `commits` contains it."""
    runs = list(dict.fromkeys(commits))
    versions, rows = plan_history(file)[::-1], []
    for deviation in _now(file).deviations:
        first = next((v for v in versions if deviation in v.deviations), None)
        if first is None:
            when = "not committed"
        elif None in runs:
            when = "unknown: a run was made outside git"
        else:
            before = all(precedes(first.commit, run) for run in runs if run)
            when = f"{'before' if before else 'after'} the first run"
        rows.append(deviation | {"committed": first.date if first else "", "when": when})
    return rows


def plan_precedes(file: str, plan: Plan, commits: Iterable[str | None]) -> str:
    """Say whether a plan and its rules were committed, as they stand, before every one of the runs'
    `commits`: "yes: …", "no: …" naming the first run's commit that they do not precede, or
    "unknown: …" where no run says no and not all is known.
    Appending a deviation is no change of the plan; rewriting one is, and says "no: …". A plan
    that was changed and restored stands since it was first committed."""
    try:
        same = [version for version in plan_history(file) if version.hash == plan.hash]
        blob = git("rev-parse", f"HEAD:./params/plans/{file}") or ""
        stands = PlanVersion("HEAD", "", _committed(blob.strip())).hash == plan.hash
        stands = stands and _holds_rules("HEAD", plan)
    except GitError as error:
        return f"no: git cannot tell whether the plan was committed before the runs: {error}"
    if not same or not stands:
        if git("rev-parse", "--git-dir") is None:
            return "unknown: there is no git"
        return "no: the plan is not committed as it stands"
    now = PlanVersion("now", "", plan.model_dump()).deviations
    for old in same:
        if any(deviation not in now for deviation in old.deviations):
            return f"no: deviations were rewritten, not appended, after commit {old.commit[:12]}"
    fixed, unknown = same[-1].commit, []
    for run in dict.fromkeys(commits):
        if run is None:
            unknown.append("a run was made outside git")
        elif git("cat-file", "-e", run) is None:
            unknown.append(f"the history here does not hold commit {run[:12]} of a run")
        elif not any(precedes(version.commit, run) for version in reversed(same)):
            return f"no: run at commit {run[:12]}, plan fixed at {fixed[:12]}"
        elif not _holds_rules(run, plan):
            return f"no: run at commit {run[:12]}, where the rules of its plan were others"
    if is_shallow():
        unknown.append("this clone is shallow: `git fetch --unshallow` brings the whole history")
    return f"unknown: {unknown[0]}" if unknown else f"yes: plan fixed at {fixed[:12]}"


def _holds_rules(commit: str, plan: Plan) -> bool:
    """Tell whether a commit holds the set of rules that a plan follows as it stands. A plan that
    names none may be older than the file of its rules."""
    file = rules_file(plan.rule_set or "none")
    if not file.is_file():
        return True
    text = git("show", f"{commit}:./params/plans/rules/{file.name}")
    is_older = text is None and plan.rules is None
    return is_older or _read(text or "") == _read(file.read_text("utf-8"))


def precedes(commit: str, later: str) -> bool:
    """Tell whether a commit is, or came before, another in its history."""
    return git("merge-base", "--is-ancestor", commit, later) is not None
