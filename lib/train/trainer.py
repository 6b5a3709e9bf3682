"""One run: step, trace, checkpoint, resume, divergence.

A run killed at any instant continues from its last checkpoint to bit-identical weights (CPU).
Initial weights, batches and evaluation draw from separate generators, so neither the variant nor
the evaluation cadence changes what is trained on.
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
from filelock import FileLock
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from lib.config.code import TRAIN_FILES, git_state, require_unedited, train_key
from lib.config.io import write_json
from lib.config.plan import read_plan
from lib.config.schema import ModelConfig, RunConfig
from lib.config.study import Arm, Study
from lib.config.yaml import ConfigError
from lib.data.text import Corpus, load_corpus, sample_batch
from lib.results import Provenance
from lib.train import checkpoint, distributed, graph, machine
from lib.train.diagnostics import (
    embedding_updates,
    evenly_spaced_windows,
    gradient_cosine,
    second_moments,
    snapshot,
)
from lib.train.distributed import Report, Row
from lib.train.machine import random_stream
from lib.train.model import GPT, weights_digest
from lib.train.optim import get_lr, make_optimizers

PROVENANCE = "provenance.json"
"""In a run's folder, from before the first step on."""
READ_EVERY = 10
"""Steps after which the host reads what the device noted, unless it must earlier."""
OVERFLOWS = 20
"""Updates in a row that overflow in fp16, each at half the scale of the one before, and make a
divergence."""


def begin(study: Study, arm: Arm, seed: int, corpus: Corpus) -> Provenance:
    """Write down what a run is about to be trained with.

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
    """Train one run in `folder`, from its last sound checkpoint if there is one. The provenance of
    the weights stands in `provenance.json` before the first step.

    Ctrl-C, or a notebook's stop, lets the step at hand end and keeps what there is: the run comes
    back unfinished, and training it again continues it.

    Raises CorpusError for a corpus shorter than a window, ConfigError as `begin` does, and
    UserError when one of several processes ends early. A loss or gradient that is not finite ends
    training: see `diverged_at`.
    """
    config, provenance = arm.config, begin(study, arm, seed, corpus)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".training.lock"):  # the kernel of a killed job may live on a moment
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
    """The moving parts of one run, and when it is trained what it left: a model, and how it came
    about. All that a checkpoint must hold is an attribute here.

    Several processes may train the run together (Li et al. 2020, arXiv 2006.15704). They stay equal
    to the bit: all draw the same batches, each takes its rows of them, and all apply the same mean
    gradient. The first of them writes.
    """

    def __init__(
        self, config: RunConfig, corpus: Corpus, provenance: Provenance, folder: Path
    ) -> None:
        block_size = config.model.block_size
        corpus.require_length(block_size)
        self.config, self.corpus, self.provenance = config, corpus, provenance
        training, seed = config.training, provenance.seed
        self.machine = machine.prepare(config)
        self.device = self.machine.device  # of several GPUs, each process has made one its own
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.processes = dist.get_world_size() if dist.is_initialized() else 1
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
        self.optimizers = make_optimizers(self.model, training)
        self.optimizer = self.optimizers[-1]
        """AdamW, which has all parameters or, beside Muon, all but the matrices in blocks."""
        self.scaler = torch.amp.GradScaler(self.device, enabled=training.precision == "fp16")
        self.batch_stream = random_stream(seed, "batches")
        self.dev = evenly_spaced_windows(corpus.dev, config.evaluation.dev_windows, block_size)

        self.step = 0
        self.batches = ""
        """SHA-256 chained over all batches drawn: equal across arms of a seed."""
        self.diverged_at: int | None = None
        """Step whose loss or gradient was not finite, or after the last step the dev loss."""
        self.resumed_at: list[int] = []
        """Steps at which a run that was stopped was taken up again."""
        self.interrupted = False
        self.rows: list[Row] = []
        self.points: list[Row] = []
        self.stretches: list[dict[str, Any]] = []
        """Which steps were made on which machine, in order, as `lib.results.Stretch` says; one for
        a run that stayed on one."""
        self.peak_memory = 0
        """Bytes, of the process that needed them; see `lib.train.machine.peak_memory`."""
        self.unread: list[tuple[Row, str, Tensor]] = []
        """Of the steps since the host last looked: what it knows, batches, and what is on the
        device."""
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
        """Train from where the run stands to its end, or to an interrupt."""
        if not self.points:
            self.evaluate()
        stop = False
        interval, last = self.config.evaluation.interval, self.config.training.iterations
        while not (self.finished or stop):
            evaluates = (self.step + 1) % interval == 0 or self.step + 1 == last
            embeddings = self.model.transformer.wte.weight
            before = embeddings.detach().clone() if evaluates else embeddings
            self.training_step()
            stop = self.interrupted
            saves = self.step % self.config.machine.checkpoint_interval == 0
            looks = evaluates or saves or stop or len(self.unread) == READ_EVERY
            if not (self.finished or looks):
                continue
            rows, point = self.read_notes(), None  # which may find that it diverged
            if self.finished or evaluates:
                point = self.evaluate()
            if point and evaluates:
                point |= embedding_updates(before, embeddings)
            if self.finished and not math.isfinite(self.points[-1]["dev_loss"]):
                self.diverged_at = self.step  # the last update, which no loss came after
            if self.finished or saves or stop:
                self.save()
            for row in rows:
                report(row, point if row is rows[-1] else None)

    def interrupt(self, *_: object) -> None:
        """Have training end with the step at hand; a second interrupt ends it at once."""
        self.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def training_step(self) -> None:
        """Make one update: set the rate, draw a batch, and have the device do the rest. Nothing
        here waits for the device, unless Muon does."""
        started, training, model = time.perf_counter(), self.config.training, self.config.model
        rate = get_lr(training, self.step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                own = rate * group["ratio"]
                on_device = isinstance(group["lr"], Tensor)
                group["lr"] = group["lr"].fill_(own) if on_device else own
        x, y = self.next_batch()  # (b, T) each: the rows of this process
        if model.dropout:  # the same in every arm, and after a resumption
            purpose = f"dropout/{self.step}/{self.rank}"
            torch.manual_seed(machine.derive_seed(self.provenance.seed, purpose))
            self.model.train()
        notes = self.update_on_device(x, y)
        self.step += 1
        row = {"step": self.step, "learning_rate": rate}
        row["tokens"] = self.step * training.batch_size * model.block_size
        row["seconds"] = time.perf_counter() - started
        self.unread.append((row, self.batches, notes))

    def update(self, x: Tensor, y: Tensor) -> Tensor:
        """Do what a step does on the device with inputs and targets (b, T): forward, backward,
        clip, update. Return what a row of the trace needs, (6,).

        A CUDA graph captures this as it is, so nothing here depends on what the device found. An
        update that is not finite is skipped, and so is every one after it, until the host reads the
        notes.
        """
        training, size = self.config.training, self.machine.micro_batch_size

        # Forward and backward, a micro-batch at a time: gradients add up to the batch's.
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for start in range(0, len(x), size):
            with machine.autocast(training.precision, self.device):
                logits = self.forward(x[start : start + size])  # (b, T, V)
                targets = y[start : start + size].flatten()
                part = F.cross_entropy(logits.flatten(0, 1).float(), targets) * (size / len(x))
            self.scaler.scale(part).backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if self.processes > 1:  # all go on with the means
            for shared in (loss, *gradients):
                dist.all_reduce(shared)
                shared /= self.processes
        self.model.eval()

        # Clip, after the norm is noted.
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = get_total_norm(gradients)
        if training.gradient_clip is not None:
            clip_grads_with_norm_(self.model.parameters(), training.gradient_clip, norm)

        # Update, unless something is not finite.
        skipped = diverged = ~(loss + norm < torch.inf)  # NaN is not below it either
        if self.scaler.is_enabled():  # fp16 may overflow, and then lowers its scale
            self.overflows = (self.overflows + 1) * skipped
            diverged = ~loss.isfinite() | (self.overflows >= OVERFLOWS)
        self.stopped |= diverged
        found_inf = (self.stopped | skipped).to(torch.float32)
        for optimizer in self.optimizers:
            optimizer.found_inf = found_inf
            optimizer.step()  # which leaves everything as it is where that is 1
        if self.scaler.is_enabled():
            self.scaler.update()
        self.model.zero_grad()

        # Note what a row of the trace needs.
        moments = [state["exp_avg_sq"] for state in self.optimizer.state.values()]
        total = torch.stack(torch._foreach_norm(moments, 1)).sum()
        largest = torch.stack(torch._foreach_max(moments)).max()
        notes = [loss, norm, total, largest, skipped, diverged]
        return torch.stack([note.double() for note in notes])

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Draw inputs and targets, both (B, T), and return the rows of them that this process
        trains on."""
        size, block_size = self.config.training.batch_size, self.config.model.block_size
        x, y = sample_batch(self.corpus.train, size, block_size, self.batch_stream)
        self.batches = chained_hash(self.batches, x)
        x, y = (part.chunk(self.processes)[self.rank] for part in (x, y))
        if self.device == "cuda":  # from pinned memory a copy waits for nothing
            x, y = x.pin_memory(), y.pin_memory()
        return x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)

    def read_notes(self) -> list[Row]:
        """Copy the notes from the device into rows of the trace, up to a step that diverged, which
        is then where the run stands; return these rows. This waits for the device."""
        started = time.perf_counter()
        notes = torch.stack([note for *_, note in self.unread]).tolist()
        self.unread[-1][0]["seconds"] += time.perf_counter() - started
        size = sum(parameter.numel() for parameter in self.optimizer.state)
        read = len(self.rows)
        for (row, batches, _), note in zip(self.unread, notes, strict=True):
            loss, norm, total, largest, skipped, diverged = note
            row |= {"loss": loss, "grad_norm": norm}
            row |= {"second_moment_mean": total / size, "second_moment_max": largest}
            if self.scaler.is_enabled():
                row["skipped"] = bool(skipped and not diverged)
                row["grad_norm"] = math.nan if row["skipped"] else norm
            self.rows.append(row)
            if diverged:
                self.diverged_at, self.step, self.batches = row["step"], row["step"], batches
                break
        self.unread.clear()
        return self.rows[read:]

    def evaluate(self) -> Row:
        """Add a point to the dev curve, and return it."""
        start = time.perf_counter()
        point: Row = {"step": self.step}
        point |= snapshot(self.model, self.dev) | second_moments(self.model, self.optimizer)
        # A quarter of the windows each: enough for a direction, and half a training step's work.
        one, other = self.dev[::4], self.dev[2::4]
        if len(other):
            size = self.machine.micro_batch_size
            point["gradient_cosine"] = gradient_cosine(self.model, one, other, size)
        point["seconds"] = time.perf_counter() - start
        self.points.append(point)
        return point

    KEPT = (
        *("step", "batches", "diverged_at", "resumed_at", "peak_memory", "overflows"),
        *("rows", "points", "stretches"),
    )
    """What a checkpoint holds as it is."""

    def save(self) -> None:
        """Write a checkpoint, in the first process."""
        if self.rank:
            return
        self.peak_memory = max(self.peak_memory, machine.peak_memory(self.device))
        self.stretches[-1]["end"] = self.step
        state = {name: getattr(self, name) for name in self.KEPT}
        state["model"] = self.model.state_dict()
        state["scaler"] = self.scaler.state_dict()
        state["optimizers"] = [optimizer.state_dict()["state"] for optimizer in self.optimizers]
        state["batch_stream"] = self.batch_stream.get_state()
        state["provenance"] = self.provenance.model_dump(mode="json")
        checkpoint.save(self.checkpoints, state)

    def load(self) -> None:
        """Take up the last sound checkpoint, if there is one."""
        state = checkpoint.load(self.checkpoints)
        if state is not None:
            self.provenance = Provenance.model_validate(state["provenance"])
            for name in self.KEPT:
                setattr(self, name, state[name])
            self.model.load_state_dict(state["model"])
            self.scaler.load_state_dict(state["scaler"])
            for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(optimizer.state_dict() | {"state": kept})
            self.overflows = self.overflows.to(self.device)
            self.batch_stream.set_state(state["batch_stream"])
        if self.device == "cuda":  # where the step, and a graph of it, read the rate
            for group in self.optimizer.param_groups:
                group["lr"] = torch.zeros((), device=self.device)
        if not self.finished:
            self.resumed_at += [self.step] if self.step else []
            facts = machine.describe(self.machine).model_dump()
            here = {"machine": facts, "packages": machine.package_versions()}
            last = self.stretches[-1] if self.stretches else {}
            if last | here != last:
                self.stretches.append({"start": self.step, "end": self.step, **here})


def chained_hash(before: str, x: Tensor) -> str:
    """Chain the SHA-256 of a batch's inputs (B, T) to that of the batches before it."""
    return hashlib.sha256(before.encode() + x.numpy().tobytes()).hexdigest()


def initial_hashes(config: RunConfig, corpus: Corpus, seed: int, steps: int) -> tuple[str, str]:
    """Return the hashes `initial_weights` and `batches` of a run of `steps` steps, without training
    it. What arms of a seed share is computed once."""
    # The layer under study draws no weights, and is not in their hash.
    model = config.model.model_copy(update={"embedding_norm": "none"})
    size = config.training.batch_size, config.model.block_size
    key = corpus.sha256, corpus.tokenizer.sha256, len(corpus.train), seed, *size
    stream, hashes = _drawn.setdefault(key, (random_stream(seed, "batches"), [""]))
    while len(hashes) <= steps:
        hashes.append(chained_hash(hashes[-1], sample_batch(corpus.train, *size, stream)[0]))
    return _initial_weights(model, corpus.vocab_size, seed), hashes[steps]


_drawn: dict[Any, Any] = {}
"""Batches drawn so far, and the chained hash after each."""


@lru_cache
def _initial_weights(model: ModelConfig, vocab_size: int, seed: int) -> str:
    return weights_digest(GPT(model, vocab_size, random_stream(seed, "weights")))


def main(folder: Path, config: RunConfig) -> None:
    """Train a run that `train` began, in this process of several. The first of them writes."""
    rank, on_gpus = int(os.environ["LOCAL_RANK"]), config.machine.device == "cuda"
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
