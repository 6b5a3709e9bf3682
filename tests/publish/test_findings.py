"""The paper's own notebook, executed again and compared."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.weightstats import CompareMeans

from lib.publish import findings
from lib.publish.findings import check_findings, recorded
from lib.study.io import PAPER, read_json
from lib.study.study import Arm
from tests.analysis.samples import noise
from tests.publish import samples

WRITTEN = (findings.NOTEBOOK, findings.TABLES, findings.FIGURES)


def lay_out(source: Path, folder: Path) -> None:
    for name in WRITTEN:
        copy = shutil.copytree if (source / name).is_dir() else shutil.copyfile
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy(source / name, folder / name)


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what is committed; executing it again gives what is committed."""
    lay_out(PAPER, tmp_path / "paper")
    monkeypatch.setattr(findings, "execute", lambda _, folder: lay_out(PAPER, folder))
    return tmp_path / "paper"


@pytest.mark.slow
def test_what_is_committed_is_what_the_notebook_says_draws_and_finds() -> None:
    assert list(check_findings(PAPER)) == []


def test_the_notebook_is_in_sync_with_its_script_and_was_executed_from_top_to_bottom() -> None:
    notebook = nbformat.read(PAPER / findings.NOTEBOOK, as_version=4)
    script = jupytext.read(PAPER / "findings.py")
    sources = [[(cell.cell_type, cell.source) for cell in of.cells] for of in (notebook, script)]
    assert sources[0] == sources[1]
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))


def print_otherwise(paper: Path) -> None:
    notebook = nbformat.read(paper / findings.NOTEBOOK, as_version=4)
    last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
    last.outputs[0].text = "findings.json: nothing"
    nbformat.write(notebook, paper / findings.NOTEBOOK)


def in_first_output(edit: Callable[[Any, Any], object]) -> Callable[[Path], None]:
    """Edit the first cell that shows something, beside what it shows."""

    def change(paper: Path) -> None:
        notebook = read_json(paper / findings.NOTEBOOK)
        cell = next(cell for cell in notebook["cells"] if cell.get("outputs"))
        edit(cell, cell["outputs"][0])
        (paper / findings.NOTEBOOK).write_text(json.dumps(notebook), "utf-8")

    return change


ASIDE = {"output_type": "stream", "name": "stderr", "text": ["It helps.\n"]}


def find_otherwise(paper: Path) -> None:
    tables = read_json(paper / findings.TABLES)
    tables["dose"][0]["mean_delta"] *= 1.001
    (paper / findings.TABLES).write_text(json.dumps(tables), "utf-8")


def draw_otherwise(paper: Path) -> None:
    shutil.copyfile(paper / findings.FIGURES / "ladder.pdf", paper / findings.FIGURES / "dose.pdf")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda _: None, None),
        (print_otherwise, "of findings.ipynb shows what executing it does not"),
        (in_first_output(lambda cell, _: cell["outputs"].append(ASIDE)), "holds what executing it"),
        (
            in_first_output(lambda cell, _: cell.update(execution_count=0)),
            "holds what executing it",
        ),
        (in_first_output(lambda cell, _: cell.update(attachments={})), "holds what executing it"),
        (
            in_first_output(lambda _, out: out["metadata"].update({"image/png": {"alt": "It"}})),
            "holds what executing it does not write",
        ),
        (lambda p: (p / findings.NOTEBOOK).unlink(), "is there without findings.ipynb"),
        (find_otherwise, "findings.json is not what findings.ipynb finds"),
        (lambda p: (p / findings.TABLES).unlink(), "findings.json is not what"),
        (draw_otherwise, "figure findings/dose.pdf is not what"),
        (lambda p: (p / findings.FIGURES / "dose.pdf").unlink(), "figure findings/dose.pdf is not"),
        (lambda p: (p / findings.FIGURES / "own.pdf").touch(), "figure findings/own.pdf is not"),
    ],
)
def test_what_was_changed_is_named(
    paper: Path, change: Callable[[Path], object], fault: str | None
) -> None:
    change(paper)
    faults = list(check_findings(paper))
    assert {fault in found for found in faults} == ({True} if fault else set())


def test_a_paper_without_such_a_notebook_has_no_faults(tmp_path: Path) -> None:
    assert list(check_findings(tmp_path)) == []


def test_a_recorded_study_is_read_as_tables_with_its_raw_files() -> None:
    study = recorded("stability-check")
    curve = study.record.joined("curve")
    ends = curve.sort_values("step").groupby(["arm", "seed"])["dev_loss"].last()
    assert set(ends.index) == set(zip(study.runs["arm"], study.runs["seed"], strict=True))
    assert study.alpha == 0.05


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, float]]]:
    return dict(read_json(PAPER / findings.TABLES))


def test_shares_add_up_and_ends_of_fiellers_interval_are_not_rejected(found) -> None:
    runs = recorded("confirmatory-2").runs.pivot(index="seed", columns="variant", values="loss")
    whole = runs["layernorm"] - runs["none"]
    rows = [row for row in found["mechanism"] if row["measure"] == "loss"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    scale = runs["scale"] - runs["none"]
    assert rows[0]["effect"] == pytest.approx(scale.mean())
    for end in (rows[0]["low"], rows[0]["high"]):
        assert stats.ttest_1samp(scale - end * whole, 0).pvalue == pytest.approx(0.05, abs=1e-6)


def test_each_own_best_rate_is_that_of_the_lowest_mean(found) -> None:
    study = recorded("ladder")
    means = study.runs.groupby(["variant", "model.n_embd", "training.learning_rate"])["loss"].mean()
    for row in found["ladder"]:
        if row["rate"] == "each at its own best rate":
            of = means[row["variant"], row["model.n_embd"]]
            assert row["own_rate"] == of.idxmin()
            first = means["none", row["model.n_embd"]]
            assert row["mean_delta"] == pytest.approx(of.min() - first.min())


def test_the_best_rate_has_the_lowest_mean_dev_loss(found) -> None:
    study = recorded("tuning")
    curve = study.record.joined("curve").merge(
        study.runs[["arm", "seed", "variant", "training.learning_rate"]]
    )
    last = curve.sort_values("step").groupby(["arm", "seed"]).tail(1)
    means = last.groupby(["variant", "training.learning_rate"])["dev_loss"].mean()
    for row in found["best_rates"]:
        assert row["best_rate"] == means[row["variant"]].idxmin()
        assert row["dev_loss"] == pytest.approx(means[row["variant"]].min())


def test_an_untied_effect_is_that_of_its_own_pair(found) -> None:
    runs = recorded("tied").runs.pivot(index="seed", columns="arm", values="loss")
    row = next(row for row in found["tied"] if row["within"] == "embedding_std=0.02")
    name = row["variant"]
    tied, untied = (
        runs[f"{name},tied={way},embedding_std=0.02"] - runs[f"none,tied={way},embedding_std=0.02"]
        for way in ("true", "false")
    )
    assert row["untied"] == pytest.approx(untied.mean())
    low, high = stats.ttest_1samp(tied - untied, 0).confidence_interval()
    assert (row["difference_low"], row["difference_high"]) == pytest.approx((low, high))


def test_a_schedule_and_the_layer_of_other_seeds_are_compared_without_pairs(found) -> None:
    bare = recorded("tuned").runs.query("arm == 'none'")["loss"]
    runs = recorded("turn").runs
    rows = {row["arm"]: row for row in found["schedule"]}
    assert {*rows} == {f"layernorm,gradient_clip={clip}" for clip in ("none", "1")}
    for arm, row in rows.items():
        two = CompareMeans.from_data(bare, runs.loc[runs["arm"] == arm, "loss"])
        ends = two.tconfint_diff(usevar="unequal")
        assert (row["t_low"], row["t_high"]) == pytest.approx(ends)
        assert row["mean_delta"] == pytest.approx(sum(ends) / 2)


def test_what_the_layer_adds_elsewhere_is_held_against_what_it_adds_on_the_sum() -> None:
    def loss(arm: Arm, seed: int) -> float:
        return 2.0 + 0.1 * noise(seed, *arm.id.encode())

    study, own = samples.made_up("where", loss), samples.notebook()
    runs = study.runs.pivot(index="seed", columns="arm", values="loss")
    added = {
        "sum": runs["layernorm,learned"] - runs["none,learned"],
        "token": runs["layernorm,on=token"] - runs["none,learned"],
        "rotary": runs["layernorm,rotary"] - runs["none,rotary"],
    }
    by_place = own.place_effects(study)
    means = dict(zip(by_place["place"], by_place["mean_delta"], strict=True))
    assert means == pytest.approx({place: delta.mean() for place, delta in added.items()})
    rows = own.against_sum(by_place, study).set_index("place")
    assert sorted(rows.index) == ["rotary", "token"]
    for place in rows.index:
        ends = stats.ttest_1samp(added[place] - added["sum"], 0).confidence_interval()
        assert rows.loc[place, ["t_low", "t_high"]].tolist() == pytest.approx([*ends])


@pytest.mark.parametrize(
    ("study", "ending"), [("trained", ""), ("turn-suite", ",gradient_clip=none")]
)
def test_the_share_of_right_answers_is_that_of_the_raw_ones(found, study: str, ending: str) -> None:
    items = recorded(study).record.joined("items").query("shots == 0")
    share = items.groupby(["arm", "task"])["correct"].mean()
    rows = {row["task"]: row for row in found["suite_tasks"] if row["study"] == study}
    for variant, column in (("none", "baseline"), ("layernorm", "layer")):
        shares = {task: row[column] for task, row in rows.items()}
        assert shares == pytest.approx(share[variant + ending].to_dict())


def test_widths_and_steps_are_compared_with_each_arm_at_its_best_rate() -> None:
    """Made up so that no layer is best at the edge of the grid for one width, and that of what the
    layer adds a quarter is left after four times as many steps."""

    def loss(arm: Arm, seed: int) -> float:
        model, training = arm.config.model, arm.config.training
        best = 2.0e-2 if model.n_embd == 96 else 5.18e-3
        if arm.id != arm.baseline:
            best = 1.0e-2
        added = 60 / training.iterations if arm.id != arm.baseline else 0.0
        return (
            2.0 + added + (training.learning_rate != best) + 0.001 * noise(seed, *arm.id.encode())
        )

    study, own = samples.made_up("ladder-2", loss), samples.notebook()
    rows = own.effects_at_best(study)
    assert [*zip(rows["width"], rows["steps"], rows["bracketed"], strict=True)] == [
        *((48, 600, 2), (48, 2400, 2), (96, 600, 1), (96, 2400, 1))
    ]
    assert rows["mean_delta"].tolist() == pytest.approx([0.1, 0.025] * 2, abs=0.003)
    steps = own.by_more_steps(rows, study)
    assert steps["width"].tolist() == [48, 96]
    assert steps["mean_delta"].tolist() == pytest.approx([-0.075] * 2, abs=0.003)
    alone = own.effects_at_best(samples.made_up("ladder-2-wide", loss))  # its width is no factor
    assert [*zip(alone["width"], alone["steps"], strict=True)] == [(192, 600), (192, 2400)]
    runs = study.runs.pivot(index="seed", columns="arm", values="loss")
    few, many = (
        runs[f"layernorm,n_embd=48,iterations={n},learning_rate=0.01"]
        - runs[f"none,n_embd=48,iterations={n},learning_rate=0.00518"]
        for n in (600, 2400)
    )
    ends = stats.ttest_1samp(many - few, 0).confidence_interval()
    assert steps.loc[0, ["t_low", "t_high"]].tolist() == pytest.approx([*ends])


def test_where_the_dev_loss_is_lowest_is_of_each_run_and_the_end_of_all_held_out_text() -> None:
    """Made up so that the layer costs 0.01 more at the lowest than at the end, and the lowest of
    each run comes at a step of its own."""
    study, own = (
        samples.made_up("modern-gpu", lambda arm, seed: 2.0 + 0.1 * noise(seed, *arm.id.encode())),
        samples.notebook(),
    )
    rows = []
    for number, (arm, seed, loss) in enumerate(study.runs[["arm", "seed", "loss"]].to_numpy()):
        lowest = loss - 0.5 + 0.01 * (arm != "none")
        falls = {0: 4.0, 1000 + number: lowest, 4000: lowest + 0.1, 5000: loss - 0.05}
        rows += [{"arm": arm, "seed": seed, "step": n, "dev_loss": y} for n, y in falls.items()]
    table = own.at_end_and_lowest(study, pd.DataFrame(rows)).set_index("at")
    ends = study.runs.pivot(index="seed", columns="arm", values="loss")
    added = ends["rmsnorm"] - ends["none"]
    interval = stats.ttest_1samp(added, 0).confidence_interval()
    assert table.loc["end", ["t_low", "t_high"]].tolist() == pytest.approx([*interval])
    assert table.loc["end", ["first", "last"]].tolist() == [5000, 5000]
    assert table.loc["end", "dev_loss"] == pytest.approx(ends["none"].mean() - 0.05)
    assert table.loc["lowest", "mean_delta"] == pytest.approx(added.mean() + 0.01)
    assert table.loc["lowest", ["first", "last"]].tolist() == [1000, 1005]
    assert table.loc["lowest", "dev_loss"] == pytest.approx(ends["none"].mean() - 0.5)
    assert table["loss"].tolist() == pytest.approx([ends["none"].mean()] * 2)


def test_runs_of_two_devices_are_compared_run_by_run() -> None:
    own = samples.notebook()
    one, other = (
        samples.made_up(name, lambda arm, seed, shift=shift: 2.0 + shift * (seed == 3))
        for name, shift in {"final": 0.0, "final-gpu": -0.25}.items()
    )
    assert own.apart(one, other).to_dict("records") == [{"n": 15, "greatest": pytest.approx(0.25)}]
