import math
from copy import copy

import numpy as np
import pytest
import torch

from lib.config.files import read_json
from lib.config.metrics import MEASURES
from lib.config.paths import run_folder
from lib.config.schema import CorpusConfig, RunConfig
from lib.config.study import Study
from lib.data.describe import references
from lib.data.suite import INSTALL
from lib.data.text import load_corpus
from lib.results import measures_of, read_raw, write_result
from lib.train.evaluate import facts_of, measure, score
from tests.conftest import TINY, beginning, change
from tests.train.samples import finished_study, train

SLOW = pytest.mark.slow


@pytest.fixture(scope="module", params=["characters", pytest.param("bpe-512", marks=SLOW)])
def config(request):
    content = TINY | {"corpus": TINY["corpus"] | {"tokenizer": request.param}}
    wider = change(RunConfig.model_validate(content), "model", block_size=48)  # tasks fit in it
    return change(wider, "evaluation", items_per_task=50)


@pytest.fixture(scope="module")
def corpus(config, tmp_path_factory):
    kept = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lib.data.cache.output_root", lambda: kept)
        whole = load_corpus(config.corpus)
    return beginning(whole, 4_000 if config.corpus.tokenizer == "characters" else 16_000)


@pytest.fixture(scope="module")
def trained(config, corpus, tmp_path_factory):
    return train(config, corpus, 0, tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="module")
def measured(trained):
    return measure(trained)


def asked(run, config):
    """Return the same run with other parameters."""
    other = copy(run)
    other.config = config
    return other


def test_everything_is_measured_and_timed(config, corpus, trained, measured):
    scores, dev = score(trained.model, [corpus.heldout], 64)[0], len(corpus.dev) - 1
    of = scores
    whole = of["nll"]
    for part, nll in (("", whole), ("_dev", whole[:dev]), ("_test", whole[dev:])):
        assert measured.measures[f"perplexity{part}"] == pytest.approx(np.exp(nll.mean()), rel=1e-9)
    assert measured.measures["accuracy_test"] == pytest.approx(of["correct"][dev:].mean())
    assert measured.measures["embedding_norm"] == pytest.approx(of["embedding_norm"].mean())
    assert measured.measures["grad_norm"] == trained.trace["grad_norm"].iloc[-1]
    assert measured.measures["suite_overflows"] == 0
    assert 0 < measured.measures["macro_accuracy_zero_shot"] < 1
    tables = {"lengths", "logits", "temperatures", "token_classes", "tasks"}
    assert set(measured.tables) == tables
    contexts = measured.raw["positions"]["context"].tolist()
    assert contexts == [*range(1, config.model.block_size + 1)]
    assert len(measured.raw["items"]) == measured.tables["tasks"]["n"].sum()
    parts = ["training", "snapshots", "perplexity", "calibration", "diagnostics", "suite"]
    assert list(measured.seconds) == parts
    assert min(measured.seconds.values()) > 0
    assert measured.notes == []


@SLOW
def test_a_result_holds_every_measure(config, corpus, trained, measured, tmp_path, monkeypatch):
    """Each follows from the raw tables. Bits per character count all characters except those of the
    first token."""
    monkeypatch.setattr("lib.results.run_folder", lambda *_: tmp_path)
    study = Study.model_validate(config.model_dump() | {"name": "alone", "seeds": [0]})
    arm = study.arm("baseline")
    facts = facts_of(arm, trained, measured)
    result = write_result(study, arm, 0, measured.raw, facts)
    expected = {name for name in MEASURES if "per_second" not in name}
    expected -= {"unstable", "plateau", "harmful"}  # of several runs
    expected -= {"log_residual_norm_1"}  # of runs of 50 steps
    assert expected <= {*result.measures, *result.throughput}
    del result.measures["macro_accuracy_few_shot"]  # in characters its prompts do not fit
    assert all(math.isfinite(value) for value in result.measures.values())
    assert result.provenance["trained"]["tokenizer_sha256"] == corpus.tokenizer.sha256
    for name, value in measures_of(read_raw(tmp_path)).items():
        if name != "macro_accuracy_few_shot":
            assert result.measures[name] == pytest.approx(value, rel=1e-12)
    assert result.references["uniform_loss"] == pytest.approx(math.log(corpus.vocab_size))
    characters = len(corpus.decode(corpus.heldout[1:]))
    bits = result.measures["loss"] * (len(corpus.heldout) - 1) / math.log(2) / characters
    assert result.measures["bits_per_character"] == pytest.approx(bits, rel=1e-9)


def test_files_of_a_folder_are_measured_one_by_one(tmp_path):
    """Dev and test are parts of each file; the first character of each part is not predicted."""
    text = load_corpus(CorpusConfig(source="synthetic")).training_text
    (tmp_path / "own").mkdir()
    for i, length in enumerate((6_000, 9_000, 12_000)):
        (tmp_path / "own" / f"{i}.txt").write_text(text[i * 20_000 :][:length], "utf-8")
    content = TINY | {"corpus": {"source": str(tmp_path / "own")}}
    config = change(RunConfig.model_validate(content), "evaluation", items_per_task=0)
    corpus = load_corpus(config.corpus)
    run = train(config, corpus, 0, tmp_path / "run")
    measured = measure(run)
    counts = np.bincount(corpus.train, minlength=corpus.vocab_size) + 1
    predicted = []
    for part in ("dev", "test"):
        ids = torch.from_numpy(getattr(corpus, part))
        texts = ids.tensor_split(corpus.ends[part][:2].tolist())
        predicted += [text[1:] for text in texts]
        nll = np.concatenate([score(run.model, [text], 64)[0]["nll"] for text in texts])
        perplexity = measured.measures[f"perplexity_{part}"]
        assert perplexity == pytest.approx(np.exp(nll.mean()), rel=1e-6)
    assert measured.raw["windows"]["n"].sum() == len(corpus.heldout) - 6
    unigram = -np.log(counts / counts.sum())[torch.cat(predicted)].mean()
    assert references(corpus, 16)["unigram_loss"] == pytest.approx(unigram)


def test_the_result_of_a_diverged_run_counts_the_steps_that_it_made(tmp_path):
    with finished_study(tmp_path, training=TINY["training"] | {"learning_rate": 1e30}) as study:
        (arm,) = study.arms()
        result = read_json(run_folder(study.name, arm.id, 0) / "result.json")
    training, block_size = study.training, study.model.block_size
    assert (result["status"], result["diverged_at"], result["steps"]) == ("diverged", 2, 2)
    assert result["tokens"] == 2 * training.batch_size * block_size
    assert training.iterations > 2


def test_a_study_may_leave_the_suite_out(config, trained):
    without = change(config, "evaluation", items_per_task=0)
    measured = measure(asked(trained, without))
    assert measured.suite_hash is None
    assert "macro_accuracy_zero_shot" not in measured.measures
    assert measured.notes == ["task suite left out: evaluation.items_per_task is 0"]


def test_without_the_harness_suite_and_stock_tasks_are_left_out(config, trained, monkeypatch):
    monkeypatch.setattr("lib.train.evaluate.has_harness", lambda: False)
    stock = change(change(config, "corpus", tokenizer="bytes"), "evaluation", tasks=["piqa"])
    measured = measure(asked(trained, stock))
    assert measured.notes == [f"{w} left out: {INSTALL}" for w in ("task suite", "stock tasks")]
    assert measured.suite_hash is None
    assert "macro_accuracy_zero_shot" not in measured.measures
    assert "ece" in measured.measures
