"""A training step as one CUDA graph: one launch in place of some 300."""

from collections.abc import Callable

import torch
from torch import Tensor

from lib.config.schema import RunConfig

Update = Callable[[Tensor, Tensor], Tensor]
"""Inputs and targets, (B, T) each → what is noted of the update, a vector on the device."""


def why_eager(config: RunConfig, processes: int) -> str:
    """Return the features of a run that rule out a CUDA graph; "" if there are none."""
    reasons = {
        "dropout": config.model.dropout > 0,  # each step seeds the generator
        "fp16": config.training.precision == "fp16",  # the scaler looks at the device
        "Muon": config.training.optimizer == "muon",  # reads its rate as a number
        "several processes": processes > 1,  # wait for each other
        "activation checkpointing": config.machine.activation_checkpointing,  # runs blocks twice
    }
    return ", ".join(reason for reason, applies in reasons.items() if applies)


class StepGraph:
    """The device's part of a training step, captured once as a CUDA graph and replayed from then on
    (PyTorch, "CUDA semantics": whole-network capture).

    The first steps are made as usual, on the stream of the capture, and count as any step: in them
    libraries allocate, and the optimizer makes its state. A capture executes nothing. Inputs are
    copied to where the graph reads them, and what it returns is copied before the next replay
    overwrites it.
    """

    WARM_UP = 3

    def __init__(self, update: Update, optimizer: torch.optim.Optimizer) -> None:
        self.update = update
        self.optimizer = optimizer
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.graph = torch.cuda.CUDAGraph()
        self.calls = 0

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Make a step on a batch of inputs and targets, (B, T) each; return its notes."""
        self.calls += 1
        if self.calls <= self.WARM_UP:
            return self._warm_up(x, y)
        if self.calls == self.WARM_UP + 1:
            self._capture(x, y)
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.notes.clone()

    def _warm_up(self, x: Tensor, y: Tensor) -> Tensor:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            notes = self.update(x, y)
        torch.cuda.current_stream().wait_stream(self.stream)
        return notes

    def _capture(self, x: Tensor, y: Tensor) -> None:
        self.x = x.clone()
        self.y = y.clone()
        for group in self.optimizer.param_groups:
            group["capturable"] = True  # count steps on the device
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.notes = self.update(self.x, self.y)
