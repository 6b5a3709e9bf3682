"""One run: step, trace, checkpoint, resume, divergence.

A run killed at any instant continues from its last checkpoint to bit-identical weights (CPU).
Initial weights, batches and evaluation draw from separate generators, so neither the variant nor
the evaluation cadence changes what is trained on.
"""

import hashlib
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from filelock import FileLock
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from lib.data.corpus import Corpus, sample_batch
from lib.run import checkpoints, processes
from lib.run.checkpoints import Checkpoint
from lib.run.diagnostics import evenly_spaced_windows, gradient_cosine, second_moments, snapshot
from lib.run.machine import (
    autocast,
    may_skip,
    peak_memory,
    prepare,
    random_stream,
    recompute_activations,
    require_devices,
)
from lib.run.model import GPT, weight_decay_groups
from lib.run.trained import Trained, weights_digest
from lib.study.fields import RunConfig, TrainingConfig
from lib.study.provenance import Provenance
from lib.study.record import write_json

Report = Callable[[dict[Any, Any], str], None]
"""Called after every step with its row of the trace and, at an evaluation, a line of text."""


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Learning rate of update `step` (0 …): constant, or linear warm-up and then a cosine that
    ends at `final_learning_rate_ratio` with the last update, unless that is its only one."""
    if config.schedule == "constant":
        return config.learning_rate
    if step < config.warmup_iterations:
        return config.learning_rate * (step + 1) / config.warmup_iterations
    length = max(1, config.iterations - 1 - config.warmup_iterations)
    progress = (step - config.warmup_iterations) / length
    floor = config.final_learning_rate_ratio
    return config.learning_rate * (floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2)


def train(
    config: RunConfig,
    corpus: Corpus,
    provenance: Provenance,
    folder: Path,
    report: Report = lambda *_: None,
) -> Trained:
    """Train one run in `folder`, from its last sound checkpoint if there is one. The provenance of
    the weights stands in `provenance.json` before the first step.

    Raises CorpusError for a corpus shorter than a window, ConfigError for a device or precision
    that this machine lacks, ValueError for the provenance of another run, and LostProcessError when
    one of several processes ends early. A loss or gradient that is not finite ends training: see
    `diverged_at`.
    """
    asked = (config.model_dump(exclude={"machine"}), corpus.sha256)
    if asked != (provenance.parameters, provenance.corpus_sha256):
        raise ValueError("the provenance is of other parameters or another corpus; begin it anew")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".training.lock"):  # the kernel of a killed job may live on a moment
        run = Run(config, corpus, provenance, folder)
        write_json(folder / "provenance.json", run.provenance.model_dump(mode="json"))
        if run.machine.processes > 1 and not run.finished:
            require_devices(run.machine)
            processes.launch(config, run.machine, run.provenance, folder, report)
            run.load()
            run.from_checkpoint = False
        run.complete(report)
        return run.trained()


class Run:
    """The moving parts of one run; all that a checkpoint must hold is an attribute here.

    `lib.run.distributed` shares the work between processes by overriding `_parallel`, `_rows`,
    `_accumulating`, `_mean`, `save` and `load`.
    """

    keeps = True
    """Whether this process is the one that writes checkpoints and hashes batches."""

    def __init__(
        self, config: RunConfig, corpus: Corpus, provenance: Provenance, folder: Path
    ) -> None:
        corpus.require_length(config.model.block_size)
        self.config, self.corpus, self.provenance = config, corpus, provenance
        training, seed = config.training, provenance.seed
        self.machine = prepare(config)
        self.device = self.machine.device
        model = GPT(config.model, corpus.vocab_size, random_stream(seed, "weights"))
        self.initial_weights = weights_digest(model)
        self.model = model.to(self.device)
        if self.machine.activation_checkpointing:
            recompute_activations(self.model.transformer.h)
        parallel = self._parallel(self.model)
        self.forward = torch.compile(parallel) if self.machine.compile else parallel
        self.optimizer = torch.optim.AdamW(
            weight_decay_groups(self.model, training.weight_decay),
            lr=training.learning_rate,
            betas=(training.beta1, training.beta2),
            eps=training.eps,
            fused=True,
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=training.precision == "fp16")
        self.batch_stream = random_stream(seed, "batches")
        self.batches = ""
        self.dev = evenly_spaced_windows(
            corpus.dev, config.evaluation.dev_windows, config.model.block_size
        )
        # A quarter of them each: enough for a direction, and half a training step's work.
        self.dev_halves = self.dev[::4], self.dev[2::4]
        self.step = 0
        self.diverged_at: int | None = None
        self.resumed_at: list[int] = []
        self.trace: list[dict[Any, Any]] = []
        self.curve: list[dict[Any, Any]] = []
        self.from_checkpoint, self.peak_memory = False, 0
        self.folder = folder / "checkpoints" / provenance.identity[:16]
        self.load()

    @property
    def finished(self) -> bool:
        return self.step == self.config.training.iterations or self.diverged_at is not None

    def complete(self, report: Report) -> None:
        """Train from where the run stands to its end."""
        if not self.curve:
            self.evaluate()
        while not self.finished:
            self.advance()
            line = ""
            if self.finished or self.step % self.config.evaluation.interval == 0:
                line = self.evaluate()
            if self.finished and not math.isfinite(self.curve[-1]["dev_loss"]):
                self.diverged_at = self.step  # the last update, which no loss came after
            if self.finished or self.step % self.config.machine.checkpoint_interval == 0:
                self.save()
            report(self.trace[-1], line)

    def advance(self) -> None:
        """Make one update, or set `diverged_at`."""
        training = self.config.training
        start = time.perf_counter()
        rate = learning_rate(training, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self._backward(*self._next_batch())
        self.scaler.unscale_(self.optimizer)
        parameters = list(self.model.parameters())
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        skipped = not norm.isfinite() and may_skip(self.scaler, self.trace)
        finite = math.isfinite(loss) and (bool(norm.isfinite()) or skipped)
        self.step += 1
        if finite:
            if training.gradient_clip is not None:
                clip_grads_with_norm_(parameters, training.gradient_clip, norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.diverged_at = self.step
        self.optimizer.zero_grad(set_to_none=True)
        tokens = self.step * training.batch_size * self.config.model.block_size
        self.trace.append(
            {"step": self.step, "loss": loss, "learning_rate": rate}
            | {"grad_norm": math.nan if skipped else float(norm)}
            | {"tokens": tokens, **self._second_moments()}
            | {"seconds": time.perf_counter() - start}
            | ({"skipped": skipped} if self.scaler.is_enabled() else {})
        )

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        """Draw inputs and targets, both (B, T), and chain their hash; return the rows of them that
        this process trains on, which are all that it reads unless it keeps the hash."""
        size = self.config.training.batch_size
        own, read = self._rows(size), slice(None) if self.keeps else self._rows(size)
        block_size, stream = self.config.model.block_size, self.batch_stream
        x, y = sample_batch(self.corpus.train, size, block_size, stream, read)
        if self.keeps:
            self.batches = hashlib.sha256(self.batches.encode() + x.numpy().tobytes()).hexdigest()
            x, y = x[own], y[own]
        return x.to(self.device), y.to(self.device)

    def _backward(self, x: Tensor, y: Tensor) -> float:
        """Add up the gradient of the mean loss over micro-batches; return that loss in nats."""
        size, total = self.machine.micro_batch_size, 0.0
        starts = range(0, len(x), size)
        for start in starts:
            inputs, targets = x[start : start + size], y[start : start + size]
            with self._accumulating(start == starts[-1]):
                with autocast(self.config.training.precision, self.device):
                    logits = self.forward(inputs)  # (b, T, V)
                    loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
                loss = loss * (size / len(x))
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return self._mean(total)

    def _parallel(self, model: GPT) -> nn.Module:
        """Return the model as a training step calls it."""
        return model

    def _rows(self, n: int) -> slice:
        """Return which rows of a batch of `n` this process trains on."""
        return slice(n)

    def _accumulating(self, last: bool) -> AbstractContextManager[None]:
        """Return the context of a micro-batch, and of the `last` one of a step."""
        return nullcontext()

    def _mean(self, loss: float) -> float:
        """Return the mean over all processes."""
        return loss

    def _second_moments(self) -> dict[str, float]:
        moments = [s["exp_avg_sq"] for s in self.optimizer.state.values() if "exp_avg_sq" in s]
        if not moments:  # no update has been made yet
            return {"second_moment_mean": 0.0, "second_moment_max": 0.0}
        size = sum(moment.numel() for moment in moments)
        return {
            "second_moment_mean": float(torch.stack([m.sum() for m in moments]).sum()) / size,
            "second_moment_max": float(torch.stack([m.max() for m in moments]).max()),
        }

    def evaluate(self) -> str:
        """Add a point to the dev curve; return it as a line of text."""
        start = time.perf_counter()
        point = snapshot(self.model, self.dev) | second_moments(self.model, self.optimizer)
        if all(map(len, self.dev_halves)):
            size = self.machine.micro_batch_size
            point["gradient_cosine"] = gradient_cosine(self.model, *self.dev_halves, size)
        point["seconds"] = time.perf_counter() - start
        self.curve.append({"step": self.step, **point})
        loss, norm = point["dev_loss"], point["embedding_norm"]
        return f"step {self.step}: dev loss {loss:.4f}, embedding norm {norm:.2f}"

    def save(self) -> None:
        self.peak_memory = max(self.peak_memory, peak_memory(self.device))
        weights = self.model.state_dict()
        checkpoint = Checkpoint(self.provenance, weights, self._state(), self.trace, self.curve)
        checkpoints.save(checkpoint, self.folder)

    def _state(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "batch_stream": self.batch_stream.get_state(),
            "batches": self.batches,
            "step": self.step,
            "diverged_at": self.diverged_at,
            "resumed_at": self.resumed_at,
            "peak_memory": self.peak_memory,
        }

    def load(self) -> None:
        """Take up the last sound checkpoint, if there is one."""
        checkpoint = checkpoints.load(self.folder, self.provenance, self.model.state_dict())
        if checkpoint is None:
            return
        state = checkpoint.state
        self.provenance = checkpoint.provenance
        self.model.load_state_dict(checkpoint.weights)
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.batch_stream.set_state(state["batch_stream"])
        self.batches = state["batches"]
        self.step = state["step"]
        self.diverged_at = state["diverged_at"]
        self.resumed_at = state["resumed_at"] + ([] if self.finished else [self.step])
        self.trace, self.curve = checkpoint.trace, checkpoint.curve
        self.from_checkpoint = self.finished
        self.peak_memory = state["peak_memory"]

    def trained(self) -> Trained:
        return Trained(
            self.provenance,
            self.from_checkpoint,
            self.model,
            self.machine,
            pd.DataFrame(self.trace),
            pd.DataFrame(self.curve),
            self.diverged_at,
            self.resumed_at,
            self.initial_weights,
            self.batches,
            self.peak_memory,
        )
