"""GPT-2 and nanochat as `transformers` builds them give our logits and gradients, for every model
that they can express."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lib.data.text import Corpus
from lib.run.hugging_face import InexpressibleError, config_json, named_weights
from lib.run.model import GPT, KVCache
from lib.study.io import write_json
from tests.run.samples import NANOCHAT, make_model


def as_loaded(model: GPT, vocab_size: int, folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    write_json(folder / "config.json", config_json(model.config, vocab_size, None))
    weights = named_weights(model)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    peer, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert peer.config.tie_word_embeddings == ("lm_head.weight" not in weights)
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
        {"embedding_norm": "scale", "embedding_norm_on": "token"},
        {"dropout": 0.2},
        NANOCHAT,
        NANOCHAT | {"tied": True, "logit_softcap": None},
        NANOCHAT | {"n_head": 4, "mlp_ratio": 3},
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


def test_nanochats_logits_gradients_and_cache_are_ours_to_the_fifth_digit(
    corpus: Corpus, tmp_path: Path
) -> None:
    model = make_model(corpus, **NANOCHAT)
    with torch.no_grad():
        model.lm_head.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    theirs = as_loaded(model, corpus.vocab_size, tmp_path)
    ids = corpus.heldout[: 2 * 100].view(2, 100)
    targets = corpus.heldout[1 : 2 * 100 + 1].view(2, 100)
    gradients = []
    for logits, peer in ((model(ids), model), (theirs(ids).logits, theirs)):
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        weights = dict(peer.named_parameters())
        (embedded,) = (n for n in weights if n.endswith(("wte.weight", "embed_tokens.weight")))
        (first,) = (n for n in weights if "0" in n and n.endswith(("c_fc.weight", "fc1.weight")))
        read = [weights[name].grad for name in ("lm_head.weight", embedded, first)]
        gradients.append((logits.detach(), *read))
    for ours, other in zip(*gradients, strict=True):
        assert ours is not None
        assert ours.abs().max() > 1e-3
        torch.testing.assert_close(other, ours, rtol=0, atol=1e-5)
    cache = KVCache()
    with torch.no_grad():
        parts = [model(ids[:, a:b], cache=cache) for a, b in ((0, 40), (40, 41), (41, 100))]
    torch.testing.assert_close(torch.cat(parts, 1), gradients[1][0], rtol=0, atol=1e-5)
    with torch.no_grad():  # at free positions, with a mask
        positions = torch.stack([torch.arange(100), torch.arange(100).flip(0)])
        mask = torch.rand(2, 1, 100, 100, generator=torch.Generator().manual_seed(0)) < 0.7
        mask |= torch.eye(100, dtype=torch.bool)
        mine = model(ids, positions, mask)
        other = theirs(ids, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"embedding_norm": "none"}, "nanochat another embedding_norm;"),
        ({"embedding_norm": "layernorm"}, "nanochat another embedding_norm;"),
        ({"qk_norm": False}, "nanochat another qk_norm;"),
        ({"positions": "learned"}, "nanochat another positions;"),
        ({"branch_multiplier": 2.0}, "nanochat another branch_multiplier;"),
    ],
)
def test_what_neither_model_expresses_is_refused_with_the_reason(
    fields: dict[str, object], reason: str, corpus: Corpus
) -> None:
    model = make_model(corpus, **NANOCHAT | fields)
    with pytest.raises(InexpressibleError, match=reason):
        named_weights(model)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm", "half"])
def test_a_normalization_that_is_not_known_to_be_expressible_is_refused_by_name(
    norm: str, corpus: Corpus
) -> None:
    config = make_model(corpus).config.model_copy(update={"embedding_norm": norm})
    with pytest.raises(InexpressibleError, match=f"GPT-2 has no {norm} between"):
        config_json(config, corpus.vocab_size, None)
