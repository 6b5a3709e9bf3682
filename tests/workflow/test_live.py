"""The picture of a run in training: what is told is drawn, beside the baseline's recorded curve."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from lib.record.record import Record
from lib.study.config import load_study
from lib.study.paths import HEADLESS, ROOT
from lib.study.variants import variant
from lib.workflow import live, watching
from lib.workflow.live import LiveCurve

ABOUT = {"study": "example", "arm": "example,constant,dropout=0.1", "variant": "layernorm"}
ABOUT |= {"baseline": "constant", "seed": 0, "total": 40}


def row(step: int, norm: float = 1.0) -> dict[str, Any]:
    return {"row": {"step": step, "loss": 4 - step / 40, "grad_norm": norm}, "point": None}


def point(step: int) -> dict[str, Any]:
    return {"row": None, "point": {"step": step, "dev_loss": 4 - step / 40}}


def tell(monkeypatch: pytest.MonkeyPatch, *news: dict[str, Any], **about: Any) -> None:
    lines = [ABOUT | about, *news]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(x) + "\n" for x in lines)))


@pytest.mark.parametrize(
    ("news", "said"),
    [
        ([], "step 0 of 40"),
        ([row(1), row(2)], "step 2 of 40, – left"),
        ([row(1), {"stopped": True}], "stopped at step 1 of 40; run this cell again to continue"),
        ([*map(row, range(1, 41)), {"stopped": False}], "step 40 of 40"),
        ([row(1), {"stopped": False, "diverged": True}], "DIVERGED at step 1 of 40"),
    ],
)
def test_it_is_said_how_far_a_run_is(
    news: list[dict[str, Any]], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(monkeypatch, *news)
    told = watching.LiveRun()
    while not told.over:
        told.new.wait(1)
    assert told.standing(told.tables()) == said


BEFORE = [(step, 0.01 * step) for step in range(1, 31)]
"""Thirty steps that an execution of the cell before this one made."""


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([(1, 0.0), (2, 5.0)], "step 2 of 40, 3:10 left"),  # 38 steps of 5 s
        ([(21, 0.0), (22, 5.0)], "step 22 of 40, 1:30 left"),  # taken up again in another kernel
        # Ten steps at once; the second ten took 30 s.
        ([(s, 30.0 * (s > 10)) for s in range(1, 21)], "step 20 of 40, 1:00 left"),
        (BEFORE, "step 30 of 40, – left"),
        ([*BEFORE, (31, 5.3), (32, 10.3)], "step 32 of 40, 0:40 left"),  # 8 steps of 5 s
        # Killed, and taken up again where step 20 was kept, at 10 s a step.
        ([*BEFORE, (21, 10.3), (22, 20.3)], "step 22 of 40, 3:00 left"),
    ],
)
def test_the_time_left_is_by_steps_that_were_made_while_it_listened(
    seen: list[tuple[int, float]], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([when for _, when in seen])
    tell(monkeypatch, *(row(step) for step, _ in seen))
    monkeypatch.setattr("threading.Thread.start", lambda thread: thread.run())
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    told = watching.LiveRun()
    assert told.standing(told.tables()) == said


def test_what_draws_needs_nothing_that_an_image_may_lack() -> None:
    """As `rich`, which a session's image need not have."""
    code = "import sys; sys.modules['rich'] = None; import lib.workflow.watching"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_what_is_told_again_stands_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tell(monkeypatch, row(1), row(2), point(2), row(1), row(2), row(3), point(2))
    told = watching.LiveRun()
    while not told.over:
        told.new.wait(1)
    assert told.tables()["trace"]["step"].tolist() == [1, 2, 3]
    assert told.tables()["curve"]["step"].tolist() == [2]


def pictures(monkeypatch: pytest.MonkeyPatch) -> list[Image.Image]:
    """All pictures that are given."""
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out))
    watching.main()
    out.seek(0)
    found = []
    while line := out.readline():
        size, width = map(int, line.split())
        found.append(Image.open(io.BytesIO(out.read(size))).convert("RGB"))
        assert found[-1].width == width
    return found


def amount(picture: Image.Image, colour: str) -> int:
    """How many pixels have nearly a colour."""
    apart = np.asarray(picture, float) - 255 * np.array(to_rgb(colour))
    return int((np.abs(apart).max(axis=2) < 40).sum())


def test_the_run_is_drawn_in_its_colour_and_what_goes_wrong_is_said_in_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quiet = [point(0), *map(row, range(1, 31)), point(20), {"stopped": True}]
    blue, red = variant("layernorm").colour, "#B00020"
    drawn = []
    for news in (
        [],
        quiet,
        [*quiet[:-1], row(31), *(row(s) for s in range(32, 60)), row(60, 50.0)],
    ):
        tell(monkeypatch, *news)
        drawn.append(pictures(monkeypatch)[-1])
    assert [amount(each, blue) > 100 for each in drawn] == [False, True, True]
    assert [amount(each, red) > 20 for each in drawn] == [False, False, True]
    tell(monkeypatch, *quiet, arm="constant")  # a baseline has no curve beside it
    assert amount(pictures(monkeypatch)[-1], blue) > 100


def test_where_nothing_can_be_drawn_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    for name in ("display", "update"):
        monkeypatch.setattr(live.DisplayHandle, name, lambda _, what, raw: shown.append(what))
    monkeypatch.setattr(live, "__package__", "nowhere")
    with live._drawing():
        pass
    why = f"The curve could not be drawn: {sys.executable}: Error while finding module"
    assert shown[-1]["text/plain"].startswith(why)


def test_the_baseline_s_curve_is_the_recorded_one() -> None:
    record = Record("example")
    run = record.runs[0]
    found = watching.baseline("example", run["arm"], run["seed"])
    assert found["trace"].equals(record.raw(run)["trace"])
    assert found["curve"].equals(record.raw(run)["curve"])
    assert watching.baseline("example", run["arm"], 10**6) == {}


def test_where_nobody_looks_the_curve_is_printed_as_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HEADLESS, "1")
    study = load_study("example")
    curve = LiveCurve(study, study, next(study.arms()), 0)
    monkeypatch.setattr("lib.workflow.live.live_file", lambda _: Path("/dev/null"))
    with curve:
        curve(row(1)["row"] | {"tokens": 1}, {"dev_loss": 2.0, "embedding_norm": 1.0})
    assert capsys.readouterr().out == "step 1: dev loss 2.0000, embedding norm 1.00\n"
