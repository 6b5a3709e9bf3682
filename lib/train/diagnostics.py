"""Measure what happens inside a model while it trains: norms, cosines, residual stream, logits,
AdamW's second moments, and gain and bias of the embedding normalization. A snapshot is one forward
pass over a few windows.
"""

from collections import defaultdict
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lib.train.model import GPT


def mean_cosine(vectors: Tensor) -> Tensor:
    """Return the mean cosine similarity over all pairs of different rows of (n, C), a scalar. 1:
    all point one way.

    With unit vectors u, the sum over pairs is |Σu|² - n, so no n × n matrix is needed.
    """
    unit = F.normalize(vectors.detach().double(), dim=-1)
    n = len(unit)
    of_pairs = unit.sum(dim=0).square().sum() - unit.square().sum()
    return of_pairs / (n * (n - 1))


@torch.no_grad()
def snapshot(model: GPT, windows: Tensor) -> dict[str, float]:
    """Return what one forward pass over `windows` (n, T + 1) tells of the model:

    dev_loss (nats), embedding_norm (mean L2 at block 1), embedding_cosine (among token embeddings),
    input_cosine (among inputs of block 1), residual_norm_<k> (mean L2 at the input of block k + 1;
    the last is after all blocks), logit_max and logit_sd (mean over characters), and norm_gain and
    norm_bias (means) where the embedding normalization has them.
    """
    windows = windows.to(model.transformer.wte.weight.device)
    residual: list[Tensor] = []  # the stream (n, T, C) at the input of every block, then after all
    with ExitStack() as hooks:
        for reader in (*model.transformer.h, model.transformer.ln_f):
            hook = reader.register_forward_pre_hook(lambda _, args: residual.append(args[0]))
            hooks.enter_context(hook)  # removed at the end of the block
        hidden = model.hidden(windows[:, :-1]).flatten(0, 1)  # (n · T, C)
    targets = windows[:, 1:].flatten()  # (n · T,)
    loss, largest, spread = torch.zeros(3, dtype=torch.float64, device=windows.device)
    for logits, target in model.logits_in_parts(hidden, targets):
        share = len(logits) / len(hidden)
        loss += share * F.cross_entropy(logits, target).double()
        largest += share * logits.amax(dim=-1).mean().double()
        spread += share * logits.std(dim=-1).mean().double()
    norms = [stream.norm(dim=-1).mean() for stream in residual]
    scalars = {
        "dev_loss": loss,
        "embedding_norm": norms[0],
        "embedding_cosine": mean_cosine(model.transformer.wte.weight),
        "input_cosine": mean_cosine(residual[0].flatten(0, 1)),
        **{f"residual_norm_{k}": norm for k, norm in enumerate(norms)},
        "logit_max": largest,
        "logit_sd": spread,
    }
    for name, parameter in model.transformer.emb_norm.named_parameters():
        scalars["norm_bias" if name == "bias" else "norm_gain"] = parameter.mean()
    return read_scalars(scalars)


def read_scalars(values: dict[str, Tensor]) -> dict[str, float]:
    """Read scalars from the device, all at once: the host waits for it once."""
    if not values:
        return {}
    numbers = torch.stack([value.double() for value in values.values()]).tolist()
    return dict(zip(values, numbers, strict=True))


def embedding_updates(before: Tensor, after: Tensor) -> dict[str, float]:
    """Return by how much one update moved the token embeddings, from (V, C) to (V, C), as means
    over their rows: embedding_angle, by which a row turned (radians), and embedding_update, the
    length of its change over its own.

    A normalized row moves by its angle alone (Kosson et al. 2023, arXiv 2305.17212).
    """
    before, after = before.detach().double(), after.detach().double()
    # Twice the arcsine of half the chord, because an arccosine near 1 loses small angles.
    chord = (F.normalize(after, dim=-1) - F.normalize(before, dim=-1)).norm(dim=-1)
    angles = 2 * (chord / 2).asin()
    lengths = (after - before).norm(dim=-1) / before.norm(dim=-1)
    return read_scalars({"embedding_angle": angles.mean(), "embedding_update": lengths.mean()})


def gradient_cosine(model: GPT, one: Tensor, other: Tensor, size: int) -> float:
    """Return the cosine between the gradients of the mean loss on two sets of windows, (n, T + 1)
    each, computed `size` windows at a time.

    Near 1, both ask for the same step, as on a smooth loss far from its noise. Unlike a gradient's
    length it can be compared between models whose streams differ in scale.
    """
    first = _gradient(model, one, size)
    second = _gradient(model, other, size)
    return float(F.cosine_similarity(first, second, dim=0))


def _gradient(model: GPT, windows: Tensor, size: int) -> Tensor:
    """Return the gradient of the mean loss by all parameters, in one float64 vector."""
    windows = windows.to(model.transformer.wte.weight.device)
    parameters = list(model.parameters())
    total = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters]
    for part in torch.split(windows, size):
        logits = model(part[:, :-1]).float()  # (b, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
        for added, gradient in zip(total, torch.autograd.grad(loss, parameters), strict=True):
            added += gradient * (len(part) / len(windows))
    return torch.cat([gradient.flatten() for gradient in total])


def parameter_group(name: str) -> str:
    """Return the part of the model that a parameter belongs to: wte, wpe, emb_norm, attn, mlp, ln
    or lm_head."""
    parts = name.split(".")  # transformer.h.0.attn.c_attn.weight
    if parts[0] == "lm_head":  # a model whose output is not tied to its embeddings
        return "lm_head"
    group = parts[3] if parts[1] == "h" else parts[1]
    return "ln" if group.startswith("ln_") else group


def second_moments(model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the mean of AdamW's second moment per parameter group, as `second_moment_<group>`.
    Groups that were not updated yet, or of which Muon updates a part, are left out."""
    by_group: dict[str, list[Any]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        by_group[parameter_group(name)].append(state.get("exp_avg_sq"))
    means = {}
    for group, moments in by_group.items():
        if all(moment is not None for moment in moments):
            total = sum(moment.sum().double() for moment in moments)
            means[f"second_moment_{group}"] = total / sum(moment.numel() for moment in moments)
    return read_scalars(means)
