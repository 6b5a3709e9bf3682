"""Log-likelihoods of continuations under a GPT, computing what they share only once.

The choices of one question share its context, and few-shot questions share their solved examples.
So what all contexts begin with is read once, and each question is read as one packed sequence: the
rest of its context and then the tree of its choices,

    context  first choice  second choice from where it departs from the first  …

Every character stands at its position in the text and sees the text before it, and no other choice.
The values are those of separate sequences, up to rounding.
"""

from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from lib.run.model import GPT, KVCache


class Question(NamedTuple):
    """A context and the continuations to score after it, as character ids; none is empty."""

    context: list[int]
    choices: list[list[int]]

    @property
    def longest(self) -> int:
        """Positions that the longest choice needs; its last character is predicted, never read."""
        return len(self.context) + max(map(len, self.choices)) - 1


class Likelihood(NamedTuple):
    """The score of one continuation."""

    log: float
    """Summed log-probability of its characters, in nats."""
    greedy: bool
    """Whether each of its characters was the most likely one."""


class _Packed(NamedTuple):
    """A question as one sequence of T characters."""

    characters: Tensor
    """Id, position, and the place of the last character that sees this one; (T, 3)."""
    readers: list[int]
    """The places that predict the characters of the first choice, of the second, …; (N,)."""
    targets: list[int]
    """The ids of these characters; (N,)."""


@torch.no_grad()
def score_questions(
    model: GPT, questions: list[Question], batch_size: int
) -> list[list[Likelihood]]:
    """Score every choice of each question, in batches of questions of similar length.

    Raises ValueError when a question is longer than `block_size`.
    """
    columns = zip(*(question.context[:-1] for question in questions), strict=False)
    common = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    shared = KVCache()
    if common:
        device = model.transformer.wte.weight.device
        model.hidden(torch.tensor([common], device=device), cache=shared)
    packed = [_pack(question, len(common)) for question in questions]
    order = sorted(range(len(packed)), key=lambda i: len(packed[i].characters))
    scores: dict[int, list[Likelihood]] = {}
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        predictions = _predict(model, [packed[i] for i in batch], shared.copy())
        for i, (log, greedy) in zip(batch, predictions, strict=True):
            lengths = [len(choice) for choice in questions[i].choices]
            parts = zip(torch.split(log, lengths), torch.split(greedy, lengths), strict=True)
            scores[i] = [Likelihood(float(logs.sum()), bool(hits.all())) for logs, hits in parts]
    return [scores[i] for i in range(len(questions))]


def _predict(model: GPT, batch: list[_Packed], cache: KVCache) -> list[tuple[Tensor, Tensor]]:
    """Return, for each question, the log-probabilities of its targets, (N,), and whether each of
    these was the most likely character, (N,)."""
    device = model.transformer.wte.weight.device
    characters = pad_sequence([q.characters for q in batch], batch_first=True).to(device)
    ids, positions, last = characters.unbind(-1)  # each (B, T)
    lengths = [len(q.readers) for q in batch]
    rows = torch.arange(len(batch)).repeat_interleave(torch.tensor(lengths)).to(device)
    readers = torch.tensor([i for q in batch for i in q.readers], device=device)
    targets = torch.tensor([target for q in batch for target in q.targets], device=device)
    hidden = model.hidden(ids, positions, _mask(last, cache.length), cache)[rows, readers]  # (N, C)
    log, greedy = [], []
    for logits in model.logits_in_parts(hidden):
        target, targets = targets[: len(logits)], targets[len(logits) :]
        log_probabilities = logits.log_softmax(dim=-1)
        log.append(log_probabilities.gather(1, target[:, None])[:, 0].double().cpu())
        greedy.append((log_probabilities.argmax(dim=-1) == target).cpu())
    parts = torch.split(torch.cat(log), lengths), torch.split(torch.cat(greedy), lengths)
    return list(zip(*parts, strict=True))


def _pack(question: Question, start: int) -> _Packed:
    """Lay a question out from context position `start` on. Its choices come in alphabetical order,
    so that those that begin alike, which share a character, are neighbours."""
    context, everything = question.context, torch.iinfo(torch.long).max
    characters = [[context[i], i, everything] for i in range(start, len(context))]
    last_index: dict[tuple[int, ...], int] = {(): len(characters) - 1}  # of each beginning's last
    for choice in sorted(question.choices):
        path = [tuple(choice[:k]) for k in range(1, len(choice))]
        for beginning in path:
            if beginning not in last_index:
                last_index[beginning] = len(characters)
                characters.append([beginning[-1], len(context) + len(beginning) - 1, 0])
        for beginning in path:
            characters[last_index[beginning]][2] = len(characters) - 1
    return _Packed(
        torch.tensor(characters),
        [last_index[tuple(choice[:k])] for choice in question.choices for k in range(len(choice))],
        [target for choice in question.choices for target in choice],
    )


def _mask(last: Tensor, common: int) -> Tensor:
    """Say which characters each character sees, (B, 1, T, common + T): what all contexts begin
    with, and those up to itself whose `last` reader, (B, T), it does not come after."""
    index = torch.arange(last.shape[1], device=last.device)
    seen = (index[:, None] <= last[:, None, :]).tril()  # (B, T, T)
    return F.pad(seen, (common, 0), value=True)[:, None]
