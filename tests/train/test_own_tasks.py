"""A task of one's own, from a local file: each answer is checked by a forward pass of its own."""

import numpy as np
import pytest

from lib.config.paths import run_folder
from lib.results import read_raw
from lib.train import lm_eval as harness
from lib.train.checkpoint import read_finished
from tests.train.samples import direct, finished_study, own_task

pytestmark = pytest.mark.slow
WORDS = ["ocean", "metal", "birds", "water", "light", "cells", "three", "stone", "rains", "seven"]
QUESTIONS = {
    f"Number {n}.\nQuestion: What is {n}?\nAnswer:": [WORDS[(n + k * k) % 10] for k in range(4)]
    for n in range(12)
}
ASKED = {"tasks": ["own"], "include_path": "tasks/own"}


@pytest.fixture(scope="module", autouse=True)
def root(tmp_path_factory):
    """A repository with the task two folders below its top and its data beside it."""
    root = tmp_path_factory.mktemp("root")
    manager = own_task(root / "tasks/own", "science", QUESTIONS, "mean")
    with pytest.MonkeyPatch.context() as patch:
        for module in ("lib.results", "lib.config.provenance"):
            patch.setattr(f"{module}.tasks_hash", lambda _: "a" * 64)
        patch.setattr(harness, "_manager", lambda _: manager)
        patch.setattr("datasets.config.HF_DATASETS_CACHE", root / "cache")
        yield root


@pytest.fixture(scope="module")
def study(root):
    """Two tiny models that were asked it."""
    content = {
        "corpus": {"source": "synthetic", "fraction": 0.02, "tokenizer": "bytes"},
        "model": {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 64},
        "evaluation": {"interval": 4, "dev_windows": 4, "items_per_task": 0} | ASKED,
        "factors": {"model.embedding_norm": ["none", "layernorm"]},
        "seeds": [0],
    }
    with finished_study(root, **content) as study:
        yield study


def test_an_edited_data_file_is_read_again(study, root):
    file = root / "tasks/own/science/items.jsonl"
    _, corpus, model = read_finished(study.name, "none", 0)
    text = file.read_text("utf-8")
    for n in (len(QUESTIONS), 5, len(QUESTIONS)):
        file.write_text("\n".join(text.split("\n")[:n]), "utf-8")
        assert len(harness.evaluate_tasks(model, corpus, study.evaluation, 8)[1]) == n


def test_every_answer_is_kept_and_right_where_the_likeliest_choice_is(study):
    """By a forward pass for each choice."""
    for arm in study.arms():
        result, corpus, model = read_finished(study.name, arm.id, 0)
        choices = []
        for text, given in QUESTIONS.items():
            likelihoods = [direct(model, corpus, text, f" {choice}")[0] for choice in given]
            choices.append(int(np.argmax(likelihoods)))
        items = read_raw(run_folder(study.name, arm.id, 0))["stock_items"]
        assert items["item"].tolist() == list(range(len(QUESTIONS)))
        assert items["choice"].tolist() == choices
        assert items["correct"].tolist() == [choice == 0 for choice in choices]
        accuracy = np.mean([choice == 0 for choice in choices])
        assert result.measures["own.acc"] == pytest.approx(accuracy)
        assert result.tables["stock_tasks"][0]["value"] == pytest.approx(accuracy)
        assert result.files["stock_items.parquet"]
