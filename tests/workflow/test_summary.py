"""The table at a sweep's end: what stands in it, and that it fits."""

import io
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

from lib.analysis.paired import contrast_table
from lib.analysis.runs import tidy
from lib.results import json_rows
from lib.study.metrics import MEASURES, measures_in
from lib.study.study import Study
from lib.workflow.rehearsal import made_up
from lib.workflow.summary import described, tables
from tests.conftest import TINY

GRID = {"model.embedding_norm": ["none", "layernorm", "rmsnorm"]}
GRID |= {"training.learning_rate": [0.001, 0.003]}  # type: ignore[dict-item]
SHOWN = measures_in("headline")[:5]


def study(**content: Any) -> Study:
    return Study.model_validate(
        TINY | {"name": "six", "factors": GRID, "seeds": [0, 1, 2]} | content
    )


def printed(asked: Study, width: int, diverged: int = 0) -> tuple[pd.DataFrame, list[str]]:
    """The table of a study's made-up runs, and what a console of a width shows of it."""
    runs = tidy(result for result, _ in made_up(asked, diverged=diverged))
    contrasts = json_rows(contrast_table(runs, SHOWN, np.random.default_rng(0)))
    console = Console(file=io.StringIO(), width=width, force_terminal=False, markup=False)
    for table in tables(described(asked, runs), runs, contrasts, SHOWN, console):
        console.print(table, "")
    assert isinstance(console.file, io.StringIO)
    return runs, console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_table_is_never_wider_than_the_terminal_and_shows_every_measure(width: int) -> None:
    lines = printed(study(), width)[1]
    assert max(map(len, lines)) <= width
    assert sum("───" in line for line in lines) == {80: 3, 100: 2, 200: 1}[width]
    words = " ".join(" ".join(lines).split())
    for name in SHOWN:
        assert MEASURES[name].label.split()[-1] in words
    for norm in GRID["model.embedding_norm"]:
        for rate in ("0.001", "0.003"):
            rows = [line for line in lines if line.split()[:2] == [norm, rate]]
            assert len(rows) == sum("───" in line for line in lines)


def test_an_arm_stands_below_its_baseline_with_the_difference_and_its_interval() -> None:
    runs, lines = printed(study(), 200)
    first = [line.split()[0] for line in lines if line.strip()]
    assert [name for name in first if name in GRID["model.embedding_norm"]] == [
        *("none", "layernorm", "rmsnorm"),
        *("none", "layernorm", "rmsnorm"),
    ]
    by_arm = runs.pivot(index="arm", columns="seed", values="perplexity")
    change = by_arm.loc["rmsnorm,learning_rate=0.003"] - by_arm.loc["none,learning_rate=0.003"]
    low, high = stats.ttest_1samp(change, 0).confidence_interval()
    assert f" {change.mean():+.3f} [{low:+.3f}, {high:+.3f}] " in lines[-2]
    own = by_arm.loc["rmsnorm,learning_rate=0.003"]
    assert f" {own.mean():.3f} ± {own.std():.3f} " in lines[-3]


def test_arms_beside_the_grid_have_names_and_what_diverged_is_counted() -> None:
    levels = {"model.embedding_norm": "layernorm", "training.learning_rate": 0.001}
    extra = {"name": "strong", "levels": levels | {"model.branch_multiplier": 5.0}}
    against = {"name": "stronger", "levels": levels | {"model.branch_multiplier": 9.0}}
    asked = study(include=[extra, against | {"baseline": "strong"}], seeds=[0, 1])
    runs, lines = printed(asked, 200, diverged=1)
    table = described(asked, runs)
    assert list(table) == ["arm", "embedding norm", "learning rate", "baseline", "diverged"]
    assert table.loc["strong"].tolist() == ["strong", "layernorm", "0.001", "", ""]
    assert table.loc["stronger"].tolist() == [
        *("stronger", "layernorm", "0.001", "strong", "1 of 2"),
    ]
    (row,) = [number for number, line in enumerate(lines) if line.startswith("stronger")]
    assert "± n/a" in lines[row]  # of one seed
    assert re.search(r"[+-]\d+\.\d{3} \(no interval\)", lines[row + 1])


def test_a_single_arm_is_one_row() -> None:
    lines = printed(study(factors={}), 80)[1]
    assert [line.split()[0] for line in lines if "±" in line] == ["baseline"]
    assert "[" not in "".join(lines)
