"""A small model, the plainest way to ask it for a log-likelihood, and runs of no study."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest
import torch
import yaml
from torch import Tensor

from lib.config.io import run_folder
from lib.config.schema import ModelConfig, RunConfig
from lib.config.study import Study, load_study
from lib.data.text import Corpus, load_corpus
from lib.results import Provenance
from lib.train import trainer as training
from lib.train.evaluate import measure, write_result
from lib.train.machine import random_stream
from lib.train.model import GPT, RMS_EPS, ROTARY_BASE, weights_digest
from lib.train.trainer import Trainer
from tests.conftest import TINY, beginning

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel, NanoChatForCausalLM

NANOCHAT = {
    "embedding_norm": "rmsnorm",
    "embedding_norm_on": "token",
    "positions": "rotary",
    "norm": "rmsnorm",
    "qk_norm": True,
    "activation": "relu2",
    "bias": False,
    "tied": False,
    "logit_softcap": 15.0,
}


def begun(config: RunConfig, corpus: Corpus, seed: int = 0) -> Provenance:
    """The provenance of a run that stands alone, asks no suite and is under no plan."""
    study = Study.model_validate(config.model_dump() | {"name": "alone", "seeds": [seed]})
    return training.begin(study, study.arm("baseline"), seed, corpus)


def train(
    config: RunConfig,
    corpus: Corpus,
    seed: int,
    folder: Path,
    report: training.Report = lambda *_: None,
) -> Trainer:
    """Train a run that stands alone."""
    return training.train(config, corpus, begun(config, corpus, seed), folder, report)


class KilledError(Exception):
    pass


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """End training after `step`, before anything of it is kept, as a kill would."""
    training_step = Trainer.training_step

    def then_killed(run: Trainer) -> None:
        training_step(run)
        if run.step == step:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch, suppress(KilledError):
        patch.setattr(Trainer, "training_step", then_killed)
        yield
        pytest.fail(f"training ended before step {step}")


def assert_same(trained: Trainer, other: Trainer) -> None:
    """Two runs took the same path, to the bit: weights, trace, curve and batches."""
    assert weights_digest(trained.model) == weights_digest(other.model)
    for name in ("trace", "curve"):
        one, two = (getattr(run, name).drop(columns="seconds") for run in (trained, other))
        pd.testing.assert_frame_equal(one, two, check_exact=True)
    assert trained.batches == other.batches


@contextmanager
def finished_study(folder: Path, **content: object) -> Iterator[Study]:
    """A small study in a folder of its own, trained, and measured without the suite on little
    text."""
    without = {"evaluation": {"interval": 4, "dev_windows": 4, "items_per_task": 0}}
    fields = TINY | {"name": "small", "seeds": [0]} | without | content
    (folder / "params").mkdir()
    (folder / "params" / "small.yaml").write_text(yaml.safe_dump(fields), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for module in ("config.study", "config.preregistration"):
            patch.setattr(f"lib.{module}.PARAMS", folder / "params")
        patch.setattr("lib.config.io.RUNS", folder / "runs")
        patch.setattr("lib.data.tokens.output_root", lambda: folder)
        study = load_study("small")
        for arm in study.arms():
            corpus = load_corpus(arm.config.corpus)
            if not study.evaluation.items_per_task:  # a suite needs more text
                corpus = beginning(corpus)
            for seed in study.seeds:
                run = run_folder(study.name, arm.id, seed)
                provenance = training.begin(study, arm, seed, corpus)
                trained = training.train(arm.config, corpus, provenance, run)
                measured = measure(trained, folder / "suites")
                write_result(study, arm, trained, measured)
        yield study


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


def nanochat(model: GPT) -> "NanoChatForCausalLM":
    """The other peer: Hugging Face's nanochat, with our weights."""
    from transformers import NanoChatConfig, NanoChatForCausalLM

    config = model.config
    peer = NanoChatForCausalLM(
        NanoChatConfig(
            vocab_size=model.transformer.wte.num_embeddings,
            pad_token_id=None,
            hidden_size=config.n_embd,
            intermediate_size=config.mlp_ratio * config.n_embd,
            num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head,
            num_key_value_heads=config.n_head,
            max_position_embeddings=config.block_size,
            rms_norm_eps=RMS_EPS,
            rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
            final_logit_softcapping=config.logit_softcap,
            tie_word_embeddings=config.tied,
        )
    )
    names = {
        "transformer.wte": "model.embed_tokens",
        "transformer.h.": "model.layers.",
        "attn.c_proj": "self_attn.o_proj",
        "mlp.c_fc": "mlp.fc1",
        "mlp.c_proj": "mlp.fc2",
    }
    weights = {}
    for name, tensor in model.state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        if "attn.c_attn" in name:
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                weights[name.replace("attn.c_attn", f"self_attn.{part}_proj")] = rows
        else:
            weights[name] = tensor
    assert not peer.load_state_dict(weights, strict=config.tied is False).unexpected_keys
    return peer.eval()
