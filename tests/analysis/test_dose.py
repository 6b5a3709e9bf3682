import pytest
from scipy import stats

from lib.analysis.dose import dose_findings, stream_table
from lib.study.config import Arm, Study
from tests.analysis.samples import design, noise, runs_of

LENGTHS = [0.1, 1.0, 3.0]


def study(norms: tuple[str, ...] = ("scale", "rmsnorm")) -> Study:
    include = [
        {"name": f"{norm},rms={rms:g}",
         "levels": {"model.embedding_norm": norm, "model.embedding_rms": rms}}
        for norm in norms
        for rms in LENGTHS
    ] + [
        {"name": "layernorm,rescued",
         "levels": {"model.embedding_norm": "layernorm", "model.branch_multiplier": 10.0}}
    ]  # fmt: skip
    return design(factors={"model.embedding_norm": ["none"]}, include=include)


def loss(arm: Arm, seed: int) -> float:
    model = arm.config.model
    if model.embedding_norm == "none":
        return 2.0 + 0.01 * noise(seed)
    effect = 0.2 * model.embedding_rms * (-1 if model.embedding_norm == "rmsnorm" else 1)
    return 2.0 + 0.01 * noise(seed, len(arm.id)) + effect


def test_lengths_are_relative_to_the_branches() -> None:
    table = stream_table(study()).set_index("arm")
    assert "none" not in table.index
    assert table.loc["scale,rms=3", "relative_rms"] == 3.0
    assert table.loc["layernorm,rescued", ["rms", "branch_multiplier"]].tolist() == [1.0, 10.0]
    assert table.loc["layernorm,rescued", "relative_rms"] == pytest.approx(0.1)


def test_effects_are_paired_with_no_layer_and_layers_at_equal_length() -> None:
    design_, runs = study(), runs_of(study(), loss)
    dose, apart = dose_findings(design_, runs, 0.05)
    losses = runs.pivot(index="seed", columns="arm", values="loss")
    assert len(dose.table) == 7
    for row in dose.table.to_dict("records"):
        peer = stats.ttest_rel(losses[row["arm"]], losses["none"])
        assert row["t_p"] == pytest.approx(peer.pvalue)
        assert (row["t_low"], row["t_high"]) == pytest.approx(tuple(peer.confidence_interval()))
    assert apart.table["rms"].tolist() == LENGTHS
    for row in apart.table.to_dict("records"):
        own, other = f"rmsnorm,rms={row['rms']:g}", f"scale,rms={row['rms']:g}"
        assert (row["arm"], row["baseline"]) == (own, other)
        assert row["mean_delta"] == pytest.approx((losses[own] - losses[other]).mean())


def test_the_shape_of_each_curve_is_said() -> None:
    dose, apart = dose_findings(study(), runs_of(study(), loss), 0.05)
    layernorm, rmsnorm, scale = dose.words
    assert layernorm.endswith("at 1 with branches × 10 (no curve).")
    assert rmsnorm.endswith("(falling with the length).")
    assert scale.endswith("(rising with the length).")
    assert apart.words[-1] == "The interval holds zero at 1 of 3 lengths."  # at 0.1, of 0.04 nats
    bent = runs_of(study(), lambda arm, seed: loss(arm, seed) + (arm.id == "scale,rms=1"))
    assert dose_findings(study(), bent, 0.05)[0].words[2].endswith("(not monotone).")


def test_one_layer_alone_has_nothing_to_be_held_against() -> None:
    only = study(("scale",))
    _, apart = dose_findings(only, runs_of(only, loss), 0.05)
    assert apart.table.empty


def test_arms_that_start_alike_have_no_dose() -> None:
    plain = design(factors={"model.embedding_norm": ["none", "layernorm", "scale"]})
    assert dose_findings(plain, runs_of(plain, loss), 0.05) == []
    layers_only = design(factors={"model.embedding_norm": ["layernorm"]})
    assert dose_findings(layers_only, runs_of(layers_only, loss), 0.05) == []
