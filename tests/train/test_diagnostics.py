import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lib.data.text import evenly_spaced_windows
from lib.train import diagnostics
from lib.train.diagnostics import gradient_cosine, mean_cosine, snapshot
from lib.train.evaluate import score
from lib.train.optim import optimizer_groups
from tests.train.samples import gpt

SMALL = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 16}


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [([[1, 2], [2, 4], [3, 6]], 1.0), ([[1, 0], [0, 1]], 0.0), ([[1, 0], [-5, 0]], -1.0)],
)
def test_mean_cosine_of_hand_made_cases(vectors, expected):
    cosine = mean_cosine(torch.tensor(vectors, dtype=torch.float32)).item()
    assert cosine == pytest.approx(expected)


def test_snapshot_agrees_with_its_parts(corpus):
    model = gpt(corpus.vocab_size, **SMALL, embedding_norm="layernorm")
    windows = evenly_spaced_windows(corpus.dev, corpus.ends["dev"], 4, 16)
    shot = snapshot(model, windows)
    with pytest.MonkeyPatch.context() as patch:  # a few rows of logits at a time
        patch.setattr("lib.train.model.LOGITS_AT_ONCE", 5 * corpus.vocab_size)
        assert snapshot(model, windows) == pytest.approx(shot, rel=1e-5)
    singly = [score(model, [window], 1)[0] for window in windows]
    losses = [s["nll"].mean() for s in singly]
    assert shot["dev_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    norms = [s["embedding_norm"].mean() for s in singly]
    assert shot["embedding_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
    x = model.transformer.embed(windows[:, :-1])
    assert shot["input_cosine"] == pytest.approx(mean_cosine(x.flatten(0, 1)).item(), rel=1e-6)
    assert shot["residual_norm_0"] == pytest.approx(x.norm(dim=-1).mean().item(), rel=1e-5)
    x = model.transformer.h[0](x)
    assert shot["residual_norm_1"] == pytest.approx(x.norm(dim=-1).mean().item(), rel=1e-5)
    x = model.transformer.h[1](x)
    assert shot["residual_norm_2"] == pytest.approx(x.norm(dim=-1).mean().item(), rel=1e-5)
    assert (shot["norm_gain"], shot["norm_bias"]) == (1.0, 0.0)
    logits = model(windows[:, :-1])
    assert shot["logit_max"] == pytest.approx(logits.max(-1).values.mean().item(), rel=1e-5)
    assert shot["logit_sd"] == pytest.approx(logits.std(-1).mean().item(), rel=1e-5)


def test_the_gradient_cosine_is_that_of_two_backward_passes(corpus):
    model = gpt(corpus.vocab_size, **SMALL, embedding_norm="layernorm")
    windows = corpus.heldout[: 8 * 9].view(8, 9)
    one, other = windows[:5], windows[5:]
    gradients = []
    for part in (one, other):
        model.zero_grad()
        logits = model(part[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]).double())
    expected = float(gradients[0] @ gradients[1] / (gradients[0].norm() * gradients[1].norm()))
    model.zero_grad()
    for size in (1, 2, 5):
        assert gradient_cosine(model, one, other, size) == pytest.approx(expected, abs=1e-6)
    assert gradient_cosine(model, one, one.flip(0), 4) == pytest.approx(1)
    assert all(p.grad is None for p in model.parameters())


GROUPS = ("wte", "wpe", "attn", "mlp", "ln")


def test_every_parameter_belongs_to_a_group(corpus):
    fields = {"embedding_norm": "layernorm", "tied": False}
    model = gpt(corpus.vocab_size, **SMALL, **fields)
    groups = {*GROUPS, "emb_norm", "lm_head"}
    assert {diagnostics.parameter_group(name) for name, _ in model.named_parameters()} == groups


def test_second_moments_are_means_over_groups(corpus):
    model = gpt(corpus.vocab_size, **SMALL)
    optimizer = torch.optim.AdamW(optimizer_groups(model, 0.1), betas=(0.9, 0.5))
    assert diagnostics.second_moments(model, optimizer) == {}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    optimizer.step()
    moments = diagnostics.second_moments(model, optimizer)
    assert set(moments) == {f"second_moment_{group}" for group in GROUPS}
    assert set(moments.values()) == {2.0}  # (1 - 0.5) × 2²
