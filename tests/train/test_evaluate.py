import os
import subprocess
import sys

import numpy as np
import pytest

from lib.config.paths import ROOT
from lib.train import evaluate
from lib.train.evaluate import score
from tests.train.samples import gpt, make_model


@pytest.fixture(scope="module")
def model(corpus):
    size = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 16}
    return gpt(corpus.vocab_size, **size, embedding_std=0.5)


@pytest.mark.slow
def test_measuring_a_large_vocabulary_holds_few_logits_however_large_a_batch_is():
    """All logits would take 40 MB, and calibration several times that; 2 MB exist at a time."""
    code = """
import resource, numpy as np, torch
from lib.train import model as of_model
from lib.train.calibration import calibrate
from lib.train.evaluate import score
from lib.train.machine import random_stream
from lib.train.diagnostics import snapshot
from lib.train.lm_eval import score_pairs
from lib.config.schema import ModelConfig

torch.set_num_threads(1)
of_model.LOGITS_AT_ONCE = 2**19
config = ModelConfig(n_layer=1, n_head=1, n_embd=8, block_size=64)
model = of_model.GPT(config, 10_000, random_stream(0, "w"))
ids = torch.randint(10_000, (1025,), generator=random_stream(0, "ids"))

def measure(n):
    scores, rows = score(model, [ids[:n + 1]], n // 64)
    generator = np.random.default_rng(0)
    columns = (scores[name].to_numpy() for name in ('confidence', 'correct'))
    calibrate(*columns, model.logits_in_parts, rows, 32, generator)
    windows = ids[:n].view(-1, 64)
    snapshot(model, windows)
    score_pairs(model, [([0], window) for window in windows.tolist()], n)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

print(measure(128), measure(1024))
"""
    # Return freed memory to the system at once, or fragments would count.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "100000"}
    command = [sys.executable, "-c", code]
    done = subprocess.check_output(command, cwd=ROOT, text=True, env=environment)
    few, many = map(int, done.split())
    assert many - few < 1024 * 10_000 * 4 / 2


@pytest.mark.parametrize("length", [2, 16, 17, 18, 33, 100])
def test_scores_do_not_depend_on_how_many_windows_or_logits_are_made_at_once(model, corpus, length):
    one, many = (score(model, [corpus.heldout[:length]], size)[0] for size in (1, 64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lib.train.model.LOGITS_AT_ONCE", 5 * corpus.vocab_size)
        few, _ = score(model, [corpus.heldout[:length]], 64)
    assert len(one) == length - 1
    for other in (many, few):
        for name in ("nll", "brier", "embedding_norm"):
            np.testing.assert_allclose(one[name], other[name], atol=1e-5)


def test_loss_at_a_length_is_that_of_windows_cut_to_it(corpus):
    model = make_model(corpus, block_size=48)
    text = corpus.heldout[: 4 * 48 + 1]
    positions = evaluate.loss_by_position(score(model, [text], 4)[0], 48)
    table = evaluate.length_table(positions).set_index("length")
    assert table.index.tolist() == [16, 32, 48]
    for length in table.index:
        windows = [text[i : i + length + 1] for i in range(0, 192, 48)]
        cut = [score(model, [window], 1)[0]["nll"].mean() for window in windows]
        assert table.loc[length, "loss"] == pytest.approx(np.mean(cut), rel=1e-5)
        assert table.loc[length, "perplexity"] == pytest.approx(np.exp(np.mean(cut)), rel=1e-5)


def test_norms_by_token_class_show_absent_classes_without_numbers(corpus):
    ids = corpus.encode("ab c!")
    table = evaluate.norm_by_token_class(corpus, ids, np.array([1.0, 3.0, 10.0, 5.0, 7.0]))
    rows = table.set_index("token_class")
    assert rows["n"].to_dict() == {
        "alphabetic": 3, "numeric": 0, "punctuation": 1, "whitespace": 1, "end of document": 0,
    }  # fmt: skip
    described = [3.0, 2.0, 2.0, 3.0, 4.0]  # of 1, 3 and 5
    assert rows.loc["alphabetic", ["mean", "sd", "q25", "median", "q75"]].tolist() == described
    assert rows.loc["whitespace", "mean"] == 10.0
    assert rows.loc["numeric"].drop("n").isna().all()


def test_quantiles_of_logits_are_those_of_evenly_spaced_predictions(model, corpus, monkeypatch):
    monkeypatch.setattr(evaluate, "SAMPLED_PREDICTIONS", 20)
    text = corpus.heldout[:81]  # 5 windows; every fourth position is sampled
    logits = model(text[:80].view(5, 16))[:, ::4].detach().numpy()
    table = evaluate.logit_quantiles(model, score(model, [text], 5)[1]).set_index("quantile")
    for name, values in {"logit": logits, "largest_logit": logits.max(axis=-1)}.items():
        np.testing.assert_allclose(table[name], np.quantile(values, table.index), rtol=1e-5)
