"""Arms that must coincide do coincide: shown in float64, not by a p value.

Every reader of the residual stream in a Pre-LN GPT (two LayerNorms a block, and the last one) first
subtracts the mean over features. If c · 1 is added to the input of block 1, with any c per token,
it is added to the whole stream, and no reader sees it. So:

1. `center` and `none` compute the same function from the same weights. Equal functions have equal
   gradients, so training follows the same path, up to rounding.
2. Multiply the embeddings and every branch by s, and every reader's eps by s². Then the stream is s
   times larger everywhere, and every reader sees the same as before. So `scale` with branches × s
   is `none`, in function and in training; bit for bit if s is a power of two.
3. `layernorm` with its initial gain and bias differs from `rmsnorm` only by a factor per token,
   sqrt((mean square + 1e-6) / (variance + 1e-5)), near 1 because an embedding's mean is small.
4. AdamW's steps do not depend on the length of the gradient. So embeddings that are multiplied by s
   act like embeddings that start s times as large and learn s times as fast: `scale` is start and
   speed (untied, with a negligible eps).
5. If embeddings start at RMS 1, projections at zero and the output is untied, as in nanochat, a
   normalization of the embeddings is the identity at step 0, up to a factor per token.
6. With an untied output, `embedding_roll` only reorders the embeddings' features. It equals a model
   whose embeddings and layer start rolled. So it can only matter through a tied output.
"""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lib.train.machine import random_stream
from lib.train.model import count_parameters
from lib.train.optim import optimizer_groups
from lib.train.trainer import Trainer
from tests.conftest import change
from tests.train.samples import begun, gpt, train

SIZE = {"n_layer": 3, "n_head": 2, "n_embd": 32, "block_size": 24}


def moved(variant, **fields):
    """Return the same float64 weights for every variant, moved away from their initial values."""
    model = gpt(embedding_norm=variant, **SIZE | fields).double()
    noise = random_stream(1, "noise")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("transformer.emb_norm"):
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=noise).double())
    return model


@pytest.fixture
def tokens():
    return torch.randint(65, (4, 25), generator=random_stream(2, "ids"))


def loss_and_gradients(model, tokens):
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    return logits, list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("std", [0.02, 1.0])
def test_centring_the_embeddings_changes_neither_logits_nor_gradients(std, tokens):
    none, center = (moved(v, embedding_std=std) for v in ("none", "center"))
    one, two = (loss_and_gradients(model, tokens) for model in (none, center))
    assert center.transformer.embed(tokens[:, :-1]).mean(-1).abs().max() < 1e-15
    assert none.transformer.embed(tokens[:, :-1]).mean(-1).abs().max() > 1e-3
    torch.testing.assert_close(one[0], two[0], rtol=0, atol=1e-12)
    for before, after in zip(one[1], two[1], strict=True):
        torch.testing.assert_close(before, after, rtol=0, atol=1e-12)


def test_training_with_centring_takes_the_same_path(float64, tiny, corpus, tmp_path):
    models = [
        train(change(tiny, "model", embedding_norm=v), corpus, 0, tmp_path / v).model
        for v in ("none", "center")
    ]
    for one, two in zip(*(m.parameters() for m in models), strict=True):
        # A tenth of one step's length, 1e-4, would be a different path.
        torch.testing.assert_close(one, two, rtol=0, atol=1e-8)


@pytest.mark.parametrize("fields", [{}, {"tied": False}], ids=str)
def test_scaling_embeddings_and_branches_alike_changes_neither_logits_nor_gradients(fields, tokens):
    s = 1 / math.hypot(0.02, 0.02)  # what `scale` multiplies by
    none = loss_and_gradients(moved("none", **fields), tokens)
    scaled = loss_and_gradients(moved("scale", **fields, branch_multiplier=s), tokens)
    alone = loss_and_gradients(moved("scale", **fields), tokens)
    torch.testing.assert_close(none[0], scaled[0], rtol=0, atol=1e-12)
    for one, two in zip(none[1], scaled[1], strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-12)
    assert (none[0] - alone[0]).abs().max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 1.0])
def test_with_a_power_of_two_sixty_steps_are_equal_to_the_bit(clip, tiny, corpus, tmp_path):
    sixty = change(tiny, "training", iterations=60, gradient_clip=clip)
    rms = 32 * math.hypot(0.02, 0.02)  # so that `scale` multiplies by 32
    scale = change(sixty, "model", embedding_norm="scale", embedding_rms=rms, branch_multiplier=32)
    none, scaled = (train(c, corpus, 0, tmp_path / n) for c, n in ((sixty, "a"), (scale, "b")))
    assert scaled.model.transformer.emb_norm.factor == 32
    assert none.trace["loss"].equals(scaled.trace["loss"])
    assert none.trace["grad_norm"].equals(scaled.trace["grad_norm"])
    for name, weight in none.model.state_dict().items():
        assert weight.equal(scaled.model.state_dict()[name]), name


@pytest.mark.parametrize("variant", ["scale", "layernorm", "rmsnorm"])
@pytest.mark.parametrize("rms", [0.1, 3.0])
def test_the_stream_begins_at_the_rms_that_is_asked_for(variant, rms):
    model = gpt(n_layer=1, n_embd=512, embedding_norm=variant, embedding_rms=rms)
    stream = model.transformer.embed(torch.arange(64)[None])
    assert float(stream.square().mean().sqrt()) == pytest.approx(rms, rel=0.01)


def test_an_untied_output_is_drawn_last_and_adds_its_own_weights():
    tied, untied = (gpt(tied=t) for t in (True, False))
    assert count_parameters(untied) - count_parameters(tied) == 65 * 128 == 8_320
    for name, weight in tied.state_dict().items():
        assert weight.equal(untied.state_dict()[name])
    assert float(untied.lm_head.weight.std()) == pytest.approx(0.02, rel=0.05)
    undecayed = optimizer_groups(untied, 0.1)[1]["params"]
    assert any(p is untied.lm_head.weight for p in undecayed)


@pytest.mark.parametrize("roll", [1, 5])
def test_with_an_untied_head_a_roll_only_renames_features(roll, float64, tiny, corpus, tmp_path):
    """A plain model whose embeddings are rolled before training follows the same path."""
    untied = change(tiny, "model", embedding_norm="layernorm", tied=False)
    untied = change(untied, "training", iterations=60, gradient_clip=1.0)
    runs = []
    for n in (0, roll):
        config = change(untied, "model", embedding_roll=n)
        runs.append(Trainer(config, corpus, begun(config, corpus), tmp_path / str(n)))
    plain, rolled = runs
    of_features = ("transformer.wte", "transformer.wpe", "transformer.emb_norm")
    with torch.no_grad():
        for name, weight in plain.model.named_parameters():
            if name.startswith(of_features):
                weight.copy_(weight.roll(roll, dims=-1))
    for run in runs:
        run.training_loop(lambda *_: None)
    np.testing.assert_allclose(plain.trace["loss"], rolled.trace["loss"], rtol=0, atol=1e-12)
    for name, weight in rolled.model.named_parameters():
        same = weight.roll(roll, dims=-1) if name.startswith(of_features) else weight
        torch.testing.assert_close(plain.model.get_parameter(name), same, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "fields",
    [{"embedding_roll": 3}, {"backout": True}, {"tied": False, "head_init": "embeddings"}],
    ids=str,
)
def test_roll_backout_and_a_copied_head_draw_nothing_and_do_what_they_say(fields, tokens):
    plain = gpt(embedding_norm="layernorm", **SIZE, tied=fields.get("tied", True))
    other = gpt(embedding_norm="layernorm", **SIZE | fields)
    for name, weight in plain.state_dict().items():
        copied = name == "lm_head.weight" and "head_init" in fields
        assert other.get_parameter(name).equal(plain.transformer.wte.weight if copied else weight)
    ids = tokens[:, :-1]
    embedded = plain.transformer.embed(ids).roll(fields.get("embedding_roll", 0), dims=-1)
    assert other.transformer.embed(ids).equal(embedded)
    stream = embedded
    for block in plain.transformer.h:
        stream = block(stream)
    if "backout" in fields:
        stream = stream - embedded
    assert other.hidden(ids).equal(plain.transformer.ln_f(stream))


def test_layernorm_is_rmsnorm_but_for_a_mean_that_nobody_reads_and_a_factor_near_one(tokens):
    ids = tokens[:, :-1]
    embedded = moved("none").transformer.embed(ids)
    square, variance = embedded.square().mean(-1), embedded.var(-1, correction=0)
    factor = ((square + 1e-6) / (variance + 1e-5)).sqrt()
    layer, rms = (moved(v).transformer.embed(ids) for v in ("layernorm", "rmsnorm"))
    centred = rms - rms.mean(-1, keepdim=True)
    torch.testing.assert_close(layer, factor[..., None] * centred, rtol=0, atol=1e-12)
    assert 1.0 < factor.mean() < 1.05


def test_a_shorter_budget_is_the_beginning_of_a_longer_one(tiny, corpus, tmp_path_factory):
    """At a constant rate they are equal to the bit, so a long run stands for every shorter one."""
    short, long = (
        train(change(tiny, "training", iterations=n), corpus, 0, tmp_path_factory.mktemp("run"))
        for n in (8, 12)
    )
    exact = ["step", "loss", "grad_norm", "second_moment_max"]
    assert short.trace[exact].equals(long.trace[exact][:8])
    same = [name for name in short.curve if name != "seconds"]
    assert short.curve[same].equals(long.curve.loc[long.curve["step"] <= 8, same])


def test_scale_equals_a_larger_std_and_learning_rate_of_embeddings(float64, tiny, corpus, tmp_path):
    s = 1 / math.hypot(0.02, 0.02)
    untied = change(change(tiny, "model", tied=False), "training", eps=1e-30, iterations=20)
    scaled = change(untied, "model", embedding_norm="scale")
    both = change(
        change(untied, "model", embedding_std=0.02 * s, position_std=0.02 * s),
        "training", embedding_learning_rate_ratio=s,
    )  # fmt: skip
    start = change(both, "training", embedding_learning_rate_ratio=1.0)
    losses = {
        name: train(config, corpus, 0, tmp_path / name).trace["loss"].to_numpy()
        for name, config in (("scale", scaled), ("both", both), ("start", start))
    }
    assert abs(losses["both"] - losses["scale"]).max() < 1e-9
    assert abs(losses["start"] - losses["scale"]).max() > 1e-3


def test_normalizing_embeddings_of_unit_rms_before_projections_of_zero_changes_nothing(tokens):
    modern = {"positions": "rotary", "norm": "rmsnorm", "qk_norm": True, "activation": "relu2"}
    modern |= {"bias": False, "tied": False, "embedding_std": 1.0, "projection_std_ratio": 0.0}

    def begun(variant, **fields):
        model = gpt(embedding_norm=variant, **SIZE | modern | fields).double()
        read = tokens[:, :-1]
        return model(read), model.transformer.embed(read)

    (none, stream), (normed, other) = begun("none"), begun("rmsnorm")
    torch.testing.assert_close(normed, none, rtol=0, atol=1e-6)  # of eps = 1e-6 beside 1
    factor = other / stream
    torch.testing.assert_close(factor, factor[..., :1].expand_as(factor), rtol=1e-12, atol=0)
    assert (factor - 1).abs().max() > 0.01
    usual, apart = (begun(v, projection_std_ratio=1.0)[0] for v in ("none", "rmsnorm"))
    assert (usual - apart).abs().max() > 1e-4
