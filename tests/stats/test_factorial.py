import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy import stats
from statsmodels.stats.anova import AnovaRM
from statsmodels.stats.multitest import multipletests

from lib.stats.factorial import by_setting, changes_sign, factor_effects, with_signs
from lib.stats.paired import contrast_table
from lib.stats.power import t_test_power
from lib.stats.robustness import leave_one_out, leave_one_task_out, task_contrasts
from lib.stats.runs import main_measures
from lib.stats.tables import cautions, contrast_overview
from tests.stats.samples import NORM, crossed, design, noise, runs_of, two_arms

CONTRAST = pd.DataFrame([{"arm": "layernorm", "baseline": "none", "measure": "loss"}])
MACRO = CONTRAST.assign(measure="macro_accuracy_zero_shot")


def with_deltas(*deltas):
    return runs_of(two_arms(4), lambda arm, seed: 2.0 + (arm.id == "layernorm") * deltas[seed])


GRID = {"model.activation": ["gelu", "relu2"], "model.tied": [True, False]}
TIED, ACTIVATION = "tied=false - tied=true", "activation=relu2 - activation=gelu"
BOTH = "activation=relu2 × tied=false"


def grid_runs(n, cell, factors=GRID, **more):
    """Return runs of a grid. Part of a run's loss is common to all arms of its seed."""
    study = design(factors=factors, seeds=list(range(n)), **more)
    return runs_of(study, lambda arm, seed: 2 + 0.3 * noise(seed, 7) + cell(arm, seed))


def own_noise(arm, seed):
    return 0.1 * noise(seed, *arm.id.encode())


def test_effects_equal_repeated_measures_anova():
    """With two levels F is the square of t, and p is the same."""
    runs = grid_runs(8, own_noise)
    found = factor_effects(runs, ["loss"]).set_index("effect")
    columns = {"model.activation": "activation", "model.tied": "tied"}
    named = runs.rename(columns=columns)
    table = AnovaRM(named, "loss", "seed", [*columns.values()]).fit().anova_table
    p = found["t_p"][[ACTIVATION, TIED, BOTH]].to_numpy()
    assert p == pytest.approx(table["Pr > F"].to_numpy(), rel=1e-9)
    fixed = smf.ols("loss ~ C(seed) + C(activation) * C(tied)", named).fit().params
    interaction = -fixed.filter(like=":").iloc[0]  # of tied=True, the other way round
    assert found.at[BOTH, "mean_delta"] == pytest.approx(interaction, rel=1e-9)
    of = runs.pivot(index="seed", columns="arm", values="loss")
    first, second = (of[f"{a},tied=false"] - of[f"{a},tied=true"] for a in ("gelu", "relu2"))
    low, high = stats.ttest_1samp((first + second) / 2, 0).confidence_interval()
    assert found.loc[TIED, ["t_low", "t_high"]].tolist() == pytest.approx([low, high], rel=1e-9)
    assert found.at[f"{TIED} at activation=relu2", "mean_delta"] == pytest.approx(second.mean())


def test_of_three_factors_with_a_hole_equal_settings_are_paired():
    """By enumeration: if an arm is excluded, its counterpart is left out too; an interaction is a
    mean over the third factor."""
    rates = ["learning_rate=0.001", "learning_rate=0.01", "learning_rate=0.1"]
    factors = GRID | {"training.learning_rate": [1e-3, 1e-2, 1e-1]}
    hole = {"model.activation": "relu2", "model.tied": False, "training.learning_rate": 1e-1}
    runs = grid_runs(3, own_noise, factors, exclude=[hole])
    found = factor_effects(runs, ["loss"]).set_index("effect")["mean_delta"]
    of = runs.pivot(index="seed", columns="arm", values="loss").mean()
    gelu, relu = (
        [of[f"{a},tied=false,{rate}"] - of[f"{a},tied=true,{rate}"] for rate in of_activation]
        for a, of_activation in (("gelu", rates), ("relu2", rates[:2]))
    )
    assert found[TIED] == pytest.approx(np.mean([*gelu, *relu]))
    assert found[BOTH] == pytest.approx(np.mean(relu) - np.mean(gelu[:2]))


@pytest.mark.parametrize(
    ("estimates", "expected"),
    [
        ([-0.2, 0.5], True),
        ([0.2, -0.001, 0.2], True),
        ([-1e-9, 1e-9], True),  # it may be chance: the intervals of the settings say so
        ([-0.2, -0.5], False),
        ([-0.2, 0.0], False),
        ([-0.2, None, 0.1], True),
        ([-0.2, float("nan")], False),  # all diverged
        ([-0.2], False),
        ([], False),
    ],
)
def test_an_effect_changes_sign_where_the_estimates_of_its_settings_do(estimates, expected):
    assert changes_sign(estimates) is expected
    assert changes_sign(estimates[::-1]) is expected


def test_signs_that_differ_within_their_intervals_are_told_by_setting_too():
    """A mean of -0.001 over settings of -0.02 and +0.018, each ± 0.1."""
    signs = {"gelu": -0.02, "relu2": 0.018}
    runs = grid_runs(
        3,
        lambda arm, seed: (
            (not arm.levels["model.tied"])
            * (signs[arm.levels["model.activation"]] + 0.04 * (seed - 1))
        ),
    )
    effects = factor_effects(runs, ["loss"]).to_dict("records")
    shown = {row["effect"]: row for row in by_setting(effects)}
    of_tied = [shown[f"{TIED} at activation={name}"] for name in signs]
    assert all(row["t_low"] < 0 < row["t_high"] for row in of_tied)
    assert [row["mean_delta"] for row in of_tied] == pytest.approx([*signs.values()])
    cells = contrast_overview(pd.DataFrame(effects)).iloc[:, 0]
    assert cells[TIED] == "changes sign"
    assert "If no setting's interval excludes zero, that may be chance" in cautions(
        [*shown.values()]
    )


def test_an_effect_that_changes_sign_is_followed_by_its_settings_and_so_is_an_interaction():
    """If one of two measures changes sign, settings are shown for both."""
    _, runs = crossed(4)
    runs["perplexity"] = runs["loss"] - (runs["model.embedding_norm"] == "layernorm")
    effects = factor_effects(runs, ["loss", "perplexity"]).to_dict("records")
    shown = pd.DataFrame(by_setting(effects))
    of_loss = shown[shown["measure"] == "loss"].set_index("effect")
    names = [f"optimizer={o},tied={t}" for o in ("adamw", "muon") for t in ("true", "false")]
    assert list(of_loss.index)[:5] == [NORM, *(f"{NORM} at {name}" for name in names)]
    found = of_loss["mean_delta"].iloc[:5]
    assert found.to_numpy() == pytest.approx([0.03, -0.24, -0.21, 0.5, 0.07], abs=0.02)
    assert found.iloc[0] == pytest.approx(found.iloc[1:].mean())
    assert of_loss["setting"].iloc[1] == "at optimizer=adamw,tied=true"
    signs = shown.set_index(["effect", "measure"])["changes_sign"]
    assert (signs[NORM, "loss"], signs[NORM, "perplexity"]) == (True, False)
    assert f"{NORM} at {names[0]}" in set(shown.loc[shown["measure"] == "perplexity", "effect"])
    of = runs.pivot(index="seed", columns="arm", values="loss").mean()
    by_hand = [
        (of[f"layernorm,muon,{tied}"] - of[f"none,muon,{tied}"])
        - (of[f"layernorm,adamw,{tied}"] - of[f"none,adamw,{tied}"])
        for tied in ("tied=true", "tied=false")
    ]
    both, every = "embedding_norm=layernorm × optimizer=muon", pd.DataFrame(effects)
    every = every[every["measure"] == "loss"].set_index("effect")["mean_delta"]
    within = [every[f"{both} at tied={tied}"] for tied in ("true", "false")]
    assert within == pytest.approx(by_hand)
    assert every[both] == pytest.approx(np.mean(by_hand))
    assert f"{both} at tied=true" not in of_loss.index  # +0.74 and +0.28


def test_a_study_of_one_factor_has_contrasts_alone():
    assert factor_effects(with_deltas(0.1, 0.2, 0.3, 0.4), ["loss"]).empty


def test_between_tokenizers_only_what_all_share_is_compared():
    factors = {"corpus.tokenizer": ["bytes", "bpe-300"], "model.tied": [True, False]}
    runs = grid_runs(3, own_noise, factors)
    runs = runs.assign(bits_per_character=runs["loss"])
    measures = ["loss", "bits_per_character"]
    found = factor_effects(runs, measures)
    per_token = found[found["measure"] == "loss"]
    names = {f"{TIED} at tokenizer={name}" for name in ("bytes", "bpe-300")}
    assert set(per_token["effect"]) == names
    assert not any("of" in row for row in with_signs(per_token.to_dict("records")))
    table = contrast_table(runs, measures, np.random.default_rng(0))
    assert set(table["measure"]) == {"bits_per_character"}
    assert main_measures(runs, None) == ["bits_per_character"]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "rate"), [(0.0, 0.05), (2.0, t_test_power(1, 8))])
def test_the_level_of_an_effect_is_kept_and_its_power_is_that_of_t(size, rate):
    """Of 250 studies with eight seeds and no effect, 5 % find one. If one of four cells is higher
    by two sds of a run, the main effect is 1 and its differences have an sd of 1; the interaction
    is 2 and its differences have an sd of 2."""
    runs, generator = grid_runs(8, lambda arm, seed: 0.0), np.random.default_rng(1)
    shift = size * (~runs["model.tied"] & (runs["model.activation"] == "relu2"))
    names = [f"study {i}" for i in range(250)]
    drawn = pd.DataFrame({name: generator.normal(size=len(runs)) + shift for name in names})
    found = factor_effects(runs.join(drawn), names).query("effect in [@TIED, @BOTH]")
    hits = (found["t_p"] < 0.05).groupby(found["effect"]).mean()
    assert hits.to_numpy() == pytest.approx(rate, abs=3 * (rate * (1 - rate) / 250) ** 0.5)


def test_every_seed_is_left_out_once():
    (row,) = leave_one_out(with_deltas(0.1, 0.2, 0.3, 0.4), CONTRAST).to_dict("records")
    assert (row["n"], row["sign_changes"]) == (4, False)
    found = row["mean_delta"], row["lowest"], row["highest"]
    assert found == pytest.approx((0.25, 0.2, 0.3))  # without 0.4, and without 0.1
    without = [[0.2, 0.3, 0.4], [0.1, 0.3, 0.4], [0.1, 0.2, 0.4], [0.1, 0.2, 0.3]]
    peers = [stats.ttest_1samp(rest, 0).pvalue for rest in without]
    assert row["largest_p"] == pytest.approx(max(peers))


@pytest.mark.slow
def test_a_family_is_adjusted_anew_without_each_seed():
    runs = with_deltas(0.1, 0.2, 0.3, 0.4)
    own = np.tile([0.0, 0.01, 0.03, -0.02], 2)
    runs["perplexity"] = runs["loss"] + own * (runs["arm"] == "layernorm")
    family = pd.concat([CONTRAST, CONTRAST.assign(measure="perplexity")]).assign(family="primary")
    found = leave_one_out(runs, family)["largest_p"].to_numpy()
    values = runs.pivot(index="seed", columns="arm")
    deltas = np.array([values[m, "layernorm"] - values[m, "none"] for m in family["measure"]])
    p = [stats.ttest_1samp(np.delete(deltas, i, axis=1), 0, axis=1).pvalue for i in range(4)]
    adjusted = [multipletests(both, method="holm")[1] for both in p]
    assert found == pytest.approx(np.max(adjusted, axis=0))


def test_one_seed_that_makes_the_sign_is_found():
    table = leave_one_out(with_deltas(-0.01, -0.02, -0.01, 0.2), CONTRAST)
    assert table["sign_changes"].tolist() == [True]


def answers(gains):
    """Return answers to ten questions per task and number of shots; in each seed `layernorm` has
    the given number more right than `none`."""
    return pd.DataFrame(
        [
            {"arm": arm, "seed": seed, "task": task, "shots": shots, "item": item}
            | {"correct": item < 3 + (arm == "layernorm") * gain}
            for arm in ("none", "layernorm")
            for (task, shots), by_seed in gains.items()
            for seed, gain in enumerate(by_seed)
            for item in range(10)
        ]
    )


def test_a_difference_that_is_one_tasks_vanishes_without_it():
    gains = {("bias", 0): [6, 5, 6, 7], ("order", 0): [0, 1, -1, 0], ("spelling", 0): [-1, 0, 0, 0]}
    items = answers(gains)
    (row,) = leave_one_task_out(items, MACRO, 0.05).to_dict("records")
    assert (row["n"], row["tasks"], row["task"]) == (4, 3, "bias")
    assert row["mean_delta"] == pytest.approx((24 + 0 - 1) / 120)
    found = row["lowest"], row["highest"]
    assert found == pytest.approx((-1 / 80, 24 / 80))  # without bias, and without spelling
    rest = [-0.05, 0.05, -0.05, 0.0]  # by seed, without bias
    assert row["without"] == pytest.approx(np.mean(rest))
    assert row["t_p"] == pytest.approx(stats.ttest_1samp(rest, 0).pvalue)
    assert row["sign_changes"]


def test_tasks_are_tested_one_by_one_and_p_is_adjusted_over_tasks_and_shots():
    gains = {("a", 0): [1, 0, 0, 2], ("a", 2): [-1, 2, 1, 0], ("b", 0): [3, 4, 2, 3]}
    asked, runs = answers(gains), runs_of(two_arms(4), lambda *_: 2.0)
    table = task_contrasts(runs, asked, 0.05)
    accuracy = asked.groupby(["arm", "task", "shots", "seed"])["correct"].mean()
    arm, baseline = accuracy["layernorm"], accuracy["none"]
    peers = [stats.ttest_rel(arm[question], baseline[question]).pvalue for question in gains]
    assert list(zip(table["task"], table["shots"], strict=True)) == list(gains)
    assert table["t_p"].tolist() == pytest.approx(peers)
    assert table["p_holm"].tolist() == pytest.approx(multipletests(peers, method="holm")[1])
    lost = asked[(asked["arm"] == "none") | (asked["seed"] != 0)]  # that run diverged
    assert set(task_contrasts(runs, lost, 0.05)["n"]) == {3}
    assert np.isnan(task_contrasts(runs, asked[asked["seed"] == 0], 0.05)["p_holm"]).all()
    assert task_contrasts(runs, asked.iloc[:0], 0.05).empty
    assert task_contrasts(runs, asked[asked["arm"] == "none"], 0.05).empty
