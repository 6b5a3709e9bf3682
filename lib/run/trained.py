"""What training leaves: a model, how it came about, and the hash of its weights."""

import hashlib
from dataclasses import dataclass

import pandas as pd

from lib.run.model import GPT
from lib.study.fields import Machine
from lib.study.provenance import Provenance, Stretch


@dataclass(frozen=True)
class Trained:
    """What training leaves: a model and the account of how it came about."""

    provenance: Provenance
    """Begun with the weights, perhaps by an earlier execution."""
    from_checkpoint: bool
    """Whether training was complete before this execution."""
    model: GPT
    machine: Machine
    trace: pd.DataFrame
    """One row per step: step (1 …), loss (nats, before that update), learning_rate, grad_norm (L2
    over all parameters, before clipping), tokens (so far), second_moment_mean and
    second_moment_max (AdamW's v over all parameters), seconds (of that step alone); with fp16 also
    skipped (whether the update overflowed, and then there is no grad_norm)."""
    curve: pd.DataFrame
    """One row per evaluation: step (0 = untrained), what `lib.run.diagnostics.snapshot` and
    `second_moments` say, gradient_cosine (between two fixed sets of dev windows), and seconds."""
    diverged_at: int | None
    """Step whose loss or gradient was not finite, or after the last step the dev loss; None when
    training completed."""
    resumed_at: list[int]
    """Steps at which a killed run was taken up again."""
    stretches: list[Stretch]
    """Which steps were made on which machine, in order; one for a run that stayed on one."""
    initial_weights: str
    """SHA-256 of the initial weights outside the embedding norm: equal across arms of a seed."""
    batches: str
    """SHA-256 chained over all batches drawn: equal across arms of a seed."""
    peak_memory: int
    """Bytes, of the process that needed them; see `lib.run.machine.peak_memory`."""


def weights_digest(model: GPT, whole: bool = False) -> str:
    """SHA-256 over names and bytes of all weights, without those of the embedding norm unless
    `whole`."""
    result = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if whole or not name.startswith("transformer.emb_norm"):
            result.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return result.hexdigest()
