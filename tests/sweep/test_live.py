"""A run in training: its step and its curve are written; who looks sees the curve grow."""

import time
from types import SimpleNamespace

import pytest

from lib.config.errors import HEADLESS
from lib.figures.style import variant
from lib.publish.curves import so_far
from lib.results import STEPS_FILE
from lib.sweep.live import INTERVAL, SHARE, LiveCurve
from tests.train.samples import train


def row(step, **fields):
    return {"step": step, "loss": 4.0 / step, "grad_norm": 1.5, "tokens": 64 * step} | fields


@pytest.fixture
def curve(tiny_study, tmp_path, monkeypatch):
    """Of a run of which nobody watches the notebook."""
    monkeypatch.setattr("lib.config.paths.RUNS", tmp_path)
    monkeypatch.setenv(HEADLESS, "1")
    found = LiveCurve(tiny_study, tiny_study, tiny_study.arm("layernorm"), 0)
    found.folder.mkdir(parents=True)
    return found


@pytest.fixture
def watched(curve, monkeypatch):
    """The curve is watched; what is drawn of it."""
    drawn = []
    handle = SimpleNamespace(update=lambda _: None)
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: handle)
    monkeypatch.setattr("IPython.display.Image", lambda png, width: (png, width))
    curve.is_watched = True
    live_picture = "lib.figures.training.live_picture"
    monkeypatch.setattr(live_picture, lambda *words: drawn.append(words) or (b"", 1))
    return drawn


def test_pictures_take_at_most_a_quarter_of_the_time(curve, watched, monkeypatch):
    now, cost = [100.0], 2.0
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def draw(*words):
        watched.append(words)
        now[0] += cost
        return b"", 1

    monkeypatch.setattr("lib.figures.training.live_picture", draw)
    with curve:
        for step in range(1, 101):
            now[0] += 1.0
            curve(row(step), None)
    drawing, all_seconds = cost * len(watched), now[0] - 100.0
    assert 0.2 < drawing / all_seconds <= SHARE + 0.02
    assert INTERVAL >= 1


def test_who_watches_is_warned_and_sees_the_whole_curve_at_the_end(curve, watched):
    with curve:
        for step in range(1, 61):
            curve(row(step, grad_norm=50.0 if step == 60 else 1.0), None)
    runs, looks, total, standing, warnings = watched[-1]
    assert list(runs) == ["layernorm"]  # no baseline has run here
    assert runs["layernorm"]["trace"]["step"].tolist() == list(range(1, 61))
    assert looks == [variant("layernorm"), variant("none")]
    assert (total, standing) == (12, "step 60 of 12")
    assert "gradient norm is 50, 50 times the usual at step 60" in warnings[0]


def test_the_site_reads_the_curve_of_a_run_that_trains(curve):
    def trained(rows, point=None):
        with curve:
            for each in rows:
                curve(each, point)
        return so_far(curve.folder)

    assert so_far(curve.folder) == {}
    tables = trained([row(1), row(2), row(3)])
    assert tables.keys() == {"trace"}  # not evaluated yet
    assert tables["trace"]["loss"].tolist() == [4.0, 2.0, 4 / 3]
    tables = trained([row(3, loss=9.0), row(4)], {"step": 4, "dev_loss": 2.5})  # resumed at step 2
    assert tables["trace"]["step"].tolist() == [1, 2, 3, 4]
    assert tables["trace"]["loss"].tolist() == [4.0, 2.0, 9.0, 1.0]
    assert tables["curve"]["dev_loss"].tolist() == [2.5]
    with (curve.folder / STEPS_FILE).open("a", encoding="utf-8") as file:
        file.write('[{"step": 5, "lo')  # killed as it wrote
    assert so_far(curve.folder)["trace"]["step"].tolist() == [1, 2, 3, 4]
    assert trained([row(1)])["trace"]["step"].tolist() == [1]  # by other code, from the beginning


@pytest.mark.slow
def test_who_watches_changes_nothing(tiny_study, corpus, tmp_path, curve, watched):
    config = tiny_study.arm("layernorm").config
    alone = train(config, corpus, 0, tmp_path / "alone")
    with curve:
        seen = train(config, corpus, 0, curve.folder, curve)
    for one, other in zip(alone.model.parameters(), seen.model.parameters(), strict=True):
        assert one.equal(other)
    assert watched[-1][0]["layernorm"]["trace"]["loss"].tolist() == alone.trace["loss"].tolist()
