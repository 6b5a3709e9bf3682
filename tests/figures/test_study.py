"""Which figures a study shows, and that they can be drawn, from made-up runs and contrasts."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from lib.analysis.runs import ResultError
from lib.figures import effects, factors, stability, training
from lib.figures.study import StudyFigure, StudyFigures
from tests.figures.samples import GRID, ONE_ARM, ONE_FACTOR, analysed, drawn


def title_of(figure: StudyFigure) -> str:
    return figure.words.splitlines()[0].removeprefix("## ")


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyFigures]:
    """Four variants at three rates."""
    with pytest.MonkeyPatch.context() as patch:
        yield analysed(GRID, tmp_path_factory.mktemp("grid"), patch)


@pytest.fixture(scope="module")
def figures_of_grid(grid: StudyFigures) -> Iterator[list[Figure]]:
    with pytest.MonkeyPatch.context() as patch:
        yield drawn(grid, patch)


@pytest.mark.slow
def test_a_study_of_one_factor_shows_what_applies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = analysed(ONE_FACTOR, tmp_path, monkeypatch, kept={})
    titles = [title_of(figure) for figure in figures.applicable()]
    assert titles == [
        "Loss", "Gradients", "Comparison", "First steps", "Stability against quality", "Tokens",
        "Inside",
    ]  # fmt: skip
    drawn(figures, monkeypatch)
    names = {path.stem for path in figures.folder.iterdir()}
    assert names == {"loss", "trend", "comparison", "early", "trade-off", "efficiency", "inside"}


@pytest.mark.slow
def test_a_study_of_one_arm_is_drawn_without_contrasts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = analysed(ONE_ARM, tmp_path, monkeypatch, kept={})
    (tmp_path / "verdict.json").write_text('{"standing": "", "contrasts": []}', "utf-8")
    assert drawn(figures, monkeypatch)
    assert figures.contrasts.empty


@pytest.mark.slow
def test_a_grid_over_rates_shows_rates_and_stability_instead(
    grid: StudyFigures, figures_of_grid: list[Figure]
) -> None:
    assert [title_of(figure) for figure in grid.applicable()] == [
        "Loss", "Gradients", "Learning rate", "Stability", "First steps",
        "Stability against quality", "Tokens", "Inside", "Calibration and length", "Tasks",
    ]  # fmt: skip
    assert {path.stem for path in grid.folder.glob("*.pdf")} == {
        "loss", "trend", "learning-rate", "stability", "early", "trade-off", "efficiency",
        "inside", "calibration", "tasks",
    }  # fmt: skip
    assert len(figures_of_grid) == 10


@pytest.mark.slow
def test_no_text_of_a_figure_is_smaller_than_seven_points(figures_of_grid: list[Figure]) -> None:
    texts = [text for figure in figures_of_grid for text in figure.findobj(Text)]
    assert min(text.get_fontsize() for text in texts if text.get_text().strip()) >= 7


def test_what_is_said_of_a_figure_names_functions_that_draw(grid: StudyFigures) -> None:
    for figure in grid.applicable():
        assert "?" in figure.words  # what to look for
        named = re.findall(r"`(\w+)`", figure.words)
        assert named
        for name in named:
            assert any(hasattr(m, name) for m in (training, factors, effects, stability))


def test_a_study_without_an_analysis_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = analysed(ONE_FACTOR, tmp_path, monkeypatch)
    (tmp_path / "verdict.json").unlink()
    with pytest.raises(ResultError, match="execute 03_analysis first"):
        figures.applicable()
