"""Whether raw files and what a notebook prints agree with a run: each check on a recorded run that
passes them all, after one change."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lib.publish import agreement
from lib.publish.archive import read_runs
from lib.publish.recomputed import Run
from lib.study.config import load_study
from lib.study.measures import MEASURES
from lib.study.raw import read_raw
from lib.study.record import read_json

STUDY = "example"
Raw = dict[str, pd.DataFrame]


@pytest.fixture
def run() -> Run:
    return read_runs(STUDY)[0]


def test_recorded_runs_agree_with_their_raw_files_and_notebooks() -> None:
    runs = read_runs(STUDY)
    for run in runs:
        assert [*agreement.wrong_raw_files(STUDY, run), *agreement.wrong_print(STUDY, run)] == []
    assert list(agreement.unlike_texts(STUDY, runs)) == []
    assert list(agreement.mixed_code(runs)) == []
    assert list(agreement.wrong_labels(load_study(STUDY), runs)) == []


def put(table: str, column: str, row: int, value: Any) -> Callable[[Raw], None]:
    def change(raw: Raw) -> None:
        raw[table].loc[raw[table].index[row], column] = value

    return change


def less(table: str, row: int) -> Callable[[Raw], None]:
    def change(raw: Raw) -> None:
        raw[table] = raw[table].drop(raw[table].index[row])

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    {
        "a step counted twice": (put("trace", "tokens", 3, 1), "tokens in trace.parquet are not"),
        "a point of the dev curve left out": (less("curve", 1), "curve.parquet does not hold step"),
        "a training that ended without a loss": (
            put("trace", "loss", -1, np.nan), "it is completed, and its last losses"
        ),
        "a dev loss lost at the end": (
            put("curve", "dev_loss", -1, np.inf), "it is completed, and its last losses"
        ),
        "a window left out": (less("windows", 2), "windows.parquet leaves out a part of the text"),
        "a window of another length": (
            put("windows", "n", 0, 7), "windows.parquet leaves out a part of the text"
        ),
        "characters that no bin counts": (
            put("bins", "n", 0, 0), r"bins.parquet \(\w+\) counts other characters"
        ),
    }.values(),
)  # fmt: skip
def test_raw_files_agree_with_parameters_and_with_each_other(
    change: Callable[[Raw], None], fault: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(folder: Any) -> Raw:
        raw = read_raw(folder)
        change(raw)
        return raw

    monkeypatch.setattr(agreement, "read_raw", changed)
    faults = list(agreement.wrong_raw_files(STUDY, run))
    assert faults
    assert re.match(fault, faults[0])


@pytest.mark.parametrize(
    ("change", "fault"),
    {
        "a status that the losses deny": (
            lambda run: run.update(status="diverged"), "it is diverged, and its last losses"
        ),
        "a measure of nothing": (
            lambda run: run["measures"].update(accuracy_dev=0.9),
            "accuracy_dev is 0.9, which its raw files do not support",
        ),
        "a table that denies a measure": (
            lambda run: next(
                row for row in run["tables"]["temperatures"] if row["temperature"] == 1
            ).update(nll=1.0),
            "nll at temperature 1 is 1.0, and the measure is",
        ),
    }.values(),
)  # fmt: skip
def test_a_result_agrees_with_its_raw_files(
    change: Callable[[Run], None], fault: str, run: Run
) -> None:
    change(run)
    assert any(re.match(fault, found) for found in agreement.wrong_raw_files(STUDY, run))


@pytest.mark.parametrize(
    ("change", "fault"),
    {
        "steps": (lambda run: run.update(steps=1), "the sentence about its result"),
        "a measure": (
            lambda run: run["measures"].update(perplexity=1.0),
            f"the table of its result in its notebook says {MEASURES['perplexity'].title}: ",
        ),
        "parameters": (
            lambda run: run.update(parameters=1),
            "the table of its result in its notebook says parameters",
        ),
    }.values(),
)
@pytest.mark.parametrize("apart", [False, True])
def test_a_notebook_prints_its_result(
    change: Callable[[Run], None],
    fault: str,
    apart: bool,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if apart:
        monkeypatch.setattr(agreement, "read_json", lambda path: set_apart(read_json(path)))
    assert list(agreement.wrong_print(STUDY, run)) == []
    change(run)
    assert any(found.startswith(fault) for found in agreement.wrong_print(STUDY, run))


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


def test_a_notebook_prints_its_dev_curve(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read = agreement.read_raw_file

    def higher(folder: Any, name: str) -> pd.DataFrame:
        return read(folder, name).assign(dev_loss=lambda table: table["dev_loss"] + 0.001)

    monkeypatch.setattr(agreement, "read_raw_file", higher)
    faults = list(agreement.wrong_print(STUDY, run))
    assert faults
    for fault in faults:
        assert re.fullmatch(r"the dev loss printed at step \d+ is not that of curve.parquet", fault)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("step 50: ", "It helps.\nstep 50: ", "prints something beside the dev losses"),
        ("step 50: ", "  step 50: ", "prints something beside the dev losses"),
        ("step 50: ", "DIVERGED at step 9: its loss\nstep 50: ", "prints something beside"),
        ("corpus: ", "It helps.\ncorpus: ", "prints other parameters than its result says"),
        ("batch_size=", "batch_size=1", "prints other parameters than its result says"),
        ("machine: ", "machine: It helps. ", "prints other parameters than its result says"),
        ("compile=False", "compile=False\nIt helps.", "prints other parameters than its result"),
        ("threads=None", "threads=64", "prints other parameters than its result"),
        ("compile=False", "it_helps=True", "prints other parameters than its result"),
        (" compile=False", " compile=True", "prints other parameters than its result"),
        ("device='auto'", "device='H100'", "prints other parameters than its result"),
        ("runs/example/", "It helps, says runs/example/", "the sentence about its result"),
        ("runs/example/", "runs/other/", "the sentence about its result"),
        ("step 50: ", "step 51: ", "does not print the dev loss of each step"),
        (
            "<th>validation perplexity</th>",
            "<th>validation perplexity&nbsp;</th>",
            "says validation",
        ),
        ("<th>Brier score</th>", "<th>test perplexity</th>", "says test perplexity: "),
        ("<th>Brier score</th>", "<th>test perplexity</th>", "leaves out brier"),
        ("<th>run</th>", "<th>arm</th>", "leaves out run"),
    ],
)
def test_a_notebook_prints_parameters_and_losses_and_nothing_else(
    old: str, new: str, fault: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = agreement.read_json

    def changed(path: Any) -> Any:
        notebook = read(path)
        for cell in notebook["cells"]:
            for output in cell.get("outputs", []):
                for content, kind in ((output, "text"), (output.get("data", {}), "text/html")):
                    if kind in content:
                        content[kind] = "".join(content[kind]).replace(old, new)
        return notebook

    monkeypatch.setattr(agreement, "read_json", changed)
    assert any(fault in found for found in agreement.wrong_print(STUDY, run))


@pytest.mark.parametrize(
    ("pattern", "new", "fault"),
    [
        (r"step 50: .*\n", "", "does not print the dev loss of each step"),
        (r"(step 50: dev loss \d)\.\d+", r"\1", "prints something beside the dev losses"),
        (r"(step 50: .*)\d\n", r"\1\n", "prints something beside the dev losses"),
    ],
    ids=["left out", "a coarse loss", "a coarse norm"],
)
def test_a_notebook_prints_every_dev_loss_in_full(
    pattern: str, new: str, fault: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = agreement._printed
    monkeypatch.setattr(agreement, "_printed", lambda cell: re.sub(pattern, new, whole(cell)))
    assert any(fault in found for found in agreement.wrong_print(STUDY, run))


@pytest.mark.parametrize(
    "more",
    [
        "<p>It helps.</p>",
        "It helps.",
        '<img alt="It helps.">',
        "<table title='It helps.'></table>",
        "<table><caption>It helps.</caption></table>",
        '<table><tr><td class="It helps.">1</td></tr></table>',
        "<!-- It helps. -->",
        "<details><table></table></details>",
    ],
)
def test_the_html_of_a_training_notebook_is_tables(
    more: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = agreement.read_json

    def changed(path: Any) -> Any:
        notebook = read(path)
        outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
        data = next(each["data"] for each in outputs if "text/html" in each.get("data", {}))
        data["text/html"] = "".join(data["text/html"]) + more
        return notebook

    monkeypatch.setattr(agreement, "read_json", changed)
    faults = list(agreement.wrong_print(STUDY, run))
    assert faults == ["its notebook shows more than tables in HTML"]


@pytest.mark.parametrize(
    "notice",
    [
        "Checkpoint step-00000100 is damaged (its state is that of step 5). It is not used, and "
        "kept as step-00000100-damaged.",
        "Checkpoint step-00000100 is damaged (state.pt is missing). It is not used, and kept as "
        "step-00000100-damaged-2.",
        "Checkpoint step-00000100 is foreign (it belongs to pilot, none,tied=true, seed 3). It is "
        "not used, and kept as step-00000100-foreign.",
        "The suite in own-86c4e6aa-64-500 is damaged. It is made anew.",
        "The suite in own-86c4e6aa-64-all is of other code. It is made anew.",
    ],
)
def test_a_notice_of_a_damaged_file_may_stand_there(notice: str) -> None:
    stream = {"outputs": [{"text": [f"{notice}\n", "step 1"]}]}
    assert agreement._printed(stream) == "step 1"
    stream = {"outputs": [{"text": [f"{notice} It helps.\n", "step 1"]}]}
    assert "It helps" in agreement._printed(stream)


@pytest.mark.parametrize(
    "notice",
    [
        "Checkpoint step-1 is damaged (it does not matter: it helps). It is made anew.",
        "Checkpoint step-00000100 is damaged (its state is good, it helps). It is not used, and "
        "kept as step-00000100-damaged.",
        "Checkpoint step-00000100 is damaged (its state is that of step 5). It is not used, and "
        "kept as it-helps.",
        "It-helps of every-seed is damaged. It is made anew.",
        "The suite in own-86c4e6aa-64-500 is better. It is made anew.",
    ],
)
def test_no_other_notice_may_stand_there(notice: str) -> None:
    assert agreement._printed({"outputs": [{"text": f"{notice}\n"}]}) == f"{notice}\n"


@pytest.mark.parametrize(
    ("value", "text", "same"),
    [
        (2.7346, "2.735", True),
        (2.7346, "2.734", False),
        (2.7345, "2.734", True),  # halfway, either way
        (2.7345, "2.735", True),
        (float("nan"), "nan", True),
        (float("inf"), "2.7", False),
    ],
)
def test_a_printed_number_is_its_value_rounded(value: float, text: str, same: bool) -> None:
    assert agreement._rounds(value, text) is same


def test_runs_are_scored_on_the_same_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, read = read_runs(STUDY)[:2], agreement.read_raw_file
    cuts = iter([0, 1])

    def shifted(folder: Any, name: str) -> pd.DataFrame:
        by = next(cuts)
        return read(folder, name).assign(start=lambda table: table["start"] + by)

    monkeypatch.setattr(agreement, "read_raw_file", shifted)
    (fault,) = agreement.unlike_texts(STUDY, runs)
    assert "was scored on other windows of the same text than" in fault


def test_runs_of_a_study_are_made_by_the_same_code() -> None:
    runs = read_runs(STUDY)
    runs[0]["provenance"]["trained"]["training_digest"] = "0" * 64
    (fault,) = agreement.mixed_code(runs)
    assert fault.startswith("its runs have different training_digests: ")


@pytest.mark.parametrize("name", ["variant", "baseline", "setting", "levels"])
def test_a_run_has_the_labels_of_its_arm(name: str, run: Run) -> None:
    run[name] = "better"
    (fault,) = agreement.wrong_labels(load_study(STUDY), [run])
    assert f": its {name} is 'better', and of its arm " in fault


def test_runs_of_code_that_was_not_committed_are_told(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    agreement.tell_uncommitted(STUDY, [run])
    assert capsys.readouterr().out == ""
    run["provenance"]["trained"]["clean"] = False
    agreement.tell_uncommitted(STUDY, [run])
    assert capsys.readouterr().out.startswith("example: the code of 1 of 1 runs was not committed")
