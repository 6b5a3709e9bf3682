import math

import pytest
import torch

from lib.train.machine import random_stream
from lib.train.model import KVCache, count_parameters
from lib.train.optim import optimizer_groups
from tests.train.samples import gpt

VARIANTS = ("none", "layernorm", "rmsnorm", "center", "scale", "grad_shrink")
SMALL = {"n_layer": 3, "n_head": 2, "n_embd": 16, "block_size": 12}


def ids(length, batch=2):
    return torch.randint(65, (batch, length), generator=random_stream(1, "ids"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"embedding_norm": "none"}, 1_611_136),
        ({"embedding_norm": "layernorm"}, 1_611_392),
        ({"embedding_norm": "rmsnorm"}, 1_611_264),
        ({"embedding_norm": "center"}, 1_611_136),
        ({"embedding_norm": "scale"}, 1_611_136),
        ({"embedding_norm": "grad_shrink"}, 1_611_136),
        ({"embedding_norm": "none", "mlp_ratio": 1}, 821_632),
    ],
)
def test_parameter_counts_of_the_protocol(fields, expected):
    assert count_parameters(gpt(**fields)) == expected


@pytest.mark.parametrize("kind", VARIANTS)
def test_input_of_block_1_follows_the_protocol(kind):
    model, x = gpt(embedding_norm=kind, embedding_std=0.5, **SMALL), ids(12)
    summed = model.transformer.wte(x) + model.transformer.wpe(torch.arange(12))
    mean = summed.mean(-1, keepdim=True)
    variance = ((summed - mean) ** 2).mean(-1, keepdim=True)
    expected = {
        "none": summed,
        "layernorm": (summed - mean) / (variance + 1e-5).sqrt(),
        "rmsnorm": summed / ((summed**2).mean(-1, keepdim=True) + 1e-6).sqrt(),
        "center": summed - mean,
        "scale": summed / math.sqrt(0.5**2 + 0.02**2),
        "grad_shrink": summed,
    }[kind]
    torch.testing.assert_close(model.transformer.embed(x), expected, atol=1e-6, rtol=1e-5)


def test_grad_shrink_passes_a_tenth_of_the_gradient_and_the_whole_value():
    kinds = ("none", "grad_shrink")
    plain, shrunk = (gpt(embedding_norm=kind, **SMALL).double() for kind in kinds)
    x = ids(12)
    gradients = []
    for model in (plain, shrunk):
        loss = model(x).square().sum()  # wte has a second gradient, from the output projection
        gradients.append(torch.autograd.grad(loss, model.transformer.wpe.weight)[0])
    torch.testing.assert_close(shrunk(x), plain(x), atol=1e-12, rtol=0)
    torch.testing.assert_close(gradients[1], 0.1 * gradients[0], atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("kind", VARIANTS[1:])
def test_arms_of_a_seed_start_from_bit_identical_weights_outside_the_norm(kind):
    baseline = gpt(**SMALL).state_dict()
    arm = gpt(embedding_norm=kind, **SMALL).state_dict()
    for name, tensor in baseline.items():
        assert torch.equal(tensor, arm.pop(name)), name
    assert all(name.startswith("transformer.emb_norm.") for name in arm)


def test_initialisation_is_gpt2s():
    model = gpt(embedding_std=0.3)
    expected_std = {"wte.weight": 0.3, "c_proj.weight": 0.02 / math.sqrt(2 * 8)}
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            suffix = ".".join(name.split(".")[-2:])
            std = expected_std.get(suffix, 0.02)
            assert parameter.std().item() == pytest.approx(std, rel=0.05), name
            assert abs(parameter.mean().item()) < 5 * std / math.sqrt(parameter.numel()), name
        else:
            value = 1.0 if name.endswith("weight") else 0.0
            assert torch.equal(parameter, torch.full_like(parameter, value)), name


@pytest.mark.parametrize("kind", VARIANTS)
def test_weight_decay_groups_are_disjoint_and_exhaustive(kind):
    model = gpt(embedding_norm=kind, **SMALL)
    groups = optimizer_groups(model, 0.1)
    decayed, undecayed = ({id(p) for p in group["params"]} for group in groups)
    names = {id(p): name for name, p in model.named_parameters()}
    assert not decayed & undecayed
    assert decayed | undecayed == set(names)
    assert {names[key].split(".")[-2] for key in decayed} == {"c_attn", "c_proj", "c_fc"}
    assert all(names[key].endswith("weight") for key in decayed)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]


def test_a_text_longer_than_the_context_is_an_error_that_says_so():
    model, cache = gpt(**SMALL), KVCache()
    model(ids(12), cache)
    for length, read in ((13, None), (1, cache)):
        with pytest.raises(ValueError, match=r"13 tokens long and model\.block_size is 12"):
            model(ids(length), read)


def uncached(model, text, n, generator):
    """Sample with a full forward pass over the last `block_size` characters for each new one."""
    for _ in range(n):
        logits = model(text[:, -model.config.block_size :])[:, -1]
        chosen = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)
        text = torch.cat((text, chosen), dim=1)
    return text


@pytest.mark.parametrize(("n", "prompt"), [(1, 3), (9, 3), (10, 3), (40, 3), (10, 30)])
def test_cached_generation_equals_uncached_generation(n, prompt):
    """The context is full after 9 characters."""
    model, start = gpt(embedding_std=0.5, **SMALL).double(), ids(prompt, batch=4)
    with torch.no_grad():
        model.transformer.wpe.weight.mul_(50)  # so that a wrong position would show
    expected = uncached(model, start, n, random_stream(0, "sample"))
    assert torch.equal(model.generate(start, n, random_stream(0, "sample")), expected)


def test_a_low_temperature_takes_the_likeliest_character_and_a_high_one_any():
    model, start = gpt(embedding_std=0.5, **SMALL), ids(3, batch=64)
    likeliest = model(start)[:, -1].argmax(-1)

    def share(temperature):
        written = model.generate(start, 1, random_stream(0, "sample"), temperature)[:, -1]
        return float((written == likeliest).float().mean())

    assert share(1e-4) == 1
    assert share(1e4) < 0.1  # one of 65
    assert share(1.0) > share(1e4)
    with pytest.raises(ValueError, match=r"temperature 0\.0: must be above 0"):
        share(0.0)
