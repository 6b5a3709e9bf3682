"""Runs of a study under another version of its plan: who has seen them can write a plan to fit."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lib.study.config import Study
from lib.study.errors import UserError
from lib.study.git import git
from lib.study.history import Version, plan_history, precedes
from lib.study.paths import PAPERS, RUNS, shown
from lib.study.plan import Plan, read_plan
from lib.study.provenance import trained_with
from lib.study.record import read_json, write_json

KEPT = "other-versions.json"
"""In a study's folder of `runs/` and in its record: such runs as were known when it was recorded,
so that the record tells of them when the runs themselves are gone."""


@dataclass(frozen=True)
class Attempt:
    """Runs under a version of a plan, by the first of them."""

    plan: str
    """Hash of the version."""
    study: str
    started: str
    """When; empty where nothing tells."""
    commit: str
    """By which code; empty outside git."""
    place: str
    """Where it is seen."""


def attempts(study: str, file: str) -> list[Attempt]:
    """Find the runs of a study under any plan, and those of every study that a version of this plan
    ever named under a version of it, in `runs/`, in the record and in all of git's history: one for
    each version and study, the oldest first. Runs under no plan are under no version of it."""
    versions = plan_history(file)
    of_plan = {version.hash for version in versions}
    names = dict.fromkeys([study, *(name for each in versions for name in each.confirmatory)])
    found = list(_in_index(versions))
    for name in names:
        found += [*_in_runs(name), *_in_record(name), *_in_git(name)]
    first: dict[tuple[str, str], Attempt] = {}
    for made in sorted(found, key=lambda made: _time(made.started)):
        if made.plan and (made.study == study or made.plan in of_plan):
            first.setdefault((made.plan, made.study), made)
    return list(first.values())


def other_attempts(study: str, file: str, plan: Plan) -> list[Attempt]:
    """Those of them that were made under another version of the plan, or another plan."""
    return [made for made in attempts(study, file) if made.plan != plan.hash]


def other_versions(study: Study, plan: Plan, runs: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Name each other version of a plan that had runs when this one was committed, or came into
    use again, or before the last of the study's own runs began. Before there are any, every one
    counts. A version that was tried later takes nothing from this one."""
    file = study.plan or ""
    versions = plan_history(file)
    fixed = list(takewhile(lambda version: version.hash == plan.hash, versions))[-1:]
    began = [run["provenance"].get("trained", {}).get("started") for run in runs]
    last = max((_time(each) if each else float("inf") for each in began), default=float("inf"))
    before = max([last, *(_time(version.date) for version in fixed)])
    committed = {version.hash: version for version in versions}  # the oldest of each
    for made in other_attempts(study.name, file, plan):
        earlier = [v for v in fixed if made.commit not in ("", v.commit)]
        if _time(made.started) < before or any(precedes(made.commit, v.commit) for v in earlier):
            version = committed.get(made.plan)
            when = f"committed {version.date[:10]} at {version.commit[:12]}" if version else ""
            yield (
                f"there were runs of '{made.study}' under another version of its plan, "
                f"{made.plan[:12]} ({when or 'never committed in its history'})"
            )


def keep(study: Study, folder: Path) -> None:
    """Write into a study's record which other versions of its plan had runs, if any had."""
    if study.plan:
        others = other_attempts(study.name, study.plan, read_plan(study.plan))
        if others:
            write_json(folder / KEPT, [asdict(made) for made in others])


def _in_runs(study: str) -> Iterator[Attempt]:
    folder = RUNS / study
    accounts = [*folder.rglob("provenance.json"), *folder.rglob("result.json")]
    for path in [*accounts, folder / "03_analysis.json"]:
        yield from _accounts(_content(path), study, shown(path))
    yield from _kept(_content(folder / KEPT))


def _in_record(study: str) -> Iterator[Attempt]:
    for path in PAPERS.glob(f"*/results/{study}.json"):
        yield from _accounts(_content(path), study, shown(path))
    for path in PAPERS.glob(f"*/record/{study}/{KEPT}"):
        yield from _kept(_content(path))


def _in_git(study: str) -> Iterator[Attempt]:
    """What every branch held of a study's results, and of each commit one executed notebook: those
    of a record are of one version."""
    record = f":(glob)papers/*/record/{study}"
    places = (f":(glob)papers/*/results/{study}.json", f"{record}/{KEPT}", f"{record}/**/02*.ipynb")
    words = ("log", "--all", "--full-history", "-c", "--format=%x00%H", "--name-only")
    log = git(*words, "--diff-filter=d", "--", *places)
    for entry in (log or "").split("\0")[1:]:
        commit, *names = filter(None, entry.split("\n"))
        for name in {Path(name).name: name for name in names}.values():
            content, place = _parsed(git("show", f"{commit}:{name}")), f"{name} of {commit[:12]}"
            if name.endswith(KEPT):
                yield from _kept(content)
            else:
                yield from _accounts(content, study, place)


def _in_index(versions: list[Version]) -> Iterator[Attempt]:
    """What an index once named: seeds that another version of the plan drew."""
    for version in {version.hash: version for version in versions}.values():
        try:
            plan = Plan.model_validate(version.plan)
        except ValidationError:
            continue
        for study in plan.frozen:
            words = ("log", "--all", "--pickaxe-regex", rf"-S\b{plan.draw(study, 1)[0]}\b")
            log = git(*words, "--format=%cI %H", "--", ":(glob)papers/*/record/index.json")
            for line in (log or "").splitlines()[-1:]:
                date, commit = line.split()
                yield Attempt(plan.hash, study, date, commit, f"the index of {commit[:12]}")


def _accounts(content: Any, study: str, place: str) -> Iterator[Attempt]:
    """Read an account of a run, a result, results, or an executed notebook."""
    try:
        stamp = content.get("metadata")
        if stamp:
            began = stamp["papermill"]["start_time"]
            by = {"plan": stamp["study"]["preregistration"], "started": began}
            accounts = [by | {"commit": stamp["study"].get("commit")}]
        else:
            each = content.get("runs", [content])
            accounts = [trained_with(run.get("provenance", run)) for run in each]
        for by in accounts:
            plan, started, commit = (by.get(name) or "" for name in ("plan", "started", "commit"))
            yield Attempt(plan, study, started, commit, place)
    except (AttributeError, KeyError, TypeError):
        return  # no account


def _kept(content: Any) -> Iterator[Attempt]:
    try:
        yield from [Attempt(**each) for each in content or ()]
    except TypeError:
        return  # not what was written


def _content(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, UserError):
        return None


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except ValueError:
        return None


def _time(text: str) -> float:
    """When something was, in seconds; 0 where nothing tells, which counts as before all else."""
    try:
        return datetime.fromisoformat(text.replace(" UTC", "+00:00")).timestamp()
    except ValueError:
        return 0.0
