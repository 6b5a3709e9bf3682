"""Verify the record, and train runs of it again.

    ./run_all.sh verify [STUDY …] [--redraw]
    ./run_all.sh verify [STUDY …] --retrain 2                    runs drawn at random
    ./run_all.sh verify --retrain final/none/0 [STUDY/ARM/SEED …]

Without a study, all that the index names is verified, what was made of it (paper, README), and
whether something vanished. The exit status is 1 where something is wrong or differs, and 4 where
nothing is but a run that was trained again cannot be judged.
"""

import argparse
import os
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from lib.publish.findings import check_findings
from lib.publish.paper import check_texts
from lib.publish.plans import missing_beside
from lib.record import retrain
from lib.record.record import Record, papers, recorded_studies, require_recorded, root_hash
from lib.record.replay import ReplayError
from lib.record.verify import SEALED, strays, vanished, verify
from lib.study.errors import UsageError, exit_status
from lib.study.paths import shown

CANNOT_TELL = 4
"""The exit status where nothing differs, and something cannot be judged."""


@exit_status
def main(words: list[str] | None = None) -> int:
    """Verify the record of some or (none named) all studies, and what was made of them."""
    parser = argparse.ArgumentParser(prog="./run_all.sh verify", description=main.__doc__)
    parser.add_argument("studies", nargs="*", help="names of studies")
    parser.add_argument("--redraw", action="store_true", help="execute 01 and 04 again as well")
    parser.add_argument("--retrain", nargs="+", default=[], metavar="N or STUDY/ARM/SEED")
    options = parser.parse_args(words)
    runs = [word for word in options.retrain if "/" in word]
    number, *more = [word for word in options.retrain if "/" not in word] or ["0"]
    if options.retrain and not (runs or (number.isdecimal() and int(number))):
        raise UsageError(f"--retrain: '{number}' is no number of runs, and no STUDY/ARM/SEED")
    if not number.isdecimal():  # studies may come last, too
        number, more = "0", [number, *more]
    studies = require_recorded(options.studies + more)
    known = retrain.recorded_runs(require_recorded([name.partition("/")[0] for name in runs]))
    for name in runs:
        retrain.require_run(name, list(known))
    faulty = check(studies, options.redraw)
    if not options.retrain:
        return int(faulty)
    if int(number):
        drawn = retrain.recorded_runs(studies or recorded_studies())
        runs += random.SystemRandom().sample(sorted(drawn), min(int(number), len(drawn)))
        known |= drawn
    outcomes = Counter(trained_again(name, known[name]) for name in runs)
    print("Trained again: " + ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items()))
    if faulty or not outcomes.keys() <= {retrain.EQUAL, retrain.WITHIN, retrain.UNJUDGED}:
        return 1
    return CANNOT_TELL if outcomes[retrain.UNJUDGED] else 0


def check(studies: list[str], redraw: bool) -> bool:
    """Verify some studies, or all and their papers; print every fault, and return whether there is
    one."""
    faulty = False
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # most of it is other processes' work
        names = studies or recorded_studies()
        for study, faults in zip(names, pool.map(partial(verify, redraw=redraw), names),
                                 strict=True):  # fmt: skip
            for fault in faults:
                print(f"error: {study}: {fault}", file=sys.stderr)
            if not faults:
                how = "verified as they were sealed" if study in SEALED else "verified"
                beside = "".join(f"; {missing}" for missing in missing_beside(study))
                print(f"{study}: {len(Record(study).files)} files {how}{beside}", flush=True)
            faulty |= bool(faults)
    if not studies:
        texts = [
            fault
            for paper in papers()
            for fault in (*strays(paper), *check_texts(paper), *check_findings(paper))
        ]
        for fault in [*vanished(), *texts]:
            print(f"error: {fault}", file=sys.stderr)
            faulty = True
    for paper in papers():
        print(f"Root of records, results and plans of {shown(paper)}: {root_hash(paper)}")
    return faulty


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
