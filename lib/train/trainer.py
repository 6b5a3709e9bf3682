"""Train one run: the loop, its trace and curve, checkpoints, resumption and divergence.

The order of a step:

    get_lr ─► draw batch ─► forward ─► backward ─► clip ─► check finite ─► step ─► note
    └──── training_step ───┘└──────────────────── update, on the device ──────────────┘

The device notes loss and norms, and the host reads them some steps at a time (`read_notes`), so
that it need not wait in every step. Between steps `training_loop` evaluates on dev (`evaluate`) and
writes checkpoints (`save`).

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
"""Steps after which the host reads the device's notes, unless it must earlier."""
OVERFLOWS = 20
"""Updates in a row that overflow in fp16, each at half the scale of the one before, and make a
divergence."""
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

    Raises ConfigError for a device or precision that this machine lacks, a plan that is missing, or
    an arm of other code than that at hand; UserError for code edited since it was imported.
    """
    require_unedited(TRAIN_FILES)
    commit = study.commit_of(arm)
    if commit and commit != git_state().get("code"):
        raise ConfigError(
            f"arm {arm.id} is trained by other code than that at hand, of commit "
            f"{commit[:12]}: ./run_all.sh params/{study.name}.yaml trains it by its own"
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

    Ctrl-C, or a notebook's stop button, ends training after the current step and keeps what there
    is: the run is returned unfinished, and training it again continues it.

    Raises CorpusError for a corpus shorter than a window, ConfigError as `new_provenance` does, and
    UserError when one of several processes ends early. A loss or gradient that is not finite ends
    training: see `diverged_at`.
    """
    config = arm.config
    provenance = new_provenance(study, arm, seed, corpus)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".training.lock"):  # the kernel of a killed job may live on a moment
        run = Trainer(config, corpus, provenance, folder)
        if run.device == "cuda" and not run.machine.graph:
            reason = graph.why_eager(config, run.machine.processes) or "machine.graph is false"
            print(f"Trained without a CUDA graph: {reason}")
        write_json(folder / PROVENANCE, run.provenance.model_dump(mode="json"))
        if run.machine.processes > 1 and not run.finished:
            machine.require_devices(run.machine)
            distributed.launch(config.model_copy(update={"machine": run.machine}), folder, report)
            run.load()
        usual = signal.signal(signal.SIGINT, run.interrupt)
        try:
            run.training_loop(report)
        finally:
            signal.signal(signal.SIGINT, usual)
    if not run.finished:
        n = config.training.iterations
        print(f"Stopped at step {run.step} of {n}; run this cell again to continue.")
    return run


class Trainer:
    """A run while it trains, and afterwards its model and how it came about.

    Several processes may train the run together (Li et al. 2020, arXiv 2006.15704). They stay equal
    to the bit: all draw the same batches, each takes its rows of them, and all apply the same mean
    gradient. The first of them writes.
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
        self.device = self.machine.device  # of several GPUs, each process has made one its own
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.processes = dist.get_world_size() if dist.is_initialized() else 1

        # Model: drawn on the CPU, so that every device starts from the same weights.
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

        # Where the run stands, and what is known of its steps
        self.step = 0
        self.batches = ""
        """SHA-256 chained over all batches drawn: equal across arms of a seed."""
        self.diverged_at: int | None = None
        """Step whose loss or gradient was not finite, or after the last step the dev loss."""
        self.resumed_at: list[int] = []
        """Steps at which a stopped run was resumed."""
        self.interrupted = False
        self.rows: list[Row] = []
        self.points: list[Row] = []
        self.stretches: list[dict[str, Any]] = []
        """Which steps were made on which machine, in order, as `lib.results.Stretch` says; one for
        a run that stayed on one."""
        self.peak_memory = 0
        """Bytes, of the process that needed them; see `lib.train.machine.peak_memory`."""
        self.unread: list[tuple[Row, str, Tensor]] = []
        """Steps since the host last read notes: their row so far, `batches` after them, and their
        notes on the device."""

        # On the device, so that a step can depend on them without the host
        self.stopped = torch.zeros((), dtype=torch.bool, device=self.device)
        self.overflows = torch.zeros((), dtype=torch.long, device=self.device)
        """Updates in a row that fp16 skipped."""

        self.checkpoints = checkpoint.checkpoint_folder(folder, provenance)
        self.load()
        self.from_checkpoint = self.finished
        """Whether training was complete before this execution."""
        self.update_on_device: graph.Update = self.update
        if self.machine.graph:
            self.update_on_device = graph.StepGraph(self.update, self.optimizer)

    @property
    def finished(self) -> bool:
        return self.step == self.config.training.iterations or self.diverged_at is not None

    @property
    def trace(self) -> pd.DataFrame:
        """A row per step: step (1 …), learning_rate, tokens (so far), seconds (of that step alone),
        loss (nats, before that update), grad_norm (L2 over all parameters, before clipping),
        second_moment_mean and second_moment_max (AdamW's v over all parameters that it updates);
        with fp16 also skipped (whether the update overflowed, and then there is no grad_norm)."""
        return pd.DataFrame(self.rows)

    @property
    def curve(self) -> pd.DataFrame:
        """A row per evaluation: step (0 = untrained), what `lib.train.diagnostics.snapshot` and
        `second_moments` say, gradient_cosine (between two fixed sets of dev windows), after the
        first row what `embedding_updates` says of the step before it, seconds."""
        return pd.DataFrame(self.points)

    def training_loop(self, report: Report) -> None:
        """Train to the end of the run, or to an interrupt."""
        interval = self.config.evaluation.interval
        last = self.config.training.iterations
        embeddings = self.model.transformer.wte.weight
        if not self.points:
            self.evaluate()  # the untrained model
        stops = False
        while not (self.finished or stops):
            evaluates = (self.step + 1) % interval == 0 or self.step + 1 == last
            before = embeddings.detach().clone() if evaluates else None
            self.training_step()
            stops = self.interrupted
            saves = self.step % self.config.machine.checkpoint_interval == 0
            reads = evaluates or saves or stops or len(self.unread) == READ_EVERY
            if not reads:
                continue

            rows = self.read_notes()  # which may find that the run diverged
            point = None
            if evaluates or self.finished:
                point = self.evaluate()
            if point is not None and before is not None:
                point |= embedding_updates(before, embeddings)
            if self.finished and not math.isfinite(self.points[-1]["dev_loss"]):
                self.diverged_at = self.step  # by the last update, after which there is no loss
            if saves or stops or self.finished:
                self.save()
            for row in rows:
                report(row, point if row is rows[-1] else None)

    def interrupt(self, *_: object) -> None:
        """End training after the current step; a second interrupt ends it at once."""
        self.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def training_step(self) -> None:
        """Make one update: set the rate, draw a batch, and have the device do the rest. Nothing
        here waits for the device, unless Muon does."""
        started = time.perf_counter()
        training = self.config.training

        lr = get_lr(training, self.step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(lr * group["ratio"])  # in place: a graph reads it there
                else:
                    group["lr"] = lr * group["ratio"]

        x, y = self.next_batch()  # (b, T) each: the rows of this process
        if self.config.model.dropout:
            # Seeded by the step: the same in every arm, and after a resumption.
            purpose = f"dropout/{self.step}/{self.rank}"
            torch.manual_seed(machine.derive_seed(self.provenance.seed, purpose))
            self.model.train()
        notes = self.update_on_device(x, y)  # (6,)
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
        """Do the device's part of a step on inputs and targets (b, T): forward, backward, clip,
        update. Return what a row of the trace needs, (6,).

        A CUDA graph captures this as it is, so nothing here depends on what the device found. An
        update that is not finite is skipped, and so is every one after it, until the host reads the
        notes.
        """
        # Forward and backward, a micro-batch at a time: gradients add up to the batch's.
        size = self.machine.micro_batch_size
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for start in range(0, len(x), size):
            with machine.autocast(self.config.training.precision, self.device):
                logits = self.forward(x[start : start + size])  # (size, T, V)
                targets = y[start : start + size]  # (size, T)
                mean = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
                part = mean * (size / len(x))
            self.scaler.scale(part).backward()  # type: ignore[no-untyped-call]
            loss += part.detach()

        # Mean over processes
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if self.processes > 1:
            for tensor in (loss, *gradients):
                dist.all_reduce(tensor)
                tensor /= self.processes

        # Clip. The norm that is noted is the one before.
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = get_total_norm(gradients)
        gradient_clip = self.config.training.gradient_clip
        if gradient_clip is not None:
            clip_grads_with_norm_(self.model.parameters(), gradient_clip, norm)

        # Check that all is finite.
        skipped = ~(loss + norm).isfinite()
        if self.scaler.is_enabled():
            # fp16 may overflow, and then lowers its scale: only many in a row are a divergence.
            self.overflows = (self.overflows + 1) * skipped
            diverged = ~loss.isfinite() | (self.overflows >= OVERFLOWS)
        else:
            diverged = skipped
        self.stopped |= diverged

        # Step. An optimizer leaves everything as it is if `found_inf` is 1.
        found_inf = (self.stopped | skipped).to(torch.float32)
        for optimizer in self.optimizers:
            optimizer.found_inf = found_inf
            optimizer.step()
        if self.scaler.is_enabled():
            self.scaler.update()
        self.model.zero_grad()

        # Note what a row of the trace needs.
        moments = [state["exp_avg_sq"] for state in self.optimizer.state.values()]
        total = get_total_norm(moments, 1)  # they are not negative
        largest = get_total_norm(moments, math.inf)
        notes = [loss, norm, total, largest, skipped, diverged]
        return torch.stack([note.double() for note in notes])

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Draw inputs and targets, (B, T) each, and return the rows of them that this process
        trains on, (b, T) each, on the device."""
        training = self.config.training
        block_size = self.config.model.block_size
        ids, ends = self.corpus.train, self.corpus.ends["train"]
        x, y = sample_batch(ids, ends, training.batch_size, block_size, self.batch_stream)
        self.batches = chained_hash(self.batches, x)
        x = x.chunk(self.processes)[self.rank]
        y = y.chunk(self.processes)[self.rank]
        if self.device == "cuda":  # a copy from pinned memory waits for nothing
            x, y = x.pin_memory(), y.pin_memory()
        return x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)

    def read_notes(self) -> list[Row]:
        """Read the notes of the last steps from the device into rows of the trace, and return these
        rows. They end with a step that diverged, and there the run ends. This waits for the
        device."""
        started = time.perf_counter()
        notes = torch.stack([note for *_, note in self.unread]).tolist()
        last_row, *_ = self.unread[-1]
        last_row["seconds"] += time.perf_counter() - started
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
            if diverged:  # later steps changed nothing
                self.step = row["step"]
                self.batches = batches
                self.diverged_at = self.step
                break
        self.rows += rows
        self.unread.clear()
        return rows

    def evaluate(self) -> Row:
        """Add a point to the dev curve, and return it."""
        started = time.perf_counter()
        point: Row = {"step": self.step}
        point |= snapshot(self.model, self.dev)
        point |= second_moments(self.model, self.optimizer)
        # A quarter of the windows each: enough for a direction, and half a training step's work.
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
        if self.device == "cuda":  # where the step, and a graph of it, read the rate
            for group in self.optimizer.param_groups:
                group["lr"] = torch.zeros((), device=self.device)
        if not self.finished:
            self._start_stretch()

    def _start_stretch(self) -> None:
        """Note on which machine the next steps are made, unless it is that of the last ones."""
        if self.step:
            self.resumed_at.append(self.step)
        here = {
            "machine": machine.describe(self.machine).model_dump(),
            "packages": machine.package_versions(),
        }
        last = self.stretches[-1] if self.stretches else {}
        if last | here != last:
            self.stretches.append({"start": self.step, "end": self.step, **here})


def chained_hash(before: str, x: Tensor) -> str:
    """Chain the SHA-256 of a batch's inputs (B, T) to that of the batches before it."""
    return hashlib.sha256(before.encode() + x.numpy().tobytes()).hexdigest()


def initial_hashes(config: RunConfig, corpus: Corpus, seed: int, steps: int) -> tuple[str, str]:
    """Return the hashes `initial_weights` and `batches` of a run of `steps` steps, without training
    it. Batches that arms of a seed share are drawn once."""
    # The layer under study draws no weights, and is not in their hash.
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
"""By text, seed and size: the generator of batches, and the chained hash after each batch."""


@lru_cache
def _initial_weights(model: ModelConfig, vocab_size: int, seed: int) -> str:
    return weights_digest(GPT(model, vocab_size, random_stream(seed, "weights")))


def main(folder: Path, config: RunConfig) -> None:
    """Train a run in this process, one of several that `train` started."""
    rank = int(os.environ["LOCAL_RANK"])
    on_gpus = config.machine.device == "cuda"
    if on_gpus:
        torch.cuda.set_device(rank)  # before anything else touches a GPU, or all share the first
    dist.init_process_group("nccl" if on_gpus else "gloo")
    corpus = load_corpus(config.corpus)
    provenance = Provenance.model_validate_json((folder / PROVENANCE).read_bytes())
    run = Trainer(config, corpus, provenance, folder)
    run.training_loop(distributed.tell if rank == 0 else lambda *_: None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), RunConfig.model_validate_json(sys.argv[2]))
