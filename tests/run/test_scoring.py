"""Packed questions say what the model itself says of each text."""

import pytest
from lib.run.scoring import Question, score_questions
from torch import Tensor

from lib.data.suite import Suite, Task, build_suite
from lib.data.text import Corpus
from lib.run.model import GPT, Transformer
from tests.run.samples import NANOCHAT, direct, make_model


@pytest.fixture(scope="module")
def suite(corpus: Corpus) -> Suite:
    return build_suite(corpus, 60, 128)


def asked(suite: Suite) -> list[tuple[str, tuple[str, ...]]]:
    """Four contexts of every task and what is scored after each, without and with solved
    examples."""
    return [
        (before + context, continuations)
        for task in suite.tasks
        for before in ("", "".join(f"{e.text}\n" for e in task.exemplars))
        for context, continuations in scored(task, 4)
    ]


def scored(task: Task, n: int) -> list[tuple[str, tuple[str, ...]]]:
    """The first contexts of a task, and the continuations of the questions that show them."""
    found: dict[str, list[str]] = {}
    for item in task.items:
        for context in item.contexts:
            found.setdefault(context, []).append(item.continuation)
    return [(context, tuple(found[context])) for context in list(found)[:n]]


def packed(model: GPT, corpus: Corpus, suite: Suite) -> list[float]:
    def encoded(text: str) -> list[int]:
        return corpus.encode(text).tolist()

    questions = [Question(encoded(text), list(map(encoded, cs))) for text, cs in asked(suite)]
    batches = [questions[i : i + 4] for i in range(0, len(questions), 4)]  # as in `asked`
    scores = [each for batch in batches for each in score_questions(model, batch, 4)]
    return [likelihood.log for question in scores for likelihood in question]


def unpacked(model: GPT, corpus: Corpus, suite: Suite) -> list[float]:
    return [direct(model, corpus, text, choice)[0] for text, cs in asked(suite) for choice in cs]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"embedding_norm": "layernorm", "tied": False, "branch_multiplier": 3.0},
        {"positions": "rotary", "norm": "rmsnorm", "activation": "relu2", "bias": False},
        NANOCHAT | {"tied": True},
    ],
    ids=["GPT-2", "scaled", "rotary", "nanochat"],
)
def test_packed_questions_have_the_likelihoods_of_plain_texts(
    fields: dict[str, object], corpus: Corpus, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the logits are made a few rows at a time."""
    model = make_model(corpus, **fields).double()
    expected = unpacked(model, corpus, suite)
    assert packed(model, corpus, suite) == pytest.approx(expected, abs=1e-5, rel=0)
    monkeypatch.setattr("lib.run.model.LOGITS_AT_ONCE", 3 * corpus.vocab_size)
    assert packed(model, corpus, suite) == pytest.approx(expected, abs=1e-5, rel=0)


def test_what_texts_begin_with_is_read_once(
    corpus: Corpus, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of one, which need no padding, as many characters are read as there are different
    beginnings: of all contexts together, and of each question's texts on their own."""
    model = make_model(corpus)
    task = next(task for task in suite.tasks if task.name == "spelling")
    before = "".join(f"{e.text}\n" for e in task.exemplars)
    texts = [(before + context, choices) for context, choices in scored(task, 5)]
    questions = [
        Question(corpus.encode(text).tolist(), [corpus.encode(c).tolist() for c in choices])
        for text, choices in texts
    ]
    read: list[int] = []
    original = Transformer.embed

    def embed(self: Transformer, ids: Tensor, *rest: Tensor) -> Tensor:
        read.append(ids.numel())
        return original(self, ids, *rest)

    monkeypatch.setattr(Transformer, "embed", embed)
    score_questions(model, questions, 1)
    shared = read[0]
    assert len(before) <= shared
    assert [len({text[:end] for text, _ in texts}) > 1 for end in (shared, shared + 1)] == [0, 1]
    beginnings = [
        {(text + choice)[:end] for choice in choices for end in range(1, len(text + choice))}
        for text, choices in texts
    ]
    assert sorted(read[1:]) == sorted(len(each) - shared for each in beginnings)
