"""Train one run: the loop, its trace and curve, checkpoints, resumption and divergence.

One step:

    get_lr ─► draw batch ─► forward ─► backward ─► clip ─► check finite ─► step ─► note
    └──── training_step ───┘└──────────────────── update, on the device ──────────────┘

To read a number from a GPU, the host must wait for the GPU. So each step leaves its loss and norms
on the device, as *notes*. The host reads them every `READ_EVERY` steps (`read_notes`). Between
steps, `training_loop` evaluates on dev (`evaluate`) and writes checkpoints (`save`).

A run may be killed at any time. It resumes from its last checkpoint and (on a CPU) ends with
weights that are bit-identical to those of an uninterrupted run. Initial weights, batches and
evaluation draw from separate random number generators. So neither the variant nor the number of
evaluations changes the batches.
"""

import hashlib
import math
import os
import signal
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from lib.config.errors import ConfigError
from lib.config.files import locked, write_json
from lib.config.plan import read_plan
from lib.config.provenance import TRAIN_FILES, git_state, require_unedited, train_key
from lib.config.schema import ModelConfig, RunConfig
from lib.config.study import Arm, Study
from lib.data.text import Corpus, evenly_spaced_windows, load_corpus, sample_batch
from lib.results import PROVENANCE, Provenance
from lib.train import checkpoint, distributed, graph, machine
from lib.train.diagnostics import (
    embedding_updates,
    gradient_cosine,
    second_moments,
    snapshot,
)
from lib.train.distributed import Report, Row
from lib.train.machine import random_stream
from lib.train.model import GPT, weights_digest
from lib.train.optim import get_lr, make_optimizers

READ_EVERY = 10
"""The host reads the notes after this many steps, or earlier for an evaluation or a checkpoint."""
OVERFLOWS = 20
"""If an fp16 update overflows, it is skipped and the loss scale is halved. After this many skipped
updates in a row, the run counts as diverged."""
KEPT = (
    "step",
    "batches",
    "diverged_at",
    "resumed_at",
    "peak_memory",
    "overflows",
    "rows",
    "points",
    "stretches",
)
"""Attributes of a `Trainer` that a checkpoint holds unchanged."""


def new_provenance(study: Study, arm: Arm, seed: int, corpus: Corpus) -> Provenance:
    """Return the provenance of a run that is about to be trained.

    Raises ConfigError for a device or precision that this machine lacks, for a missing plan, or if
    the arm's commit is not the commit of this code. Raises UserError if code was edited after it
    was imported.
    """
    require_unedited(TRAIN_FILES)
    commit = study.commit_of(arm)
    if commit and commit != git_state().get("code"):
        raise ConfigError(
            f"arm {arm.id} needs the code of commit {commit[:12]}, and this is other code; "
            f"use ./run_all.sh params/{study.name}.yaml: it trains each arm with its own code"
        )
    return Provenance(
        study=study.name,
        arm=arm.id,
        seed=seed,
        plan=read_plan(study.plan).hash if study.plan else None,
        training_digest=train_key(),
        corpus_sha256=corpus.sha256,
        tokenizer_sha256=corpus.tokenizer.sha256,
        parameters=arm.config.model_dump(exclude={"machine"}),
        **machine.execution_environment(machine.prepare(arm.config)),
    )


def train(
    study: Study, arm: Arm, seed: int, corpus: Corpus, folder: Path, report: Report
) -> "Trainer":
    """Train one run in `folder`, or resume it from its last undamaged checkpoint. Write its
    provenance to `provenance.json` before the first step.

    Ctrl-C, or the stop button of a notebook, ends training after the current step and writes a
    checkpoint. Then the returned run is unfinished; call `train` again to resume it.

    A loss or gradient that is not finite also ends training: see `diverged_at`.

    Raises CorpusError if the corpus is shorter than a window, ConfigError as `new_provenance` does,
    and UserError if one of several processes ends early.
    """
    config = arm.config
    provenance = new_provenance(study, arm, seed, corpus)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".training.lock"):  # the kernel of a killed job may still be running
        run = Trainer(config, corpus, provenance, folder)
        if run.device == "cuda" and not run.machine.graph:
            reason = graph.why_eager(config, run.machine) or "machine.graph is false"
            print(f"Training without a CUDA graph: {reason}")
        write_json(folder / PROVENANCE, run.provenance.model_dump(mode="json"))
        if run.machine.processes > 1 and not run.finished:
            machine.require_devices(run.machine)
            distributed.launch(config.model_copy(update={"machine": run.machine}), folder, report)
            run.load()  # load what the processes have trained; the loop below then does nothing
        usual_handler = signal.signal(signal.SIGINT, run.interrupt)
        try:
            run.training_loop(report)
        finally:
            signal.signal(signal.SIGINT, usual_handler)
            run.graph = None
            torch.cuda.empty_cache()  # free the graph's memory, which nothing else can use
    if not run.finished:
        n = config.training.iterations
        print(f"Stopped at step {run.step} of {n}; run this cell again to continue.")
    return run


class Trainer:
    """One run. During training, this object holds the state of the run; after training, the trained
    model and the history of all steps.

    Several processes may train the run together (Li et al. 2020, arXiv 2006.15704). Each process
    draws the whole batch and takes its own rows. All processes apply the same mean gradient, so
    their weights stay bit-identical. Only the first process (rank 0) writes checkpoints.
    """

    def __init__(
        self, config: RunConfig, corpus: Corpus, provenance: Provenance, folder: Path
    ) -> None:
        block_size = config.model.block_size
        seed = provenance.seed
        corpus.require_length(block_size)
        self.config = config
        self.corpus = corpus
        self.provenance = provenance
        self.machine = machine.prepare(config)
        self.device = self.machine.device  # "cuda" is the GPU of this process: see `main`
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.processes = dist.get_world_size() if dist.is_initialized() else 1

        # Model. Its weights are drawn on the CPU, so that they are the same on every device.
        model = GPT(config.model, corpus.vocab_size, random_stream(seed, "weights"))
        self.initial_weights = weights_digest(model)
        """SHA-256 of the initial weights without the embedding norm's. It is the same
        in all arms of a seed."""
        self.model = model.to(self.device)
        if self.machine.activation_checkpointing:
            self.model.recompute_activations()
        self.forward: nn.Module = self.model
        if self.machine.compile:
            self.forward = torch.compile(self.model)  # type: ignore[assignment]

        # Optimizers
        self.optimizers = make_optimizers(self.model, config.training)
        self.optimizer = self.optimizers[-1]
        """AdamW. It updates all parameters. With Muon, it updates all except the weight matrices in
        blocks."""
        is_fp16 = config.training.precision == "fp16"
        self.scaler = torch.amp.GradScaler(self.device, enabled=is_fp16)

        # Data
        self.batch_stream = random_stream(seed, "batches")
        n = config.evaluation.dev_windows
        self.dev = evenly_spaced_windows(corpus.dev, corpus.ends["dev"], n, block_size)  # (n, T+1)

        # Progress and history
        self.step = 0
        """Number of updates so far."""
        self.batches = ""
        """SHA-256 chained over all batches so far. It is the same in all arms of a seed."""
        self.diverged_at: int | None = None
        """The step with a loss or gradient that was not finite; or the last step, if the dev loss
        after it was not finite."""
        self.resumed_at: list[int] = []
        """Steps at which a stopped run was resumed."""
        self.interrupted = False
        self.rows: list[Row] = []
        """Rows of the table `trace`."""
        self.points: list[Row] = []
        """Rows of the table `curve`."""
        self.stretches: list[dict[str, Any]] = []
        """The machine of each step, as consecutive stretches: fields of `lib.results.Stretch`. A
        run that never moved to another machine has one stretch."""
        self.peak_memory = 0
        """In bytes: see `lib.train.machine.peak_memory`."""
        self.unread: list[tuple[Row, str, Tensor]] = []
        """Steps with notes that the host has not read yet. For each step: its row so far, the value
        of `batches` after the step, and its notes (6,), still on the device."""

        # State on the device. Updates depend on it, and the host never waits to read it.
        self.stopped = torch.zeros((), dtype=torch.bool, device=self.device)
        """Whether the run diverged. If so, updates change nothing any more."""
        self.overflows = torch.zeros((), dtype=torch.long, device=self.device)
        """Number of updates in a row that were skipped because fp16 overflowed."""

        self.checkpoints = checkpoint.checkpoint_folder(folder, provenance)
        self.load()
        self.from_checkpoint = self.finished
        """Whether training was already complete when this process began."""
        self.graph: graph.StepGraph | None = None
        """CUDA graph of `update`, for training on a GPU."""
        if self.machine.graph:
            self.graph = graph.StepGraph(self.update, self.optimizer)

    @property
    def finished(self) -> bool:
        return self.step == self.config.training.iterations or self.diverged_at is not None

    @property
    def trace(self) -> pd.DataFrame:
        """A table with a row per step:

        - step (1 …), learning_rate, tokens (so far), seconds (of this step alone);
        - loss (in nats, of this batch, before the update);
        - grad_norm (L2 norm over all parameters, before clipping);
        - second_moment_mean and second_moment_max (AdamW's v, over all parameters that it updates);
        - skipped, only with fp16: whether the update overflowed. If so, grad_norm is NaN."""
        return pd.DataFrame(self.rows)

    @property
    def curve(self) -> pd.DataFrame:
        """A table with a row per evaluation:

        - step (0 = untrained), seconds;
        - the columns of `lib.train.diagnostics.snapshot` and `second_moments`;
        - gradient_cosine (between two fixed sets of dev windows);
        - from the second row on, the columns of `embedding_updates` for the last step."""
        return pd.DataFrame(self.points)

    def training_loop(self, report: Report) -> None:
        """Train to the end of the run, or until an interrupt. Call `report` for each step."""
        interval = self.config.evaluation.interval
        last = self.config.training.iterations
        embeddings = self.model.transformer.wte.weight  # (V, C)
        if not self.points:
            self.evaluate()  # the untrained model
        must_stop = False
        while not (self.finished or must_stop):
            # If we evaluate after this step, keep a copy of the embeddings. It shows how far the
            # step moves them.
            must_evaluate = (self.step + 1) % interval == 0 or self.step + 1 == last
            before = embeddings.detach().clone() if must_evaluate else None  # (V, C)

            # One update. Go on at once, unless there is something to read, measure or write.
            self.training_step()
            must_stop = self.interrupted
            must_save = self.step % self.config.machine.checkpoint_interval == 0
            if not (must_evaluate or must_save or must_stop or len(self.unread) == READ_EVERY):
                continue

            # Wait for the device. If one of the unread steps diverged, this sets `diverged_at`.
            rows = self.read_notes()

            # Evaluate on dev, at the interval and at the end of the run.
            point = None
            if must_evaluate or self.finished:
                point = self.evaluate()
            if point is not None and before is not None:
                point |= embedding_updates(before, embeddings)
            if self.finished and not math.isfinite(self.points[-1]["dev_loss"]):
                # The last update broke the model. No later batch can show this, but the dev loss
                # does.
                self.diverged_at = self.step

            # Write a checkpoint, at the interval and at the end.
            if must_save or must_stop or self.finished:
                self.save()

            # Report every step that was read. The evaluation belongs to the last one.
            for row in rows:
                report(row, point if row is rows[-1] else None)

    def interrupt(self, *_: object) -> None:
        """End training after the current step. A second interrupt ends it at once."""
        self.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def training_step(self) -> None:
        """Make one update: set the learning rate, draw a batch, and let the device do the rest.
        Nothing here waits for the device, except the step of Muon."""
        started = time.perf_counter()
        training = self.config.training

        # Set the learning rate. A CUDA graph reads it from a tensor, so write it in place.
        lr = get_lr(training, self.step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(lr * group["ratio"])
                else:
                    group["lr"] = lr * group["ratio"]

        # Draw a batch, and keep the rows of this process.
        x, y = self.next_batch()  # (b, T) each

        # Update on the device. Dropout gets a seed for each step, so that its masks are the same in
        # all arms, and after a resumption.
        if self.config.model.dropout:
            purpose = f"dropout/{self.step}/{self.rank}"
            torch.manual_seed(machine.derive_seed(self.provenance.seed, purpose))
            self.model.train()
        update = self.graph or self.update
        with machine.matmul_precision(training.precision):
            notes = update(x, y)  # (6,), still on the device
        if self.config.model.dropout:
            self.model.eval()

        # Start this step's row of the trace. `read_notes` completes it.
        self.step += 1
        row = {
            "step": self.step,
            "learning_rate": lr,
            "tokens": self.step * training.batch_size * self.config.model.block_size,
            "seconds": time.perf_counter() - started,
        }
        self.unread.append((row, self.batches, notes))

    def update(self, x: Tensor, y: Tensor) -> Tensor:
        """Run the device's part of a step: forward, backward, clip, update. Inputs `x` and targets
        `y` are (b, T), and may be on the host.

        Return notes for a row of the trace, (6,): loss, gradient norm, sum and maximum of the
        second moments, whether the update was skipped, whether the run diverged.

        A CUDA graph captures this function, so no `if` may depend on a value on the device.
        Instead, an update with a loss or gradient that is not finite changes nothing. Later updates
        also change nothing. This matters because the host starts some of them before it reads the
        notes.
        """
        x = x.to(self.device, non_blocking=True)
        y = y.to(self.device, non_blocking=True)

        # Forward and backward, one micro-batch at a time. The gradients sum to the batch's
        # gradient.
        size = self.machine.micro_batch_size
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for start in range(0, len(x), size):
            with machine.autocast(self.config.training.precision, self.device):
                logits = self.forward(x[start : start + size])  # (size, T, V)
                targets = y[start : start + size]  # (size, T)
                mean = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
                share = mean * (size / len(x))  # this micro-batch's share of the batch's mean loss
            self.scaler.scale(share).backward()  # type: ignore[no-untyped-call]
            loss += share.detach()

        # Average loss and gradients over the processes.
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if self.processes > 1:
            for tensor in (loss, *gradients):
                dist.all_reduce(tensor)  # sums
                tensor /= self.processes

        # Undo fp16's loss scale, then clip. `norm` is the norm before clipping.
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = get_total_norm(gradients)
        gradient_clip = self.config.training.gradient_clip
        if gradient_clip is not None:
            clip_grads_with_norm_(self.model.parameters(), gradient_clip, norm)

        # Check that loss and gradients are finite. If not, skip this update.
        skipped = ~(loss + norm).isfinite()
        if self.scaler.is_enabled():
            # fp16 gradients overflow now and then, and the scaler then lowers its scale. One
            # overflow does not mean that the run diverged. Many in a row mean it, and so does a
            # loss that is not finite.
            self.overflows.add_(1).mul_(skipped)  # in place, because a CUDA graph keeps the address
            diverged = ~loss.isfinite() | (self.overflows >= OVERFLOWS)
        else:
            diverged = skipped
        self.stopped |= diverged

        # Step. If `found_inf` is 1, our optimizers change nothing.
        found_inf = (self.stopped | skipped).to(torch.float32)
        for optimizer in self.optimizers:
            optimizer.found_inf = found_inf
            optimizer.step()
        if self.scaler.is_enabled():
            self.scaler.update()
        self.model.zero_grad()

        # Notes, (6,). Second moments are never negative, so their L1 norm is their sum.
        moments = [state["exp_avg_sq"] for state in self.optimizer.state.values()]
        total = get_total_norm(moments, 1)
        largest = get_total_norm(moments, math.inf)
        notes = [loss, norm, total, largest, skipped, diverged]
        return torch.stack([note.double() for note in notes])

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Draw a batch of inputs and targets, (B, T) each. Return the rows of this process, (b, T)
        each, on the host."""
        training = self.config.training
        block_size = self.config.model.block_size
        ids, ends = self.corpus.train, self.corpus.ends["train"]
        x, y = sample_batch(ids, ends, training.batch_size, block_size, self.batch_stream)  # (B, T)
        self.batches = chained_hash(self.batches, x)
        x = x.chunk(self.processes)[self.rank]  # (b, T)
        y = y.chunk(self.processes)[self.rank]
        if self.device == "cuda":  # the host need not wait for a copy from pinned memory
            x, y = x.pin_memory(), y.pin_memory()
        return x, y

    def read_notes(self) -> list[Row]:
        """Wait for the device, and read the notes of all unread steps. Add them to the trace as
        rows, and return these rows. If a step diverged, the run ends with that step."""
        started = time.perf_counter()
        notes = torch.stack([notes for _, _, notes in self.unread]).tolist()  # (steps, 6)
        last_row, _, _ = self.unread[-1]
        last_row["seconds"] += time.perf_counter() - started
        # The keys of the optimizer's state are its parameters.
        size = sum(parameter.numel() for parameter in self.optimizer.state)
        rows = []
        for (row, batches, _), note in zip(self.unread, notes, strict=True):
            loss, norm, total, largest, skipped, diverged = note
            row["loss"] = loss
            row["grad_norm"] = norm
            row["second_moment_mean"] = total / size
            row["second_moment_max"] = largest
            if self.scaler.is_enabled():
                row["skipped"] = bool(skipped and not diverged)
                if row["skipped"]:
                    row["grad_norm"] = math.nan
            rows.append(row)
            if diverged:  # later steps changed nothing, so drop them
                self.step = row["step"]
                self.batches = batches
                self.diverged_at = self.step
                break
        self.rows += rows
        self.unread.clear()
        return rows

    def evaluate(self) -> Row:
        """Evaluate the model on dev. Add a point to the dev curve, and return it."""
        started = time.perf_counter()
        point: Row = {"step": self.step}
        point |= snapshot(self.model, self.dev)
        point |= second_moments(self.model, self.optimizer)
        # The cosine needs two sets of windows. A quarter of all windows in each set is enough to
        # estimate the direction of a gradient. With 32 windows, that takes half as long as a
        # training step.
        one, other = self.dev[::4], self.dev[2::4]  # (n / 4, T + 1) each
        if len(other):
            size = self.machine.micro_batch_size
            point["gradient_cosine"] = gradient_cosine(self.model, one, other, size)
        point["seconds"] = time.perf_counter() - started
        self.points.append(point)
        return point

    def save(self) -> None:
        """Write a checkpoint, if this is the first process."""
        if self.rank:
            return
        self.peak_memory = max(self.peak_memory, machine.peak_memory(self.device))
        self.stretches[-1]["end"] = self.step
        state = {name: getattr(self, name) for name in KEPT} | {
            "model": self.model.state_dict(),
            "scaler": self.scaler.state_dict(),
            # Do not save the parameter groups: their learning rates and weight decay follow from
            # the run's parameters.
            "optimizers": [optimizer.state_dict()["state"] for optimizer in self.optimizers],
            "batch_stream": self.batch_stream.get_state(),
            "provenance": self.provenance.model_dump(mode="json"),
        }
        checkpoint.save(self.checkpoints, state)

    def load(self) -> None:
        """Load the last undamaged checkpoint, if there is one."""
        state = checkpoint.load(self.checkpoints)
        if state is not None:
            for name in KEPT:
                setattr(self, name, state[name])
            self.model.load_state_dict(state["model"])
            self.scaler.load_state_dict(state["scaler"])
            for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(optimizer.state_dict() | {"state": kept})
            self.batch_stream.set_state(state["batch_stream"])
            self.provenance = Provenance.model_validate(state["provenance"])
            self.overflows = self.overflows.to(self.device)
        if self.device == "cuda":  # AdamW's step, and a CUDA graph of it, read the rate on the GPU
            for group in self.optimizer.param_groups:
                group["lr"] = torch.zeros((), device=self.device)
        if not self.finished:
            self._start_stretch()

    def _start_stretch(self) -> None:
        """Begin a new stretch (see `lib.results.Stretch`), unless the machine and the packages are
        the same as in the last one."""
        if self.step:
            self.resumed_at.append(self.step)
        here = {
            "machine": machine.describe(self.machine).model_dump(),
            "packages": machine.package_versions(),
        }
        last = self.stretches[-1] if self.stretches else {}
        if any(last.get(name) != value for name, value in here.items()):
            self.stretches.append({"start": self.step, "end": self.step, **here})


def chained_hash(before: str, x: Tensor) -> str:
    """Return the SHA-256 of the hash `before` (of all earlier batches) and the inputs x (B, T)."""
    return hashlib.sha256(before.encode() + x.numpy().tobytes()).hexdigest()


def initial_hashes(config: RunConfig, corpus: Corpus, seed: int, steps: int) -> tuple[str, str]:
    """Return the `initial_weights` and `batches` that a `Trainer` has after `steps` steps, but do
    not train. Many arms share these hashes, so they are cached for the next call."""
    # The embedding norm draws no weights and is not hashed, so all its variants share an entry.
    model = config.model.model_copy(update={"embedding_norm": "none"})
    batch_size = config.training.batch_size
    block_size = config.model.block_size
    text = (corpus.sha256, corpus.tokenizer.sha256, len(corpus.train))
    key = (*text, seed, batch_size, block_size)
    stream, hashes = _drawn.setdefault(key, (random_stream(seed, "batches"), [""]))
    while len(hashes) <= steps:
        x, _ = sample_batch(corpus.train, corpus.ends["train"], batch_size, block_size, stream)
        hashes.append(chained_hash(hashes[-1], x))
    return _initial_weights(model, corpus.vocab_size, seed), hashes[steps]


_drawn: dict[Any, Any] = {}
"""(text, seed, size of a batch) → the generator, and the chained hash after 0, 1, 2, … batches."""


@lru_cache
def _initial_weights(model: ModelConfig, vocab_size: int, seed: int) -> str:
    return weights_digest(GPT(model, vocab_size, random_stream(seed, "weights")))


def main(folder: Path, config: RunConfig) -> None:
    """Train a run in this process, one of several that `train` started with torchrun."""
    rank = int(os.environ["LOCAL_RANK"])
    on_gpus = config.machine.device == "cuda"
    if on_gpus:
        # Do this before anything else touches a GPU. Otherwise all processes would use the first
        # GPU.
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    corpus = load_corpus(config.corpus)
    provenance = Provenance.model_validate_json((folder / PROVENANCE).read_bytes())
    run = Trainer(config, corpus, provenance, folder)
    run.training_loop(distributed.tell if rank == 0 else lambda *_: None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), RunConfig.model_validate_json(sys.argv[2]))
