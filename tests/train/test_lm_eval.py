from typing import get_args

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss

from lib.config.schema import EmbeddingNorm
from lib.data.suite import build_suite, prepare_suite
from lib.data.text import CorpusError
from lib.train.lm_eval import CharacterLM, evaluate_suite
from lib.train.model import Transformer
from tests.train.samples import NANOCHAT, direct, make_model


@pytest.fixture(scope="module")
def model(corpus):
    return make_model(corpus)


@pytest.fixture(scope="module")
def suite(corpus):
    return build_suite(corpus, 60, 128)


@pytest.fixture(scope="module")
def folder(corpus):
    return prepare_suite(corpus, 60, 128)[0]


@pytest.fixture(scope="module")
def result(model, corpus, folder):
    return evaluate_suite(model, corpus, folder)


def request(context, continuation, number=0):
    from lm_eval.api.instance import Instance  # seconds

    return Instance("loglikelihood", {}, (context, continuation), 0, ("task", number, 1))


CASES = [
    ("To be, or not", " to be"),
    ("\n", "\n\n"),
    ("x", "y"),
    ("of a shared beginning ", "one"),
    ("of a shared beginning ", "three"),
    ("of a shared beginning ", "a"),
    ("of a shared beginning and", " more"),
]


MODELS = [
    *({"embedding_norm": norm} for norm in get_args(EmbeddingNorm)),
    {"embedding_norm": "layernorm", "tied": False, "branch_multiplier": 3.0},
    {"positions": "rotary", "norm": "rmsnorm", "activation": "relu2", "bias": False},
    NANOCHAT,
]


@pytest.mark.parametrize("fields", MODELS, ids=str)
@pytest.mark.parametrize(("batch_size", "logits_at_once"), [(1, 2**24), (4, 200), (64, 2**24)])
def test_log_likelihoods_are_direct_sums(fields, batch_size, logits_at_once, corpus, monkeypatch):
    """Contexts of all lengths in any order, with one or several continuations; also if logits are
    computed a few rows at a time."""
    monkeypatch.setattr("lib.train.model.LOGITS_AT_ONCE", logits_at_once)
    model = make_model(corpus, **fields).double()
    adapter = CharacterLM(model, corpus, batch_size)
    found = adapter.loglikelihood([request(*case) for case in CASES])
    for case, (log, greedy) in zip(CASES, found, strict=True):
        expected = direct(model, corpus, *case)
        assert log == pytest.approx(expected[0], abs=1e-5)
        assert greedy is expected[1]


def test_batches_share_a_beginning_without_changing_a_value(model, corpus):
    shared = "First example, solved.\nSecond example, solved.\n"
    texts = ("What", "Who", "When is")
    pairs = [(shared + text, choice) for text in texts for choice in (" a", " bc")]
    requests = [request(*pair, number=i // 2) for i, pair in enumerate(pairs)]
    read = []
    embed = Transformer.embed

    def counted(self, ids, start=0):
        read.append(ids.numel())
        return embed(self, ids, start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transformer, "embed", counted)
        found = CharacterLM(model, corpus).loglikelihood(requests)
    for (log, _), pair in zip(found, pairs, strict=True):
        assert log == pytest.approx(direct(model, corpus, *pair)[0], abs=1e-5)
    assert sum(read) < len(shared) + len(requests) * len("When is bc") + 10


def test_a_context_too_long_loses_its_beginning_and_is_counted(corpus):
    model = make_model(corpus, block_size=16)
    adapter = CharacterLM(model, corpus)
    context = "A context that is too long for it"
    fits = adapter.loglikelihood([request(context[-10:], " yes it")])
    assert not adapter.overflows
    requests = [request(context, " yes it"), request(context, " no")]
    (log, _), (short, _) = adapter.loglikelihood(requests)
    assert len(adapter.overflows) == 1  # question
    assert log == pytest.approx(fits[0][0], abs=1e-5)
    assert short == pytest.approx(direct(model, corpus, context[-14:], " no")[0], abs=1e-5)


@pytest.mark.parametrize("n", [1, 127, 128])
def test_a_question_that_fills_the_context_exactly_is_asked_whole(n, model, corpus):
    """The last character is predicted and never read: 129 characters fit into 128."""
    text = corpus.decode(corpus.heldout[:129])
    adapter = CharacterLM(model, corpus)
    ((log, _),) = adapter.loglikelihood([request(text[:-n], text[-n:])])
    assert log == pytest.approx(direct(model, corpus, text[:-n], text[-n:])[0], abs=1e-3)
    assert not adapter.overflows


def test_errors_name_the_remedy(model, corpus):
    adapter = CharacterLM(model, corpus)
    with pytest.raises(CorpusError, match="'é' was unseen"):
        adapter.loglikelihood([request("caf", "é")])
    with pytest.raises(ValueError, match="has 0 characters"):
        adapter.loglikelihood([request("a", "")])
    with pytest.raises(ValueError, match="has 129 characters"):
        adapter.loglikelihood([request("a", "b" * 129)])


@pytest.mark.slow
def test_every_question_is_asked_and_none_overflows(result, suite):
    table, items, overflows = result
    assert overflows == 0
    assert list(zip(table.task, table.shots, strict=True)) == [
        (task.name, shots) for shots in (0, 2) for task in suite.tasks
    ]
    assert (table.n == 60).all()
    for task in suite.tasks:
        rows = items[(items.task == task.name) & (items.shots == 2)]
        assert rows.item.tolist() == list(range(60))
        right = [item.gold for item in task.items]
        assert rows.correct.tolist() == (rows.choice == right).tolist()


@pytest.mark.slow
def test_accuracies_are_those_of_direct_sums_over_fixed_prompts(result, suite, model, corpus):
    task = next(task for task in suite.tasks if task.name == "last_word")
    before = "".join(f"{e.text}\n" for e in task.exemplars)
    log = [
        [direct(model, corpus, before + c, item.continuation)[0] for c in item.contexts]
        for item in task.items
    ]
    log = np.array(log)
    gold = np.array([item.gold for item in task.items])
    probability = np.exp(log) / np.exp(log).sum(axis=1, keepdims=True)
    table, items = (part.query("task == 'last_word' and shots == 2") for part in result[:2])
    row = table.iloc[0]
    assert row.accuracy == pytest.approx((log.argmax(axis=1) == gold).mean())
    assert row.stderr == pytest.approx(np.sqrt(row.accuracy * (1 - row.accuracy) / 59))
    assert row.normalised_accuracy == pytest.approx((row.accuracy - 0.25) / 0.75)
    assert row.accuracy == items.correct.mean()
    assert items.choice.tolist() == log.argmax(axis=1).tolist()
    brier = brier_score_loss(gold, probability, scale_by_half=False)
    assert row.brier == pytest.approx(brier, abs=1e-4)


@pytest.mark.slow
def test_a_model_without_preferences_is_at_chance(corpus, folder):
    uniform = make_model(corpus)
    with torch.no_grad():
        uniform.transformer.wte.weight.zero_()  # tied: all characters are equally likely
    table = evaluate_suite(uniform, corpus, folder)[0]
    # All places tie, so the first is chosen; each place of a set is right once.
    np.testing.assert_allclose(table.accuracy, table.chance)
    np.testing.assert_allclose(table.brier, 1 - table.chance, atol=1e-6)
    np.testing.assert_allclose(table.normalised_accuracy, 0, atol=1e-12)
