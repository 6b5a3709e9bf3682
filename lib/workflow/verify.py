"""Verify the record, and train runs of it again.

    ./run_all.sh verify [STUDY …] [--redraw] [--fresh]
    ./run_all.sh verify [STUDY …] --retrain 2                    runs drawn at random
    ./run_all.sh verify --retrain final/none/0 [STUDY/ARM/SEED …]   these, not the whole record
    ./run_all.sh verify --retrain 1 --badge FILE.json            and say so on a badge

Without a study, all that the index names is verified, what was made of it (paper, README), and
whether something vanished; where runs are named, only the records of their studies, whose analysis
is not executed again. The exit status is 1 where something is wrong or differs, and 4 where nothing
is but a run that was trained again cannot be judged.

What was sound before is not verified again while nothing that it rests on has changed: see
`lib.record.receipts`. `--fresh` and `--redraw` verify it nevertheless.
"""

import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lib.publish.findings import check_findings
from lib.publish.paper import check_texts
from lib.publish.plans import missing_beside
from lib.record import receipts, retrain
from lib.record.record import (
    Record,
    paper_of,
    papers,
    recorded_studies,
    require_recorded,
    root_hash,
)
from lib.record.replay import ReplayError
from lib.record.verify import FIRST_RECORD, strays, vanished, verify
from lib.results import status_of
from lib.study.code import git
from lib.study.io import relative, write_json
from lib.study.yaml import UsageError
from lib.workflow.forked import thread_variables, warm_process

NOTED = "verified before, and nothing changed since (--fresh verifies them anyway)"
CANNOT_TELL = 4
"""The exit status where nothing differs, and something cannot be judged."""


def verify_record(
    studies: list[str],
    redraw: bool,
    words: list[str],
    badge: Path | None = None,
    fresh: bool = True,
) -> int:
    """Verify the record of some or (none named) all studies, and what was made of them; return the
    exit status. `words` are those after --retrain: a number of runs, or the runs themselves, each
    as STUDY/ARM/SEED; and studies, which may come last, too. `badge`: a file for `write_badge`.
    `fresh`: what is noted as sound is verified as well."""
    if badge and not words:
        raise UsageError("--badge: it says how runs that are trained again compare; add --retrain")
    runs = [word for word in words if "/" in word]
    number, *more = [word for word in words if "/" not in word] or ["0"]
    if words and not (runs or (number.isdecimal() and int(number))):
        raise UsageError(f"--retrain: '{number}' is no number of runs, and no STUDY/ARM/SEED")
    if not number.isdecimal():
        number, more = "0", [number, *more]
    studies = require_recorded(studies + more)
    named = require_recorded(list(dict.fromkeys(name.partition("/")[0] for name in runs)))
    recorded = retrain.recorded_runs(named)
    for name in runs:
        retrain.require_run(name, list(recorded))
    only_named = bool(runs) and number == "0" and not studies
    fresh |= redraw
    faulty = check(named, redraw, fresh, False) if only_named else check(studies, redraw, fresh)
    if not words:
        return int(faulty)
    if int(number):
        drawn = retrain.recorded_runs(studies or recorded_studies())
        runs += random.SystemRandom().sample(sorted(drawn), min(int(number), len(drawn)))
        recorded |= drawn
    outcomes = Counter(trained_again(name, recorded[name]) for name in runs)
    print("Trained again: " + ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items()))
    status = CANNOT_TELL if outcomes[retrain.UNJUDGED] else 0
    if faulty or not outcomes.keys() <= {retrain.EQUAL, retrain.WITHIN, retrain.UNJUDGED}:
        status = 1
    if badge:
        write_badge(badge, outcomes, faulty, status)
    return status


_COLOURS = {0: "brightgreen", 1: "red", CANNOT_TELL: "yellow"}


def write_badge(path: Path, outcomes: Counter[str], faulty: bool, status: int) -> None:
    """Write how many runs were reproduced, when and by which commit, as JSON that
    https://shields.io/badges/endpoint-badge draws."""
    number = outcomes.total()
    counts = [
        f"{n} of {number} run{'s' if number > 1 else ''} {result}" for result, n in outcomes.items()
    ]
    when = f"{datetime.now(UTC):%Y-%m-%d} {git('rev-parse', '--short=7', 'HEAD') or 'outside git'}"
    faults = ["verify finds faults"] if faulty else []
    message = ", ".join([*faults, *(counts or ["no run"]), when])
    colour = _COLOURS[status] if counts or faulty else "lightgrey"
    badge = {"label": "reproduced", "message": message, "color": colour}
    write_json(path, {"schemaVersion": 1, **badge})


def check(studies: list[str], redraw: bool, fresh: bool, again: bool = True) -> bool:
    """Verify some studies, or all and their papers; print every fault, and return whether there is
    one. What is noted as sound is verified only `fresh`. What is made `again`, how runs begin,
    analysis and figures, can be left out."""
    all_faults, names = [], studies or recorded_studies()
    surroundings = receipts.surroundings()

    def is_noted(study: str) -> bool:
        if fresh or study in FIRST_RECORD:
            return False
        return receipts.is_noted(receipts.study_key(study, surroundings))

    noted = set(filter(is_noted, names))
    longest_first = sorted({*names} - noted, key=_seconds, reverse=True)
    with ExitStack() as stack:
        # Most of it is other processes' work. One study alone does not repay a warm one.
        if len({*longest_first} - {*FIRST_RECORD}) > 1 and sys.platform == "linux":
            stack.enter_context(warm_process(thread_variables(1), subprocess.DEVNULL))
        pool = stack.enter_context(ThreadPoolExecutor((os.cpu_count() or 1) + 1))
        of_texts = {
            paper: pool.submit(_texts, paper, surroundings, fresh)
            for paper in papers()
            if not studies
        }
        verdicts = {
            study: pool.submit(verify, study, again=again, redraw=redraw, around=surroundings)
            for study in longest_first
        }
        for study in names:
            faults = [] if study in noted else verdicts[study].result()
            all_faults += faults
            for fault in faults:
                print(f"error: {study}: {fault}", file=sys.stderr)
            if not faults:
                status = "verified as they were sealed" if study in FIRST_RECORD else "verified"
                status = NOTED if study in noted else status
                if not again and study not in noted:
                    status += " (its analysis was not executed again)"
                unverified = "".join(f"; {missing}" for missing in missing_beside(study))
                print(f"{study}: {len(Record(study).files)} files {status}{unverified}", flush=True)
        if not studies:
            found = [each for paper in of_texts for each in strays(paper)]
            found += [each for faults in of_texts.values() for each in faults.result()]
            for fault in [*vanished(), *found]:
                print(f"error: {fault}", file=sys.stderr)
                all_faults.append(fault)
    if receipts.surroundings() != surroundings:  # in which of them a note was taken, nobody knows
        for study in longest_first:
            receipts.forget(receipts.study_key(study, surroundings))
        for paper in of_texts:
            receipts.forget(receipts.paper_key(paper, surroundings))
    for paper in papers():
        print(f"Root of records, results and plans of {relative(paper)}: {root_hash(paper)}")
    return bool(all_faults)


def _seconds(study: str) -> float:
    """Return how long a study's analysis took, and verifying it will take about in proportion."""
    notebook = paper_of(study) / "record" / study / "03_analysis.ipynb"
    return float(status_of(notebook).get("seconds") or 0)


def _texts(paper: Path, surroundings: dict[str, Any], fresh: bool) -> list[str]:
    """List the faults of a paper's texts and findings, unless it is noted that in these
    surroundings there are none; note it."""
    key = receipts.paper_key(paper, surroundings)
    if not fresh and receipts.is_noted(key):
        print(f"{relative(paper)}: texts and findings {NOTED}")
        return []
    faults = [*check_texts(paper), *check_findings(paper)]
    if not faults and receipts.paper_key(paper, surroundings) == key:
        receipts.note(key)
    return faults


def trained_again(name: str, run: dict[str, object]) -> str:
    """Train a run again, print how it compares with its record, and return it in a word."""
    try:
        judgement = retrain.retrain(run)
    except ReplayError as error:
        print(f"error: {name} was not trained again: {error}", file=sys.stderr)
        return "not trained again"
    for fault in judgement.differing:
        print(f"error: {name}, trained again: {fault}", file=sys.stderr)
    print(f"{name}: trained again, {judgement.words}", flush=True)
    return judgement.outcome
