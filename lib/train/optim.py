"""The learning rate schedule, the parameter groups, and the optimizers.

By default AdamW updates all parameters. With `training.optimizer: muon`, Muon updates the weight
matrices inside the blocks, and AdamW the rest.
"""

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from lib.config.schema import TrainingConfig
from lib.train.model import GPT


def get_lr(config: TrainingConfig, step: int) -> float:
    """Return the learning rate of update `step` (0, 1, …).

    `constant` neither warms up nor decays. The other two schedules warm up linearly. Then
    `warmup_cosine` decays by a cosine. `warmup_stable_decay` stays at the peak, and decays linearly
    over the last `decay_fraction` of all steps (or over all steps after the warm-up, if these are
    fewer). At the last update, both are at `final_learning_rate_ratio` times the peak.
    """
    if config.schedule == "constant":
        return config.learning_rate

    # 1) linear warm-up
    if step < config.warmup_iterations:
        return config.learning_rate * (step + 1) / config.warmup_iterations

    # 2) decay: `share` falls from 1 to 0. It reaches 0 at the last update, `iterations` - 1.
    last = max(1, config.iterations - 1 - config.warmup_iterations)  # counted from the warm-up
    now = step - config.warmup_iterations
    if config.schedule == "warmup_cosine":
        share = (1 + math.cos(math.pi * (now / last))) / 2
    else:
        decaying = min(last, config.decay_fraction * config.iterations)
        share = min(1.0, (last - now) / decaying)
    floor = config.final_learning_rate_ratio
    return config.learning_rate * (floor + (1 - floor) * share)


def optimizer_groups(
    model: GPT, weight_decay: float, embedding_ratio: float = 1.0
) -> list[dict[str, Any]]:
    """Split the parameters into groups for an optimizer.

    The first group has the weight matrices inside the blocks. Only these have weight decay. All
    other parameters have none: embeddings, an untied output projection, norm gains and biases.
    `ratio` multiplies the learning rate of a group. If `embedding_ratio` is not 1, token and
    position embeddings are a group of their own.
    """
    # Keys are (decays, ratio). The group that decays comes first, because `make_optimizers` gives
    # the first group to Muon.
    groups: dict[tuple[bool, float], list[Tensor]] = {(True, 1.0): [], (False, 1.0): []}
    for name, parameter in model.named_parameters():
        decays = parameter.ndim == 2 and name.startswith("transformer.h.")
        is_embedding = name.startswith(("transformer.wte.", "transformer.wpe."))
        ratio = embedding_ratio if is_embedding else 1.0
        groups.setdefault((decays, ratio), []).append(parameter)
    return [
        {"params": members, "weight_decay": weight_decay if decays else 0.0, "ratio": ratio}
        for (decays, ratio), members in groups.items()
        if members
    ]


class Uncompiled(torch.optim.Optimizer):
    """An optimizer without PyTorch's wrappers around its methods.

    The wrappers keep torch.compile out of these methods. To do so they import it, which costs every
    run more than a second. We never compile an optimizer's step. No documented switch turns the
    wrappers off (`TORCH_COMPILE_DISABLE` is read only after the import).
    """

    found_inf: Tensor
    """A scalar that the trainer sets before each step: 1 to skip the update."""
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class AdamW(Uncompiled, torch.optim.AdamW):
    """AdamW. Its fused kernel reads `found_inf` on the device, and changes nothing if that is 1. So
    the host need not wait to find out whether the loss is finite."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class Muon(Uncompiled, torch.optim.Muon):
    """Muon. PyTorch's Muon ignores `found_inf`. So the host checks it, and must wait for the
    device."""

    def step(self) -> None:  # type: ignore[override]
        if not self.found_inf:  # waits for the device
            super().step()  # type: ignore[no-untyped-call]


def make_optimizers(model: GPT, config: TrainingConfig) -> list[Uncompiled]:
    """Return the optimizers of a run: [AdamW], or [Muon, AdamW]."""
    optimizers: list[Uncompiled] = []
    groups = optimizer_groups(model, config.weight_decay, config.embedding_learning_rate_ratio)
    if config.optimizer == "muon":
        matrices = groups.pop(0) | {"ratio": config.muon_learning_rate_ratio}
        # Scale updates to the size of AdamW's (Liu et al. 2025, arXiv 2502.16982).
        optimizers.append(Muon([matrices], adjust_lr_fn="match_rms_adamw"))
    betas = (config.beta1, config.beta2)
    # Fused: one kernel for all parameters. It reads learning rate and `found_inf` on the device.
    optimizers.append(AdamW(groups, betas=betas, eps=config.eps, fused=True))
    return optimizers
