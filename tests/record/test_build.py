"""What is made again of a record, and what is said where it differs or cannot be made."""

import importlib.util
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lib.record import build
from lib.record.notebook import cell_outputs
from lib.record.record import Record
from lib.study.io import read_json
from tests.record.samples import in_json

STUDY = "example"
Runs = list[dict[str, Any]]


@pytest.fixture
def again(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What executing a notebook again leaves: what the record holds."""
    folder = tmp_path / "again"
    shutil.copytree(example / "record" / STUDY, folder)
    shutil.copyfile(example / "results" / f"{STUDY}.json", folder / "03_analysis.json")
    shutil.copyfile(example / "results" / f"{STUDY}.verdict.json", folder / "verdict.json")
    shutil.copytree(example / "figures" / STUDY, folder / "figures")

    @contextmanager
    def executed_again(record: Record, notebook: str) -> Iterator[dict[str, Path]]:
        assert (folder / f"{notebook}.ipynb").is_file()
        names = {"notebook": f"{notebook}.ipynb", "result": f"{notebook}.json"}
        names |= {"verdict": "verdict.json", "figures": "figures"}
        yield {what: folder / name for what, name in names.items()}

    def analysis(_: Any, question: str, of: Record) -> dict[str, Any]:
        names = {"notebook": "03_analysis.ipynb", "result": "03_analysis.json"}
        names["verdict"] = "verdict.json"
        assert (question, of.study) == ("analysis", STUDY)
        return {what: read_json(folder / name) for what, name in names.items()}

    monkeypatch.setattr(build, "executed_again", executed_again)
    monkeypatch.setattr(build, "ask_code_of", analysis)
    return folder


def first_text(path: Path) -> None:
    """Change the first thing that a notebook prints or displays."""

    def change(notebook: Any) -> None:
        for cell in notebook["cells"]:
            for output in cell.get("outputs", []):
                if "text" in output and "injected-parameters" not in cell["metadata"].get(
                    "tags", []
                ):
                    output["text"] = ["It helps.\n"]
                    return
        raise AssertionError("nothing is printed")

    in_json(path, change)


def test_an_analysis_that_says_otherwise_is_named(again: Path) -> None:
    assert list(build.check_analysis(Record(STUDY))) == []
    in_json(again / "verdict.json", lambda verdict: verdict.update(standing="CONFIRMATORY", more=1))
    in_json(again / "03_analysis.json", lambda results: results["summary"].popitem())
    says = "is not what the analysis says of the record"
    assert list(build.check_analysis(Record(STUDY))) == [
        f"summary in {STUDY}.json {says}",
        f"more in {STUDY}.verdict.json {says}",
        f"standing in {STUDY}.verdict.json {says}",
    ]


def test_a_key_of_nothing_that_no_analysis_writes_is_named(again: Path, example: Path) -> None:
    verdict = example / "results" / f"{STUDY}.verdict.json"
    in_json(verdict, lambda content: content.update(confirmatory_after_all=None))
    (fault,) = build.check_analysis(Record(STUDY))
    assert fault.startswith(f"confirmatory_after_all in {verdict.name} is not what the analysis")


def test_an_output_that_executing_it_does_not_show_is_named(again: Path) -> None:
    first_text(again / "03_analysis.ipynb")
    (fault,) = build.check_analysis(Record(STUDY))
    assert fault.startswith("code cell ")
    assert fault.endswith(" of 03_analysis.ipynb shows what executing it does not")


def test_a_picture_drawn_otherwise_is_named(again: Path, example: Path) -> None:
    assert list(build.check_pictures(Record(STUDY))) == []
    picture = next((again / "figures").glob("*.png"))
    picture.write_bytes(b"another")
    first_text(again / "01_data.ipynb")
    printed, *drawn = build.check_pictures(Record(STUDY))
    assert printed.endswith(" of 01_data.ipynb shows what executing it does not")
    assert set(drawn) == {f"figure {picture.name} is not what 04_figures draws"}


def test_figures_of_other_data_or_words_are_named(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, figures = example / "record" / STUDY, example / "figures" / STUDY
    words = [
        output["text/markdown"]
        for cell in cell_outputs(read_json(folder / "04_figures.ipynb"))
        for output in cell
        if "text/markdown" in output
    ]
    data = read_json(folder / "04_figures.json")
    drawn = {name: {"data": of, "words": text} for (name, of), text in zip(data.items(), words, strict=True)}  # noqa: E501  # fmt: skip
    monkeypatch.setattr(build, "ask_code_of", lambda *_: drawn)
    assert list(build.check_figures(Record(STUDY))) == []
    one, other, *_ = data
    drawn[one]["data"], drawn[other]["words"] = "0" * 64, "It helps."
    (figures / f"{one}.pdf").unlink()
    (figures / "better.png").write_bytes(b"")
    assert list(build.check_figures(Record(STUDY))) == [
        f"figure {one} was drawn from other data than the record holds",
        *sorted(
            [f"figure {one}.pdf is missing", "figure better.png is not drawn by 04_figures"],
            key=lambda fault: fault.split()[1],
        ),
        "04_figures.ipynb says of its figures what the record does not",
    ]
    path = folder / "04_figures.ipynb"
    text = path.read_text("utf-8")
    for old, new in (
        ("EXPLORATORY; it names no plan", "CONFIRMATORY"),
        (".json", ".json: it helps"),
    ):
        path.write_text(text.replace(old, new), "utf-8")
        printed = "04_figures.ipynb prints something else than the standing and its result's place"
        assert text != path.read_text("utf-8")
        assert list(build.check_figures(Record(STUDY)))[-1] == printed


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": [1.0, {"b": 2}]}, {"a": [1.0 + 1e-12, {"b": 2}]}, True),
        ({"a": [1.0, {"b": 2}]}, {"a": [1.0 + 1e-6, {"b": 2}]}, False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([1, 2], [1, 2, 3], False),
        (2.0, 2, True),
        ("2.0", 2.0, False),
        (None, 0, False),
    ],
)
def test_numbers_are_compared_up_to_their_last_digits(one: Any, other: Any, same: bool) -> None:
    assert build.same_json(one, other) is same


def with_runs(*runs: dict[str, Any]) -> Record:
    """A record whose results hold these runs."""
    record = Record(STUDY)
    record.runs = list(runs)
    return record


def test_beginnings_that_differ_are_named_and_those_that_cannot_be_made_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = Record(STUDY).runs[:2]
    record = with_runs(one, other)
    rates = list(record.raw(one)["trace"]["learning_rate"])
    begun = {"arm": one["arm"], "seed": one["seed"], "references": one["references"]}
    begun |= {"rates": rates, "batches": one["batches"]}
    for differs, fault in (
        ({}, ""),
        ({"batches": "c"}, "batches are not those of its seed and parameters"),
        ({"rates": [2 * rate for rate in rates]}, "learning rates in trace.parquet are not those"),
        ({"references": {"bigram_loss": 1.0}}, "bigram_loss is"),
    ):
        made = [json.loads(json.dumps(begun | differs))]
        monkeypatch.setattr(build, "ask_code_of", lambda *_, made=made: made)
        faults = list(build.check_beginnings(record))
        assert all(fault in each for each in faults)
        assert len(faults) == bool(fault)
        assert "example: beginnings of 1 of 2 runs not made again" in capsys.readouterr().out
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert list(build.check_beginnings(record)) == []
    assert "example: beginnings of 2 of 2 runs not made again" in capsys.readouterr().out


SUITES: Runs = [
    {"arm": arm, "seed": seed, "suite_hash": "a" if arm != "bare" else None,
     "provenance": {"executed": {"commit": "c" * 40, "clean": True}}}
    for arm in ("none", "layernorm", "bare") for seed in (0, 1)
]  # fmt: skip


def test_runs_of_another_suite_are_named_and_each_commit_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def built(account: dict[str, Any], command: str, record: Record) -> dict[str, str | None]:
        asked.append((account["commit"], command))
        return {"none": "a", "layernorm": "b"}

    monkeypatch.setattr(build, "ask_code_of", built)
    assert list(build.check_suites(with_runs(*SUITES))) == [
        f"run layernorm seed {seed} was asked other questions than its text gives"
        for seed in (0, 1)
    ]
    assert asked == [("c" * 40, "suite")]
    assert capsys.readouterr().out == ""
    assert list(build.check_suites(with_runs(*SUITES[4:]))) == []
    assert len(asked) == 1


def test_suites_that_cannot_be_built_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "ask_code_of", lambda *_: {"none": "a", "layernorm": None})
    assert list(build.check_suites(with_runs(*SUITES))) == []
    assert "example: suites of 2 of 4 runs not built again" in capsys.readouterr().out
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert list(build.check_suites(with_runs(*SUITES))) == []
    assert "example: suites of 4 of 4 runs not built again" in capsys.readouterr().out
