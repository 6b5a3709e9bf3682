"""A small model, a direct way to compute its log-likelihoods, and runs that belong to no study."""

import json
from contextlib import contextmanager, suppress

import pandas as pd
import pytest
import torch
import yaml

from lib.config.paths import run_folder
from lib.config.schema import ModelConfig
from lib.config.study import Study, load_study
from lib.data.text import load_corpus
from lib.results import write_result
from lib.train import trainer as training
from lib.train.evaluate import facts_of, measure
from lib.train.hugging_face import as_gpt2
from lib.train.machine import random_stream
from lib.train.model import GPT, RMS_EPS, ROTARY_BASE, weights_digest
from lib.train.trainer import Trainer
from tests.conftest import TINY, beginning

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


def alone(config, seed):
    """Return the study of a run that belongs to no study, without suite and plan."""
    return Study.model_validate(config.model_dump() | {"name": "alone", "seeds": [seed]})


def begun(config, corpus, seed=0):
    """Return the provenance of a run that belongs to no study."""
    study = alone(config, seed)
    return training.new_provenance(study, study.arm("baseline"), seed, corpus)


def train(config, corpus, seed, folder, report=lambda *_: None):
    """Train a run that belongs to no study."""
    study = alone(config, seed)
    return training.train(study, study.arm("baseline"), seed, corpus, folder, report)


class KilledError(Exception):
    pass


@contextmanager
def killed_at(step):
    """End training after `step`, before it writes anything, as a kill would."""
    training_step = Trainer.training_step

    def then_killed(run):
        training_step(run)
        if run.step == step:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch, suppress(KilledError):
        patch.setattr(Trainer, "training_step", then_killed)
        yield
        pytest.fail(f"training ended before step {step}")


def assert_same(trained, other):
    """Check that two runs are equal to the bit: weights, trace, curve and batches."""
    assert weights_digest(trained.model, all_weights=True) == weights_digest(
        other.model, all_weights=True
    )
    for name in ("trace", "curve"):
        one, two = (getattr(run, name).drop(columns="seconds") for run in (trained, other))
        pd.testing.assert_frame_equal(one, two, check_exact=True)
    assert trained.batches == other.batches


@contextmanager
def finished_study(folder, **content):
    """Train a small study in its own folder, and measure it without the suite on a little text."""
    without = {"evaluation": {"interval": 4, "dev_windows": 4, "items_per_task": 0}}
    fields = TINY | {"name": "small", "seeds": [0]} | without | content
    (folder / "params").mkdir()
    (folder / "params" / "small.yaml").write_text(yaml.safe_dump(fields), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for module in ("config.study", "config.claim"):
            patch.setattr(f"lib.{module}.PARAMS", folder / "params")
        patch.setattr("lib.config.paths.RUNS", folder / "runs")
        patch.setattr("lib.data.cache.output_root", lambda: folder)
        study = load_study("small")
        for arm in study.arms():
            corpus = load_corpus(arm.config.corpus)
            if not study.evaluation.items_per_task:  # a suite needs more text
                corpus = beginning(corpus)
            for seed in study.seeds:
                run = run_folder(study.name, arm.id, seed)
                trained = training.train(study, arm, seed, corpus, run, lambda *_: None)
                measured = measure(trained)
                facts = facts_of(arm, trained, measured)
                write_result(study, arm, seed, measured.raw, facts)
        yield study


OWN_TASK = """\
task: own
dataset_path: json
dataset_kwargs: {data_files: {test: items.jsonl}}
output_type: multiple_choice
test_split: test
doc_to_text: question
doc_to_choice: choices
doc_to_target: 0
metric_list: [{metric: acc, aggregation: %s, higher_is_better: true}]
"""


def own_task(top, folder, items, aggregation):
    """Write a user's task with these questions and choices (the first is right), and index only
    this task; the harness's own take seconds."""
    from lm_eval.tasks import TaskManager  # seconds

    (top / folder).mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"question": text, "choices": of}) for text, of in items.items()]
    (top / folder / "items.jsonl").write_text("\n".join(lines), "utf-8")
    (top / folder / "own.yaml").write_text(OWN_TASK % aggregation, "utf-8")
    return TaskManager(include_path=str(top), include_defaults=False)


def gpt(vocab_size=65, **fields):
    """Return a model with its initial weights."""
    return GPT(ModelConfig.model_validate(fields), vocab_size, random_stream(0, "weights"))


def make_model(corpus, **fields):
    """Return a small model with clear preferences: its weights are far larger than at
    initialisation."""
    settings = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 128, "embedding_std": 1.0}
    model = gpt(corpus.vocab_size, **settings | fields)
    with torch.no_grad():
        for parameter in model.transformer.h.parameters():
            if parameter.ndim == 2:
                parameter.mul_(10)
    return model


@torch.no_grad()
def direct(model, corpus, context, continuation):
    """Return the summed log-probability, and whether it is greedy, from one plain forward pass."""
    ids = corpus.encode(context + continuation)
    log = model(ids[None, :-1])[0].double().log_softmax(dim=-1)[len(context) - 1 :]
    targets = ids[len(context) :]
    chosen = log[torch.arange(len(targets)), targets]
    return float(chosen.sum()), bool((log.argmax(dim=-1) == targets).all())


def as_loaded(model, folder, end=None):
    """Return Hugging Face's GPT-2 with our weights, loaded from a folder."""
    from transformers import AutoModelForCausalLM  # seconds, which few tests need to wait

    as_gpt2(model, end).save_pretrained(folder)
    peer, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return peer.eval()


def nanochat(model):
    """Return Hugging Face's nanochat with our weights."""
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
