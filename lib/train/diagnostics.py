"""Measure a model's internals during training: norms, cosines, residual stream, logits, AdamW's
second moments, and gain and bias of the embedding normalization. The trainer calls these functions
at each evaluation. They never change weights or draw random numbers.
"""

from collections import defaultdict
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lib.train.model import GPT


def mean_cosine(vectors: Tensor) -> Tensor:
    """Return the mean cosine similarity over all pairs of different rows of (n, C), as a scalar. It
    is 1 if all rows have the same direction.

    For unit vectors u, the sum over all pairs is |Σu|² - Σ|u|², so we need no n × n matrix.
    """
    unit = F.normalize(vectors.detach().double(), dim=-1)
    n = len(unit)
    sum_over_pairs = unit.sum(dim=0).square().sum() - unit.square().sum()
    return sum_over_pairs / (n * (n - 1))


@torch.no_grad()
def snapshot(model: GPT, windows: Tensor) -> dict[str, float]:
    """Return columns of the curve, from one forward pass over `windows` (n, T + 1):

    - dev_loss (in nats);
    - embedding_norm: mean L2 norm at the input of block 1;
    - embedding_cosine: mean cosine between token embeddings;
    - input_cosine: mean cosine between vectors at the input of block 1;
    - residual_norm_<k>: mean L2 norm of the residual stream after k blocks, k = 0 … n_layer. The
      last one is the norm of the input of `ln_f`. With `backout`, that input no longer includes
      block 1's input;
    - logit_max and logit_sd: the largest logit of a prediction, and the standard deviation of its
      logits, both as means over predictions;
    - norm_gain and norm_bias: means of gain and bias, if the embedding normalization has them.
    """
    windows = windows.to(model.transformer.wte.weight.device)
    residual: list[Tensor] = []  # the stream (n, T, C) after 0, 1, … n_layer blocks
    with ExitStack() as hooks:  # removes the hooks when it ends
        for reader in (*model.transformer.h, model.transformer.ln_f):
            hook = reader.register_forward_pre_hook(lambda _, args: residual.append(args[0]))
            hooks.enter_context(hook)
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
    """Read scalars from the device, all at once, so that the host waits only once."""
    if not values:
        return {}
    numbers = torch.stack([value.double() for value in values.values()]).tolist()
    return dict(zip(values, numbers, strict=True))


def embedding_updates(before: Tensor, after: Tensor) -> dict[str, float]:
    """Return how far one update moved the token embeddings. `before` and `after` are (V, C) each.
    Both measures are means over rows:

    - embedding_angle: the angle between a row before and after the update (in radians);
    - embedding_update: the length of the row's change, divided by its length before the update.

    If rows are normalized, only the angle changes what the model computes (Kosson et al. 2023,
    arXiv 2305.17212).
    """
    before = before.detach().double()
    after = after.detach().double()
    # Compute the angle from the chord between unit vectors. The arccosine of their product is not
    # exact enough: near 1, a small angle changes the product by less than the rounding error.
    chord = (F.normalize(after, dim=-1) - F.normalize(before, dim=-1)).norm(dim=-1)
    angles = 2 * (chord / 2).asin()
    lengths = (after - before).norm(dim=-1) / before.norm(dim=-1)
    return read_scalars({"embedding_angle": angles.mean(), "embedding_update": lengths.mean()})


def gradient_cosine(model: GPT, one: Tensor, other: Tensor, size: int) -> float:
    """Return the cosine between the gradients of the mean loss on two sets of windows, (n, T + 1)
    each. Each forward pass takes `size` windows.

    If the cosine is near 1, both sets ask for the same step. If the cosine is near 0, the gradients
    are mostly noise. Unlike the length of a gradient, the cosine can be compared between models
    with residual streams of different scale.
    """
    first = _gradient(model, one, size)
    second = _gradient(model, other, size)
    return float(F.cosine_similarity(first, second, dim=0))


def _gradient(model: GPT, windows: Tensor, size: int) -> Tensor:
    """Return the gradient of the mean loss with respect to all parameters, as one float64
    vector."""
    windows = windows.to(model.transformer.wte.weight.device)
    parameters = list(model.parameters())
    totals = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters]
    for part in torch.split(windows, size):
        logits = model(part[:, :-1]).float()  # (b, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
        gradients = torch.autograd.grad(loss, parameters)
        for total, gradient in zip(totals, gradients, strict=True):
            total += gradient * (len(part) / len(windows))
    return torch.cat([total.flatten() for total in totals])


def parameter_group(name: str) -> str:
    """Return the part of the model that a parameter belongs to: wte, wpe, emb_norm, attn, mlp, ln
    or lm_head."""
    parts = name.split(".")  # transformer.h.0.attn.c_attn.weight
    if parts[0] == "lm_head":  # only in an untied model
        return "lm_head"
    group = parts[3] if parts[1] == "h" else parts[1]
    return "ln" if group.startswith("ln_") else group


def second_moments(model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the mean of AdamW's second moments in each `parameter_group`, as
    `second_moment_<group>`. Leave out groups without second moments. Before the first update, no
    group has any. Groups with a matrix that Muon updates are also left out."""
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
