"""GPT-2 as `transformers` builds it gives our logits, for every model that it can express."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lib.data.corpus import Corpus
from lib.run.gpt2 import InexpressibleError, gpt2_config, gpt2_weights
from lib.run.model import GPT
from lib.study.record import write_json
from tests.run.samples import make_model


def as_loaded(model: GPT, vocab_size: int, folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    write_json(folder / "config.json", gpt2_config(model.config, vocab_size, None))
    save_file(gpt2_weights(model), folder / "model.safetensors", {"format": "pt"})
    peer, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return peer.eval()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tied": False},
        {"mlp_ratio": 3, "n_head": 4},
        {"branch_multiplier": 7.0},
        {"embedding_norm": "grad_shrink"},
        {"embedding_norm": "center"},
        {"embedding_norm": "scale", "embedding_rms": 3.0},
        {"embedding_norm": "scale", "tied": False},
    ],
    ids=str,
)
@torch.no_grad()
def test_logits_are_those_of_the_model_that_transformers_load(
    fields: dict[str, object], corpus: Corpus, tmp_path: Path
) -> None:
    model = make_model(corpus, **fields)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():  # biases and gains would else be 0 and 1
        if parameter.ndim == 1 or name == "lm_head.weight":
            parameter.normal_(std=0.5, generator=generator)
    ids = corpus.heldout[: 2 * 128].view(2, 128)
    ours, theirs = model(ids), as_loaded(model, corpus.vocab_size, tmp_path)(ids).logits
    assert ours.std() > 0.1
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_a_normalization_is_refused_by_name(norm: str, corpus: Corpus) -> None:
    model = make_model(corpus, embedding_norm=norm)
    with pytest.raises(InexpressibleError, match=f"GPT-2 has no {norm} between"):
        gpt2_config(model.config, corpus.vocab_size, None)


def test_a_variant_that_is_not_known_to_be_expressible_is_refused(corpus: Corpus) -> None:
    own = make_model(corpus).config.model_copy(update={"embedding_norm": "half"})
    with pytest.raises(InexpressibleError, match="GPT-2 has no half between"):
        gpt2_config(own, corpus.vocab_size, None)
