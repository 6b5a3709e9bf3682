"""Train recorded runs again, at the commit that they were made by, and compare.

    ./run_all.sh verify [STUDY …] --retrain 2                    drawn at random
    ./run_all.sh verify --retrain final/none/0 [STUDY/ARM/SEED …]

On the recorded type of CPU, with the recorded versions, a run repeats to the bit; elsewhere
`lib.workflow.repetition` says how it is judged. The exit status is 1 where something differs, and
4 where nothing does but something cannot be judged.
"""

import argparse
import hashlib
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load_file

from lib.publish import replay, verify
from lib.publish.archive import code_cells, read_runs, recorded_studies, require_recorded
from lib.publish.first_rules import SUPERSEDED
from lib.publish.raw_zip import raw_folder
from lib.publish.recomputed import place
from lib.study.errors import UsageError, exit_status, read_yaml, unknown
from lib.study.paths import run_folder
from lib.study.provenance import trained_with
from lib.study.raw import RAW, Folder, raw_file, read_raw_file
from lib.study.record import read_json
from lib.workflow.repetition import EQUAL, UNJUDGED, WITHIN, Judgement, Made, judge

CANNOT_TELL = 4
"""The exit status where nothing differs, and something cannot be judged."""
_EXECUTION = ("lib.workflow.execution", "lib.execution")
"""What executes a notebook, today and under the first rules."""
_TIMES = ("train(", "write_result(", "measured.seconds")
"""What the cells of 02_train hold that show times."""


def recorded_runs(studies: list[str]) -> dict[str, dict[str, Any]]:
    """All runs of some studies by `study/arm/seed`; of superseded ones none is kept."""
    runs = [run for study in studies if study not in SUPERSEDED for run in read_runs(study)]
    return {f"{run['study']}/{run['arm']}/{run['seed']}": run for run in runs}


def retrain(run: dict[str, Any]) -> Judgement:
    """Train a recorded run again, and compare.

    Raises ReplayError, in a line, for one that cannot be trained again.
    """
    record = place(run["study"], run)
    again, shown = made_again(run)

    def otherwise() -> Made | None:
        machine = trained_with(again.result["provenance"])
        share = again.result["config"]["training"]["batch_size"] // machine.get("processes", 1)
        other = other_rounding(share, machine)
        try:
            return made_again(run, *other)[0] if other else None
        except replay.ReplayError:  # code before machines had a section
            return None

    weights = kept_weights(run_folder(run["study"], run["arm"], run["seed"]), run["final_weights"])
    recorded = Made(run, _raw(raw_folder(record / "02_train.ipynb")), weights)
    found = judge(recorded, again, otherwise)
    if found.bits and shown:
        (found.unjudged if found.machine else found.differing).extend(shown)
    return found


def made_again(
    run: dict[str, Any], settings: dict[str, int] | None = None, level: str = ""
) -> tuple[Made, list[str]]:
    """Train a recorded run again; return what it left, and the code cells that show something else.
    `settings` of the machine and the vector `level` of the CPU may be other ones."""
    origin = trained_with(run["provenance"])
    commit = replay.committed(origin)
    if commit is None:
        raise replay.ReplayError("its code was not committed, or this folder is outside git")
    with replay.tree_at(origin) as tree:
        modules = [
            m for m in _EXECUTION if tree.joinpath(*m.split(".")).with_suffix(".py").is_file()
        ]
        if not modules:
            raise replay.ReplayError(f"commit {commit[:12]} is too old to be executed from here")
        if settings:
            path = tree / "params" / f"{run['study']}.yaml"
            fields = read_yaml(path)
            machine = (fields.get("machine") or {}) | settings
            path.write_text(yaml.safe_dump(fields | {"machine": machine}), "utf-8")
        replay.lend_corpora(tree, [run["config"]["corpus"]])
        words = ("--study", run["study"], "--arm", run["arm"], "--seed", str(run["seed"]))
        python = ([f"ATEN_CPU_CAPABILITY={level}"] if level else []) + [sys.executable]
        replay.execute(tree, "env", *python, "-m", modules[0], "02_train", *words)
        folder = tree / "runs" / run["study"] / run["arm"] / f"seed-{run['seed']}"
        result = read_json(folder / "result.json")
        recorded = place(run["study"], run) / "02_train.ipynb"
        shown = list(other_outputs(recorded, folder / "02_train.ipynb"))
        made = Made(result, _raw(folder), kept_weights(folder, result["final_weights"]))
    return made, shown


def other_rounding(share: int, machine: dict[str, Any]) -> tuple[dict[str, int], str] | None:
    """Settings of the machine, and a vector level, by which a process' share of a batch is summed
    otherwise; None where one sequence is trained on a GPU."""
    if size := other_parts(share, machine["micro_batch_size"]):
        return {"micro_batch_size": size}, ""
    return ({"threads": machine["threads"] + 1}, "default") if machine["device"] == "cpu" else None


def other_parts(share: int, micro_batch_size: int) -> int | None:
    """Another size of the parts that a process' share of a batch is summed in; None of one
    sequence."""
    sizes = (micro_batch_size // 2, 1, share)
    return next((n for n in sizes if n not in (0, micro_batch_size) and share % n == 0), None)


def kept_weights(folder: Path, digest: str) -> NDArray[np.float64] | None:
    """Read the weights with this hash from a run's checkpoints, in one row; None without any."""
    for path in folder.glob("checkpoints/*/*/weights.safetensors"):
        weights = sorted(load_file(path).items())
        content = b"".join(name.encode() + tensor.tobytes() for name, tensor in weights)
        if hashlib.sha256(content).hexdigest() == digest:
            return np.concatenate([tensor.ravel() for _, tensor in weights]).astype(float)
    return None


def _raw(folder: Folder) -> dict[str, pd.DataFrame]:
    """Read the raw files that a run has; older ones lack some."""
    return {name: read_raw_file(folder, name) for name in RAW if raw_file(folder, name).is_file()}


def other_outputs(notebook: Path, again: Path) -> Iterator[str]:
    """Name the code cells of a 02_train that show something else, but for those with times."""
    shown = (replay.outputs(path, pictures=True) for path in (notebook, again))
    cells = zip(code_cells(notebook), *shown, strict=False)  # verifying it compares the code
    for number, (cell, stated, found) in enumerate(cells, start=1):
        if stated != found and not any(word in cell for word in _TIMES):
            yield f"code cell {number} of 02_train.ipynb shows something else"


@exit_status
def main(arguments: list[str] | None = None) -> int:
    """Verify the record, then train runs of it again."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--retrain", nargs="+", required=True)
    options, rest = parser.parse_known_args(arguments)
    first, *more = options.retrain
    asked = [word for word in options.retrain if "/" in word]
    rest += [word for word in more if "/" not in word]  # studies may come last, too
    if "/" not in first and not (first.isdecimal() and int(first)):
        raise UsageError(f"--retrain: '{first}' is no number of runs, and no STUDY/ARM/SEED")
    studies = require_recorded([word for word in rest if not word.startswith("-")])
    runs = recorded_runs(require_recorded([name.partition("/")[0] for name in asked]))
    for name in asked:
        require_run(name, list(runs))
    status = verify.main(rest)
    if first.isdecimal():
        runs |= (drawn := recorded_runs(studies or recorded_studies()))
        asked += random.SystemRandom().sample(sorted(drawn), min(int(first), len(drawn)))
    outcomes: Counter[str] = Counter()
    for name in asked:
        try:
            found = retrain(runs[name])
        except replay.ReplayError as error:
            print(f"error: {name} was not trained again: {error}", file=sys.stderr)
            outcomes["not trained again"] += 1
            continue
        for fault in found.differing:
            print(f"error: {name}, trained again: {fault}", file=sys.stderr)
        print(f"{name}: trained again, {found.words}", flush=True)
        outcomes[found.outcome] += 1
    print("Trained again: " + ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items()))
    if not status and outcomes.keys() <= {EQUAL, WITHIN, UNJUDGED}:
        return CANNOT_TELL if outcomes[UNJUDGED] else 0
    return 1


def require_run(name: str, known: list[str]) -> None:
    """Raise UsageError for a run that the record does not hold."""
    study = name.partition("/")[0]
    runs = [run for run in known if run.startswith(f"{study}/")]
    if not runs:
        raise UsageError(f"run: the record keeps no run of '{study}'")
    if name not in runs:
        raise UsageError(f"run: {unknown(name, runs)}")


if __name__ == "__main__":
    sys.exit(main())
