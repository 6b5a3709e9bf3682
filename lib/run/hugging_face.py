"""A GPT as one of Hugging Face's, where one of those can express it: GPT-2, or nanochat.

GPT-2 has no layer between the embeddings and block 1. What is linear there is put into the
embeddings; the output projection, which must stay as it is, then has weights of its own. The
multiplier of attention and MLP goes into their last linear layers. Nanochat has one RMSNorm
without parameters there, and no model without it.
"""

from typing import Any

import torch
from torch import Tensor

from lib.run.model import GPT, RMS_EPS, ROTARY_BASE
from lib.study.schema import ModelConfig
from lib.study.yaml import UserError

_LINEAR = ("none", "center", "scale", "grad_shrink")
_GPT2 = {
    "positions": "learned",
    "norm": "layernorm",
    "qk_norm": False,
    "activation": "gelu",
    "bias": True,
    "logit_softcap": None,
}
_NANOCHAT = {
    "embedding_norm": "rmsnorm",
    "embedding_rms": 1.0,
    "branch_multiplier": 1.0,
    "positions": "rotary",
    "norm": "rmsnorm",
    "qk_norm": True,
    "activation": "relu2",
    "bias": False,
}
"""What a model of ours must be to be one of theirs."""


class InexpressibleError(UserError):
    """A model that none of Hugging Face's expresses; the message says why."""


def architecture(config: ModelConfig) -> str:
    """Name the model of Hugging Face that a model is: gpt2 or nanochat. Raises InexpressibleError,
    with what it would have to be."""
    differing = {
        name: [field for field, value in required.items() if getattr(config, field) != value]
        for name, required in (("gpt2", _GPT2), ("nanochat", _NANOCHAT))
    }
    if not differing["gpt2"] and config.embedding_norm in _LINEAR:
        return "gpt2"
    if not differing["nanochat"]:
        return "nanochat"
    if not differing["gpt2"]:
        raise InexpressibleError(
            f"GPT-2 has no {config.embedding_norm} between the embeddings and block 1, and no "
            f"weights of it act like one; only {', '.join(_LINEAR)} can be exported"
        )
    raise InexpressibleError(
        f"GPT-2 has another {', another '.join(differing['gpt2'])}, and nanochat another "
        f"{', another '.join(differing['nanochat'])}; no other model of Hugging Face's is written"
    )


def config_json(config: ModelConfig, vocab_size: int, end: int | None) -> dict[str, Any]:
    """Write a model's `config.json`; `end` is the id that ends a document.

    Raises InexpressibleError for a model that none of Hugging Face's expresses.
    """
    shared: dict[str, Any] = {"vocab_size": vocab_size, "torch_dtype": "float32"}
    shared |= {"bos_token_id": end, "eos_token_id": end}
    if architecture(config) == "nanochat":
        return shared | {
            "architectures": ["NanoChatForCausalLM"],
            "model_type": "nanochat",
            "hidden_size": config.n_embd,
            "intermediate_size": config.mlp_ratio * config.n_embd,
            "num_hidden_layers": config.n_layer,
            "num_attention_heads": config.n_head,
            "num_key_value_heads": config.n_head,
            "max_position_embeddings": config.block_size,
            "rms_norm_eps": RMS_EPS,
            "rope_parameters": {"rope_type": "default", "rope_theta": ROTARY_BASE},
            "final_logit_softcapping": config.logit_softcap,
            "tie_word_embeddings": config.tied,
            "pad_token_id": None,
        }
    return shared | {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
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
    """Return a model's weights by the names that Hugging Face gives them.

    Raises InexpressibleError as `config_json` does.
    """
    state = model.state_dict()
    if architecture(model.config) == "nanochat":
        return dict(_nanochat_weights(state))
    config, weights = model.config, {}
    for name, tensor in state.items():  # GPT-2's linear layers in blocks are transposed
        linear = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        factor = config.branch_multiplier if ".c_proj." in name else 1.0
        weights[name] = (tensor.t() if linear else tensor).mul(factor).contiguous()
    if _changes_embeddings(config):
        weights.setdefault("lm_head.weight", weights["transformer.wte.weight"])
        read = ["wte", "wpe"] if config.embedding_norm_on == "sum" else ["wte"]
        for name in (f"transformer.{layer}.weight" for layer in read):
            weights[name] = model.transformer.emb_norm(weights[name])
    return weights


_NANOCHAT_NAMES = {
    "transformer.wte": "model.embed_tokens",
    "transformer.h.": "model.layers.",
    "attn.c_proj": "self_attn.o_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def _nanochat_weights(state: dict[str, Tensor]) -> Any:
    for name, tensor in state.items():
        for ours, theirs in _NANOCHAT_NAMES.items():
            name = name.replace(ours, theirs)
        if "attn.c_attn" in name:
            for part, weights in zip("qkv", tensor.chunk(3), strict=True):
                yield name.replace("attn.c_attn", f"self_attn.{part}_proj"), weights.contiguous()
        else:
            yield name, tensor.contiguous()
