"""Packed questions say what the model itself says, also after any part of it has changed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lib.data.corpus import Corpus
from lib.data.suite import Suite, Task, build_suite
from lib.run.model import GPT, MLP, Block, CausalSelfAttention, Transformer
from lib.run.scoring import Question, score_questions
from tests.run.samples import direct, make_model

Change = Callable[[GPT, pytest.MonkeyPatch], None]


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


def times(factor: float, cls: type[nn.Module], method: str = "forward") -> Change:
    """Multiply what a method returns."""

    def change(_: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(cls, method)
        monkeypatch.setattr(cls, method, lambda *args, **kw: factor * original(*args, **kw))

    return change


def parallel_branches(_: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Block, x: Tensor, *rest: object) -> Tensor:
        return x + self.attn(self.ln_1(x), *rest) + self.mlp(self.ln_2(x))

    monkeypatch.setattr(Block, "forward", forward)


def other_positions(_: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Transformer.embed

    def embed(
        self: Transformer, ids: Tensor, positions: Tensor | None = None, start: int = 0
    ) -> Tensor:
        if positions is None:
            positions = torch.arange(start, start + ids.shape[1])
        return original(self, ids, self.config.block_size - 1 - positions)

    monkeypatch.setattr(Transformer, "embed", embed)


def larger_eps(model: GPT, _: pytest.MonkeyPatch) -> None:
    for block in model.transformer.h:
        block.ln_1.eps = block.ln_2.eps = 1.0


def larger_gain(model: GPT, _: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        model.transformer.h[0].ln_2.weight.mul_(2)


def smaller_last_gain(model: GPT, _: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(0.5)


def other_embedding_norm(model: GPT, _: pytest.MonkeyPatch) -> None:
    model.transformer.emb_norm = nn.RMSNorm(model.config.n_embd).double()


CHANGES: dict[str, Change] = {
    "attention": times(0.5, CausalSelfAttention),
    "mlp": times(0.5, MLP),
    "block": parallel_branches,
    "block input": times(0.5, Block),
    "norm eps": larger_eps,
    "norm gain": larger_gain,
    "embedding norm": other_embedding_norm,
    "embedding step": times(3, Transformer, "embed"),
    "positions": other_positions,
    "last norm": smaller_last_gain,
    "output": times(0.5, GPT, "logits"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_log_likelihoods_follow_every_change_of_the_model(
    name: str, corpus: Corpus, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(corpus).double()
    before = packed(model, corpus, suite)
    assert before == pytest.approx(unpacked(model, corpus, suite), abs=1e-5, rel=0)
    CHANGES[name](model, monkeypatch)
    after = packed(model, corpus, suite)
    assert after == pytest.approx(unpacked(model, corpus, suite), abs=1e-5, rel=0)
    moved = torch.tensor(after) - torch.tensor(before)
    assert moved.abs().median() > 0.01


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
