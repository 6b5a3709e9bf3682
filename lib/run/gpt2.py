"""A GPT as Hugging Face's GPT-2, where that can express it.

GPT-2 has no layer between the embeddings and block 1. What is linear there is put into the
embeddings; the output projection, which must stay as it is, then has weights of its own. The
multiplier of attention and MLP goes into their last linear layers.
"""

from typing import Any

import torch
from torch import Tensor

from lib.run.model import GPT
from lib.study.errors import UserError
from lib.study.fields import ModelConfig

_EXPRESSIBLE = ("none", "center", "scale", "grad_shrink")


class InexpressibleError(UserError):
    """A model that GPT-2 cannot express; the message says why."""


def gpt2_config(config: ModelConfig, vocab_size: int, end: int | None) -> dict[str, Any]:
    """Write a model's `config.json`; `end` is the id that ends a document.

    Raises InexpressibleError for a normalization that no change of weights can replace.
    """
    if config.embedding_norm not in _EXPRESSIBLE:
        raise InexpressibleError(
            f"GPT-2 has no {config.embedding_norm} between the embeddings and block 1, and no "
            f"weights of it act like one; only {', '.join(_EXPRESSIBLE)} can be exported"
        )
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocab_size,
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
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": "float32",
    }


def _changes_embeddings(config: ModelConfig) -> bool:
    return config.embedding_norm in ("center", "scale")


@torch.no_grad()
def gpt2_weights(model: GPT) -> dict[str, Tensor]:
    """Return a model's weights by GPT-2's names, whose linear layers in blocks are transposed.

    The model must be one that `gpt2_config` accepts.
    """
    config = model.config
    weights = {}
    for name, tensor in model.state_dict().items():
        linear = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        factor = config.branch_multiplier if ".c_proj." in name else 1.0
        weights[name] = (tensor.t() if linear else tensor).mul(factor).contiguous()
    if _changes_embeddings(config):
        weights.setdefault("lm_head.weight", weights["transformer.wte.weight"])
        for name in ("transformer.wte.weight", "transformer.wpe.weight"):
            weights[name] = model.transformer.emb_norm(weights[name])
    return weights
