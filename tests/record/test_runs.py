"""Whether a run's numbers, raw files and notebook agree: a recorded run, after one change."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from lib.record import runs
from lib.record.record import Record
from lib.results import RAW, STOCK, raw_names
from lib.study.metrics import MEASURES
from lib.workflow.rehearsal import made_up
from tests.analysis.samples import design


@pytest.fixture(scope="module")
def sound() -> Record:
    record = Record("example")
    assert list(runs.check_runs(record)) == []
    record.runs = record.runs[:1]
    return record


@pytest.fixture
def record(sound: Record) -> Record:
    """A record of which nothing is read again: what a test changes stays changed."""
    return deepcopy(sound)


def put(table: str, column: str, row: int, value: Any) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        raw = record.raw(record.runs[0])[table]
        raw.loc[raw.index[row], column] = value

    return change


def less(table: str, row: int) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        raw = record.raw(record.runs[0])
        raw[table] = raw[table].drop(raw[table].index[row])

    return change


def by_length(factor: float) -> Callable[[Record], None]:
    """Multiply all losses by position, and what follows from them."""

    def change(record: Record) -> None:
        run = record.runs[0]
        record.raw(run)["positions"]["position_loss"] *= factor
        for row in run["tables"]["lengths"]:
            row["loss"] *= factor
            row["perplexity"] = np.exp(row["loss"])

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    {
        "losses by position that are higher": (
            by_length(1.004), "the losses of positions.parquet are not those of windows.parquet"
        ),
        "losses by position that are lower": (by_length(0.996), "the losses of positions"),
        "a perplexity of another loss": (
            lambda record: record.runs[0]["tables"]["lengths"][0].update(perplexity=9.0),
            "the loss at length 16 does not follow",
        ),
        "a step counted twice": (put("trace", "tokens", 3, 1), "tokens in trace.parquet are not"),
        "a point of the dev curve left out": (less("curve", 1), "snapshots is|curve.parquet does"),
        "a training that ended without a loss": (
            put("trace", "loss", -1, np.nan), "it is completed, and its last losses"
        ),
        "a dev loss lost at the end": (
            put("curve", "dev_loss", -1, np.inf), "it is completed, and its last losses"
        ),
        "a window left out": (less("windows", 2), "windows.parquet leaves out|.* by its raw files"),
        "a window that begins elsewhere": (
            put("windows", "start", 1, 7), "windows.parquet leaves out a part of the text"
        ),
        "characters that no bin counts": (put("bins", "n", 0, 0), "ece.* by its raw files"),
        "a table that denies a measure": (
            lambda record: next(
                row for row in record.runs[0]["tables"]["temperatures"] if row["temperature"] == 1
            ).update(nll=1.0),
            "nll at temperature 1 is 1.0, and the measure is",
        ),
        "fewer steps than were asked": (
            lambda record: record.runs[0]["config"]["training"].update(iterations=7),
            r"\d+ of 7 steps, completed",
        ),
    }.values(),
)  # fmt: skip
def test_raw_files_agree_with_the_result_and_with_each_other(
    change: Callable[[Record], None], fault: str, record: Record
) -> None:
    change(record)
    assert any(re.search(f": {fault}", found) for found in runs.check_runs(record))


@pytest.mark.parametrize("apart", [False, True])
def test_a_notebook_prints_its_result(apart: bool, record: Record) -> None:
    path, run = record.run_notebook(record.runs[0]), record.runs[0]
    if apart:
        record._read[path] = set_apart(record.read(path))
    assert list(runs._wrong_print(record, run)) == []
    for change, fault in (
        ({"steps": 1}, "the sentence about its result"),
        ({"parameters": 1}, "the table of its result in its notebook says parameters"),
        (
            {"measures": run["measures"] | {"perplexity": 1.0}},
            f"the table of its result in its notebook says {MEASURES['perplexity'].title}: ",
        ),
    ):
        faults = list(runs._wrong_print(record, run | change))
        assert any(found.startswith(fault) for found in faults)


def set_apart(notebook: dict[str, Any]) -> dict[str, Any]:
    """Move the sentence and the measures of a result to a cell after the one that wrote it."""
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    kept = lambda o: "application/json" in o.get("data", {})  # noqa: E731
    (number,) = [n for n, c in enumerate(cells) if any(map(kept, c["outputs"]))]
    told, shown = sorted(cells[number]["outputs"], key=kept)
    first, _, rest = "".join(told["text"]).partition("\n")
    data = shown["data"]
    row = re.sub(r"(?s)(<tbody>.*?</tr>).*(</tbody>)", r"\1\2", "".join(data["text/html"]))
    cells[number]["outputs"] = [told | {"text": rest}, shown | {"data": data | {"text/html": row}}]
    table = shown | {"data": {"text/html": data["text/html"]}}
    after = cells[number] | {"outputs": [told | {"text": first + "\n"}, table]}
    return notebook | {"cells": [*cells[: number + 1], after, *cells[number + 1 :]]}


OTHERWISE = "prints something else of its training than the losses of curve.parquet"


@pytest.mark.parametrize(
    ("pattern", "new", "fault"),
    [
        ("step 50: ", "It helps.\nstep 50: ", OTHERWISE),
        ("step 50: ", "DIVERGED at step 9: its loss\nstep 50: ", OTHERWISE),
        (r"step 50: .*\n", "", OTHERWISE),
        (r"(step 50: dev loss )\d", r"\g<1>9", OTHERWISE),
        (r"(step 50: dev loss \d)\.\d+", r"\1", OTHERWISE),
        (r"(step 50: .*)\d\n", r"\1\n", OTHERWISE),
        ("step 50: ", "step 51: ", OTHERWISE),
        ("corpus: ", "It helps.\ncorpus: ", "prints other parameters than its result says"),
        ("batch_size=", "batch_size=1", "prints other parameters than its result says"),
        ("machine: ", "machine: It helps. ", "prints other parameters than its result says"),
        ("compile=False", "compile=False\nIt helps.", "prints other parameters than its result"),
        ("threads=None", "threads=64", "prints other parameters than its result"),
        ("compile=False", "it_helps=True", "prints other parameters than its result"),
        ("device='auto'", "device='H100'", "prints other parameters than its result"),
        ("runs/example/", "It helps, says runs/example/", "the sentence about its result"),
        ("<th>Brier score</th>", "<th>test perplexity</th>", "says test perplexity: "),
        ("<th>Brier score</th>", "<th>test perplexity</th>", "leaves out brier"),
        ("<th>run</th>", "<th>arm</th>", "leaves out run"),
        ("<tbody>", "<caption>It helps.</caption><tbody>", "holds more than rows"),
        ("</table>", "</table><p>It helps.</p>", "shows more than tables in HTML"),
        ("</table>", '</table><img alt="It helps.">', "shows more than tables in HTML"),
        ("</table>", "</table><table title='It helps.'></table>", "shows more than tables"),
        ("</table>", "</table><!-- It helps. -->", "shows more than tables in HTML"),
    ],
)
def test_a_notebook_prints_parameters_and_losses_and_nothing_else(
    pattern: str, new: str, fault: str, record: Record
) -> None:
    for cell in record.read(record.run_notebook(record.runs[0]))["cells"]:
        for output in cell.get("outputs", []):
            for content, kind in ((output, "text"), (output.get("data", {}), "text/html")):
                if kind in content:
                    content[kind] = re.sub(pattern, new, "".join(content[kind]))
    assert any(fault in found for found in runs._wrong_print(record, record.runs[0]))


def test_a_recorded_suite_has_the_hash_that_its_runs_name() -> None:
    record = Record("final")
    hashes = [suite["hash"] for suite in runs.recorded_suites(record)]
    assert hashes == [record.runs[0]["suite_hash"]]


def test_runs_are_scored_on_the_same_windows() -> None:
    record = Record("example")
    assert list(runs.check_windows(record)) == []
    record.raw(record.runs[1])["windows"]["start"] += 1
    (fault,) = runs.check_windows(record)
    assert "was scored on other windows of the same text than" in fault


def test_raw_files_are_those_that_the_result_was_written_with(record: Record) -> None:
    assert list(runs.check_raw_files(record)) == []
    record.runs = json.loads(json.dumps(record.runs))
    record.runs[0]["files"]["curve.parquet"] = "0" * 64
    (fault,) = runs.check_raw_files(record)
    assert fault.endswith("curve.parquet is not the file that the result was written with")


def test_forged_answers_to_stock_tasks_are_named() -> None:
    """In the table, in the raw file and in the measure; results that kept no answers are valid."""
    asked = {"items_per_task": 0, "tasks": ["sciq", "piqa"], "shots": [0, 5]}
    study = design(corpus={"source": "synthetic", "tokenizer": "bytes"}, evaluation=asked)
    result, raw = next(made_up(study))

    def faults(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> list[str]:
        run, files = result.model_dump(mode="json"), {n: table.copy() for n, table in raw.items()}
        run["seconds"]["snapshots"] = 0.0
        table = run["tables"]["stock_tasks"]
        table.sort(key=lambda row: row["shots"])
        for last in (4, 2):
            value = (table[last - 1]["value"] + table[last - 2]["value"]) / 2
            row = {"shots": table[last - 1]["shots"], "value": value, "n": None}
            table.insert(last, {"task": "all tasks", "metric": "acc"} | row)
        change(run, files)
        found = [*runs._wrong_numbers(run, files), *runs._wrong_tables(run, files)]
        return [fault for fault in found if "accuracy in" in fault or ".acc@" in fault]

    def forged(row: int, column: str, value: float) -> list[str]:
        return faults(lambda run, _: run["tables"]["stock_tasks"][row].update({column: value}))

    assert faults(lambda *_: None) == []
    named = "accuracy in sciq (0 shots) is not that of stock_items.parquet"
    for column, value in (("value", 0.99), ("stderr", 0.2), ("n", 19)):
        assert named in forged(0, column, value)
    of_all = "accuracy in all tasks (0 shots) is not the mean of theirs"
    assert forged(2, "value", 0.99) == [of_all]
    right = faults(lambda _, files: files[STOCK].__setitem__("correct", True))
    assert named in right
    assert sum("by its raw files" in fault for fault in right) == 4
    (measure,) = faults(lambda run, _: run["measures"].update({"sciq.acc@5": 0.99}))
    assert measure.startswith("sciq.acc@5 is 0.99, and ")

    def older(run: dict[str, Any], files: dict[str, Any]) -> None:
        del files[STOCK], run["config"]["evaluation"]["include_path"]
        run["measures"] = {n: v for n, v in run["measures"].items() if ".acc@" not in n}
        assert raw_names(run["config"]) == RAW

    assert raw_names(result.config) == (*RAW, STOCK)
    assert faults(older) == []


TEXT = {"text/markdown": "It helps."}
TABLE = {"text/html": "<table><tr><td>It helps.</td></tr></table>"}
PICTURE = {"image/png": "aGVscHM="}


@pytest.mark.parametrize(
    ("code", "shown", "fault"),
    [
        ("train(this.config", TABLE, "something of its training beside what it prints"),
        ("train(this.config", PICTURE, "something of its training beside what it prints"),
        ("measured.seconds, name", TABLE, "something beside the table of its seconds"),
        ("show_training(", TEXT, "a text in Markdown"),
    ],
)
def test_a_cell_that_shows_times_shows_nothing_else(
    code: str, shown: dict[str, str], fault: str, record: Record
) -> None:
    """Its outputs are in no comparison with a training that is repeated."""
    notebook = record.read(record.run_notebook(record.runs[0]))
    (cell,) = [c for c in notebook["cells"] if code in "".join(c["source"])]
    output = {"output_type": "display_data", "data": shown, "metadata": {}}
    cell["outputs"].append(output)
    (found,) = runs.check_runs(record)
    assert found.endswith(f"its notebook shows {fault}")
    notebook["metadata"]["study"]["by_hand"] = True  # where the picture of its curve stays
    cell["outputs"] = [each for each in cell["outputs"] if each["output_type"] != "stream"]
    assert (list(runs.check_runs(record)) == []) == (shown == PICTURE)


@pytest.mark.parametrize("text", ["It helps.", "9999.99"])
def test_the_table_of_seconds_is_that_of_the_result(text: str, record: Record) -> None:
    notebook = record.read(record.run_notebook(record.runs[0]))
    (cell,) = [c for c in notebook["cells"] if "measured.seconds, name" in "".join(c["source"])]
    data = cell["outputs"][0]["data"]
    data["text/html"] = re.sub(r"<td>[^<]+", f"<td>{text}", "".join(data["text/html"]), count=1)
    (found,) = runs.check_runs(record)
    assert found.endswith("the table of its seconds in its notebook is not that of the result")
