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


@pytest.fixture
def one_factor(tiny_study: Study) -> Study:
    """Two variants in one setting."""
    return tiny_study


@pytest.fixture
def grid() -> Study:
    """Four variants at three rates."""
    levels = {"model.embedding_norm": ["none", "layernorm", "rmsnorm", "scale"]}
    levels |= {RATE: [1e-3, 1e-2, 1e-1]}
    return Study.model_validate(TINY | {"name": "tiny", "factors": levels, "seeds": [0, 1]})


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    found: list[Figure] = []
    monkeypatch.setattr(style, "show", found.append)
    yield found
    plt.close("all")


def runs_of(study: Study, tiny_study: Study, tables: dict[str, Any]) -> list[RunResult]:
    sample = sample_runs(tiny_study)[0]
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


@pytest.fixture
def prepare(tiny_study: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Make the figures of an analysed study, whose folder is `tmp_path`."""

    def make(study: Study, tables: dict[str, Any] = TABLES) -> StudyFigures:
        monkeypatch.setattr(study_figures, "study_folder", lambda name: tmp_path)
        monkeypatch.setattr(study_figures, "read_parquet", raw_of)
        (tmp_path / "verdict.json").write_text(json.dumps(verdict_of(study)), "utf-8")
        return StudyFigures(study, runs_of(study, tiny_study, tables))

    return make


def test_a_study_of_one_factor_shows_what_applies(
    one_factor: Study, prepare: Any, shown: list[Figure], tmp_path: Path
) -> None:
    figures = prepare(one_factor, tables={})
    applicable = list(figures.applicable())
    assert [title_of(f) for f in applicable] == ["Trends", "Comparison", "Tokens", "Inside"]
    for figure in applicable:
        figure.draw()
    names = {path.stem for path in figures.folder.iterdir()}
    assert names == {"trend", "comparison", "efficiency", "inside"}


def test_a_study_of_one_arm_is_drawn_without_contrasts(
    prepare: Any, shown: list[Figure], tmp_path: Path
) -> None:
    figures = prepare(Study.model_validate(TINY | {"name": "tiny", "seeds": [0, 1]}), tables={})
    (tmp_path / "verdict.json").write_text('{"standing": "", "contrasts": []}', "utf-8")
    for figure in figures.applicable():
        figure.draw()
    assert figures.contrasts.empty
    assert shown


def test_a_grid_over_rates_shows_interaction_rates_and_mechanism_instead(
    grid: Study, prepare: Any, shown: list[Figure]
) -> None:
    figures = prepare(grid)
    applicable = list(figures.applicable())
    assert [title_of(f) for f in applicable] == [
        "Trends", "Interaction with learning rate", "Learning rate", "Mechanism", "Tokens",
        "Inside", "Calibration and length", "Tasks",
    ]  # fmt: skip
    for figure in applicable:
        figure.draw()
    assert {path.stem for path in figures.folder.glob("*.pdf")} == {
        "trend", "interaction-learning_rate", "learning-rate", "mechanism", "efficiency", "inside",
        "calibration", "tasks",
    }  # fmt: skip
    assert len(shown) == 8


def test_no_text_of_a_figure_is_smaller_than_seven_points(
    grid: Study, prepare: Any, shown: list[Figure]
) -> None:
    for figure in prepare(grid).applicable():
        figure.draw()
    sizes = [
        text.get_fontsize() for f in shown for text in f.findobj(Text) if text.get_text().strip()
    ]
    assert min(sizes) >= 7


def test_what_is_said_of_a_figure_names_functions_that_draw(grid: Study, prepare: Any) -> None:
    for figure in prepare(grid).applicable():
        assert "?" in figure.words  # what to look for
        named = re.findall(r"`(\w+)`", figure.words)
        assert named
        for name in named:
            assert hasattr(training, name) or hasattr(factors, name)


def test_a_study_without_an_analysis_is_refused(grid: Study, prepare: Any, tmp_path: Path) -> None:
    figures = prepare(grid)
    (tmp_path / "verdict.json").unlink()
    with pytest.raises(ResultError, match="execute 03_analysis first"):
        figures.applicable()


def test_contrasts_know_their_variants_their_levels_and_their_own_baseline(
    grid: Study, prepare: Any
) -> None:
    table = prepare(grid).contrasts.set_index(["arm", "baseline", "measure"])
    row = table.loc["layernorm,learning_rate=0.01", "none,learning_rate=0.01", "perplexity"]
    assert (row["variant"], row["reference"], row[RATE]) == ("layernorm", "none", 0.01)
    assert row["setting"] == "learning_rate=0.01"
    assert row["own"]
    assert np.isnan(row["t_high"])
    assert not table.loc["none,learning_rate=0.01", "none,learning_rate=0.001", "ece"]["own"]
