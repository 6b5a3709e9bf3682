"""The learning rate of every step, the groups of parameters that share one, and the optimizers.

AdamW has all parameters, or Muon the weight matrices inside the blocks and AdamW the rest.
"""

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from lib.config.schema import TrainingConfig
from lib.train.model import GPT


def get_lr(config: TrainingConfig, step: int) -> float:
    """Return the learning rate of update `step` (0 …).

    `constant` neither warms up nor decays. The others warm up linearly, then decay, and reach
    `final_learning_rate_ratio` with the last update: `warmup_cosine` by a cosine,
    `warmup_stable_decay` linearly over the last `decay_fraction` of the steps, or as many of them
    as the warm-up leaves.
    """
    if config.schedule == "constant":
        return config.learning_rate

    # 1) linear warm-up
    if step < config.warmup_iterations:
        return config.learning_rate * (step + 1) / config.warmup_iterations

    # 2) decay, by a share that falls from 1 to 0 with the last update
    length = max(1, config.iterations - 1 - config.warmup_iterations)
    made = step - config.warmup_iterations
    if config.schedule == "warmup_cosine":
        share = (1 + math.cos(math.pi * (made / length))) / 2
    else:
        decaying = min(length, config.decay_fraction * config.iterations)
        share = min(1.0, (length - made) / decaying)
    floor = config.final_learning_rate_ratio
    return config.learning_rate * (floor + (1 - floor) * share)


def optimizer_groups(
    model: GPT, weight_decay: float, embedding_ratio: float = 1.0
) -> list[dict[str, Any]]:
    """Split the parameters into groups for an optimizer.

    Weight matrices inside blocks, the first group, decay; embeddings, norm gains and biases do not.
    `ratio` is what a step multiplies a group's learning rate by. Token and position embeddings are
    a group of their own if theirs is not 1.
    """
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
    """PyTorch's own, without the wrappers that import its compiler: more than a second of every
    run, and the step is never compiled."""

    # No documented switch does this: `TORCH_COMPILE_DISABLE` is read by the compiler once imported.
    found_inf: Tensor
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class AdamW(Uncompiled, torch.optim.AdamW):
    """Steps on the device, and leaves everything as it is if `found_inf` is 1."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class Muon(Uncompiled, torch.optim.Muon):
    """Steps if `found_inf` is 0, as AdamW does, but the host has to wait for it."""

    def step(self) -> None:  # type: ignore[override]
        if not self.found_inf:
            super().step()  # type: ignore[no-untyped-call]


def make_optimizers(model: GPT, config: TrainingConfig) -> list[Uncompiled]:
    """Return the optimizers of a run: AdamW is the last, and before it comes Muon if the config
    asks for it."""
    optimizers: list[Uncompiled] = []
    groups = optimizer_groups(model, config.weight_decay, config.embedding_learning_rate_ratio)
    if config.optimizer == "muon":
        matrices = groups.pop(0) | {"ratio": config.muon_learning_rate_ratio}
        optimizers.append(Muon([matrices], adjust_lr_fn="match_rms_adamw"))
    betas = (config.beta1, config.beta2)
    # Fused: one operation for all parameters, which reads rate and `found_inf` on the device.
    optimizers.append(AdamW(groups, betas=betas, eps=config.eps, fused=True))
    return optimizers
