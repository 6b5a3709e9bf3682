"""A run's model as a folder that `transformers` loads as a GPT-2, without code of ours.

GPT-2 has no layer between the embeddings and block 1. What is linear there is put into the
embeddings; the output projection, which must stay as it is, then has weights of its own. The
multiplier of attention and MLP goes into their last linear layers.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from lib.results import history
from lib.run.checkpoint import FinishedRun, UnfinishedError, read_finished
from lib.run.model import GPT
from lib.study.io import atomic_write, write_json
from lib.study.schema import ModelConfig
from lib.study.yaml import ConfigError, UserError

_GPT2 = {
    "positions": "learned",
    "norm": "layernorm",
    "qk_norm": False,
    "activation": "gelu",
    "bias": True,
    "logit_softcap": None,
}
"""What a model must be to be a GPT-2."""
_LINEAR = ("none", "center", "scale", "grad_shrink")


class InexpressibleError(UserError):
    """A model that is no GPT-2; the message says why."""


def export(name: str, folder: Path) -> None:
    """Write the model of a run, named as STUDY/ARM/SEED, to a folder that does not exist yet.

    Raises ConfigError for a name or a folder that will not do, InexpressibleError for a model that
    is no GPT-2, and UnfinishedError for a run that diverged or has no weights.
    """
    study, arm, seed = [*name.split("/"), "", ""][:3]
    if not seed.isdecimal() or name.count("/") != 2:
        raise ConfigError(f"run: '{name}' names none; give STUDY/ARM/SEED, as final/none/0")
    if folder.exists():
        raise ConfigError(f"--to: {folder} exists, and nothing is replaced; name another")
    run = read_finished(study, arm, int(seed))
    if run.result.diverged_at is not None:
        raise UnfinishedError(f"{name} diverged at step {run.result.diverged_at}: no model")
    tokenizer = run.corpus.tokenizer
    config = config_json(run.model.config, run.corpus.vocab_size, tokenizer.end_of_document)
    about_tokens = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.model.config.block_size,
        "clean_up_tokenization_spaces": False,
    }
    if end := tokenizer.end_name:
        about_tokens |= {"bos_token": end, "eos_token": end}
    with atomic_write(folder) as temporary:
        temporary.mkdir()
        write_json(temporary / "config.json", config)
        save_file(named_weights(run.model), temporary / "model.safetensors", {"format": "pt"})
        (temporary / "tokenizer.json").write_text(tokenizer.to_json() + "\n", "utf-8")
        write_json(temporary / "tokenizer_config.json", about_tokens)
        (temporary / "README.md").write_text(model_card(name, run), "utf-8")


def config_json(config: ModelConfig, vocab_size: int, end: int | None) -> dict[str, Any]:
    """Write a model's `config.json`; `end` is the id that ends a document.

    Raises InexpressibleError for a model that is no GPT-2, with what it would have to be.
    """
    differing = [field for field, value in _GPT2.items() if getattr(config, field) != value]
    if differing:
        raise InexpressibleError(
            f"GPT-2 has another {', another '.join(differing)}; no other model of Hugging Face's "
            "is written"
        )
    if config.embedding_norm not in _LINEAR:
        raise InexpressibleError(
            f"GPT-2 has no {config.embedding_norm} between the embeddings and block 1, and no "
            f"weights of it act like one; only {', '.join(_LINEAR)} can be exported"
        )
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "torch_dtype": "float32",
        "vocab_size": vocab_size,
        "bos_token_id": end,
        "eos_token_id": end,
        "n_positions": config.block_size,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": config.mlp_ratio * config.n_embd,
        "activation_function": "gelu",
        "layer_norm_epsilon": 1e-5 * config.branch_multiplier**2,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": config.tied and not _changes_embeddings(config),
    }


def _changes_embeddings(config: ModelConfig) -> bool:
    return config.embedding_norm in ("center", "scale")


@torch.no_grad()
def named_weights(model: GPT) -> dict[str, Tensor]:
    """Return the weights of a model that is a GPT-2, by the names that Hugging Face gives them."""
    config, weights = model.config, {}
    for name, tensor in model.state_dict().items():  # linear layers in blocks are transposed
        linear = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        factor = config.branch_multiplier if ".c_proj." in name else 1.0
        weights[name] = (tensor.t() if linear else tensor).mul(factor).contiguous()
    if _changes_embeddings(config):
        weights.setdefault("lm_head.weight", weights["transformer.wte.weight"])
        read = ["wte", "wpe"] if config.embedding_norm_on == "sum" else ["wte"]
        for name in (f"transformer.{layer}.weight" for layer in read):
            weights[name] = model.transformer.emb_norm(weights[name])
    return weights


def model_card(name: str, run: FinishedRun) -> str:
    """Say what the model is, how to load it, what was measured of it and where it comes from."""
    result = run.result
    measures = "".join(f"| {key} | {value} |\n" for key, value in result.measures.items())
    return f"""---
library_name: transformers
pipeline_tag: text-generation
license: mit
---
# {name}

A small Pre-LN GPT of a study of embedding normalization: variant `{result.variant}`,
{result.parameters:,} parameters, trained on {result.tokens:,} {run.corpus.unit} of
{run.corpus.name}; {history(result.provenance)}.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("this/folder")
tokenizer = AutoTokenizer.from_pretrained("this/folder")
```

| measure | value |
|---|---|
{measures}
- corpus: SHA-256 {result.corpus_sha256}
- weights: SHA-256 {result.final_weights}, by `weights_digest`
- model: `{result.config["model"]}`
- training: `{result.config["training"]}`
"""
