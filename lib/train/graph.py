"""Run a training step as one CUDA graph: the host launches one graph, not about 300 kernels."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from lib.config.schema import Machine, RunConfig

Update = Callable[[Tensor, Tensor], Tensor]
"""The device's part of a step. It maps inputs and targets, (B, T) each, to notes (6,) on the
device. See `Trainer.update`."""


def why_eager(config: RunConfig, machine: Machine) -> str:
    """Return the features of a run on this machine that rule out a CUDA graph; "" if none do.

    A graph repeats the same kernels with the same arguments. So during a step, the host cannot make
    decisions, read from the device, or pass a new number to it.
    """
    untried = config.training.precision == "fp16" and config.machine.graph is not True
    reasons = {
        "a CPU": machine.device == "cpu",
        "dropout": config.model.dropout > 0,  # the host seeds the generator at each step
        "fp16 (machine.graph: true tries it)": untried,  # its test has not run on a GPU yet
        "Muon": config.training.optimizer == "muon",  # takes its learning rate as a number
        "several processes": machine.processes > 1,  # they wait for each other
        "activation checkpointing": machine.activation_checkpointing,  # runs blocks again
    }
    return ", ".join(reason for reason, applies in reasons.items() if applies)


@cache
def capture_stream() -> torch.cuda.Stream:
    """Return the stream that all captures in this process share. cuBLAS keeps a workspace of 32 MB
    per stream, so with a stream for each run, each run would take 32 MB more."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class StepGraph:
    """The device's part of a training step, captured once as a CUDA graph and then replayed
    (PyTorch, "CUDA semantics": whole-network capture).

    The first steps run without the graph, on the same stream that the capture later uses. They
    train like any other step. During these steps, cuBLAS allocates its workspace and the optimizer
    makes its state. Both must happen before a capture. Capturing executes nothing: it only
    records kernels.

    A graph reads and writes fixed addresses. So each batch is copied from the host to the address
    that the graph reads. The notes are copied away before the next replay overwrites them.
    """

    WARM_UP = 3
    """Number of steps before the capture, as in PyTorch's example."""

    def __init__(self, update: Update, optimizer: torch.optim.Optimizer) -> None:
        self.update = update
        self.optimizer = optimizer
        self.stream = capture_stream()
        self.graph = torch.cuda.CUDAGraph()
        self.calls = 0

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Run a step on inputs and targets, (B, T) each, on the host. Return its notes, (6,)."""
        self.calls += 1
        if self.calls <= self.WARM_UP:
            return self._warm_up(x, y)
        if self.calls == self.WARM_UP + 1:
            self._capture(x, y)
        self.x.copy_(x, non_blocking=True)
        self.y.copy_(y, non_blocking=True)
        self.graph.replay()
        return self.notes.clone()

    def _warm_up(self, x: Tensor, y: Tensor) -> Tensor:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            notes = self.update(x, y)
        torch.cuda.current_stream().wait_stream(self.stream)
        return notes

    def _capture(self, x: Tensor, y: Tensor) -> None:
        device = self.optimizer.param_groups[0]["params"][0].device
        self.x = torch.zeros_like(x, device=device)
        self.y = torch.zeros_like(y, device=device)
        for group in self.optimizer.param_groups:
            group["capturable"] = True  # AdamW counts its steps on the device
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.notes = self.update(self.x, self.y)
