"""Export a run's model to a folder that `transformers` loads as a GPT-2, without our code.

GPT-2 has no layer between the embeddings and block 1. If our layer is linear, we apply it to the
embeddings themselves. A tied output projection must not change with them, so it is saved as
separate weights. `branch_multiplier` is multiplied into the last linear layer of each branch.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor

from lib.config.errors import ConfigError, UserError
from lib.config.files import atomic_write, write_json
from lib.config.schema import ModelConfig
from lib.train.checkpoint import read_finished
from lib.train.model import GPT

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

_FIXED = (
    "positions",
    "norm",
    "qk_norm",
    "activation",
    "bias",
    "logit_softcap",
    "embedding_roll",
    "backout",
)
"""Fields of `ModelConfig` that must have their default, because GPT-2 allows no other value."""
_LINEAR = ("none", "center", "scale", "grad_shrink")
"""Values of `embedding_norm` that can be applied to the embeddings."""


def export(name: str, folder: Path) -> None:
    """Write the model of a run, named STUDY/ARM/SEED, to a new folder.

    Raises ConfigError if the name is wrong or the folder exists. Raises UserError if the model is
    not a GPT-2, or if the run diverged or has no weights.
    """
    parts = name.split("/")
    if len(parts) != 3 or not parts[2].isdecimal():
        raise ConfigError(f"run: '{name}' names none; write STUDY/ARM/SEED, such as final/none/0")
    if folder.exists():
        raise ConfigError(f"--to: {folder} exists, and nothing is replaced; name another folder")
    result, corpus, model = read_finished(parts[0], parts[1], int(parts[2]))
    if result.diverged_at is not None:
        fault = f"run: {name} diverged at step {result.diverged_at}"
        raise UserError(f"{fault}; export a run that completed")
    from transformers import PreTrainedTokenizerFast  # imported here because it takes seconds

    peer = as_gpt2(model, corpus.tokenizer.end_of_document)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Backend.from_str(corpus.tokenizer.to_json()),
        model_max_length=model.config.block_size,
        clean_up_tokenization_spaces=False,
        bos_token=corpus.tokenizer.end_name,
        eos_token=corpus.tokenizer.end_name,
    )
    with atomic_write(folder) as temporary:
        peer.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        write_json(temporary / "result.json", result.model_dump(mode="json"))


def as_gpt2(model: GPT, end: int | None = None) -> "GPT2LMHeadModel":
    """Return a model as a GPT-2 of `transformers`. `end` is the id that ends a document.

    Raises UserError if the model is not a GPT-2; the message names the fields that differ.
    """
    config = model.config
    differing = [name for name in _FIXED if getattr(config, name) != getattr(ModelConfig(), name)]
    if differing:
        fault = f"model: differs from GPT-2 in {', '.join(differing)}"
        raise UserError(f"{fault}; only a GPT-2 can be exported")
    if config.embedding_norm not in _LINEAR:
        raise UserError(
            f"model.embedding_norm: GPT-2 has no {config.embedding_norm} before block 1, and none "
            f"of its weights can act like one; export a run with {', '.join(_LINEAR)}"
        )
    from transformers import GPT2Config, GPT2LMHeadModel

    peer = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=model.transformer.wte.num_embeddings,
            n_positions=config.block_size,
            n_embd=config.n_embd,
            n_layer=config.n_layer,
            n_head=config.n_head,
            n_inner=config.mlp_ratio * config.n_embd,
            activation_function="gelu",
            layer_norm_epsilon=1e-5 * config.branch_multiplier**2,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            bos_token_id=end,
            eos_token_id=end,
            tie_word_embeddings=config.tied and config.embedding_norm not in ("center", "scale"),
        )
    )
    peer.load_state_dict(named_weights(model))
    return peer


@torch.no_grad()
def named_weights(model: GPT) -> dict[str, Tensor]:
    """Return the weights of a model for a GPT-2 (see the top of this file). Our names of weights
    are also Hugging Face's, so no name changes."""
    config = model.config
    weights = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            tensor = tensor.t()  # Hugging Face's Conv1D is transposed
        factor = config.branch_multiplier if ".c_proj." in name else 1.0
        weights[name] = tensor.mul(factor).contiguous()
    # Do this before the embeddings change: a tied head keeps the unchanged ones.
    weights.setdefault("lm_head.weight", weights["transformer.wte.weight"])
    if config.embedding_norm in ("center", "scale"):
        for layer in ["wte", "wpe"] if config.embedding_norm_on == "sum" else ["wte"]:
            name = f"transformer.{layer}.weight"
            weights[name] = model.transformer.emb_norm(weights[name])
    return weights
