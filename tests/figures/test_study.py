"""Which figures a study shows, and that they can be drawn, from made-up runs and contrasts."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from lib.analysis.runs import ResultError
from lib.figures import factors, style, training
from lib.figures import study as study_figures
from lib.figures.study import StudyFigure, StudyFigures
from lib.study.config import Study
from lib.study.record import RunResult
from tests.conftest import TINY
from tests.samples import sample_runs

RATE = "training.learning_rate"
TABLES: dict[str, list[dict[str, Any]]] = {
    "temperatures": [{"temperature": t, "nll": 2 + (t - 1) ** 2, "ece": t / 9} for t in (0.5, 1.0)],
    "tasks": [{"task": "spelling", "shots": i, "normalised_accuracy": 0.4} for i in (0, 2)],
}


def title_of(figure: StudyFigure) -> str:
    return figure.words.splitlines()[0].removeprefix("## ")


def study_of(factors: dict[str, list[Any]]) -> Study:
    return Study.model_validate(TINY | {"name": "tiny", "factors": factors, "seeds": [0, 1]})


ONE_ARM = study_of({})
ONE_FACTOR = study_of({"model.embedding_norm": ["none", "layernorm"]})
VARIANTS = ["none", "layernorm", "rmsnorm", "scale"]
GRID = study_of({"model.embedding_norm": VARIANTS, RATE: [1e-3, 1e-2, 1e-1]})


def runs_of(study: Study, tables: dict[str, Any]) -> list[RunResult]:
    sample = sample_runs(ONE_FACTOR)[0]
    return [
        sample.model_copy(
            update={"arm": arm.id, "baseline": arm.baseline, "levels": arm.levels, "seed": seed,
                    "variant": arm.variant, "setting": arm.setting,
                    "measures": {"perplexity": 20.0 + seed + len(arm.id)}, "tables": tables}
        )
        for arm in study.arms()
        for seed in study.seeds
    ]  # fmt: skip


def series_of(study: Study) -> pd.DataFrame:
    """What traces and curves hold, in one table."""
    parts = [
        pd.DataFrame({"step": [0, 4, 8, 12]}).assign(
            arm=arm.id, seed=seed, variant=arm.variant, setting=arm.setting
        )
        for arm in study.arms()
        for seed in study.seeds
    ]
    table = pd.concat(parts, ignore_index=True)
    falling = 4 - 0.1 * table["step"] + 0.1 * table["seed"]
    columns = ("dev_loss", "loss", "grad_norm", "embedding_norm", "embedding_cosine")
    values = dict.fromkeys(
        (
            *columns,
            "second_moment_mean",
            "residual_norm_0",
            "residual_norm_1",
            "second_moment_attn",
        ),
        falling,
    )
    return table.assign(tokens=64 * table["step"], **values)


def raw_of(study: Study, name: str) -> pd.DataFrame:
    """What the raw files of one name hold."""
    series = series_of(study)
    first = series[series["step"] == 0].drop(columns="step")
    n = {"bins": 5, "positions": 3}.get(name)
    if n is None:
        return series
    rows = pd.concat([first.assign(bin=i, context=i + 1) for i in range(n)], ignore_index=True)
    rows = rows.assign(binning="equal_mass", n=10, position_loss=3 - 0.1 * rows["context"])
    return rows.assign(confidence=rows["bin"], correct=0.9 * rows["bin"])


def verdict_of(study: Study) -> dict[str, Any]:
    numbers = {"mean_delta": -1.0, "t_low": -2.0, "t_high": None, "n_dropped": 0}
    pairs = [(arm.id, arm.baseline) for arm in study.arms() if arm.id != arm.baseline]
    first, second = (list(study.arms()) * 2)[:2]  # a study of one arm has no second
    contrasts = [
        {"arm": arm, "baseline": baseline, "measure": measure} | numbers
        for measure in ("perplexity", "ece")
        for arm, baseline in [*pairs, (second.id, first.id)]
    ]
    variants = [arm.variant for arm in study.arms()]
    judged = [(arm.id, seed) for arm in study.arms() for seed in study.seeds]
    return {
        "standing": "EXPLORATORY",
        "contrasts": contrasts,
        "sensitivity": [
            {"variant": v, "within": "", "sensitivity": 0.25} for v in dict.fromkeys(variants)
        ],
        "stability": [{"arm": arm, "seed": seed, "unstable": False} for arm, seed in judged],
    }


def analysed(
    study: Study, folder: Path, patch: pytest.MonkeyPatch, tables: dict[str, Any] = TABLES
) -> StudyFigures:
    """The figures of a study whose analysis lies in `folder`."""
    patch.setattr(study_figures, "study_folder", lambda name: folder)
    patch.setattr(study_figures, "read_parquet", raw_of)
    (folder / "verdict.json").write_text(json.dumps(verdict_of(study)), "utf-8")
    return StudyFigures(study, runs_of(study, tables))


def drawn(figures: StudyFigures, patch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that applies, drawn, written and shown."""
    shown: list[Figure] = []
    patch.setattr(style, "show", shown.append)
    for figure in figures.applicable():
        figure.draw()
    return shown


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyFigures]:
    """Four variants at three rates."""
    with pytest.MonkeyPatch.context() as patch:
        yield analysed(GRID, tmp_path_factory.mktemp("grid"), patch)


@pytest.fixture(scope="module")
def figures_of_grid(grid: StudyFigures) -> Iterator[list[Figure]]:
    with pytest.MonkeyPatch.context() as patch:
        yield drawn(grid, patch)
    plt.close("all")


def test_a_study_of_one_factor_shows_what_applies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = analysed(ONE_FACTOR, tmp_path, monkeypatch, tables={})
    titles = [title_of(figure) for figure in figures.applicable()]
    assert titles == ["Trends", "Comparison", "Tokens", "Inside"]
    drawn(figures, monkeypatch)
    names = {path.stem for path in figures.folder.iterdir()}
    assert names == {"trend", "comparison", "efficiency", "inside"}


def test_a_study_of_one_arm_is_drawn_without_contrasts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = analysed(ONE_ARM, tmp_path, monkeypatch, tables={})
    (tmp_path / "verdict.json").write_text('{"standing": "", "contrasts": []}', "utf-8")
    assert drawn(figures, monkeypatch)
    assert figures.contrasts.empty


def test_a_grid_over_rates_shows_interaction_rates_and_mechanism_instead(
    grid: StudyFigures, figures_of_grid: list[Figure]
) -> None:
    assert [title_of(figure) for figure in grid.applicable()] == [
        "Trends", "Interaction with learning rate", "Learning rate", "Mechanism", "Tokens",
        "Inside", "Calibration and length", "Tasks",
    ]  # fmt: skip
    assert {path.stem for path in grid.folder.glob("*.pdf")} == {
        "trend", "interaction-learning_rate", "learning-rate", "mechanism", "efficiency", "inside",
        "calibration", "tasks",
    }  # fmt: skip
    assert len(figures_of_grid) == 8


def test_no_text_of_a_figure_is_smaller_than_seven_points(figures_of_grid: list[Figure]) -> None:
    texts = [text for figure in figures_of_grid for text in figure.findobj(Text)]
    assert min(text.get_fontsize() for text in texts if text.get_text().strip()) >= 7


def test_what_is_said_of_a_figure_names_functions_that_draw(grid: StudyFigures) -> None:
    for figure in grid.applicable():
        assert "?" in figure.words  # what to look for
        named = re.findall(r"`(\w+)`", figure.words)
        assert named
        for name in named:
            assert hasattr(training, name) or hasattr(factors, name)


def test_a_study_without_an_analysis_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = analysed(ONE_FACTOR, tmp_path, monkeypatch)
    (tmp_path / "verdict.json").unlink()
    with pytest.raises(ResultError, match="execute 03_analysis first"):
        figures.applicable()


def test_contrasts_know_their_variants_their_levels_and_their_own_baseline(
    grid: StudyFigures,
) -> None:
    table = grid.contrasts.set_index(["arm", "baseline", "measure"])
    row = table.loc["layernorm,learning_rate=0.01", "none,learning_rate=0.01", "perplexity"]
    assert (row["variant"], row["reference"], row[RATE]) == ("layernorm", "none", 0.01)
    assert row["setting"] == "learning_rate=0.01"
    assert row["own"]
    assert np.isnan(row["t_high"])
    assert not table.loc["none,learning_rate=0.01", "none,learning_rate=0.001", "ece"]["own"]
