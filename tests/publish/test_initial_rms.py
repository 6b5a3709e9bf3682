"""The page of the initial RMS draws what the runs have recorded."""

import io
import re
import zipfile
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.publish.catalogue import StudyEntry, recorded
from lib.publish.initial_rms import Arm, Figure, figures
from lib.publish.site import build_site
from lib.study.io import PAPERS
from lib.study.yaml import ConfigError
from tests.record.samples import design, list_initial_rms, move_to, write_initial_rms, write_record

pytestmark = pytest.mark.slow


def entry(name: str) -> StudyEntry:
    study = recorded(name)
    assert study
    return study


@pytest.fixture(scope="module")
def dose() -> Figure:
    (figure,) = figures([entry("dose")], PAPERS / "embedding-norm")
    return figure


def test_arms_stand_where_their_stream_starts_whatever_makes_it_start_there(dose: Figure) -> None:
    """Values as `params/dose.yaml` asks; 0.02 sqrt(2) is that of token and position embeddings;
    branches multiplied by 35.36 bring an RMS of 1 back to it."""
    assert dose.places == pytest.approx([0.02 * 2**0.5, 0.1, 0.3, 1, 3], rel=0.015)
    lowest = {arm.name for arm in dose.arms if arm.place == 0}
    assert lowest == {
        *("none", "scale,rms=0.0283", "rmsnorm,rms=0.0283"),
        *("layernorm,rescued", "rmsnorm,rescued"),
    }
    assert {arm.name for arm in dose.arms if arm.place == 4} == {"scale,rms=3", "rmsnorm,rms=3"}


def test_lines_are_the_recorded_curves_of_every_seed_and_their_mean(dose: Figure) -> None:
    file = PAPERS / "embedding-norm/record/dose.zip"
    with zipfile.ZipFile(file) as sealed, zipfile.ZipFile(sealed.open("record.zip")) as whole:
        raw = zipfile.ZipFile(io.BytesIO(whole.read("raw.zip")))
    with raw:
        tables, bare = (
            [
                pd.read_parquet(raw.open(f"{arm}/seed-{seed}/curve.parquet"))
                for seed in range(920, 925)
            ]
            for arm in ("scale,rms=1", "none")
        )
    growth = [table["residual_norm_8"] / table["residual_norm_0"] for table in tables]
    loss = [table["dev_loss"] for table in tables]
    apart = [
        table["dev_loss"] - other["dev_loss"] for table, other in zip(tables, bare, strict=True)
    ]
    for panel, name, turn, values in zip(
        dose.panels,
        ("dev_loss", "difference", "growth"),
        (np.asarray, np.asarray, np.log),
        (loss, apart, growth),
        strict=True,
    ):
        ((arm, lines),) = ((arm, lines) for arm, lines in panel.lines if arm.name == "scale,rms=1")
        assert arm.end(name) == pytest.approx(np.mean([each.iloc[-1] for each in values]))
        # The axes, by two ticks of each.
        (s0, x0), (s1, x1) = [(float(t), at) for t, at in panel.x_ticks.items()][:2]
        (v0, y0), *_, (v1, y1) = [
            (turn(float(t.replace("−", "-"))), at) for t, at in panel.y_ticks.items()
        ]
        for line, recorded_ in zip(lines, [*values, np.mean(values, axis=0)], strict=True):
            drawn = np.array([point.split(",") for point in line.split()], float)
            steps = x0 + (tables[0]["step"] - s0) * (x1 - x0) / (s1 - s0)
            places = y0 + (turn(recorded_) - v0) * (y1 - y0) / (v1 - v0)
            np.testing.assert_allclose(drawn[:, 0], steps, atol=0.25)
            np.testing.assert_allclose(drawn[:, 1], places, atol=0.25)
    low, high = stats.ttest_1samp([each.iloc[-1] for each in apart], 0).confidence_interval()
    found = next(arm for arm in dose.arms if arm.name == "scale,rms=1").difference
    assert (found["t_low"], found["t_high"]) == pytest.approx((low, high))


def test_arms_of_one_value_differ_in_their_dashes(dose: Figure) -> None:
    looks: set[tuple[int, str]] = {(arm.place, arm.dashes) for arm in dose.arms}
    assert len(looks) == len(dose.arms) == 13
    assert len(set(dose.colours)) == 5


def test_the_page_is_linked_where_a_study_of_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_to(tmp_path, monkeypatch)
    site = tmp_path / "paper" / "site"
    write_record(design("alpha"), "EXPLORATORY")
    write_record(design("start-or-speed"), "EXPLORATORY")  # whose curves say nothing of the stream
    list_initial_rms()
    build_site()
    assert "initial-rms.html" not in (site / "index.html").read_text("utf-8")
    assert not (site / "initial-rms.html").exists()

    write_initial_rms()
    build_site()
    assert '<a href="initial-rms.html">' in (site / "index.html").read_text("utf-8")
    text = (site / "initial-rms.html").read_text("utf-8")
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in re.findall(r"<tr data.*?</tr>", text)]
    # Loss 2 + RMS, and growth, as the samples have them.
    assert rows == [
        ["0.05", "none", "2.050", "×", "6.00", "0"],
        # Of two pairs 0.02 apart: 0.01 times the 0.975 quantile of t with one degree of freedom.
        ["1", "layernorm", "3.000", "×", "1.50", "+0.950", "[+0.823,", "+1.077]"],
    ]
    assert text.count("<polyline") == 3 * 2 * (2 + 1)  # panels, arms, seeds and mean
    assert re.findall(r'<h2 id="([^"]+)">', unescape(text)) == ["dose"]
    assert "style=" not in text  # which the policy of the page forbids

    (tmp_path / "paper" / "initial-rms.yaml").unlink()
    build_site()
    assert not (site / "initial-rms.html").exists()


def test_a_fault_in_the_list_of_the_page_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "initial-rms.yaml").write_text("studies: [dose]\npanels: {dev_los: dev loss}\n")
    with pytest.raises(ConfigError, match=r"initial-rms\.yaml: .*dev_los"):
        figures([], tmp_path)


def test_arms_are_drawn_lowest_rms_first(dose: Figure) -> None:
    def starts(arms: list[Arm]) -> list[float]:
        return [arm.rms for arm in arms]

    assert starts(dose.arms) == sorted(starts(dose.arms))
