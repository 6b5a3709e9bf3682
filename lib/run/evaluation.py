"""Measures of a trained model over held-out text."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from torch import Tensor
from torch.nn import functional as F

from lib.data.corpus import TOKEN_CLASSES, Corpus, token_class
from lib.run.calibration import Batches, brier
from lib.run.diagnostics import evenly_spaced_windows
from lib.run.model import GPT
from lib.run.quantiles import quantiles


@dataclass(frozen=True)
class Scores:
    """Predictions for a text of N characters; the first has no context, which leaves N - 1.

    Logits are too many to be kept: `batches` computes them again from what the output projection
    read, by the same products, so that they are the same.
    """

    model: GPT
    read: list[Tensor]
    """What the output projection read, batch by batch; each (B, T, C)."""
    target: NDArray[np.int64]
    """The right symbol; (N - 1,)."""
    nll: NDArray[np.float64]
    """Negative log-likelihood of characters 1 … N-1, in nats; (N - 1,)."""
    correct: NDArray[np.bool_]
    """Whether the most likely character is the right one; (N - 1,)."""
    brier: NDArray[np.float64]
    """Multi-class Brier score of each character; (N - 1,)."""
    embedding_norm: NDArray[np.float64]
    """L2 norm of each character's vector entering block 1; (N - 1,)."""

    @torch.no_grad()
    def batches(
        self, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """Yield the logits (n, V) and targets (n,) of predictions `start` … `stop` - 1, batch by
        batch."""
        weight = (
            self.model.transformer.wte if self.model.config.tied else self.model.lm_head
        ).weight
        stop = len(self.target) if stop is None else stop
        before = 0
        for x in self.read:
            size = x.shape[0] * x.shape[1]
            rows = slice(max(start - before, 0), min(stop - before, size))
            if rows.start < rows.stop:
                logits = F.linear(x, weight).float().flatten(0, 1)[rows]
                yield logits.cpu().numpy(), self.target[before : before + size][rows]
            before += size


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

    read: list[Tensor] = []
    parts = []
    with model.transformer.ln_f.register_forward_hook(lambda _, __, x: read.append(x)):
        for x, y in batches:
            x, y = x.to(device), y.to(device)  # (B, T)
            logits = model(x).float().flatten(0, 1)  # (B T, V)
            nll = F.cross_entropy(logits, y.flatten(), reduction="none")
            norm = model.transformer.embed(x).norm(dim=-1).flatten()
            right = logits.argmax(dim=-1) == y.flatten()
            log_probability = log_softmax(logits.cpu().numpy(), axis=-1)
            squares = torch.from_numpy(brier(log_probability, y.flatten().cpu().numpy()))
            parts.append([part.cpu() for part in (nll, norm, right, squares)])
    nll, norm, right, squares = (torch.cat(column) for column in zip(*parts, strict=True))
    return Scores(
        model=model,
        read=read,
        target=targets.numpy(),
        nll=nll.double().numpy(),
        correct=right.numpy(),
        brier=squares.numpy(),
        embedding_norm=norm.double().numpy(),
    )


def loss_by_position(scores: Scores, block_size: int) -> pd.DataFrame:
    """Mean loss per length of context, over all whole windows of the text behind `scores`.

    Columns: context (how many characters a prediction could see, 1 … block_size) and position_loss
    (nats).
    """
    windows = len(scores.nll) // block_size
    losses = scores.nll[: windows * block_size].reshape(windows, block_size)
    context = np.arange(1, block_size + 1)
    return pd.DataFrame({"context": context, "position_loss": losses.mean(axis=0)})


def length_table(by_position: pd.DataFrame) -> pd.DataFrame:
    """Loss (nats) in windows of only 16, 32, 64, … characters, up to and including the context: the
    mean over the heads of all windows."""
    full = len(by_position)
    lengths = [length for length in (2**k for k in range(4, 31)) if length < full] + [full]
    losses = [float(by_position["position_loss"][:length].mean()) for length in lengths]
    return pd.DataFrame({"length": lengths, "loss": losses, "perplexity": np.exp(losses)})


@torch.no_grad()
def inference_throughput(model: GPT, ids: Tensor, batch_size: int, repetitions: int = 5) -> float:
    """Characters per second of forward passes over `batch_size` full windows; the median pass."""
    windows = evenly_spaced_windows(ids, batch_size, model.config.block_size)[:, :-1]
    windows = windows.to(model.transformer.wte.weight.device)
    seconds = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        model(windows).sum().item()  # a number on the CPU ends the clock on every device
        seconds.append(time.perf_counter() - start)
    return windows.numel() / float(np.median(seconds[1:]))  # the first pass warms up


def norm_by_token_class(
    corpus: Corpus, ids: Tensor, embedding_norm: NDArray[np.float64]
) -> pd.DataFrame:
    """Summarise embedding norms (N,) of the characters `ids` (N,) per token class: n, mean, sd and
    quartiles. A class that does not occur has n = 0 and no numbers."""
    classes = np.array([token_class(symbol) for symbol in corpus.symbols])[ids.numpy()]
    table = pd.DataFrame({"token_class": classes, "norm": embedding_norm})
    groups = table.groupby("token_class")["norm"]
    summary = groups.describe()[["count", "mean", "std", "25%", "50%", "75%"]]
    summary.columns = pd.Index(["n", "mean", "sd", "q25", "median", "q75"])
    summary = summary.reindex(list(TOKEN_CLASSES)).rename_axis("token_class").reset_index()
    return summary.assign(n=summary["n"].fillna(0).astype(int))


def logit_quantiles(batches: Batches) -> pd.DataFrame:
    """Distribution of the logits of held-out characters: quantiles over all of them, and of the
    largest one per character."""
    probabilities = [0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0]
    largest = np.concatenate([logits.max(axis=-1) for logits, _ in batches()])
    return pd.DataFrame(
        {
            "quantile": probabilities,
            "logit": quantiles(lambda: (logits for logits, _ in batches()), probabilities),
            "largest_logit": np.quantile(largest, probabilities),
        }
    )
