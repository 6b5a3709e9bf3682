"""Train one run: the loop, its trace and curve, checkpoints, resumption and divergence.

The order of a step:

    get_lr ─► draw batch ─► forward ─► backward ─► clip ─► check finite ─► step ─► note
    └──── training_step ───┘└──────────────────── update, on the device ──────────────┘

To read a number from a GPU, the host must wait for it. So each step leaves its loss and norms on
the device, as *notes*, and the host reads them every `READ_EVERY` steps (`read_notes`). Between
steps `training_loop` evaluates on dev (`evaluate`) and writes checkpoints (`save`).

A run that is killed at any instant continues from its last checkpoint to bit-identical weights (on
a CPU). Initial weights, batches and evaluation draw from separate generators, so neither the
variant nor how often it is evaluated changes what is trained on.
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
"""Steps after which the host reads the device's notes, unless an evaluation or a checkpoint comes
first."""
OVERFLOWS = 20
"""With fp16, an update that overflows is skipped, and the loss scale halved. After this many in a
row, the run counts as diverged."""
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
"""Attributes of a `Trainer` that a checkpoint holds as they are."""


def new_provenance(study: Study, arm: Arm, seed: int, corpus: Corpus) -> Provenance:
    """Return the provenance of a run that is about to be trained.

    Raises ConfigError for a device or precision that this machine lacks, a missing plan, or an arm
    that is another commit than the code that runs; UserError for code edited since it was imported.
    """
    require_unedited(TRAIN_FILES)
    commit = study.commit_of(arm)
    if commit and commit != git_state().get("code"):
        raise ConfigError(
            f"arm {arm.id} is trained by the code of commit {commit[:12]}, and this is other code; "
            f"use ./run_all.sh params/{study.name}.yaml, which trains each arm with its own"
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
    """Train one run in `folder`, from its last sound checkpoint if there is one. Its provenance is
    written to `provenance.json` before the first step.

    Ctrl-C, or a notebook's stop button, ends training after the current step and writes a
    checkpoint. The run is returned unfinished; call `train` again to continue it.

    A loss or gradient that is not finite also ends training: see `diverged_at`.

    Raises CorpusError for a corpus shorter than a window, ConfigError as `new_provenance` does, and
    UserError if one of several processes ends early.
    """
    config = arm.config
    provenance = new_provenance(study, arm, seed, corpus)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".training.lock"):  # a killed job's kernel may still be ending
        run = Trainer(config, corpus, provenance, folder)
        if run.device == "cuda" and not run.machine.graph:
            reason = graph.why_eager(config, run.machine) or "machine.graph is false"
            print(f"Trained without a CUDA graph: {reason}")
        write_json(folder / PROVENANCE, run.provenance.model_dump(mode="json"))
        if run.machine.processes > 1 and not run.finished:
            machine.require_devices(run.machine)
            distributed.launch(config.model_copy(update={"machine": run.machine}), folder, report)
            run.load()  # what the processes left; the loop below then has nothing to do
        usual_handler = signal.signal(signal.SIGINT, run.interrupt)
        try:
            run.training_loop(report)
        finally:
            signal.signal(signal.SIGINT, usual_handler)
            run.graph = None
            torch.cuda.empty_cache()  # of the graph's memory, which only its replays could use
    if not run.finished:
        n = config.training.iterations
        print(f"Stopped at step {run.step} of {n}; run this cell again to continue.")
    return run


class Trainer:
    """One run: its state during training, and afterwards the model and the history of its steps.

    Several processes may train the run together (Li et al. 2020, arXiv 2006.15704). Each draws the
    whole batch and takes its own rows of it. All then apply the same mean gradient, so their
    weights stay equal to the bit. Only the first one (rank 0) writes checkpoints.
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
        self.device = self.machine.device  # "cuda" is this process's own GPU: `main` sets it
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.processes = dist.get_world_size() if dist.is_initialized() else 1

        # Model: weights are drawn on the CPU, so that they are the same on every device.
        model = GPT(config.model, corpus.vocab_size, random_stream(seed, "weights"))
        self.initial_weights = weights_digest(model)
        """SHA-256 of the initial weights outside the embedding norm: equal across arms of a
        seed."""
        self.model = model.to(self.device)
        if self.machine.activation_checkpointing:
            self.model.recompute_activations()
        self.forward: nn.Module = self.model
        if self.machine.compile:
            self.forward = torch.compile(self.model)  # type: ignore[assignment]

        # Optimizers
        self.optimizers = make_optimizers(self.model, config.training)
        self.optimizer = self.optimizers[-1]
        """AdamW, which has all parameters or, beside Muon, all but the matrices in blocks."""
        is_fp16 = config.training.precision == "fp16"
        self.scaler = torch.amp.GradScaler(self.device, enabled=is_fp16)

        # Data
        self.batch_stream = random_stream(seed, "batches")
        n = config.evaluation.dev_windows
        self.dev = evenly_spaced_windows(corpus.dev, corpus.ends["dev"], n, block_size)

        # Progress and history
        self.step = 0
        """Updates made so far."""
        self.batches = ""
        """SHA-256 chained over all batches drawn: equal across arms of a seed."""
        self.diverged_at: int | None = None
        """The step whose loss or gradient was not finite. Also the last step, if the loss on dev
        after it is not finite."""
        self.resumed_at: list[int] = []
        """Steps at which a stopped run was resumed."""
        self.interrupted = False
        self.rows: list[Row] = []
        """Of the table `trace`."""
        self.points: list[Row] = []
        """Of the table `curve`."""
        self.stretches: list[dict[str, Any]] = []
        """Which steps were made on which machine, in order: fields of `lib.results.Stretch`. A run
        that was never moved has one."""
        self.peak_memory = 0
        """Bytes; see `lib.train.machine.peak_memory`."""
        self.unread: list[tuple[Row, str, Tensor]] = []
        """Steps whose notes the host has not read: the row so far, `batches` after the step, and
        the notes, on the device."""

        # Kept on the device: an update depends on them, and the host does not wait to read them.
        self.stopped = torch.zeros((), dtype=torch.bool, device=self.device)
        """Whether the run diverged; from then on updates change nothing."""
        self.overflows = torch.zeros((), dtype=torch.long, device=self.device)
        """Updates in a row that were skipped because fp16 overflowed."""

        self.checkpoints = checkpoint.checkpoint_folder(folder, provenance)
        self.load()
        self.from_checkpoint = self.finished
        """Whether training was complete before this execution."""
        self.graph: graph.StepGraph | None = None
        """Of `update`, in training on a GPU."""
        if self.machine.graph:
            self.graph = graph.StepGraph(self.update, self.optimizer)

    @property
    def finished(self) -> bool:
        return self.step == self.config.training.iterations or self.diverged_at is not None

    @property
    def trace(self) -> pd.DataFrame:
        """A row per step:

        - step (1 …), learning_rate, tokens (so far), seconds (of this step alone);
        - loss (nats, of this batch before the update);
        - grad_norm (L2 over all parameters, before clipping);
        - second_moment_mean and second_moment_max (AdamW's v, over all parameters that it updates);
        - with fp16 also skipped: whether the update overflowed. Then grad_norm is NaN."""
        return pd.DataFrame(self.rows)

    @property
    def curve(self) -> pd.DataFrame:
        """A row per evaluation:

        - step (0 = untrained), seconds;
        - the columns of `lib.train.diagnostics.snapshot` and `second_moments`;
        - gradient_cosine (between two fixed sets of dev windows);
        - from the second row on, those of `embedding_updates`, of the step just made."""
        return pd.DataFrame(self.points)

    def training_loop(self, report: Report) -> None:
        """Train to the end of the run, or to an interrupt. Pass each step to `report`."""
        interval = self.config.evaluation.interval
        last = self.config.training.iterations
        embeddings = self.model.transformer.wte.weight
        if not self.points:
            self.evaluate()  # the untrained model
        must_stop = False
        while not (self.finished or must_stop):
            must_evaluate = (self.step + 1) % interval == 0 or self.step + 1 == last
            # To measure how far this step moves them
            before = embeddings.detach().clone() if must_evaluate else None
            self.training_step()
            must_stop = self.interrupted
            must_save = self.step % self.config.machine.checkpoint_interval == 0
            if not (must_evaluate or must_save or must_stop or len(self.unread) == READ_EVERY):
                continue

            rows = self.read_notes()  # sets `diverged_at` if one of these steps diverged
            point = None
            if must_evaluate or self.finished:
                point = self.evaluate()
            if point is not None and before is not None:
                point |= embedding_updates(before, embeddings)
            if self.finished and not math.isfinite(self.points[-1]["dev_loss"]):
                # The last update broke the model, and there is no next batch whose loss would tell.
                self.diverged_at = self.step
            if must_save or must_stop or self.finished:
                self.save()
            for row in rows:
                report(row, point if row is rows[-1] else None)  # the point is of the last step

    def interrupt(self, *_: object) -> None:
        """Have training end after the current step; a second interrupt ends it at once."""
        self.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def training_step(self) -> None:
        """Make one update: set the learning rate, draw a batch, and have the device do the rest.
        Nothing here waits for the device, except the step of Muon."""
        started = time.perf_counter()
        training = self.config.training

        lr = get_lr(training, self.step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(lr * group["ratio"])  # in place: a CUDA graph reads it there
                else:
                    group["lr"] = lr * group["ratio"]

        x, y = self.next_batch()  # (b, T) each: the rows of this process
        if self.config.model.dropout:
            # A seed for each step, so that masks are equal in all arms and after a resumption
            purpose = f"dropout/{self.step}/{self.rank}"
            torch.manual_seed(machine.derive_seed(self.provenance.seed, purpose))
            self.model.train()
        update = self.graph or self.update
        with machine.matmul_precision(training.precision):
            notes = update(x, y)  # (6,): see `update`
        if self.config.model.dropout:
            self.model.eval()

        self.step += 1
        row = {
            "step": self.step,
            "learning_rate": lr,
            "tokens": self.step * training.batch_size * self.config.model.block_size,
            "seconds": time.perf_counter() - started,
        }
        self.unread.append((row, self.batches, notes))

    def update(self, x: Tensor, y: Tensor) -> Tensor:
        """Do the device's part of a step on inputs and targets (b, T), which may come from the
        host: forward, backward, clip, update. Return notes for a row of the trace, (6,): loss, norm
        of the gradient, sum and maximum of second moments, whether the update was skipped, whether
        the run diverged.

        A CUDA graph captures this function, so no `if` in it may look at a value on the device.
        Instead an update with a loss or gradient that is not finite changes nothing. Neither do
        the ones after it, which the host starts before it has read the notes.
        """
        x = x.to(self.device, non_blocking=True)
        y = y.to(self.device, non_blocking=True)

        # Forward and backward, a micro-batch at a time. Gradients add up to those of the batch.
        size = self.machine.micro_batch_size
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for start in range(0, len(x), size):
            with machine.autocast(self.config.training.precision, self.device):
                logits = self.forward(x[start : start + size])  # (size, T, V)
                targets = y[start : start + size]  # (size, T)
                mean = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
                share = mean * (size / len(x))  # of the mean over the batch
            self.scaler.scale(share).backward()  # type: ignore[no-untyped-call]
            loss += share.detach()

        # Average over processes
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if self.processes > 1:
            for tensor in (loss, *gradients):
                dist.all_reduce(tensor)  # a sum
                tensor /= self.processes

        # Clip, after undoing fp16's loss scale. `norm` is the norm before clipping.
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = get_total_norm(gradients)
        gradient_clip = self.config.training.gradient_clip
        if gradient_clip is not None:
            clip_grads_with_norm_(self.model.parameters(), gradient_clip, norm)

        # Check that loss and gradients are finite.
        skipped = ~(loss + norm).isfinite()
        if self.scaler.is_enabled():
            # In fp16 gradients overflow now and then; the scaler then lowers its scale. So only
            # many overflows in a row are a divergence, or a loss that is not finite.
            self.overflows.add_(1).mul_(skipped)  # in place: a CUDA graph keeps its address
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

        # Notes. Second moments are not negative: their L1 norm is their sum.
        moments = [state["exp_avg_sq"] for state in self.optimizer.state.values()]
        total = get_total_norm(moments, 1)
        largest = get_total_norm(moments, math.inf)
        notes = [loss, norm, total, largest, skipped, diverged]
        return torch.stack([note.double() for note in notes])

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Draw a batch of inputs and targets, (B, T) each. Return this process's rows of it, (b, T)
        each, on the host."""
        training = self.config.training
        block_size = self.config.model.block_size
        ids, ends = self.corpus.train, self.corpus.ends["train"]
        x, y = sample_batch(ids, ends, training.batch_size, block_size, self.batch_stream)
        self.batches = chained_hash(self.batches, x)
        x = x.chunk(self.processes)[self.rank]
        y = y.chunk(self.processes)[self.rank]
        if self.device == "cuda":  # the host need not wait for a copy from pinned memory
            x, y = x.pin_memory(), y.pin_memory()
        return x, y

    def read_notes(self) -> list[Row]:
        """Read the notes of all unread steps into rows of the trace, and return these rows. If a
        step diverged, the run ends with it. This waits for the device."""
        started = time.perf_counter()
        notes = torch.stack([notes for _, _, notes in self.unread]).tolist()  # (steps, 6)
        last_row, _, _ = self.unread[-1]
        last_row["seconds"] += time.perf_counter() - started
        size = sum(parameter.numel() for parameter in self.optimizer.state)  # its keys
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
            if diverged:  # the steps after it changed nothing, so they are dropped
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
        # Two sets, each a quarter of the windows: that is enough for a direction, and with 32
        # windows costs half a training step.
        one, other = self.dev[::4], self.dev[2::4]
        if len(other):
            size = self.machine.micro_batch_size
            point["gradient_cosine"] = gradient_cosine(self.model, one, other, size)
        point["seconds"] = time.perf_counter() - started
        self.points.append(point)
        return point

    def save(self) -> None:
        """Write a checkpoint, in the first process."""
        if self.rank:
            return
        self.peak_memory = max(self.peak_memory, machine.peak_memory(self.device))
        self.stretches[-1]["end"] = self.step
        state = {name: getattr(self, name) for name in KEPT} | {
            "model": self.model.state_dict(),
            "scaler": self.scaler.state_dict(),
            # Without groups: their rates and weight decay follow from the parameters of the run.
            "optimizers": [optimizer.state_dict()["state"] for optimizer in self.optimizers],
            "batch_stream": self.batch_stream.get_state(),
            "provenance": self.provenance.model_dump(mode="json"),
        }
        checkpoint.save(self.checkpoints, state)

    def load(self) -> None:
        """Resume from the last sound checkpoint, if there is one."""
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
        if self.device == "cuda":  # AdamW's step, and a CUDA graph of it, read the rate there
            for group in self.optimizer.param_groups:
                group["lr"] = torch.zeros((), device=self.device)
        if not self.finished:
            self._start_stretch()

    def _start_stretch(self) -> None:
        """Begin a stretch (see `lib.results.Stretch`), unless the machine and its packages are
        those of the last one."""
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
    """Return the SHA-256 of the hash of all batches `before`, and of this batch's inputs (B, T)."""
    return hashlib.sha256(before.encode() + x.numpy().tobytes()).hexdigest()


def initial_hashes(config: RunConfig, corpus: Corpus, seed: int, steps: int) -> tuple[str, str]:
    """Return what `initial_weights` and `batches` of a `Trainer` are after `steps` steps, without
    training. Many arms share them, so they are kept for the next call."""
    # The embedding norm draws no weights and is not hashed: all its variants share one entry.
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
"""By text, seed and size: the generator, and the chained hash after 0, 1, 2, … batches."""


@lru_cache
def _initial_weights(model: ModelConfig, vocab_size: int, seed: int) -> str:
    return weights_digest(GPT(model, vocab_size, random_stream(seed, "weights")))


def main(folder: Path, config: RunConfig) -> None:
    """Train a run in this process, which is one of several that `train` started by torchrun."""
    rank = int(os.environ["LOCAL_RANK"])
    on_gpus = config.machine.device == "cuda"
    if on_gpus:
        # Before anything else touches a GPU. Otherwise all processes would use the first one.
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    corpus = load_corpus(config.corpus)
    provenance = Provenance.model_validate_json((folder / PROVENANCE).read_bytes())
    run = Trainer(config, corpus, provenance, folder)
    run.training_loop(distributed.tell if rank == 0 else lambda *_: None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), RunConfig.model_validate_json(sys.argv[2]))
