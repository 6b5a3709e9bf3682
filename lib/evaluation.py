"""Measures of a trained model over held-out text."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lib.model import GPT


@dataclass(frozen=True)
class Scores:
    """What a model says about a text of N characters; the first has no context, so N - 1 scores."""

    nll: NDArray[np.float64]
    """Negative log-likelihood of characters 1 … N-1, in nats; (N - 1,)."""
    correct: NDArray[np.bool_]
    """Whether the most likely character was the right one; (N - 1,)."""
    embedding_norm: NDArray[np.float64]
    """L2 norm of each character's vector entering block 1; (N - 1,)."""
    seconds: float


@torch.no_grad()
def score(model: GPT, ids: Tensor, batch_size: int) -> Scores:
    """Score every character of `ids` (N,) but the first, in adjacent windows of `block_size`.

    The windows do not overlap, so a character is predicted from at most `block_size` before it
    and the first of a window from one; the last window may be shorter.
    """
    device = model.transformer.wte.weight.device
    block_size = model.config.block_size
    inputs, targets = ids[:-1], ids[1:]
    whole = len(inputs) // block_size * block_size
    batches = list(
        zip(
            torch.split(inputs[:whole].view(-1, block_size), batch_size),
            torch.split(targets[:whole].view(-1, block_size), batch_size),
            strict=True,
        )
    )
    if whole < len(inputs):
        batches.append((inputs[None, whole:], targets[None, whole:]))

    start = time.perf_counter()
    nll, correct, norm = [], [], []
    for x, y in batches:
        x, y = x.to(device), y.to(device)  # (B, T)
        logits = model(x).float()  # (B, T, V)
        nll.append(F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").cpu())
        correct.append((logits.argmax(dim=-1) == y).flatten().cpu())
        norm.append(model.transformer.embed(x).norm(dim=-1).flatten().cpu())
    seconds = time.perf_counter() - start
    return Scores(
        torch.cat(nll).double().numpy(),
        torch.cat(correct).numpy(),
        torch.cat(norm).double().numpy(),
        seconds,
    )


def perplexity(nll: NDArray[np.float64]) -> float:
    """Exponential of the mean negative log-likelihood per character; infinite when that is."""
    with np.errstate(over="ignore"):
        return float(np.exp(nll.mean()))


def evenly_spaced_windows(ids: Tensor, n: int, block_size: int) -> Tensor:
    """Join `n` windows of `block_size` characters, evenly spaced over `ids`, into (n, T + 1)."""
    starts = np.linspace(0, len(ids) - block_size - 1, n).astype(int)
    return torch.stack([ids[start : start + block_size + 1] for start in starts])


@torch.no_grad()
def dev_point(model: GPT, windows: Tensor) -> tuple[float, float]:
    """Return the mean loss (nats) and mean embedding norm over `windows` (n, T + 1)."""
    windows = windows.to(model.transformer.wte.weight.device)
    x, y = windows[:, :-1], windows[:, 1:]
    loss = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())
    return float(loss), float(model.transformer.embed(x).norm(dim=-1).mean())


def heldout_measures(scores: Scores, dev_length: int) -> dict[str, float]:
    """Summarise the scores of the whole held-out part; character `dev_length` is test's first."""
    return {
        "perplexity": perplexity(scores.nll),
        "perplexity_dev": perplexity(scores.nll[: dev_length - 1]),
        "perplexity_test": perplexity(scores.nll[dev_length - 1 :]),
        "accuracy": float(scores.correct.mean()),
        "accuracy_test": float(scores.correct[dev_length - 1 :].mean()),
        "embedding_norm": float(scores.embedding_norm.mean()),
    }


def final_measures(grad_norm: NDArray[np.float64]) -> dict[str, float]:
    """Gradient norm (L2 over all parameters, before clipping) at the last step and its mean over
    the last tenth of the steps."""
    tenth = max(1, len(grad_norm) // 10)
    return {
        "grad_norm": float(grad_norm[-1]),
        "grad_norm_last_tenth": float(grad_norm[-tenth:].mean()),
    }
