"""Recorded studies analysed again: what is refused, and what a failure leaves."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lib.publish import archive, first_rules, raw_zip
from lib.study import paths
from lib.study.config import Study
from lib.study.record import sha256
from lib.workflow import reanalysis, sweep
from lib.workflow.execution import ExecutionError
from lib.workflow.reanalysis import main

Refusal = Callable[[], str]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`runs/`, beside a made-up record of the study `smoke`."""
    monkeypatch.setattr(archive, "PAPERS", tmp_path / "papers")
    monkeypatch.setattr(paths, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(sweep, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(sweep, "PATIENCE", 0.0)
    record = archive.record_folder("smoke")
    record.mkdir(parents=True)
    for name in (archive.MANIFEST, "03_analysis.ipynb"):
        (record / name).write_text("recorded", "utf-8")
    raw_zip.pack([], record, record)
    archive.results_file("smoke").parent.mkdir()
    content = {"runs": [{"arm": "none", "seed": 0}]}
    archive.results_file("smoke").write_text(json.dumps(content), "utf-8")
    return tmp_path / "runs"


@pytest.fixture
def refusal(runs: Path, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """What `analyse smoke` says in its one line."""

    def refuse() -> str:
        assert main(["smoke"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line.removeprefix("error: ")

    return refuse


def test_nothing_is_analysed_while_a_sweep_runs(runs: Path, refusal: Refusal) -> None:
    with sweep.only_sweep():
        assert "another sweep, or what is left of one, is running" in refusal()
    assert not (runs / "smoke").exists()


def test_a_notebook_that_fails_is_kept_where_the_message_says(
    runs: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(notebook: str, study: Study) -> None:
        output = runs / study.name / f"{notebook}.ipynb"
        assert (runs / "smoke" / "none" / "seed-0" / "result.json").is_file()
        output.write_text("as far as it came", "utf-8")
        raise ExecutionError(f"KeyError: a; see {output.name}")

    monkeypatch.setattr(reanalysis, "execute", fail)
    assert refusal() == "KeyError: a; see smoke.failed.ipynb"
    assert (runs / "smoke.failed.ipynb").read_text("utf-8") == "as far as it came"
    assert not (runs / "smoke").exists()


def test_a_copy_that_a_kill_left_is_cleared_and_runs_are_not(
    runs: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    monkeypatch.setattr(reanalysis, "execute", lambda notebook, study: done.append(notebook))
    monkeypatch.setattr(reanalysis, "archive", lambda study: None)
    run = runs / "smoke" / "none" / "seed-0"
    (run / "checkpoints").mkdir(parents=True)
    assert "smoke holds runs" in refusal()
    (runs / "smoke" / reanalysis._COPY).touch()
    assert "smoke holds runs" in refusal()  # trained by a sweep in a copy that was left
    (run / "checkpoints").rmdir()
    (run / "result.json").touch()
    assert main(["smoke"]) == 0
    assert done == ["03_analysis", "04_figures"]
    assert not (runs / "smoke").exists()


def test_a_record_of_the_first_rules_is_left_alone(
    runs: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = sha256(archive.record_folder("smoke") / archive.MANIFEST)
    monkeypatch.setitem(first_rules.MANIFESTS, "smoke", manifest)
    assert "'smoke' was recorded under the first rules" in refusal()
