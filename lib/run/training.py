"""One run: step, trace, checkpoint, resume, divergence.

A run killed at any instant continues from its last checkpoint to bit-identical weights (CPU).
Initial weights, batches and evaluation draw from separate generators, so neither the variant nor
the evaluation cadence changes what is trained on.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from filelock import FileLock
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from lib.data.corpus import Corpus, sample_batch
from lib.run import checkpoints, processes
from lib.run.checkpoints import Checkpoint
from lib.run.diagnostics import evenly_spaced_windows, gradient_cosine, second_moments, snapshot
from lib.run.machine import (
    autocast,
    describe,
    package_versions,
    peak_memory,
    prepare,
    random_stream,
    recompute_activations,
    require_devices,
    seed_of,
)
from lib.run.model import GPT, weight_decay_groups
from lib.run.trained import Trained, weights_digest
from lib.study.errors import ConfigError
from lib.study.fields import RunConfig, TrainingConfig
from lib.study.files import write_json
from lib.study.provenance import Provenance, Stretch

LOOK_EVERY = 10
"""Steps after which the host reads what the device noted, unless it must earlier."""
OVERFLOWS = 20
"""Updates in a row that overflow in fp16, each at half the scale of the one before, and make a
divergence."""
Report = Callable[[dict[Any, Any], str], None]
"""Called for every step, some steps at a time, with its row of the trace and, at an evaluation, a
line of text."""


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


@contextmanager
def first_alone(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Let the first process of a group pass, and the others when it is done."""
    rank = dist.get_rank(group) if group else 0
    if rank:
        dist.barrier(group)
    yield
    if group and not rank:
        dist.barrier(group)


class Run:
    """The moving parts of one run; all that a checkpoint must hold is an attribute here.

    With a process group, several processes train the run together (Li et al. 2020, arXiv
    2006.15704). They stay equal to the bit: all draw the same batches, each takes its rows of
    them, and all apply the same mean gradient. The first of them writes.
    """

    def __init__(
        self,
        config: RunConfig,
        corpus: Corpus,
        provenance: Provenance,
        folder: Path,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        corpus.require_length(config.model.block_size)
        self.config, self.corpus, self.provenance = config, corpus, provenance
        training, seed = config.training, provenance.seed
        self.machine = prepare(config)
        self.device = self.machine.device  # of several GPUs, each process has made one its own
        self.group = group
        self.rank, self.processes = (dist.get_rank(group), group.size()) if group else (0, 1)
        if group and self.machine.processes != self.processes:
            raise ConfigError(
                f"machine.processes: {self.machine.processes}, and {self.processes} processes were "
                f"started; make them equal"
            )
        model = GPT(config.model, corpus.vocab_size, random_stream(seed, "weights"))
        self.initial_weights = weights_digest(model)
        self.model = model.to(self.device)
        if self.machine.activation_checkpointing:
            recompute_activations(self.model.transformer.h, config.model.dropout > 0)
        self.forward: nn.Module = self.model
        if group:
            self.forward = DistributedDataParallel(self.model, process_group=group)
        if self.machine.compile:
            self.forward = torch.compile(self.forward)  # type: ignore[assignment]
        self.optimizer = torch.optim.AdamW(
            weight_decay_groups(
                self.model, training.weight_decay, training.embedding_learning_rate_ratio
            ),
            lr=training.learning_rate,
            betas=(training.beta1, training.beta2),
            eps=training.eps,
            fused=True,
        )
        self.scaler = torch.amp.GradScaler(self.device, enabled=training.precision == "fp16")
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
        self.stretches: list[Stretch] = []
        self.from_checkpoint, self.peak_memory = False, 0
        self.folder = folder / "checkpoints" / provenance.identity[:16]
        self.load()
        self.notes: list[dict[str, Any]] = []
        """Of the steps since the host last looked: what is on the device stays there."""
        self.stopped = torch.zeros((), dtype=torch.bool, device=self.device)
        self.overflows = torch.tensor(self._former_overflows(), device=self.device)
        if group:  # after its first backward pass DDP orders gradients, and sums, anew: a resumed
            # run must have the order of one that never stopped
            shape = self.machine.micro_batch_size, config.model.block_size
            nothing = torch.zeros(shape, dtype=torch.long, device=self.device)
            self.forward(nothing).sum().backward()
            self.optimizer.zero_grad(set_to_none=True)

    @property
    def finished(self) -> bool:
        return self.step == self.config.training.iterations or self.diverged_at is not None

    def complete(self, report: Report) -> None:
        """Train from where the run stands to its end."""
        every, kept = self.config.evaluation.interval, self.config.machine.checkpoint_interval
        if not self.curve:
            self.evaluate()
        while not self.finished:
            self.training_step()
            due = self.step % every == 0, self.step % kept == 0
            if not (self.finished or any(due) or len(self.notes) == LOOK_EVERY):
                continue
            rows, line = self.read_notes(), ""  # which may find that it diverged
            if self.finished or due[0]:
                line = self.evaluate()
            if self.finished and not math.isfinite(self.curve[-1]["dev_loss"]):
                self.diverged_at = self.step  # the last update, which no loss came after
            if self.finished or due[1]:
                self.save()
            for row in rows:
                report(row, line if row is rows[-1] else "")

    def training_step(self) -> None:
        """Make one update: draw, forward, backward, clip, update, note.

        Nothing here waits for the device. An update that is not finite is skipped there, and so is
        every one after it, until the host reads the notes.
        """
        training, started = self.config.training, time.perf_counter()
        rate = learning_rate(training, self.step)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate * parameters["ratio"]
        x, y = self.next_batch()  # (b, T) each: the rows of this process
        if self.config.model.dropout:  # the same in every arm, and after a resumption
            torch.manual_seed(seed_of(self.provenance.seed, f"dropout/{self.step}/{self.rank}"))
            self.model.train()

        size = self.machine.micro_batch_size
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for start in range(0, len(x), size):
            last = start + size == len(x)
            alone = self.group is None or last  # the processes share the last micro-batch's sum
            with nullcontext() if alone else self.forward.no_sync():  # type: ignore[operator]
                with autocast(training.precision, self.device):
                    logits = self.forward(x[start : start + size])  # (b, T, V)
                    targets = y[start : start + size].flatten()
                    part = F.cross_entropy(logits.flatten(0, 1).float(), targets) * (size / len(x))
                self.scaler.scale(part).backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        if self.group is not None:
            dist.all_reduce(loss, group=self.group)
            loss /= self.processes
        self.model.eval()

        self.scaler.unscale_(self.optimizer)
        gradients = [p for p in self.model.parameters() if p.grad is not None]
        norm = get_total_norm([p.grad for p in gradients if p.grad is not None])
        if training.gradient_clip is not None:
            clip_grads_with_norm_(gradients, training.gradient_clip, norm)
        skipped = diverged = ~(loss + norm < torch.inf)  # NaN is not below it either
        if self.scaler.is_enabled():  # fp16 may overflow, and then lowers its scale
            self.overflows = (self.overflows + 1) * skipped
            diverged = ~loss.isfinite() | (self.overflows >= OVERFLOWS)
        self.stopped |= diverged
        found_inf = (self.stopped | skipped).to(torch.float32)
        self.optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        self.optimizer.step()  # which leaves everything as it is where that is 1
        if self.scaler.is_enabled():
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

        self.step += 1
        moments = [state["exp_avg_sq"] for state in self.optimizer.state.values()]
        self.notes.append(
            {"step": self.step, "learning_rate": rate, "batches": self.batches}
            | {"loss": loss, "grad_norm": norm, "skipped": skipped, "diverged": diverged}
            | {"second_moment_mean": torch.stack(torch._foreach_norm(moments, 1)).sum()}
            | {"second_moment_max": torch.stack(torch._foreach_max(moments)).max()}
            | {"seconds": time.perf_counter() - started}
        )

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Draw inputs and targets, both (B, T), and return the rows of them that this process
        trains on. The first process reads all, and chains their hash."""
        size = self.config.training.batch_size
        share = size // self.processes
        own = slice(self.rank * share, (self.rank + 1) * share)
        first = self.rank == 0
        block_size, stream = self.config.model.block_size, self.batch_stream
        read = slice(None) if first else own
        x, y = sample_batch(self.corpus.train, size, block_size, stream, read)
        if first:
            self.batches = hashlib.sha256(self.batches.encode() + x.numpy().tobytes()).hexdigest()
            x, y = x[own], y[own]
        if self.device == "cuda":  # from pinned memory a copy waits for nothing
            x, y = x.pin_memory(), y.pin_memory()
        return x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)

    def read_notes(self) -> list[dict[Any, Any]]:
        """Copy the notes from the device into rows of the trace, up to a step that diverged, which
        is then where the run stands; return these rows. This waits for the device."""
        started, notes = time.perf_counter(), self.notes
        size = sum(state["exp_avg_sq"].numel() for state in self.optimizer.state.values())
        kept = [name for name, value in notes[0].items() if isinstance(value, Tensor)]
        read = {name: torch.stack([note[name] for note in notes]).tolist() for name in kept}
        rows = [note | {name: read[name][i] for name in kept} for i, note in enumerate(notes)]
        rows[-1]["seconds"] += time.perf_counter() - started
        self.notes = []
        if any(read["diverged"]):
            rows = rows[: read["diverged"].index(True) + 1]
            self.diverged_at = self.step = rows[-1]["step"]
            self.batches = rows[-1]["batches"]
        tokens = self.config.training.batch_size * self.config.model.block_size
        fp16 = self.scaler.is_enabled()
        new: list[dict[Any, Any]] = []
        for row in rows:
            skipped = fp16 and row["skipped"] and not row["diverged"]
            new.append(
                {"step": row["step"], "loss": row["loss"], "learning_rate": row["learning_rate"]}
                | {"grad_norm": math.nan if skipped else row["grad_norm"]}
                | {"tokens": row["step"] * tokens}
                | {"second_moment_mean": row["second_moment_mean"] / size}
                | {"second_moment_max": row["second_moment_max"], "seconds": row["seconds"]}
                | ({"skipped": skipped} if fp16 else {})
            )
        self.trace += new
        return new

    def _former_overflows(self) -> int:
        """How many updates before this one fp16 skipped in a row."""
        skipped = [row.get("skipped", False) for row in reversed(self.trace)]
        return [*skipped, False].index(False)

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
        """Write a checkpoint, in the first process."""
        if self.rank:
            return
        self.peak_memory = max(self.peak_memory, peak_memory(self.device))
        self.stretches = self._extended_stretches()
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
            "stretches": [stretch.model_dump() for stretch in self.stretches],
            "peak_memory": self.peak_memory,
        }

    def _extended_stretches(self) -> list[Stretch]:
        """Add the steps since the last stretch to it, or as a new one on another machine."""
        last = self.stretches[-1] if self.stretches else None
        start = last.end if last else 0
        machine, packages = describe(self.machine), package_versions()
        new = Stretch(start=start, end=self.step, machine=machine, packages=packages)
        if last is None or (last.machine, last.packages) != (new.machine, new.packages):
            return [*self.stretches, new] if self.step > start else self.stretches
        return [*self.stretches[:-1], last.model_copy(update={"end": self.step})]

    def load(self) -> None:
        """Take up the last sound checkpoint, if there is one."""
        with first_alone(self.group):  # it sets damaged checkpoints aside
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
        self.stretches = [Stretch.model_validate(each) for each in state["stretches"]]
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
            self.stretches,
            self.initial_weights,
            self.batches,
            self.peak_memory,
        )
