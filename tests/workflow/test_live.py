"""A run in training: a log has a line per evaluation; a file has every step, and is drawn beside
the baseline's recorded curve."""

import io
import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from lib.data.text import Corpus
from lib.figures.style import variant
from lib.figures.training import live_picture
from lib.record.archive import Record
from lib.results import COLUMNS, live_file, read_live
from lib.study import io as paths
from lib.study.io import ROOT
from lib.study.schema import RunConfig
from lib.study.study import load_study
from lib.study.yaml import HEADLESS
from lib.workflow import live, watching
from lib.workflow.live import LiveCurve
from tests.run.samples import train

ABOUT = {"study": "example", "arm": "example,constant,dropout=0.1", "variant": "layernorm"}
ABOUT |= {"baseline": "constant", "seed": 0, "total": 40}


@pytest.fixture
def curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveCurve:
    """Of a run of which nobody watches the notebook."""
    monkeypatch.setattr(paths, "RUNS", tmp_path)
    monkeypatch.setenv(HEADLESS, "1")
    study = load_study("example")
    found = LiveCurve(study, study, next(study.arms()), 0)
    found.file.parent.mkdir(parents=True)
    return found


def row(step: int, **fields: Any) -> dict[str, Any]:
    return {"step": step, "loss": 4.0 / step, "grad_norm": 1.5, "tokens": 64 * step} | fields


def test_a_log_has_a_line_per_evaluation(
    curve: LiveCurve, capsys: pytest.CaptureFixture[str]
) -> None:
    with curve:
        for step, loss in ((1, None), (2, 3.9), (3, None), (4, 3.7)):
            curve(row(step), loss and {"dev_loss": loss, "embedding_norm": 1.5})
    printed = [
        f"step {step}: dev loss {loss}, embedding norm 1.50\n"
        for step, loss in ((2, "3.9000"), (4, "3.7000"))
    ]
    assert capsys.readouterr() == ("".join(printed), "")


def test_every_step_is_written_some_at_a_time(
    curve: LiveCurve, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, folder = [100.0], curve.file.parent
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    with curve:
        curve(row(1), None)
        assert not curve.file.exists()
        now[0] += 3.0
        curve(row(2, grad_norm=math.nan, skipped=True), {"dev_loss": 3.9, "embedding_norm": 1.5})
        assert read_live(folder)["step"].tolist() == [1, 2]
        curve(row(3, loss=math.inf), None)
        assert read_live(folder)["step"].tolist() == [1, 2]
    assert curve.file.read_text("utf-8").splitlines() == [
        "1,4.0,1.5,64,0.0,",
        "2,2.0,,128,3.0,3.9",
        "3,inf,1.5,192,3.0,",
    ]


def test_who_watches_sees_the_trace_and_changes_nothing(
    tiny: RunConfig, corpus: Corpus, tmp_path: Path, curve: LiveCurve
) -> None:
    alone = train(tiny, corpus, 0, tmp_path / "alone")
    with curve:
        watched = train(tiny, corpus, 0, curve.file.parent, curve)
    steps = read_live(curve.file.parent)
    for name in ("step", "loss", "grad_norm", "tokens"):
        assert steps[name].tolist() == watched.trace[name].tolist() == alone.trace[name].tolist()
    found = steps.set_index("step")["dev_loss"].dropna()
    evaluated = watched.curve.set_index("step")["dev_loss"].drop(0)
    assert found.to_dict() == evaluated.to_dict()
    for one, other in zip(alone.model.parameters(), watched.model.parameters(), strict=True):
        assert one.equal(other)


@pytest.mark.parametrize("finished", [True, False])
def test_at_the_end_all_of_a_run_is_told_and_what_is_finished_needs_no_file(
    finished: bool, curve: LiveCurve, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []

    @contextmanager
    def drawing(about: dict[str, Any]) -> Iterator[Callable[[dict[str, Any]], None]]:
        assert about["folder"] == str(curve.file.parent)
        yield told.append

    monkeypatch.setattr(live, "_drawing", drawing)
    monkeypatch.setattr(LiveCurve, "is_watched", True)
    before = {"rows": [row(1), row(2)], "points": [{"step": 0, "dev_loss": 4.2}]}
    run: Any = SimpleNamespace(diverged_at=None, finished=finished, **before)
    with curve:
        curve(row(2), None)
        curve.end(run)
    status = {"diverged": False, "stopped": not finished}
    assert told == [status | {"trace": run.rows, "curve": run.points}]
    assert curve.file.exists() == (not finished)


def trace(*seen: tuple[int, float]) -> pd.DataFrame:
    """Steps, and how many seconds since the cell was executed."""
    return pd.DataFrame(seen, columns=["step", "elapsed"])


@pytest.mark.parametrize(
    ("steps", "end", "said"),
    [
        ([], {}, "step 0 of 40"),
        ([1], {}, "step 1 of 40, – left"),
        ([1], {"stopped": True}, "stopped at step 1 of 40; run this cell again to continue"),
        (range(1, 41), {"stopped": False}, "step 40 of 40"),
        ([1], {"stopped": False, "diverged": True}, "DIVERGED at step 1 of 40"),
    ],
)
def test_it_is_said_how_far_a_run_is(steps: list[int], end: dict[str, Any], said: str) -> None:
    assert watching.standing(trace(*((step, 0.0) for step in steps)), 40, end) == said


BEFORE = [(step, 10.0 * step) for step in range(1, 31)]
"""Thirty steps that an execution of the cell before this one made."""


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([(1, 0.0), (2, 5.0)], "step 2 of 40, 3:10 left"),  # 38 steps of 5 s
        ([(21, 0.0), (22, 5.0)], "step 22 of 40, 1:30 left"),
        # Ten steps at once; the second ten took 30 s.
        ([(s, 30.0 * (s > 10)) for s in range(1, 21)], "step 20 of 40, 1:00 left"),
        (BEFORE, "step 30 of 40, 1:40 left"),
        ([*BEFORE, (31, 5.0)], "step 31 of 40, – left"),
        ([*BEFORE, (31, 5.0), (32, 10.0)], "step 32 of 40, 0:40 left"),  # 8 steps of 5 s
    ],
)
def test_the_time_left_is_by_steps_since_the_cell_was_executed(
    seen: list[tuple[int, float]], said: str
) -> None:
    assert watching.standing(trace(*seen), 40, {}) == said


@pytest.mark.slow
def test_what_draws_needs_nothing_that_an_image_may_lack() -> None:
    """As `rich`, which a session's image need not have."""
    code = "import sys; sys.modules['rich'] = None; import lib.workflow.watching"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def append(folder: Path, *rows: dict[str, Any]) -> None:
    """Write steps as a run in training does."""
    with live_file(folder).open("a", encoding="utf-8") as file:
        for each in rows:
            values = {"grad_norm": 1.0, "tokens": 1, "elapsed": each["step"], "dev_loss": ""} | each
            file.write(",".join(str(values[name]) for name in COLUMNS) + "\n")


def falling(steps: range, **fields: Any) -> list[dict[str, Any]]:
    return [{"step": step, "loss": 4 - step / 40} | fields for step in steps]


def pictures(
    monkeypatch: pytest.MonkeyPatch, folder: Path, end: Any = "", **about: Any
) -> list[Image.Image]:
    """All pictures that are given of the run in a folder, until this end is told."""
    out = io.BytesIO()
    told = SimpleNamespace(read=lambda: end(out) if callable(end) else end)
    monkeypatch.setattr(sys, "stdin", told)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out))
    watching.main(json.dumps(ABOUT | {"folder": str(folder)} | about))
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


BLUE, RED = variant("layernorm").colour, "#B00020"


def test_the_run_is_drawn_in_its_colour_and_what_goes_wrong_is_said_in_red(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped = json.dumps({"stopped": True})
    drawn = [pictures(monkeypatch, tmp_path)[-1]]
    append(tmp_path, *falling(range(1, 20)), *falling(range(20, 21), dev_loss=3.5))
    append(tmp_path, *falling(range(21, 31)))
    drawn += [pictures(monkeypatch, tmp_path, stopped)[-1]]
    append(tmp_path, *falling(range(31, 60)), *falling(range(60, 61), grad_norm=50.0))
    drawn += [pictures(monkeypatch, tmp_path)[-1]]
    assert [amount(each, BLUE) > 100 for each in drawn] == [False, True, True]
    assert [amount(each, RED) > 20 for each in drawn] == [False, False, True]
    live_file(tmp_path).unlink()
    append(tmp_path, *falling(range(1, 31), dev_loss=3.5))  # a baseline has no curve beside it
    assert amount(pictures(monkeypatch, tmp_path, stopped, arm="constant")[-1], BLUE) > 100


@pytest.mark.parametrize(
    ("norms", "scale"),
    [([], "linear"), ([math.nan], "linear"), ([math.nan, 0.5], "log"), ([0.0], "linear")],
)
def test_a_run_without_a_gradient_norm_yet_is_drawn(
    norms: list[float], scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("lib.figures.training.plt.close", drawn.append)
    steps = pd.DataFrame({"step": range(len(norms)), "loss": 3.0, "grad_norm": norms}, dtype=float)
    run = {"trace": steps, "curve": pd.DataFrame({"step": [], "dev_loss": []})}
    png, _ = live_picture({"run": run}, [variant("layernorm")], 10, "step 0 of 10", [])
    monkeypatch.undo()
    plt.close(drawn[0])
    assert [ax.get_yscale() for ax in drawn[0].axes] == ["linear", scale]
    assert amount(Image.open(io.BytesIO(png)).convert("RGB"), "#000000") > 100


def test_what_is_told_at_the_end_is_drawn_without_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [each | {"grad_norm": 1.0} for each in falling(range(1, 31))]
    end = {"diverged": False, "stopped": False, "trace": rows}
    end["curve"] = [{"step": step, "dev_loss": 4 - step / 40} for step in (0, 30)]
    assert amount(pictures(monkeypatch, tmp_path, json.dumps(end))[-1], BLUE) > 100


def test_a_picture_follows_where_there_are_more_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(watching, "MIN_INTERVAL", 0.02)
    monkeypatch.setattr(watching, "SHARE", 1e3)

    def train(out: io.BytesIO) -> str:
        """Make ten steps once the first picture is there; end a while after the second."""
        for steps in (range(1, 11), range(0)):
            before = len(out.getvalue())
            while len(out.getvalue()) == before:
                threading.Event().wait(0.01)
            append(tmp_path, *falling(steps, dev_loss=3.5))
        threading.Event().wait(0.2)
        return json.dumps({"stopped": True})

    first, second, last = pictures(monkeypatch, tmp_path, train)
    assert [amount(each, BLUE) > 50 for each in (first, second, last)] == [False, True, True]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a notebook is given to show."""
    shown: list[Any] = []
    for name in ("display", "update"):
        monkeypatch.setattr(live.DisplayHandle, name, lambda _, what, **__: shown.append(what))
    return shown


@pytest.mark.slow
def test_a_process_of_its_own_draws_what_a_notebook_shows(shown: list[Any], tmp_path: Path) -> None:
    append(tmp_path, *falling(range(1, 30)), *falling(range(30, 31), dev_loss=3.5))
    with live._drawing(ABOUT | {"folder": str(tmp_path)}) as tell_end:
        tell_end({"diverged": False, "stopped": True})
    _, *pictures = shown
    last = Image.open(io.BytesIO(pictures[-1].data)).convert("RGB")
    assert last.width == pictures[-1].width
    assert amount(last, BLUE) > 100


def test_where_nothing_can_be_drawn_it_is_said_why(
    shown: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "__package__", "nowhere")
    with live._drawing({}):
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
