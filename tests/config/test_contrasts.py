"""Arms of a grid are compared by their levels, in whatever order a file lists them."""

import pytest

from lib.config.contrasts import arm_weights, effects_of, spoken
from lib.config.study import Study

FACTORS = {"model.embedding_norm": ["none", "layernorm"], "model.tied": [True, False]}
LAYER, UNTIED = "embedding_norm=layernorm", "tied=false"
IN_ORDER = {"model.embedding_norm": "rmsnorm", "model.tied": False}


def arms_of(include=(), factors=FACTORS):
    content = {"name": "grid", "seeds": [0], "factors": factors, "include": list(include)}
    return Study.model_validate(content).arms()


def levels_of(arms):
    return {arm.id: arm.levels for arm in arms}


def test_effects_are_named_and_weighed():
    effects = {effect.name: effect for effect in effects_of(levels_of(arms_of()))}
    main, untied = f"{LAYER} - embedding_norm=none", f"{UNTIED} - tied=true"
    assert {name: effect.kind for name, effect in effects.items()} == {
        main: "main",
        f"{main} at tied=true": "simple",
        f"{main} at {UNTIED}": "simple",
        untied: "main",
        f"{untied} at embedding_norm=none": "simple",
        f"{untied} at {LAYER}": "simple",
        f"{LAYER} × {UNTIED}": "interaction",
    }
    norms = {norm: [f"{norm},tied={tied}" for tied in ("true", "false")] for norm in NORMS}
    assert effects[main].weights == dict.fromkeys(norms["layernorm"], 0.5) | dict.fromkeys(
        norms["none"], -0.5
    )
    assert effects[f"{LAYER} × {UNTIED}"].pairs == [
        (f"{LAYER},{UNTIED}", f"embedding_norm=none,{UNTIED}"),
        (f"{LAYER},tied=true", "embedding_norm=none,tied=true"),
    ]


NORMS = ("none", "layernorm")


@pytest.mark.parametrize("more", [{}, {"training.iterations": 500}])
def test_an_included_arm_is_of_the_grid_in_whatever_order_it_lists_its_levels(more):
    def found(levels):
        arms = arms_of([{"levels": levels | more, "name": "own"}])
        return list(effects_of(levels_of(arms)))

    turned = dict(reversed(IN_ORDER.items()))
    assert found(turned) == found(IN_ORDER)
    assert f"embedding_norm=rmsnorm - embedding_norm=none at {UNTIED}" in [
        e.name for e in found(turned)
    ]


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (["layernorm,tied=true", "none,tied=false"],
         {"layernorm,tied=true": 1, "none,tied=false": -1}),
        (["tied=false", "tied=true"], {"none,tied=false": 0.5, "layernorm,tied=false": 0.5,
                                       "none,tied=true": -0.5, "layernorm,tied=true": -0.5}),
        (["tied=false,embedding_norm=none", "embedding_norm=layernorm,tied=true"],
         {"none,tied=false": 1, "layernorm,tied=true": -1}),
        (["layernorm", "none"], {}),  # each name means two arms
        (["tied=false", "embedding_norm=none"], {}),
        (["tied=false,tied=true", "tied=true"], {}),
        (["tied=no", "tied=true"], {}),
    ],
)  # fmt: skip
def test_a_pair_of_names_is_arms_or_levels(pair, expected):
    arms = arms_of()
    variants = {arm.id: arm.variant for arm in arms}
    assert arm_weights([pair], variants, levels_of(arms)) == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{LAYER} - embedding_norm=none at {UNTIED}", "LayerNorm − no layer at tied=false"),
        ("layernorm,tied=true - none,tied=true", "LayerNorm, tied=true − no layer, tied=true"),
        ("schedule=warmup_cosine × embedding_norm=scale", "warm-up + cosine × multiplier"),
        ("gradient_clip=none - gradient_clip=1", "gradient_clip=none − gradient_clip=1"),
        ("norm=layernorm", "norm=layernorm"),
        (f"code={'1a' * 20} - code=main", "code=1a1a1a1a1a1a − code=main"),
    ],
)
def test_labels_replace_the_names_of_levels_and_of_no_other_field(name, said):
    assert spoken(name) == said
