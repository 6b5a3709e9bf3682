"""Log-likelihoods of continuations under a GPT, sharing the work that they have in common.

The choices of one question share its context, and few-shot questions share their exemplars. So a
batch runs what all its contexts begin with once, and each question as one packed sequence

    context  choice 1  choice 2  …

in which every choice continues at the position after the context and sees the context and itself,
never another choice. The values are those of separate sequences, up to rounding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lib.run.model import GPT

_CONTEXT, _PADDING = 0, -1  # segments of a packed sequence; choices are 1, 2, …


@dataclass(frozen=True)
class Question:
    """A context and the continuations to score after it, as character ids; none is empty."""

    context: list[int]
    choices: list[list[int]]

    @property
    def longest(self) -> int:
        """Positions the longest choice needs; its last character is predicted, never read."""
        return len(self.context) + max(map(len, self.choices)) - 1

    @property
    def packed_length(self) -> int:
        return len(self.context) + sum(len(choice) - 1 for choice in self.choices)


@dataclass(frozen=True)
class Likelihood:
    """What a model says about one continuation."""

    log: float
    """Summed log-probability of its characters, in nats."""
    greedy: bool
    """Whether every character of it was the most likely one."""


@torch.no_grad()
def score_questions(model: GPT, questions: list[Question]) -> list[list[Likelihood]]:
    """Score every choice of a batch of questions.

    Raises ValueError when a question is longer than `block_size`.
    """
    longest = max(question.longest for question in questions)
    if longest > model.config.block_size:
        raise ValueError(
            f"a question needs {longest} positions and model.block_size is "
            f"{model.config.block_size}: shorten its context, or train with a larger block_size"
        )
    device = model.transformer.wte.weight.device
    common = _common_beginning([question.context[:-1] for question in questions])
    past = _keys_and_values(model, torch.tensor([common], device=device)) if common else None

    ids, positions, segments = _pack(questions, len(common))
    mask = _mask(segments, len(common)).to(device)
    hidden = _forward(model, ids.to(device), positions.to(device), mask, past)[0]  # (B, T, C)

    rows, places, targets, owners = _predictions(questions, len(common))
    predicted = F.linear(hidden[rows, places], model.transformer.wte.weight)  # (N, V)
    log_probabilities = predicted.float().log_softmax(dim=-1).cpu()
    log = log_probabilities[torch.arange(len(targets)), targets].double()
    wrong = (log_probabilities.argmax(dim=-1) != targets).double()
    n = sum(len(question.choices) for question in questions)
    sums = torch.zeros(n, dtype=torch.float64).index_add(0, owners, log)
    errors = torch.zeros(n, dtype=torch.float64).index_add(0, owners, wrong)
    flat = map(Likelihood, sums.tolist(), (errors == 0).tolist())
    return [[next(flat) for _ in question.choices] for question in questions]


def _common_beginning(contexts: list[list[int]]) -> list[int]:
    first, last = min(contexts), max(contexts)  # what these two share, all between them share
    differs = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differs, len(first))]


def _pack(questions: list[Question], start: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lay questions out as sequences from context position `start` on, padded on the right.

    Returns ids, positions and segments, each (B, T).
    """
    length = max(question.packed_length for question in questions) - start
    shape = (len(questions), length)
    ids, positions = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    segments = torch.full(shape, _PADDING)
    for row, question in enumerate(questions):
        end = len(question.context)
        sequence, place = question.context[start:], list(range(start, end))
        segment = [_CONTEXT] * len(sequence)
        for k, choice in enumerate(question.choices, 1):
            sequence = sequence + choice[:-1]
            place += range(end, end + len(choice) - 1)
            segment += [k] * (len(choice) - 1)
        ids[row, : len(sequence)] = torch.tensor(sequence)
        positions[row, : len(sequence)] = torch.tensor(place)
        segments[row, : len(sequence)] = torch.tensor(segment)
    return ids, positions, segments


def _mask(segments: Tensor, start: int) -> Tensor:
    """Say who sees whom, (B, 1, T, start + T): everyone what all contexts share, the context and
    the earlier part of its own segment."""
    length = segments.shape[1]
    reader, read = segments[:, :, None], segments[:, None, :]
    own = (read == _CONTEXT) | (read == reader)  # (B, T, T)
    earlier = torch.ones(length, length, dtype=torch.bool).tril()
    return F.pad(own & earlier, (start, 0), value=True)[:, None]


def _predictions(questions: list[Question], start: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """List every prediction to read off: row and place in the packed batch, the character to
    predict and the choice (counted through the batch) that it belongs to; each (N,)."""
    rows, places, targets, owners = [], [], [], []
    owner = 0
    for row, question in enumerate(questions):
        free = len(question.context) - start  # where the next choice lies
        for choice in question.choices:
            rows += [row] * len(choice)
            places += [len(question.context) - start - 1, *range(free, free + len(choice) - 1)]
            targets += choice
            owners += [owner] * len(choice)
            free += len(choice) - 1
            owner += 1
    return torch.tensor(rows), torch.tensor(places), torch.tensor(targets), torch.tensor(owners)


def _keys_and_values(model: GPT, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Run ids (1, P) and keep every layer's keys and values, each (1, H, P, C/H)."""
    length = ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
    positions = torch.arange(length, device=ids.device)
    return _forward(model, ids, positions, causal, None)[1]


def _forward(
    model: GPT,
    ids: Tensor,
    positions: Tensor,
    mask: Tensor,
    past: list[tuple[Tensor, Tensor]] | None,
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Run `lib.run.model.Transformer` with free positions, mask and keys and values from before."""
    net = model.transformer
    x = net.emb_norm(net.wte(ids) + net.wpe(positions))  # (B, T, C)
    B, T, C = x.shape
    heads = (B, T, model.config.n_head, C // model.config.n_head)
    kept = []
    for layer, block in enumerate(net.h):
        packed = block.attn.c_attn(block.ln_1(x))  # type: ignore[union-attr, operator]
        q, k, v = (part.view(heads).transpose(1, 2) for part in packed.split(C, dim=-1))
        kept.append((k, v))
        if past is not None:
            before = [part.expand(B, -1, -1, -1) for part in past[layer]]
            k, v = torch.cat((before[0], k), dim=2), torch.cat((before[1], v), dim=2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (B, H, T, C/H)
        x = x + block.attn.c_proj(y.transpose(1, 2).reshape(B, T, C))  # type: ignore[union-attr, operator]
        x = x + block.mlp(block.ln_2(x))  # type: ignore[operator]
    return net.ln_f(x), kept
