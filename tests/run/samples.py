"""A small model, the plainest way to ask it for a log-likelihood, and runs of no study."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lib.data.corpus import Corpus
from lib.run import training
from lib.run.machine import random_stream
from lib.run.model import GPT
from lib.run.origin import begin
from lib.run.trained import Trained
from lib.study.config import Study
from lib.study.fields import ModelConfig, RunConfig
from lib.study.provenance import Provenance

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel


def begun(config: RunConfig, corpus: Corpus, seed: int = 0) -> Provenance:
    """The provenance of a run that stands alone, asks no suite and is under no plan."""
    study = Study.model_validate(config.model_dump() | {"name": "alone", "seeds": [seed]})
    return begin(study, study.arm("baseline"), seed, corpus, suite_hash=None)


def train(
    config: RunConfig,
    corpus: Corpus,
    seed: int,
    folder: Path,
    report: training.Report = lambda *_: None,
) -> Trained:
    """Train a run that stands alone."""
    return training.train(config, corpus, begun(config, corpus, seed), folder, report)


def make_model(corpus: Corpus, **fields: object) -> GPT:
    """A small model with opinions: its weights are far larger than at initialisation."""
    settings = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 128, "embedding_std": 1.0}
    model = GPT(
        ModelConfig.model_validate(settings | fields), corpus.vocab_size, random_stream(0, "w")
    )
    with torch.no_grad():
        for parameter in model.transformer.h.parameters():
            if parameter.ndim == 2:
                parameter.mul_(10)
    return model


@torch.no_grad()
def direct(model: GPT, corpus: Corpus, context: str, continuation: str) -> tuple[float, bool]:
    """The summed log-probability, and whether it is greedy, from one plain forward pass."""
    ids = corpus.encode(context + continuation)
    log = model(ids[None, :-1])[0].double().log_softmax(dim=-1)[len(context) - 1 :]
    targets = ids[len(context) :]
    chosen = log[torch.arange(len(targets)), targets]
    return float(chosen.sum()), bool((log.argmax(dim=-1) == targets).all())


def hugging_face(
    n_layer: int, n_head: int, n_embd: int, block_size: int, vocab_size: int = 65
) -> "GPT2LMHeadModel":
    """The peer: Hugging Face's GPT-2, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel  # seconds, which few tests need to wait

    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=block_size,
        n_embd=n_embd,
        n_layer=n_layer,
        n_head=n_head,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def hugging_face_layout(state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Convert a state dict from our layout to Hugging Face GPT-2's, or back.

    Hugging Face keeps the four linear weights of a block transposed (`Conv1D`) and also lists the
    shared output projection, which is left out here.
    """
    linear = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    for name, tensor in state.items():
        if name != "lm_head.weight":
            yield name, tensor.t().contiguous() if name.endswith(linear) else tensor
