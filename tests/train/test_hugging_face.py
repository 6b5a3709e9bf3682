"""GPT-2 and nanochat in `transformers` give our logits and gradients, and load an exported run that
is a GPT-2."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from lib.config.errors import ConfigError, UserError
from lib.config.paths import run_folder
from lib.train.checkpoint import read_finished
from lib.train.evaluate import loss_by_position, score
from lib.train.hugging_face import as_gpt2, export
from lib.train.model import KVCache
from tests.conftest import TINY
from tests.train.samples import NANOCHAT, as_loaded, finished_study, make_model, nanochat


def varied(corpus, **fields):
    """Return a model whose biases are not 0, gains not 1, and output projection not initial."""
    model, generator = make_model(corpus, **fields), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or name == "lm_head.weight":
                parameter.normal_(std=0.5, generator=generator)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n_layer": 8, "n_head": 8, "n_embd": 128},
        {"tied": False},
        {"mlp_ratio": 3, "n_head": 4},
        {"branch_multiplier": 7.0},
        {"embedding_norm": "grad_shrink"},
        {"embedding_norm": "center"},
        {"embedding_norm": "scale", "embedding_rms": 3.0},
        {"embedding_norm": "scale", "tied": False},
        {"embedding_norm": "scale", "embedding_norm_on": "token"},
        {"dropout": 0.2},
    ],
    ids=str,
)
@torch.no_grad()
def test_logits_and_cache_are_those_of_the_gpt2_that_transformers_load(fields, corpus, tmp_path):
    model, ids = varied(corpus, **fields), corpus.heldout[: 2 * 128].view(2, 128)
    peer = as_loaded(model, tmp_path).double()
    ours, theirs = model.double()(ids), peer(ids).logits
    assert ours.std() > 0.1
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-6)
    cache, before = KVCache(), None
    for part in ids.split((40, 1, 87), dim=1):
        expected = peer(part, past_key_values=before, use_cache=True)
        before = expected.past_key_values
        torch.testing.assert_close(model(part, cache), expected.logits, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{}, {"tied": True, "logit_softcap": None}, {"n_head": 4, "mlp_ratio": 3}], ids=str
)
def test_nanochats_logits_gradients_and_cache_are_ours(fields, corpus):
    model = varied(corpus, **NANOCHAT | fields)
    theirs = nanochat(model)
    ids, targets = (corpus.heldout[k : k + 200].view(2, 100) for k in (0, 1))
    gradients = []
    for logits, peer in ((model(ids), model), (theirs(ids).logits, theirs)):
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        weights = dict(peer.named_parameters())
        (embedded,) = (n for n in weights if n.endswith(("wte.weight", "embed_tokens.weight")))
        (first,) = (n for n in weights if "0" in n and n.endswith(("c_fc.weight", "fc1.weight")))
        gradients.append((logits.detach(), *(weights[name].grad for name in (embedded, first))))
    for ours, other in zip(*gradients, strict=True):
        assert ours.abs().max() > 1e-3
        torch.testing.assert_close(other, ours, rtol=0, atol=1e-4)
    cache = KVCache()
    with torch.no_grad():
        parts = [model(ids[:, a:b], cache) for a, b in ((0, 40), (40, 41), (41, 100))]
    torch.testing.assert_close(torch.cat(parts, 1), gradients[1][0], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_scores_are_hugging_faces_losses_window_by_window(corpus, tmp_path):
    """Each text starts a new window; its last window may be shorter."""
    model = varied(corpus, block_size=16)
    peer = as_loaded(model, tmp_path)
    texts = [corpus.heldout[:88], corpus.heldout[500:507], corpus.heldout[900:949]]
    expected, whole = [], []
    for text in texts:
        for start in range(0, len(text) - 1, 16):
            window = text[start : start + 17]
            logits = peer(window[None, :-1]).logits[0]
            losses = F.cross_entropy(logits, window[1:], reduction="none").tolist()
            expected += losses
            whole += [losses] if len(losses) == 16 else []
    scores, _ = score(model, texts, 2)
    np.testing.assert_allclose(scores["nll"], expected, atol=1e-5)
    assert scores.groupby("text").size().tolist() == [87, 6, 48]
    positions = loss_by_position(scores, 16)["position_loss"]
    np.testing.assert_allclose(positions, np.mean(whole, axis=0), atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (NANOCHAT, "model: differs from GPT-2 in positions, norm, qk_norm, activation, bias"),
        ({"positions": "rotary"}, "from GPT-2 in positions; only a GPT-2"),
        ({"embedding_roll": 1, "backout": True}, "from GPT-2 in embedding_roll, backout;"),
        ({"embedding_norm": "layernorm"}, "GPT-2 has no layernorm before block 1"),
    ],
)
def test_export_refuses_a_model_that_is_no_gpt2(fields, reason, corpus):
    with pytest.raises(UserError, match=reason):
        as_gpt2(make_model(corpus, **fields))


@pytest.mark.slow
def test_an_exported_run_is_its_model_and_tokenizer(corpus, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with finished_study(tmp_path):
        export("small/baseline/0", tmp_path / "out")
        with pytest.raises(ConfigError, match="exists, and nothing is replaced"):
            export("small/baseline/0", tmp_path / "out")
        *_, model = read_finished("small", "baseline", 0)
        weights = load_file(tmp_path / "out" / "model.safetensors")
        assert weights["transformer.wte.weight"].equal(model.transformer.wte.weight)
        peer = AutoModelForCausalLM.from_pretrained(tmp_path / "out").train()
        text = corpus.decode(corpus.heldout[:16])
        ids = AutoTokenizer.from_pretrained(tmp_path / "out")(text, return_tensors="pt").input_ids
        assert ids.equal(corpus.encode(text)[None])
        torch.testing.assert_close(peer(ids).logits, model(ids), rtol=0, atol=1e-6)
        (checkpoint, *_) = run_folder("small", "baseline", 0).glob("checkpoints/*/*12-*.pt")
        checkpoint.unlink()
        with pytest.raises(UserError, match="no checkpoint with the weights of its result"):
            export("small/baseline/0", tmp_path / "again")


@pytest.mark.parametrize("name", ["small", "small/baseline", "small/baseline/x", "a/b/0/c"])
def test_a_run_is_named_by_study_arm_and_seed(name, tmp_path):
    with pytest.raises(ConfigError, match="write STUDY/ARM/SEED"):
        export(name, tmp_path / "out")


@pytest.mark.slow
def test_a_diverged_run_has_no_model(tmp_path):
    wild = TINY["training"] | {"learning_rate": 1e30}
    refusal = pytest.raises(UserError, match="diverged at step 2; export a run that")
    with finished_study(tmp_path, training=wild), refusal:
        export("small/baseline/0", tmp_path / "out")
