"""Runs of a study under another version of its plan: who has seen them can write a plan to fit."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lib.study.config import Study
from lib.study.errors import UserError
from lib.study.git import GitError, changes, contents
from lib.study.history import Version, every_version, plan_history, precedes
from lib.study.paths import PAPERS, RUNS, shown
from lib.study.plan import Plan, read_plan
from lib.study.provenance import trained_with
from lib.study.record import read_json, write_json

KEPT = "other-versions.json"
"""In a study's folder of `runs/` and in its record: such runs as were known when it was recorded,
so that the record tells of them when the runs themselves are gone."""

_FILES = {"provenance.json", "result.json", "03_analysis.json", KEPT}
"""What tells of runs in `runs/`."""


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
    versions = every_version(file)
    of_plan = {version.hash for version in versions}
    names = dict.fromkeys([study, *(name for each in versions for name in each.confirmatory)])
    found = [*_in_runs(names), *_in_git(names, versions)]
    for name in names:
        found += _in_record(name)
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
    counts. A version that was tried later takes nothing from this one, unless it was merged."""
    try:
        yield from list(_other_versions(study, plan, runs))
    except GitError as error:
        yield f"git cannot tell whether another version of its plan had runs: {error}"


def _other_versions(study: Study, plan: Plan, runs: Iterable[dict[str, Any]]) -> Iterator[str]:
    file = study.plan or ""
    versions = plan_history(file)
    fixed = list(takewhile(lambda version: version.hash == plan.hash, versions))[-1:]
    began = [run["provenance"].get("trained", {}).get("started") for run in runs]
    last = max((_time(each) if each else float("inf") for each in began), default=float("inf"))
    dropped = [float("inf")] if versions and not fixed else []  # a merge kept this version
    before = max([last, *dropped, *(_time(version.date) for version in fixed)])
    committed = {version.hash: version for version in every_version(file)}  # the oldest of each
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


def _in_runs(studies: Iterable[str]) -> Iterator[Attempt]:
    """What is said anywhere in `runs/`: in the folders of the studies, and by any account that
    names its study, whatever its folder is called and wherever that lies."""
    seen = set()
    for top, folders, names in os.walk(RUNS, followlinks=True):
        if (real := os.path.realpath(top)) in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add(real)
        for name in _FILES.intersection(names):
            path = Path(top, name)
            folder = path.relative_to(RUNS).parts[0]
            yield from _accounts(_content(path), folder if folder in studies else None, shown(path))


def _in_record(study: str) -> Iterator[Attempt]:
    for path in PAPERS.glob(f"*/results/{study}.json"):
        yield from _accounts(_content(path), study, shown(path))
    for path in PAPERS.glob(f"*/record/{study}/{KEPT}"):
        yield from _accounts(_content(path), study, shown(path))


def _in_git(studies: Iterable[str], versions: list[Version]) -> Iterator[Attempt]:
    """What every branch held of the studies' results and executed notebooks, and what an index
    named: seeds that a version of the plan drew."""
    places = [":(glob)papers/*/record/index.json"]
    for study in studies:
        record = f":(glob)papers/*/record/{study}"
        places += [f":(glob)papers/*/results/{study}.json", f"{record}/{KEPT}"]
        places += [f"{record}/**/02*.ipynb"]
    found = changes("--all", "--full-history", "--", *places)
    held = {(each.blob, each.name): each for each in found if each.blob.strip("0")}  # the oldest
    drawn = list(_drawn(versions))
    texts = contents(tuple(blob for blob, _ in held))
    for each, text in zip(held.values(), texts, strict=True):
        name = each.name.encode(errors="replace").decode()  # it may be no text
        place = f"{name} of {each.commit[:12]}"
        if name.endswith("/index.json"):
            for plan, study, seed in drawn:
                if re.search(rf"\b{seed}\b", text):
                    yield Attempt(plan, study, each.date, each.commit, place)
        elif folder := re.search(r"/(?:results|record)/([^/.]+)", name):
            yield from _accounts(_parsed(text), folder[1], place)


def _drawn(versions: list[Version]) -> Iterator[tuple[str, str, int]]:
    """The first seed that each version of a plan drew for each of its studies."""
    for version in {version.hash: version for version in versions}.values():
        try:
            plan = Plan.model_validate(version.plan)
        except ValidationError:
            continue
        for study in plan.frozen:
            yield plan.hash, study, plan.draw(study, 1)[0]


def _accounts(content: Any, study: str | None, place: str) -> Iterator[Attempt]:
    """Read an account of a run, a result, results, an executed notebook, or what was kept. What is
    damaged hides nothing beside it."""
    kept = isinstance(content, list)
    if isinstance(content, dict) and isinstance(content.get("runs"), list):
        content = content["runs"]
    for each in content if isinstance(content, list) else [content]:
        with suppress(AttributeError, KeyError, TypeError):  # no account
            by = each if kept else _account(each)
            plan, named, started, commit = (
                str(by.get(name) or "") for name in ("plan", "study", "started", "commit")
            )
            of = named if kept else study or named
            yield Attempt(plan, of, started, commit, str(by.get("place") or place))


def _account(content: Any) -> dict[str, Any]:
    if stamp := content.get("metadata"):
        began = stamp["papermill"]["start_time"]
        return trained_with(stamp["study"]) | {"study": None, "started": began}
    by = content.get("provenance", content)
    return trained_with(by.get("trained", by))


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
