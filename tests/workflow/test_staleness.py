"""A result counts only where it was made by what is asked for; else the reason is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from lib.data.text import Corpus, load_corpus
from lib.record import archive
from lib.run import trainer as training
from lib.run.measure import measure, write_result
from lib.run.trainer import begin
from lib.study import io as paths
from lib.study.digests import measuring_digest
from lib.study.io import read_json, result_file, run_folder, write_json
from lib.study.plan import Commit, read_plan
from lib.study.schema import MachineConfig
from lib.study.study import Study, load_study
from lib.workflow import staleness
from lib.workflow.staleness import (
    analysis_key,
    corpus_hashes,
    data_key,
    required_inputs,
    stale,
)
from tests.conftest import TINY, beginning
from tests.study.samples import Parameters

CONTENT = TINY | {
    "name": "tiny",
    "seeds": [0],
    "factors": {"model.embedding_norm": ["none", "center"]},
    "evaluation": {"interval": 4, "dev_windows": 4, "items_per_task": 0},
}
RETRAINED, MEASURED = "trained anew", "measured anew from its weights"
PLAN = read_plan("preregistration.yaml").hash[:12]


@pytest.fixture
def parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parameters:
    return Parameters(tmp_path, monkeypatch)


def study_with(**sections: Any) -> Study:
    merged = {
        name: value | sections[name] if name in sections and isinstance(value, dict) else value
        for name, value in CONTENT.items()
    }
    return Study.model_validate(sections | merged)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> Path:
    """The folder `runs/` with the finished study, measured on the beginning of its text."""
    corpus = beginning(corpus)
    runs = tmp_path_factory.mktemp("runs")
    study = study_with()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "RUNS", runs)
        for arm in study.arms():
            provenance = begin(study, arm, 0, corpus)
            folder = run_folder(study.name, arm.id, 0)
            trained = training.train(arm.config, corpus, provenance, folder)
            measured = measure(trained, runs)
            write_result(study, arm, trained, measured)
            write_notebook(folder / "02_train.ipynb", "completed")
        for name in ("01_data", "03_analysis", "04_figures"):
            write_notebook(runs / "tiny" / f"{name}.ipynb", "completed")
            result_file(name, "tiny").write_text("{}")
        (runs / "tiny" / "verdict.json").write_text("{}")
    return runs


def write_notebook(path: Path, status: str) -> None:
    metadata = {"study": {"status": status, "reason": "KeyError: 'x'"}}
    nbformat.write(nbformat.v4.new_notebook(metadata=metadata), path)


@pytest.fixture
def runs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that is where runs are looked for."""
    monkeypatch.setattr(paths, "RUNS", tmp_path / "runs")
    shutil.copytree(finished, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"training": {"learning_rate": 2e-3}}, "training.learning_rate is 0.002 and was 0.001"),
        ({"model": {"n_layer": 1}}, "model.n_layer is 1 and was 2"),
        ({"corpus": {"fraction": 0.5}}, "corpus.fraction is 0.5 and was 0.02"),
        ({"evaluation": {"interval": 6}}, "evaluation.interval is 6 and was 4"),
        ({"evaluation": {"items_per_task": 50}}, "evaluation.items_per_task is 50 and was 0"),
        ({"plan": "preregistration.yaml"}, f"plan is {PLAN} and was None"),
    ],
)
def test_a_changed_parameter_is_named_with_what_will_be_done(
    sections: dict[str, Any], reason: str, runs: Path
) -> None:
    done = MEASURED if "items_per_task" in reason else RETRAINED
    reasons = [said for _, said in stale(study_with(**sections))]
    assert reasons == [f"{reason}: {done}"] * 2


def test_no_setting_of_the_machine_makes_a_run_stale(runs: Path) -> None:
    others = {"device": "cuda", "threads": 2, "micro_batch_size": 2, "evaluation_batch_size": 8}
    others |= {"processes": 2, "checkpoint_interval": 7}
    flags = {"activation_checkpointing": True, "compile": True}
    assert {*others, *flags} == {*MachineConfig.model_fields}
    assert list(stale(study_with(machine=others | flags))) == []


@pytest.mark.parametrize(
    ("name", "code", "done"),
    [
        ("training_digest", "training code", RETRAINED),
        ("measuring_digest", "measuring code", MEASURED),
    ],
)
def test_changed_code_is_named(
    name: str, code: str, done: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was = getattr(staleness, name)()[:12]
    monkeypatch.setattr(staleness, name, lambda: "f" * 64)
    reasons = [reason for _, reason in stale(study_with())]
    assert reasons == [f"{code} is ffffffffffff and was {was}: {done}"] * 2


def test_an_arm_that_is_a_commit_is_held_against_its_own_code(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, arm = study_with(), study_with().arm("none")
    own = Commit(commit="c" * 40, training_digest="a" * 64, measuring_digest=measuring_digest())
    with monkeypatch.context() as within:
        within.setattr(Study, "commit_of", lambda *_: own)
        reasons = [reason for _, reason in stale(study)]
    assert len(reasons) == 2
    for reason in reasons:
        assert reason.startswith("training code is aaaaaaaaaaaa and was ")
    # Of older code than this, which lacks a field that is off by default.
    path = result_file("02_train", study.name, arm.id, 0)
    result = read_json(path)
    del result["provenance"]["trained"]["parameters"]["model"]["dropout"]
    write_json(path, result | {"levels": {"code": "old"}})
    wanted = required_inputs(study, arm, 0, None)
    said = f"model.dropout is 0.0 and was None: {RETRAINED}"
    assert staleness._stale_run(path, wanted) == said
    assert staleness._stale_run(path, wanted | {"levels": {"code": "old"}}) is None
    fewer = wanted | {"levels": {"code": "old"}, "model.dropout": 0.1}
    assert staleness._stale_run(path, fewer) == f"model.dropout is 0.1 and was None: {RETRAINED}"


def test_another_text_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_with()
    key, (was, _) = data_key(study), corpus_hashes(study.arm("none").config.corpus)
    monkeypatch.setattr(staleness, "corpus_hashes", lambda config: ("e" * 64, None))
    reasons = [reason for _, reason in stale(study)]
    assert reasons == [f"corpus is eeeeeeeeeeee and was {was[:12]}: {RETRAINED}"] * 2
    assert data_key(study) != key


def test_another_tokenizer_file_is_named(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same text and the same parameters, with what was learned from it gone or edited."""
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: tmp_path)
    study = study_with(corpus={"tokenizer": "bpe-300"})
    config = study.arm("none").config.corpus
    text, tokenizer = corpus_hashes(config)
    assert text == corpus_hashes(study_with().arm("none").config.corpus)[0]
    assert tokenizer == load_corpus(config).tokenizer.sha256

    assert required_inputs(study, study.arm("none"), 0, None)["tokenizer"] == tokenizer
    for path in runs.glob("tiny/*/seed-0/result.json"):
        content = json.loads(path.read_text())
        content["study_hash"] = study.hash
        for account in (content["config"], content["provenance"]["trained"]["parameters"]):
            account["corpus"]["tokenizer"] = "bpe-300"
        content["provenance"]["trained"]["tokenizer_sha256"] = tokenizer
        path.write_text(json.dumps(content))
    assert list(stale(study)) == []
    key = data_key(study)
    monkeypatch.setattr(staleness, "corpus_hashes", lambda config: (text, "e" * 64))
    reason = f"tokenizer is eeeeeeeeeeee and was {str(tokenizer)[:12]}: {RETRAINED}"
    assert [said for _, said in stale(study)] == [reason, reason]
    assert data_key(study) != key


def test_mixtures_of_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: tmp_path)
    a, b = (str(tmp_path / f"{name}.jsonl") for name in "ab")
    for path in (a, b):
        Path(path).write_text(f'{{"text": "{path}"}}\n' * 100, "utf-8")
    corpus = {"source": "mixed", "tokenizer": "bytes"}
    studies = [study_with(corpus=corpus | {"sources": {a: x, b: 1 - x}}) for x in (0.3, 0.7)]
    assert len({required_inputs(s, s.arm("none"), 0, None)["corpus"] for s in studies}) == 2
    assert len(set(map(data_key, studies))) == 2


def test_what_an_analysis_is_made_by_decides_whether_it_is_made_again(
    parameters: Parameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters.study(seeds=[0])
    parameters.plan()
    study = load_study("trial")
    keys = [analysis_key(study), analysis_key(study)]
    parameters.plan(deviations=[{"date": "2026-11-30", "what": "a", "why": "b"}])
    keys.append(analysis_key(study))
    monkeypatch.setattr(staleness, "showing_digest", lambda: "f" * 64)
    keys.append(analysis_key(study))
    assert [keys.index(key) for key in keys] == [0, 0, 2, 3]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def of_an_earlier_format(path: Path) -> None:
    content = json.loads(path.read_text())
    content["provenance"] = {"device": "cpu", "preregistration": None}
    path.write_text(json.dumps(content))


def of_another_seed(path: Path) -> None:
    content = json.loads(path.read_text())
    content["provenance"]["trained"]["seed"] = 1
    path.write_text(json.dumps(content))


def of_another_arm(path: Path) -> None:
    shutil.copyfile(path.parents[2] / "center" / "seed-0" / "result.json", path)


def failed(path: Path) -> None:
    write_notebook(path, "failed")


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("result.json", empty, "result.json cannot be read, or is of another version"),
        ("result.json", cut, "result.json cannot be read, or is of another version"),
        ("result.json", of_an_earlier_format, "result.json cannot be read, or is of another"),
        ("result.json", of_another_seed, "seed is 0 and was 1: trained anew"),
        (
            "result.json",
            of_another_arm,
            "run is 'tiny, none' and was 'tiny, center': measured anew",
        ),
        ("trace.parquet", flip, "trace.parquet is missing or not as it was written"),
        ("curve.parquet", empty, "curve.parquet is missing or not as it was written"),
        ("items.parquet", Path.unlink, "items.parquet is missing or not as it was written"),
        ("02_train.ipynb", empty, "02_train.ipynb is unfinished (no readable notebook)"),
        ("02_train.ipynb", Path.unlink, "02_train.ipynb is unfinished (no readable notebook)"),
        ("02_train.ipynb", failed, "02_train.ipynb is failed (KeyError: 'x')"),
    ],
)
def test_a_damaged_run_is_named(
    name: str,
    damage: Callable[[Path], None],
    reason: str,
    runs: Path,
) -> None:
    damage(runs / "tiny" / "none" / "seed-0" / name)
    ((path, said),) = stale(study_with())
    assert path == runs / "tiny" / "none" / "seed-0" / "result.json"
    assert said.startswith(reason)


@pytest.mark.parametrize(
    ("name", "result", "reason"),
    [
        ("01_data.json", "01_data.json", "01_data.json cannot be read: executed again"),
        ("verdict.json", "03_analysis.json", "verdict.json cannot be read: executed again"),
        (
            "04_figures.ipynb",
            "04_figures.json",
            "04_figures.ipynb is unfinished (no readable notebook): executed again",
        ),
    ],
)
def test_a_damaged_notebook_or_verdict_is_named(
    name: str, result: str, reason: str, runs: Path
) -> None:
    empty(runs / "tiny" / name)
    assert list(stale(study_with())) == [(runs / "tiny" / result, reason)]


@pytest.mark.parametrize(
    ("deleted", "named"),
    [
        ("record/tiny", "MANIFEST.sha256"),
        ("record/tiny/raw.zip", "raw.zip"),
        ("results", "tiny.json"),
        ("figures", "loss.pdf"),
    ],
)
def test_a_record_that_lost_a_file_is_archived_again(
    deleted: str,
    named: str,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paper = tmp_path / "paper"
    monkeypatch.setattr("lib.record.record.paper_of", lambda study: paper)
    for name in ("record/tiny/raw.zip", "results/tiny.json", "figures/tiny/loss.pdf"):
        (paper / name).parent.mkdir(parents=True)
        (paper / name).write_text(name, "utf-8")
    archive.write_manifest("tiny")
    archive.mark_replaceable("tiny")
    assert list(stale(study_with())) == []
    shutil.rmtree(paper / deleted) if (paper / deleted).is_dir() else (paper / deleted).unlink()
    reason = f"{named} is missing: archived again"
    assert list(stale(study_with())) == [(runs / "tiny" / "archive.json", reason)]


def test_a_run_measured_without_lm_eval_is_measured_anew_with_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_with(evaluation={"items_per_task": 50})
    paths = [result_file("02_train", "tiny", arm.id, 0) for arm in study.arms()]
    for path in paths:
        content = json.loads(path.read_text())
        content["study_hash"] = study.hash
        content["config"]["evaluation"]["items_per_task"] = 50
        path.write_text(json.dumps(content))
    reason = f"the suite was not asked for want of lm_eval: {MEASURED}"
    assert list(stale(study)) == [(path, reason) for path in paths]
    monkeypatch.setattr(staleness, "has_harness", lambda: False)
    assert list(stale(study)) == []


def test_what_is_not_there_is_not_stale(runs: Path) -> None:
    (runs / "tiny" / "none" / "seed-0" / "result.json").unlink()
    assert list(stale(study_with())) == []
