"""Log-likelihoods of continuations under a GPT, computing what they share only once.

The choices of one question share its context, and few-shot questions share their solved examples.
So a batch reads what all its contexts begin with once, and each question as one packed sequence

    context  choice 1  choice 2  …

Every choice starts at the position of the context's last character, which is repeated for each. It
sees the context and itself, and no other choice. The values are those of separate sequences, up to
rounding.
"""

from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from lib.run.model import GPT, Past


class Question(NamedTuple):
    """A context and the continuations to score after it, as character ids; none is empty."""

    context: list[int]
    choices: list[list[int]]

    @property
    def longest(self) -> int:
        """Positions that the longest choice needs; its last character is predicted, never read."""
        return len(self.context) + max(map(len, self.choices)) - 1

    @property
    def packed_length(self) -> int:
        return len(self.context) - 1 + sum(map(len, self.choices))


class Likelihood(NamedTuple):
    """The score of one continuation."""

    log: float
    """Summed log-probability of its characters, in nats."""
    greedy: bool
    """Whether each of its characters was the most likely one."""


@torch.no_grad()
def score_questions(model: GPT, questions: list[Question]) -> list[list[Likelihood]]:
    """Score every choice of a batch of questions.

    Raises ValueError when a question is longer than `block_size`.
    """
    device = model.transformer.wte.weight.device
    columns = zip(*(question.context[:-1] for question in questions), strict=False)
    common = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    past = Past()
    if common:
        model(torch.tensor([common], device=device), past=past)
    packed = pad_sequence([_pack(q, len(common)) for q in questions], batch_first=True).to(device)
    ids, positions, segments = packed.unbind(-1)  # each (B, T)
    logits = model(ids, positions, _mask(segments, len(common)), past, places=segments > 0)

    choices = [choice for question in questions for choice in question.choices]
    targets = torch.tensor([i for choice in choices for i in choice])  # (N,)
    log_probabilities = logits.float().log_softmax(dim=-1).cpu()  # (N, V)
    log = log_probabilities[torch.arange(len(targets)), targets].double()
    greedy = log_probabilities.argmax(dim=-1) == targets
    lengths = [len(choice) for choice in choices]
    parts = zip(log.split(lengths), greedy.split(lengths), strict=True)
    flat = (Likelihood(float(logs.sum()), bool(hits.all())) for logs, hits in parts)
    return [[next(flat) for _ in question.choices] for question in questions]


def _pack(question: Question, start: int) -> Tensor:
    """Lay a question out as one sequence from context position `start` on.

    Columns: id, position and segment (0 for the context, 1, 2, … for the choices); (T, 3).
    """
    *context, last = question.context
    end = len(context)
    rows = [(context[i], i, 0) for i in range(start, end)]
    for segment, choice in enumerate(question.choices, 1):
        rows += [(i, end + k, segment) for k, i in enumerate([last, *choice[:-1]])]
    return torch.tensor(rows)


def _mask(segments: Tensor, common: int) -> Tensor:
    """Say which positions each position sees, (B, 1, T, common + T): what all contexts begin with,
    and the earlier part of the context and of its own segment. Padding comes last: none sees it."""
    reader, read = segments[:, :, None], segments[:, None, :]
    seen = ((read == 0) | (read == reader)).tril()  # (B, T, T)
    return F.pad(seen, (common, 0), value=True)[:, None]
