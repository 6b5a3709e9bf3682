"""A user's own task from a local file: its answers are kept, and its data is read again."""

import pytest

from lib.config.paths import run_folder
from lib.results import read_raw
from lib.train import lm_eval as harness
from lib.train.checkpoint import read_finished
from tests.train.samples import finished_study, own_task

pytestmark = pytest.mark.slow
QUESTIONS = {f"Number {n}. Answer:": [f"{n}", "stone", "rains", "seven"] for n in range(12)}


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A tiny model that was asked this task."""
    manager = own_task(tmp_path / "tasks", "science", QUESTIONS, "mean")
    for module in ("lib.results", "lib.config.provenance"):
        monkeypatch.setattr(f"{module}.tasks_hash", lambda _: "a" * 64)
    monkeypatch.setattr(harness, "_manager", lambda _: manager)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    content = {
        "corpus": {"source": "synthetic", "fraction": 0.02, "tokenizer": "bytes"},
        "model": {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 64},
        "evaluation": {"items_per_task": 0, "tasks": ["own"], "include_path": "tasks"},
        "factors": {},
        "seeds": [0],
    }
    with finished_study(tmp_path, **content) as study:
        yield study


def test_every_answer_is_kept_and_an_edited_data_file_is_read_again(study, tmp_path):
    result, corpus, model = read_finished(study.name, "baseline", 0)
    items = read_raw(run_folder(study.name, "baseline", 0))["stock_items"]
    assert items["item"].tolist() == [*range(12)]
    assert items["correct"].tolist() == (items["choice"] == 0).tolist()
    assert result.measures["own.acc"] == pytest.approx(items["correct"].mean())
    assert result.tables["stock_tasks"][0]["value"] == pytest.approx(items["correct"].mean())
    assert result.files["stock_items.parquet"]
    file = tmp_path / "tasks" / "science" / "items.jsonl"
    text = file.read_text("utf-8")
    for n in (5, 12):
        file.write_text("\n".join(text.split("\n")[:n]), "utf-8")
        assert len(harness.evaluate_tasks(model, corpus, study.evaluation, 8)[1]) == n
