"""A scratch run is trained with what was changed, shown beside the run without, and taken by no
record, however it is put there."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lib.analysis.runs import ResultError, collect
from lib.data.text import Corpus
from lib.record.archive import archive
from lib.run import trainer as training
from lib.run.measure import measure, write_result
from lib.study import io as paths
from lib.study.io import PAPERS, run_folder
from lib.study.preregistration import attempts
from lib.study.schema import RunConfig
from lib.study.study import SCRATCH, Study, load_study, scratch
from lib.study.yaml import HEADLESS, ConfigError, UserError
from lib.workflow.continuing import baseline_result, continuations, side_by_side
from lib.workflow.importing import _runs_in
from lib.workflow.staleness import stale
from tests.conftest import TINY, beginning

CHANGES: dict[str, Any] = {"training.learning_rate": 1e-2, "evaluation.dev_windows": 8}
STUDY = Study.model_validate(
    TINY
    | {"name": "tiny", "seeds": [0], "factors": {"model.embedding_norm": ["none", "center"]}}
    | {"evaluation": {"interval": 4, "dev_windows": 4, "items_per_task": 0}}
)


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HEADLESS, raising=False)


def test_changes_make_another_arm_of_a_study_that_no_file_can_describe() -> None:
    arm = STUDY.arm("center")
    design, own = scratch(STUDY, arm, CHANGES)
    changed = arm.config.model_dump()
    changed["training"]["learning_rate"], changed["evaluation"]["dev_windows"] = 1e-2, 8
    assert own.config == RunConfig.model_validate(changed)
    assert own.id == "tiny,center,learning_rate=0.01,dev_windows=8"
    assert (own.baseline, own.variant, design.plan) == ("center", "center", None)
    assert arm == STUDY.arm("center")
    long = scratch(STUDY, arm, {"corpus.source": "x" * 200})[1].id
    assert len(long) == len(scratch(STUDY, arm, {"corpus.source": "y" * 200})[1].id) == 120
    with pytest.raises(ConfigError):
        load_study(SCRATCH)
    with pytest.raises(ValueError, match="name"):
        Study.model_validate(STUDY.model_dump() | {"name": SCRATCH})


def test_without_changes_and_in_a_sweep_the_study_s_own_run_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arm = STUDY.arm("none")
    assert scratch(STUDY, arm, {}) == (STUDY, arm)
    monkeypatch.setenv(HEADLESS, "1")
    assert scratch(STUDY, arm, CHANGES) == (STUDY, arm)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training.learning_rat": 1}, "changes: .*did you mean 'training.learning_rate'"),
        ({"training": {"learning_rate": 1}}, "changes: 'training' is unknown"),
        ({"training.learning_rate": "1e-3"}, "changes: training.learning_rate: .* write 0.001"),
        ({"model.n_head": 3}, "changes: model: n_embd 16 must be a multiple of n_head 3"),
        (["training.learning_rate"], "changes: write fields with values"),
    ],
)
def test_a_wrong_change_is_named_in_one_line(changes: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        scratch(STUDY, STUDY.arm("none"), changes)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> tuple[Path, training.Run]:
    """The folder `runs/` with a scratch run, and that run."""
    runs, corpus = tmp_path_factory.mktemp("play") / "runs", beginning(corpus)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(HEADLESS, raising=False)
        patch.setattr(paths, "RUNS", runs)
        design, arm = scratch(STUDY, STUDY.arm("center"), CHANGES)
        folder = run_folder(design.name, arm.id, 0)
        provenance = training.begin(design, arm, 0, corpus)
        run = training.train(arm.config, corpus, provenance, folder)
        write_result(design, arm, run, measure(run, runs))
    assert [path.name for path in runs.iterdir()] == [SCRATCH]
    return runs, run


def placed(runs: Path, tmp_path: Path, **forged: Any) -> Path:
    """Put a scratch run where the study's own would be, with some of its result forged."""
    (source,) = runs.glob(f"{SCRATCH}/*/seed-0")
    for arm in ("none", "center"):
        target = tmp_path / "runs" / "tiny" / arm / "seed-0"
        shutil.copytree(source, target)
        result = json.loads((target / "result.json").read_text())
        (target / "result.json").write_text(json.dumps(result | forged | {"arm": arm}))
    return tmp_path / "runs"


@pytest.mark.parametrize("forged", [{}, {"study": "tiny", "baseline": "none"}])
def test_no_record_takes_a_scratch_run(
    forged: dict[str, Any],
    trained: tuple[Path, training.Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, _ = trained
    monkeypatch.setattr(paths, "RUNS", runs)
    assert list(stale(STUDY)) == []  # the study does not see it
    missing = "is incomplete: no result of none seed 0; center"
    with pytest.raises(UserError, match=f"'tiny' {missing}"):
        archive(STUDY)
    with pytest.raises(UserError, match=rf"'\.scratch' {missing}"):
        archive(scratch(STUDY, STUDY.arm("center"), CHANGES)[0])
    with pytest.raises(UserError, match="holds none"):
        _runs_in(runs.parent)
    monkeypatch.setattr("lib.study.preregistration.RUNS", runs)
    assert [made for made in attempts("tiny", "second.yaml") if made.study == "tiny"] == []

    monkeypatch.setattr(paths, "RUNS", placed(runs, tmp_path, **forged))
    assert {path.parent.parent.name for path, _ in stale(STUDY)} == {"none", "center"}
    with pytest.raises(ResultError, match=r"with other parameters: .*learning_rate"):
        collect(STUDY)


def test_a_result_stands_beside_the_recorded_one_of_its_baseline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = load_study("example")
    arm = scratch(study, study.arm("constant"), {"training.learning_rate": 1e-2})[1]
    with zipfile.ZipFile(PAPERS / "example" / "record" / "example" / "raw.zip") as packed:
        recorded = json.loads(packed.read("constant/seed-2/result.json"))
    found = baseline_result(study, arm, 2)
    assert found
    assert found.final_weights == recorded["final_weights"]
    assert baseline_result(study, arm, 10**6) is None
    assert baseline_result(study, study.arm("constant"), 2) is None
    monkeypatch.setenv(HEADLESS, "1")  # as in a record, whatever else is here
    assert baseline_result(study, arm, 2) is None


def test_a_prompt_is_continued_beside_the_baseline_where_that_has_weights(
    trained: tuple[Path, training.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, arm = trained[1], scratch(STUDY, STUDY.arm("center"), CHANGES)[1]
    monkeypatch.setattr("lib.workflow.continuing.read_finished", missing)
    text = continuations(run, STUDY, arm, "The ", 30, temperature=0.01)
    own, note = text.rsplit("\n\n", 1)
    assert own.startswith("The ")
    assert len(own) == 34
    assert note == "(Nothing beside it: tiny/center/0 has no result.)"
    assert continuations(run, STUDY, arm, "The ", 30, 0.01) == text
    place = tmp_path / "paper" / "record" / "tiny" / "center" / "seed-0" / "02_train.ipynb"
    place.parent.mkdir(parents=True)
    cell = {"cell_type": "code", "source": "print(continuations(trained))"}
    cell["outputs"] = [{"output_type": "stream", "text": ["As it\n", "was.\n"]}]
    place.write_text(json.dumps({"cells": [cell]}), "utf-8")
    monkeypatch.setattr("lib.record.record.PAPERS", tmp_path)
    monkeypatch.setattr("lib.record.record.PAPER", tmp_path / "paper")
    assert continuations(run, STUDY, arm, "The ", 30, 0.01) == text  # it was asked something else
    head, _, first, *_ = continuations(run, STUDY, arm).splitlines()
    assert head.endswith("  center, as recorded")
    assert first.endswith("  As it")
    monkeypatch.setattr("lib.workflow.continuing.read_finished", lambda *_: run)
    both = continuations(run, STUDY, arm, "The ", 30, 0.01).splitlines()
    assert both[0].split() == ["center,learning_rate=0.01,dev_windows=8", "center"]
    monkeypatch.setenv(HEADLESS, "1")  # as in a record, whatever else is here
    assert continuations(run, STUDY, arm, "The ", 30, 0.01) == own


def missing(*run: object) -> None:
    from lib.run.finished import UnfinishedError

    raise UnfinishedError("/".join(map(str, run)) + " has no result")


def test_texts_stand_in_columns_line_by_line() -> None:
    laid = side_by_side({"a": "x\n\n" + "long " * 15, "b": "y"})
    assert laid.splitlines() == [
        f"{'a':<46}b",
        f"{'─' * 44}  {'─' * 44}",
        f"{'x':<46}y",
        "",
        "long " * 8 + "long",
        "long " * 5 + "long",
    ]
