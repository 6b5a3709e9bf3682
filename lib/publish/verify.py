"""Verify the record: everything that is published follows, by this command, from raw files.

    ./run_all.sh verify [STUDY …] [--redraw] [--retrain N | --retrain STUDY/ARM/SEED …]

Without a study: all that the index names, what was made of them (paper, README), and whether
something vanished. What no record can show stands in the README.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from lib.publish import agreement, evidence, first_rules, origins, replay
from lib.publish.archive import (
    MANIFEST,
    index_entry,
    paper_of,
    papers,
    read_index,
    read_manifest,
    read_runs,
    record_folder,
    recorded_studies,
    require_recorded,
    results_file,
    root_hash,
    verdict_file,
)
from lib.publish.beginnings import wrong_beginnings
from lib.publish.paper import COMPUTED, ROOT_LINE, answers_readme, made, same, with_answers
from lib.publish.plans import FILE, has_history, missing_beside, plan_accounts
from lib.publish.recomputed import named, place, wrong_measures
from lib.publish.sources import Sources
from lib.publish.suites import foreign_suites
from lib.study import paths
from lib.study.config import Study, load_study
from lib.study.errors import ConfigError, exit_status, read_yaml
from lib.study.fields import digest
from lib.study.git import git, is_checkout
from lib.study.paths import PLANS, ROOT, shown
from lib.study.plan import Plan
from lib.study.record import read_json, sha256, status_of
from lib.study.standing import load_plan


def verify(study: str, *, again: bool = True, redraw: bool = False) -> tuple[str, list[str]]:
    """Check the record of a study; return under which rules, and every fault. What takes longest,
    the beginnings of its runs, its analysis and its figures, is made `again` unless told otherwise.

    What rests on something faulty is not looked at: the faults of a kind end the search.
    """
    rules = "no rules"
    try:
        if (paths.PARAMS / f"{study}.yaml").is_file():
            load_study(study)  # without which nobody knows where its record is
        if study in first_rules.SUPERSEDED:
            rules, checks = "the first rules, superseded", _superseded(study)
        elif sha256(record_folder(study) / MANIFEST) == first_rules.MANIFESTS.get(study):
            rules, checks = "the first rules", _by_first_rules(study)
        else:
            rules, checks = "the present rules", _by_present_rules(study)
            if again:
                checks = chain(checks, _made_again(study, redraw))
        found = (list(check) for check in checks)
        return rules, next(filter(None, found), [])
    except FileNotFoundError as error:
        return "no rules", [f"{shown(Path(str(error.filename)))} is missing"]
    except ConfigError as error:
        return rules, [f"its parameters or its plan cannot be read: {error}"]
    except replay.ReplayError as error:
        return rules, [f"it cannot be executed again: {error}"]
    except Exception as error:  # a file can be broken in any way
        return "no rules", [f"a file of it cannot be read as what it is: {error!r}"]


def _by_first_rules(study: str) -> Iterator[Iterator[str]]:
    yield evidence.changed_files(study)
    yield _unlike_index(study)
    yield evidence.foreign_notebooks(study, None)
    runs = read_runs(study)
    yield evidence.uncommitted_code(
        study,
        {
            place(study, run) / "02_train.ipynb": {
                "commit": run["provenance"]["git_commit"],
                "clean": run["provenance"]["git_clean"],
            }
            for run in runs
        },
    )
    yield evidence.unfounded_results(study, runs)
    verdict = read_json(verdict_file(study))
    yield first_rules.wrong_contrasts(runs, verdict)


def _superseded(study: str) -> Iterator[Iterator[str]]:
    """Of a superseded study, what is kept: results and verdict, as they were."""
    pinned = first_rules.SUPERSEDED[study]
    if digest([sha256(results_file(study)), sha256(verdict_file(study))]) != pinned:
        yield iter(["its results or its verdict have changed"])
    if _stated(study).get("superseded") != pinned:
        yield iter(["the index does not name it as superseded"])
    results = read_json(results_file(study))
    yield evidence.wrong_summary(results)
    verdict = read_json(verdict_file(study))
    yield first_rules.wrong_contrasts(results["runs"], verdict)


def _by_present_rules(study: str) -> Iterator[Iterator[str]]:
    yield evidence.changed_files(study)
    yield evidence.rewritten_files(study)
    yield _unlike_index(study)
    code = _stated(study).get("code")
    yield evidence.foreign_notebooks(study, code)
    runs, folder = read_runs(study), record_folder(study)
    yield evidence.foreign_files(study, runs)
    yield evidence.unfounded_results(study, runs)
    accounts = {path: status_of(path) for path in folder.glob("*.ipynb")}
    executed = {place(study, run): run["provenance"]["executed"] for run in runs}
    accounts |= {path / "02_train.ipynb": account for path, account in executed.items()}
    yield evidence.uncommitted_code(study, accounts)
    checks = [wrong_measures, agreement.wrong_raw_files, agreement.wrong_print]
    for check in [*checks, origins.wrong_provenance]:
        yield (f"{named(run)}: {fault}" for run in runs for fault in check(study, run))
    yield agreement.wrong_labels(load_study(study), runs)
    yield agreement.unlike_texts(study, runs)
    agreement.tell_uncommitted(study, runs)
    yield _changed_study(study)
    yield _changed_plan(study)
    yield origins.untold_versions(study, runs)
    yield chain(origins.wrong_dates(study, runs), origins.copied(study, runs))
    yield origins.wrong_code(study, runs)
    yield agreement.mixed_code(runs)


def _made_again(study: str, redraw: bool) -> Iterator[Iterator[str]]:
    yield wrong_beginnings(study, read_runs(study))
    yield foreign_suites(study, read_runs(study))
    yield evidence.other_analysis(study)
    yield evidence.other_figures(study)
    if redraw:
        yield evidence.redrawn(study)


def _stated(study: str) -> dict[str, Any]:
    """What the index says of a study; empty where it does not name it."""
    return dict(read_index(paper_of(study)).get(study, {}))


def _unlike_index(study: str) -> Iterator[str]:
    """What the index says otherwise of a study."""
    stated, found = _stated(study), index_entry(study)
    if not stated:
        yield "the index does not name it"
    for key in sorted({*stated, *found} if stated else ()):
        if found.get(key) != stated.get(key):
            yield f"the index says otherwise of its {key}"


def _changed_study(study: str) -> Iterator[str]:
    """Parameters that are others today, which the paper would quote; seeds may have been added."""
    recorded = Study.model_validate(read_yaml(record_folder(study) / "parameters.yaml"))
    if load_study(study).hash != recorded.hash:
        yield f"params/{study}.yaml is another study today than was recorded"


def _changed_plan(study: str) -> Iterator[str]:
    """A plan that is another one, in the record or today, than the runs were made under."""
    design = load_study(study)
    today = load_plan(design)
    made_under = {run["provenance"]["trained"]["plan"] for run in read_runs(study)}
    if made_under != {today.hash if today else None}:
        yield "its plan is another one today than its runs were made under"
    recorded = record_folder(study) / "plan.yaml"
    if today:
        then = Plan.model_validate(read_yaml(recorded))
        if then.hash != today.hash:
            yield "plan.yaml is not the plan that its runs were made under"
        if today.deviations[: len(then.deviations)] != then.deviations:
            yield "deviations in its plan.yaml were removed from the plan since, or rewritten"
    commit = replay.committed(status_of(record_folder(study) / "03_analysis.ipynb"))
    if commit and design.plan:
        stated = git("show", f"{commit}:{(PLANS / design.plan).relative_to(ROOT)}")
        if stated != _text(recorded):
            yield f"plan.yaml is not the plan of commit {commit[:12]}"


def vanished() -> Iterator[str]:
    """Studies and runs that a committed version of an index names, and no record holds today."""
    if not is_checkout():
        return
    here = {study: entry for paper in papers() for study, entry in read_index(paper).items()}
    indexes = ":(glob)papers/*/record/index.json"
    log = ("log", "--full-history")  # of branches, too, of which a merge took nothing
    names = set((git(*log, "--format=", "--name-only", "--", indexes) or "").split())
    gone: dict[str, None] = {}
    versions = [
        (commit, _index(git("show", f"{commit}:{name}")))
        for name in sorted(names)
        for commit in (git(*log, "--format=%H", "--", name) or "").split()
    ]
    for commit, index in versions:
        for study, entry in index.items():
            if study not in here:
                gone[f"study '{study}', recorded at commit {commit[:12]}, has vanished"] = None
                continue
            for arm, seeds in entry["seeds"].items():
                for seed in set(seeds) - set(here[study]["seeds"].get(arm, [])):
                    line = f"run {arm} seed {seed} of '{study}', recorded at {commit[:12]}, "
                    gone[line + "has vanished"] = None
    yield from gone


def _index(content: str | None) -> dict[str, Any]:
    """A committed version of an index; empty where it was deleted, or committed broken."""
    try:
        return dict(json.loads(content or "{}"))
    except ValueError:
        return {}


def strays(paper: Path) -> Iterator[str]:
    """Records, results and figures of a paper that are of no study in its index."""
    named = {study for study in read_index(paper) if paper_of(study) == paper}
    results = {f"{study}{end}" for study in named for end in (".json", ".verdict.json")}
    there = {"record": named | {"index.json"}, "results": results, "figures": named}
    for folder, names in there.items():
        for path in sorted(paper.glob(f"{folder}/[!.]*")):
            if path.name not in names:
                yield f"{shown(path)} is of no study that the index of its paper names"


def unfounded_texts(paper: Path) -> Iterator[str]:
    """What of a paper, and of the README if its answers are the paper's, is not what the results
    say."""
    if not (paper / "paper.md").is_file():
        return
    try:
        told = paper / FILE
        if has_history() and told.is_file() and read_json(told) != plan_accounts(paper):
            yield f"{FILE} is not what git says of the plans; run ./run_all.sh paper"
        sources = Sources(paper)
        for name, content in made(paper, sources).items():
            path = paper / name
            if not path.is_file() or not same(path.read_bytes(), content):
                yield f"{name} is not what its sources and the results give; run ./run_all.sh paper"
        if not answers_readme(paper):
            return
        readme = _text(ROOT / "README.md")
        parts = {frame[2] for frame in COMPUTED.finditer(readme)}
        if parts != {"answers", "studies"} or not ROOT_LINE.search(readme):
            yield "README.md lacks a computed part or the root; restore it from git"
        elif with_answers(sources, readme) != readme:
            yield "README.md does not say what the results do; run ./run_all.sh paper"
    except Exception as error:  # a file can be broken in any way
        yield f"the paper cannot be built: {error}"


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.is_file() else ""


@exit_status
def main(arguments: list[str] | None = None) -> int:
    """Verify the record of some or (none named) all studies, and what was made of them."""
    parser = argparse.ArgumentParser(prog="./run_all.sh verify", description=main.__doc__)
    parser.add_argument("studies", nargs="*", help="names of studies")
    parser.add_argument("--redraw", action="store_true", help="execute 01 and 04 again as well")
    options = parser.parse_args(arguments)
    named = require_recorded(options.studies)
    studies, faulty = named or recorded_studies(), False
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # most of it is other processes' work
        found = pool.map(partial(verify, redraw=options.redraw), studies)
        for study, (rules, faults) in zip(studies, found, strict=True):
            for fault in faults:
                print(f"error: {study}: {fault}", file=sys.stderr)
            if not faults:
                n = 2 if study in first_rules.SUPERSEDED else len(read_manifest(study))
                beside = "".join(f"; {missing}" for missing in missing_beside(study))
                print(f"{study}: {n} files verified under {rules}{beside}", flush=True)
            faulty |= bool(faults)
    if not named:
        texts = [fault for p in papers() for fault in (*strays(p), *unfounded_texts(p))]
        for fault in [*vanished(), *texts]:
            print(f"error: {fault}", file=sys.stderr)
            faulty = True
    for paper in papers():
        print(f"Root of records, results and plans of {shown(paper)}: {root_hash(paper)}")
    return int(faulty)


if __name__ == "__main__":
    sys.exit(main())
