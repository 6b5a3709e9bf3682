"""A person sees a bar; a log sees one line per evaluation; who watches reads every step."""

import math
from pathlib import Path
from typing import Any

import pytest

from lib.data.corpus import Corpus
from lib.study.fields import RunConfig
from lib.study.result import live_file, read_live
from lib.workflow import live
from lib.workflow.live import HEADLESS, training_progress
from tests.run.samples import train


def row(step: int, **fields: Any) -> dict[str, Any]:
    return {"step": step, "loss": 4.0 / step, "grad_norm": 1.5, "tokens": 64 * step} | fields


def point(loss: float) -> dict[str, float]:
    return {"dev_loss": loss, "embedding_norm": 1.5}


STEPS = [(1, None), (2, point(3.9)), (3, None), (4, point(3.7))]


def test_headless_prints_the_evaluations_and_no_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv(HEADLESS, "1")
    with training_progress(4, tmp_path) as report:
        for step, evaluated in STEPS:
            report(row(step), evaluated)
    printed = [
        f"step {step}: dev loss {loss}, embedding norm 1.50\n"
        for step, loss in ((2, "3.9000"), (4, "3.7000"))
    ]
    assert capsys.readouterr() == ("".join(printed), "")


def test_headless_writes_every_step_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(HEADLESS, "1")
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    with training_progress(4, tmp_path) as report:
        report(row(1), None)
        assert not live_file(tmp_path).exists()
        now[0] += 3.0
        report(row(2, grad_norm=math.nan, skipped=True), None)
        assert read_live(tmp_path)["step"].tolist() == [1, 2]
        report(row(3, loss=math.inf), None)
        assert read_live(tmp_path)["step"].tolist() == [1, 2]
    assert live_file(tmp_path).read_text("utf-8").splitlines() == [
        "1,4.0,1.5,64,0.0",
        "2,2.0,,128,3.0",
        "3,inf,1.5,192,3.0",
    ]


def test_who_watches_sees_the_trace_and_changes_nothing(
    tiny: RunConfig, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HEADLESS, "1")
    alone = train(tiny, corpus, 0, tmp_path / "alone")
    with training_progress(12, tmp_path / "watched") as report:
        watched = train(tiny, corpus, 0, tmp_path / "watched", report)
    live = read_live(tmp_path / "watched")
    for name in ("step", "loss", "grad_norm", "tokens"):
        assert live[name].tolist() == watched.trace[name].tolist() == alone.trace[name].tolist()
    for one, other in zip(alone.model.parameters(), watched.model.parameters(), strict=True):
        assert one.equal(other)


@pytest.mark.parametrize("steps", [STEPS, STEPS[:2]], ids=["to the total", "diverged"])
def test_a_person_sees_one_bar_that_closes_wherever_training_ends(
    steps: list[tuple[int, dict[str, float] | None]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.delenv(HEADLESS, raising=False)
    with training_progress(4, tmp_path) as report:
        for step, evaluated in steps:
            report(row(step), evaluated)
        assert "\n" not in capsys.readouterr().err
    printed, bar = capsys.readouterr()
    assert printed == ""
    assert bar.endswith("\n")
    assert f"{len(steps)}/4" in bar
    assert f"dev loss {steps[-1][1]['dev_loss']:.4f}" in bar
    assert not live_file(tmp_path).exists()


def test_a_resumed_run_counts_from_where_it_stands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv(HEADLESS, raising=False)
    with training_progress(200, tmp_path) as report:
        report(row(150), point(3.1))
        assert "150/200" in capsys.readouterr().err
