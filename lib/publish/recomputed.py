"""Whether the numbers in a run's result follow from its raw files and the suite it was asked."""

import itertools
import json
import math
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from lib.publish.archive import record_folder
from lib.publish.raw_zip import FILE, raw_folder
from lib.study.fields import digest
from lib.study.raw import RAW, measures_of, raw_file, read_raw
from lib.study.record import finite, sha256

Run = dict[str, Any]
"""A `RunResult` as JSON."""
close = partial(math.isclose, rel_tol=1e-9, abs_tol=1e-12)
"""Equal up to the last digits, in which machines may differ."""


def place(study: str, run: Run) -> Path:
    """Where the record keeps a run."""
    return record_folder(study) / str(run["arm"]) / f"seed-{run['seed']}"


def named(run: Run) -> str:
    """Name a run for a message."""
    return f"run {run['arm']} seed {run['seed']}"


def wrong_measures(study: str, run: Run) -> Iterator[str]:
    """What a run's result says otherwise than its raw files."""
    folder = raw_folder(place(study, run) / "02_train.ipynb")
    for name in RAW:
        path = raw_file(folder, name)
        if not path.is_file() or sha256(path) != run["files"].get(path.name):
            yield f"{path.name} is not the file that the result was written with"
            return
    raw = read_raw(folder)
    trace, curve, windows, items = (raw[name] for name in ("trace", "curve", "windows", "items"))
    found = measures_of(raw)
    for name, value in found.items():
        stated, value = run["measures"].get(name), finite(value)
        if stated is None and name == "bits_per_character":  # made before it was measured
            continue
        if stated != value and (stated is None or value is None or not close(stated, value)):
            yield f"{name} is {stated}, and {value} by its raw files"
    training = float(trace["seconds"].sum())
    derived = {
        "training": (run["seconds"]["training"], training),
        "snapshots": (run["seconds"]["snapshots"], float(curve["seconds"].sum())),
        "training speed": (
            run["throughput"]["training_tokens_per_second"],
            float(trace["tokens"].iloc[-1]) / training,
        ),
        "tokens": (run["tokens"], int(trace["tokens"].iloc[-1])),
        "steps": (run["steps"], len(trace)),
        "windows": (len(windows) > 0, run["status"] == "completed"),
    }
    for name, (stated, value) in derived.items():
        if not close(stated, value):
            yield f"{name} is {stated}, and {value} by its raw files"
    if list(trace["step"]) != list(range(1, len(trace) + 1)):
        yield "the steps of trace.parquet are not 1, 2, 3, …"
    asked = run["config"]["training"]["iterations"]
    if run["diverged_at"] != (len(trace) if run["status"] == "diverged" else None) or (
        run["status"] == "completed" and len(trace) != asked
    ):
        yield f"{len(trace)} of {asked} steps, {run['status']}, diverged at {run['diverged_at']}"
    yield from _wrong_tables(run["tables"], raw)
    for row in run["tables"].get("temperatures", []):
        fitted = row["temperature"] == run["measures"]["temperature"]
        for name in ("nll", "ece") if fitted else ():
            if not close(row[name], run["measures"][f"{name}_test_tempered"]):
                yield f"{name} at the fitted temperature is not {name}_test_tempered"
    if len(items):
        yield from _wrong_items(study, run, items)


def _wrong_tables(
    tables: dict[str, list[dict[str, Any]]], raw: dict[str, pd.DataFrame]
) -> Iterator[str]:
    for row in tables.get("lengths", []):
        if not close(row["loss"], raw["positions"]["position_loss"][: row["length"]].mean()):
            yield f"the loss at length {row['length']} does not follow from that by position"
    items = raw["items"]
    for row in tables.get("tasks", []):
        asked = (items["task"] == row["task"]) & (items["shots"] == row["shots"])
        right = items.loc[asked, "correct"]
        if row["n"] != len(right) or not close(row["accuracy"], right.mean()):
            yield f"accuracy in {row['task']} ({row['shots']} shots) is not that of items.parquet"


def _wrong_items(study: str, run: Run, items: pd.DataFrame) -> Iterator[str]:
    """Questions that the recorded suite does not hold, and answers that it judges otherwise."""
    suites = {suite["hash"]: suite for suite in recorded_suites(record_folder(study))}
    if run["suite_hash"] not in suites:
        yield f"the record holds no suite {str(run['suite_hash'])[:12]}, which it was asked"
        return
    tasks = suites[run["suite_hash"]]["gold"]
    for (task, shots), rows in items.groupby(["task", "shots"]):
        gold = tasks.get(task, [])
        if rows["item"].tolist() != list(range(len(gold))):
            yield f"the questions of {task} ({shots} shots) are not those of the suite"
        elif ((rows["choice"] == gold) != rows["correct"]).any():
            yield f"items.parquet counts as right in {task} ({shots} shots) what the suite does not"


def recorded_suites(record: Path) -> Iterator[dict[str, Any]]:
    """The hash of every recorded suite, from its questions, and the right answer of each."""
    for folder in zipfile.Path(record / FILE, "suite/").iterdir():
        groups = json.loads((folder / "suite.json").read_text("utf-8"))["groups"]
        tasks, gold = [], {}
        names = itertools.chain(*groups.values())
        asked = [name.removesuffix("_shot").rsplit("_", 1) for name in names]
        for name in dict.fromkeys(task for task, _ in asked):
            parts = {
                part: [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
                for part, lines in (
                    ("items", folder / f"{name}.test.jsonl"),
                    ("exemplars", folder / f"{name}.dev.jsonl"),
                )
            }
            shots = sorted({int(n) for task, n in asked if task == name})
            tasks.append({"name": name, **parts, "shots": shots})
            gold[name] = [item["gold"] for item in parts["items"]]
        yield {"hash": digest(tasks), "gold": gold}
