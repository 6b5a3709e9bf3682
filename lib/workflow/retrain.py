"""Train recorded runs again, at the commit that they were made by, and compare.

    ./run_all.sh verify [STUDY …] --retrain 2                    drawn at random
    ./run_all.sh verify --retrain final/none/0 [STUDY/ARM/SEED …]

On the recorded type of CPU, with the recorded versions, a run repeats to the bit. Elsewhere batches
are the same, and what rounding leaves of the rest is held to a tolerance.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from lib.publish import replay, verify
from lib.publish.archive import code_cells, read_runs
from lib.publish.first_rules import SUPERSEDED
from lib.publish.raw_zip import raw_folder
from lib.publish.recomputed import place
from lib.study.errors import exit_status, unknown
from lib.study.provenance import trained_with
from lib.study.raw import RAW, Folder, raw_file, read_raw_file
from lib.study.record import read_json

FIRST_STEPS, LOSS_TOLERANCE = 10, 1e-3
"""Elsewhere, the losses of so many first steps agree up to this share of them."""
PERPLEXITY_TOLERANCE = 0.02
"""Elsewhere, the final perplexity agrees up to this share of it."""
_EXECUTION = ("lib.workflow.execution", "lib.execution")
"""What executes a notebook, today and under the first rules."""
_TIMES = ("train(", "write_result(", "measured.seconds")
"""What the cells of 02_train hold that show times."""


def recorded_runs(studies: list[str]) -> dict[str, dict[str, Any]]:
    """All runs of some studies by `study/arm/seed`; of superseded ones none is kept."""
    runs = [run for study in studies if study not in SUPERSEDED for run in read_runs(study)]
    return {f"{run['study']}/{run['arm']}/{run['seed']}": run for run in runs}


def retrain(run: dict[str, Any]) -> tuple[str, list[str]]:
    """Train a recorded run again; return how it was compared, and what differs.

    Raises ReplayError, in a line, for one that cannot be trained again.
    """
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
        replay.lend_corpora(tree, [run["config"]["corpus"]])
        words = ("--study", run["study"], "--arm", run["arm"], "--seed", str(run["seed"]))
        replay.execute(tree, sys.executable, "-m", modules[0], "02_train", *words)
        folder = tree / "runs" / run["study"] / run["arm"] / f"seed-{run['seed']}"
        again, record = read_json(folder / "result.json"), place(run["study"], run)
        raw, raw_again = _raw(raw_folder(record / "02_train.ipynb")), _raw(folder)
        shown = list(other_outputs(record / "02_train.ipynb", folder / "02_train.ipynb"))
    if same_machine(origin, trained_with(again["provenance"])):
        return "to the bit", [*other_bits(run, again, raw, raw_again), *shown]
    return "within a tolerance, on another type of CPU or other versions", list(
        beyond_tolerance(run, again, raw["trace"], raw_again["trace"])
    )


def _raw(folder: Folder) -> dict[str, pd.DataFrame]:
    """Read the raw files that a run has; older ones lack some."""
    return {name: read_raw_file(folder, name) for name in RAW if raw_file(folder, name).is_file()}


def same_machine(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether two accounts name the same type of machine and the same versions."""
    names = (
        *("device", "device_name", "vector_level", "threads", "micro_batch_size", "packages"),
        *("processes", "activation_checkpointing", "compile"),
    )
    return all(one.get(name) == other.get(name) for name in names)


def other_bits(
    run: dict[str, Any],
    again: dict[str, Any],
    raw: dict[str, pd.DataFrame],
    raw_again: dict[str, pd.DataFrame],
) -> Iterator[str]:
    """Name what is not equal to the bit, of raw files those that both have; seconds never are."""
    for name in ("initial_weights", "batches", "final_weights", "measures", "tables"):
        if run[name] != again[name]:
            yield f"{name} differ"
    for name in RAW:
        if name in raw and name in raw_again:
            one, other = (
                each[name].drop(columns="seconds", errors="ignore") for each in (raw, raw_again)
            )
            if not one.equals(other):
                yield f"{name}.parquet differs"


def other_outputs(notebook: Path, again: Path) -> Iterator[str]:
    """Name the code cells of a 02_train that show something else, but for those with times."""
    shown = (replay.outputs(path, pictures=True) for path in (notebook, again))
    cells = zip(code_cells(notebook), *shown, strict=False)  # verifying it compares the code
    for number, (cell, stated, found) in enumerate(cells, start=1):
        if stated != found and not any(word in cell for word in _TIMES):
            yield f"code cell {number} of 02_train.ipynb shows something else"


def beyond_tolerance(
    run: dict[str, Any], again: dict[str, Any], trace: pd.DataFrame, trace_again: pd.DataFrame
) -> Iterator[str]:
    """Name what differs by more than another machine explains."""
    if run["batches"] != again["batches"]:
        yield "batches differ"
    losses, found = (table["loss"][:FIRST_STEPS] for table in (trace, trace_again))
    if len(losses) != len(found) or ((losses - found).abs() > LOSS_TOLERANCE * losses).any():
        yield f"a loss of the first {FIRST_STEPS} steps differs by more than {LOSS_TOLERANCE:.1%}"
    one, other = (result["measures"].get("perplexity") for result in (run, again))
    if (one is None) != (other is None) or (
        one is not None and abs(one - other) > PERPLEXITY_TOLERANCE * one
    ):
        yield f"perplexity is {other} and was {one}: beyond {PERPLEXITY_TOLERANCE:.0%}"


@exit_status
def main(arguments: list[str] | None = None) -> int:
    """Verify the record, then train runs of it again."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--retrain", nargs="+", required=True)
    options, rest = parser.parse_known_args(arguments)
    first, *more = options.retrain
    rest += [word for word in more if "/" not in word]  # studies may come last, too
    status = verify.main(rest)
    studies = [Path(word).stem for word in rest if not word.startswith("-")]
    runs = recorded_runs(studies or verify.recorded_studies())
    asked = [first, *(word for word in more if "/" in word)]
    if first.isdecimal():
        asked[:1] = random.SystemRandom().sample(sorted(runs), min(int(first), len(runs)))
    for name in asked:
        try:
            if name not in runs:
                raise replay.ReplayError(unknown(name, list(runs)))
            how, faults = retrain(runs[name])
        except replay.ReplayError as error:
            print(f"error: {name} was not trained again: {error}", file=sys.stderr)
            status = 1
            continue
        for fault in faults:
            print(f"error: {name}, trained again and compared {how}: {fault}", file=sys.stderr)
        if not faults:
            print(f"{name}: trained again, equal {how}")
        status = status or int(bool(faults))
    return status


if __name__ == "__main__":
    sys.exit(main())
