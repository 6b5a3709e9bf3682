from copy import copy
from pathlib import Path

import numpy as np
import pytest

from lib.config.io import read_json, run_folder
from lib.config.schema import RunConfig
from lib.data.suite import INSTALL
from lib.data.text import Corpus
from lib.train.evaluate import Measurement, measure, score
from lib.train.trainer import Trainer
from tests.conftest import TINY, beginning, change
from tests.train.samples import finished_study, train


@pytest.fixture(scope="module")
def config() -> RunConfig:
    wider = change(RunConfig.model_validate(TINY), "model", block_size=48)  # some tasks fit in it
    return change(wider, "evaluation", items_per_task=50)


@pytest.fixture(scope="module")
def corpus(corpus: Corpus) -> Corpus:
    return beginning(corpus)


@pytest.fixture(scope="module")
def trained(config: RunConfig, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return train(config, corpus, 0, tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="module")
def measured(trained: Trainer) -> Measurement:
    return measure(trained)


def asked(run: Trainer, config: RunConfig) -> Trainer:
    """The same run under other parameters."""
    other = copy(run)
    other.config = config
    return other


def test_everything_is_measured_and_timed(
    config: RunConfig, corpus: Corpus, trained: Trainer, measured: Measurement
) -> None:
    scores, dev = score(trained.model, corpus.heldout, 64), len(corpus.dev) - 1
    of = scores.columns
    whole = of["nll"]
    for part, nll in (("", whole), ("_dev", whole[:dev]), ("_test", whole[dev:])):
        assert measured.measures[f"perplexity{part}"] == pytest.approx(np.exp(nll.mean()), rel=1e-9)
    assert measured.measures["accuracy_test"] == pytest.approx(of["correct"][dev:].mean())
    assert measured.measures["embedding_norm"] == pytest.approx(of["embedding_norm"].mean())
    assert measured.measures["grad_norm"] == trained.trace["grad_norm"].iloc[-1]
    assert measured.measures["suite_overflows"] == 0
    assert 0 < measured.measures["macro_accuracy_zero_shot"] < 1
    assert set(measured.tables) == {
        *("lengths", "temperatures", "token_classes", "logits", "tasks")
    }
    assert measured.raw["positions"]["context"].tolist() == list(
        range(1, config.model.block_size + 1)
    )
    assert len(measured.raw["items"]) == measured.tables["tasks"]["n"].sum()
    parts = ["training", "snapshots", "perplexity", "calibration", "diagnostics", "suite"]
    assert list(measured.seconds) == parts
    assert min(measured.seconds.values()) > 0
    assert measured.notes == []


def test_the_result_of_a_diverged_run_counts_the_steps_that_it_made(tmp_path: Path) -> None:
    with finished_study(tmp_path, training=TINY["training"] | {"learning_rate": 1e30}) as study:
        (arm,) = study.arms()
        result = read_json(run_folder(study.name, arm.id, 0) / "result.json")
    training, block_size = study.training, study.model.block_size
    assert (result["status"], result["diverged_at"], result["steps"]) == ("diverged", 2, 2)
    assert result["tokens"] == 2 * training.batch_size * block_size
    assert training.iterations > 2


def test_a_study_may_leave_the_suite_out(config: RunConfig, trained: Trainer) -> None:
    without = change(config, "evaluation", items_per_task=0)
    measured = measure(asked(trained, without))
    assert measured.suite_hash is None
    assert "macro_accuracy_zero_shot" not in measured.measures
    assert measured.notes == ["task suite left out: evaluation.items_per_task is 0"]


def test_without_the_harness_suite_and_stock_tasks_are_left_out_and_it_says_so(
    config: RunConfig, trained: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.train.evaluate.has_harness", lambda: False)
    stock = change(change(config, "corpus", tokenizer="bytes"), "evaluation", tasks=["piqa"])
    measured = measure(asked(trained, stock))
    assert measured.notes == [f"{w} left out: {INSTALL}" for w in ("task suite", "stock tasks")]
    assert measured.suite_hash is None
    assert "macro_accuracy_zero_shot" not in measured.measures
    assert "ece" in measured.measures
