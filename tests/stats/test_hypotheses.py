import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from lib.config.plan import Family, read_plan
from lib.stats.answers import in_words
from lib.stats.hypotheses import (
    family_tests,
    hypothesis_tests,
    planned_contrasts,
    planned_pairs,
)
from lib.stats.power import spread_of
from tests.stats.decay import SAME, SLOWER, decay_plan, decay_runs, deltas
from tests.stats.samples import crossed, design, noise, plan_of, runs_of, two_arms

pytestmark = pytest.mark.usefixtures("few_resamples")


def rng():
    return np.random.default_rng(0)


def results(runs, **hypotheses):
    table = hypothesis_tests(runs, decay_plan(hypotheses=hypotheses), rng())
    return table.set_index("hypothesis", drop=False)


def one(h, runs, **plan):
    content = {"hypotheses": {"h": {"says": "…", "test": SLOWER["test"]} | h}} | plan
    (row,) = hypothesis_tests(runs, decay_plan(**content), rng()).to_dict("records")
    return row


# Hypotheses


def test_a_hypothesis_may_be_of_levels_or_of_an_interaction():
    """A level means all arms that have it; with `minus` it is a difference of two differences."""
    factors = {"model.embedding_norm": ["none", "layernorm"], "model.tied": [True, False]}
    study = design(factors=factors, seeds=[0, 1, 2, 3])
    runs = runs_of(study, lambda arm, seed: 2 + noise(seed, *arm.id.encode()))
    of = runs.pivot(index="seed", columns="arm", values="loss")
    tied, untied = (of[f"layernorm,tied={t}"] - of[f"none,tied={t}"] for t in ("true", "false"))
    h = {"says": "…", "direction": "differs"}
    plan = decay_plan(
        hypotheses={
            "main": h | {"test": ["embedding_norm=layernorm", "embedding_norm=none", "loss"]},
            "both": h
            | {"test": ["layernorm,tied=false", "none,tied=false", "loss"]}
            | {"minus": ["layernorm,tied=true", "none,tied=true"]},
            "half": h
            | {"test": ["layernorm,tied=false", "none,tied=false", "loss"]}
            | {"minus": ["layernorm,tied=true", "none,tied=true"], "minus_share": 0.5},
        }
    )
    main, both, half = hypothesis_tests(runs, plan, rng()).to_dict("records")
    assert main["mean_delta"] == pytest.approx((tied + untied).mean() / 2)
    assert both["mean_delta"] == pytest.approx((untied - tied).mean())
    assert both["p"] == pytest.approx(stats.ttest_1samp(untied - tied, 0).pvalue)
    assert half["mean_delta"] == pytest.approx((untied - tied / 2).mean())
    assert half["p"] == pytest.approx(stats.ttest_1samp(untied - tied / 2, 0).pvalue)
    assert spread_of(plan, runs)["both"] == pytest.approx((untied - tied).std())
    assert spread_of(plan, runs)["half"] == pytest.approx((untied - tied / 2).std())
    words = in_words(both, plan)
    assert "(layernorm,tied=false - none,tied=false) - (layernorm,tied=true" in words


def test_a_planned_mean_over_settings_of_both_signs_says_so():
    _, runs = crossed(4)
    pairs = {
        "mean": ["embedding_norm=layernorm", "embedding_norm=none"],
        "muon": ["embedding_norm=layernorm,optimizer=muon", "embedding_norm=none,optimizer=muon"],
        "one": ["layernorm,muon,tied=true", "none,muon,tied=true"],
    }
    h = {"says": "…", "direction": "differs"}
    asked = {name: h | {"test": [*pair, "loss"]} for name, pair in pairs.items()}
    asked["both"] = asked["muon"] | {"minus": [p.replace("muon", "adamw") for p in pairs["muon"]]}
    plan = decay_plan(hypotheses=asked)
    table = hypothesis_tests(runs, plan, rng())
    rows = table.set_index("hypothesis", drop=False).to_dict("index")
    assert {name: row["changes_sign"] for name, row in rows.items()} == {
        "mean": True, "muon": False, "one": False, "both": False,
    }  # fmt: skip
    of = runs.pivot(index="seed", columns="arm", values="loss").mean()
    by_hand = {
        f"optimizer={optimizer},tied={tied}": of[f"layernorm,{optimizer},tied={tied}"]
        - of[f"none,{optimizer},tied={tied}"]
        for optimizer in ("adamw", "muon")
        for tied in ("true", "false")
    }
    found = {name: row["mean_delta"] for name, row in rows["mean"]["settings"].items()}
    assert found == pytest.approx(by_hand)
    assert rows["muon"]["settings"] == {}
    words = in_words(rows["mean"], plan)
    assert "changes sign: " in words
    assert all(f"at {name}" in words for name in by_hand)
    assert "changes sign" not in in_words(rows["muon"], plan)


def test_each_hypothesis_is_tested_as_it_claims():
    runs = decay_runs()
    rows = hypothesis_tests(runs, decay_plan(), rng()).set_index("hypothesis")
    p = stats.ttest_1samp(deltas(runs, "0.3"), 0.02).pvalue
    both = ttost_paired(deltas(runs, "0.1"), np.zeros(6), -0.02, 0.02)[0]
    assert rows["p"].to_dict() == pytest.approx({"slower": p, "same": both})
    assert rows["p_holm"].tolist() == pytest.approx(multipletests([p, both], method="holm")[1])
    assert rows["answer"].tolist() == ["supported", "supported"]
    assert rows["sentence"].tolist() == ["Leave it off.", ""]
    low, high = stats.ttest_1samp(deltas(runs, "0.3"), 0).confidence_interval()
    assert rows.loc["slower", ["t_low", "t_high"]].tolist() == pytest.approx([low, high])


def test_other_families_do_not_share_alpha():
    alone = results(decay_runs(), slower=SLOWER | {"family": "a"}, same=SAME)
    assert alone["p_holm"].tolist() == alone["p"].tolist()


@pytest.mark.parametrize(
    ("shift", "h", "answer"),
    [
        (0.05, {"direction": "greater", "beyond": 0.02}, "supported"),
        (0.00, {"direction": "greater", "beyond": 0.02}, "refuted"),
        (0.02, {"direction": "greater", "beyond": 0.02}, "undecided"),
        (-0.05, {"direction": "less", "beyond": 0.02}, "supported"),
        (-0.02, {"direction": "less", "beyond": 0.02}, "undecided"),
        (0.00, {"direction": "less", "beyond": 0.02}, "refuted"),
        (0.05, {"direction": "less"}, "refuted"),
        (-0.05, {"direction": "greater"}, "refuted"),
        (0.00, {"direction": "greater"}, "refuted"),  # smaller than the smallest of interest
        (-0.05, {"direction": "differs"}, "supported"),
        (-0.05, {"direction": "differs", "beyond": 0.02}, "supported"),
        (0.00, {"direction": "differs"}, "refuted"),
        (0.02, {"direction": "differs", "beyond": 0.02}, "undecided"),
        (0.00, {"equivalent_within": 0.02}, "supported"),
        (-0.02, {"equivalent_within": 0.02}, "undecided"),
        (-0.05, {"equivalent_within": 0.02}, "refuted"),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_an_answer_of_older_plans_follows_from_where_the_difference_lies(shift, h, answer, exact):
    row = one(h | {"exact": exact}, centred(shift))
    assert (row["answer"], row["test"]) == (answer, "exact" if exact else "t")


def centred(shift, n=8):
    """Return runs to which weight decay of 0.3 adds exactly `shift` on average."""
    runs = decay_runs(shift, n=n)
    noise_of_seeds = deltas(runs, "0.3").mean() - shift
    runs.loc[runs["arm"] == "weight_decay=0.3", "loss"] -= noise_of_seeds
    return runs


SMALL = {"small_effects": "negligible"}


@pytest.mark.parametrize(
    ("shift", "h", "answer"),
    [
        (0.05, {"direction": "greater"}, "supported"),
        (0.01, {"direction": "greater"}, "supported"),  # though smaller than the smallest of 0.02
        (0.00, {"direction": "greater"}, "negligible"),
        (-0.05, {"direction": "greater"}, "refuted"),
        (-0.01, {"direction": "greater"}, "refuted"),
        (0.05, {"direction": "greater", "beyond": 0.02}, "supported"),
        (0.02, {"direction": "greater", "beyond": 0.02}, "undecided"),  # its bound and the smallest
        (0.00, {"direction": "greater", "beyond": 0.02}, "refuted"),
        (0.01, {"direction": "greater", "beyond": 0.01}, "negligible"),
        (0.02, {"direction": "greater", "beyond": 0.05}, "refuted"),
        (-0.05, {"direction": "less"}, "supported"),
        (0.00, {"direction": "less"}, "negligible"),
        (0.05, {"direction": "less"}, "refuted"),
        (-0.02, {"direction": "less", "beyond": 0.02}, "undecided"),
        (0.00, {"direction": "less", "beyond": 0.02}, "refuted"),
        (-0.05, {"direction": "differs"}, "supported"),
        (0.00, {"direction": "differs"}, "negligible"),
        (0.02, {"direction": "differs", "beyond": 0.02}, "undecided"),
        (0.00, {"direction": "differs", "beyond": 0.02}, "negligible"),
        (0.02, {"direction": "differs", "beyond": 0.05}, "undecided"),  # never refuted
        (0.00, {"equivalent_within": 0.02}, "supported"),
        (-0.02, {"equivalent_within": 0.02}, "undecided"),
        (0.00, {"equivalent_within": 0.001}, "undecided"),  # never negligible
        (-0.05, {"equivalent_within": 0.02}, "refuted"),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_an_answer_follows_from_where_the_difference_lies(shift, h, answer, exact):
    """The smallest effect of interest is 0.02; a standard error is about 0.003."""
    said = {"if_negligible": "Too small."}
    row = one(h | {"exact": exact} | said, centred(shift), **SMALL)
    assert (row["answer"], row["test"]) == (answer, "exact" if exact else "t")
    assert row["sentence"] == ("Too small." if answer == "negligible" else "")


def test_hypotheses_of_a_family_share_alpha_in_each_of_their_tests():
    """A claim has one two-sided test for both sides, so it counts once in Holm's method."""
    runs, tests = decay_runs(0.008, n=8), {}
    asked = {
        "greater": {"direction": "greater"},
        "less": {"direction": "less"},
        "beyond": {"direction": "greater", "beyond": 0.02},
    }
    for name, h in asked.items():
        tests[name] = {"says": "…", "test": SLOWER["test"]} | h
    plan = decay_plan(hypotheses=tests, **SMALL)
    rows = hypothesis_tests(runs, plan, rng()).set_index("hypothesis")
    of = deltas(runs, "0.3")
    two_sided = [stats.ttest_1samp(of, bound).pvalue for bound in (0, 0, 0.02)]
    adjusted = multipletests(two_sided, method="holm")[1]
    assert rows["p_holm"].tolist() == pytest.approx([adjusted[0], 1, 1])
    assert rows["refuted_p"].tolist() == pytest.approx([1, *adjusted[1:]])
    tost = ttost_paired(of, np.zeros(8), -0.02, 0.02)[0]
    assert rows["negligible_p"].tolist() == pytest.approx([3 * tost] * 3)
    assert rows["answer"].tolist() == ["supported", "refuted", "refuted"]


def test_without_a_smallest_effect_no_difference_cannot_be_told_from_a_small_one():
    row = one({"direction": "differs"}, decay_runs(0.0), smallest_effect_of_interest={})
    assert row["refuted_p"] == 1


def test_an_exact_test_is_half_the_sign_flips_and_needs_enough_seeds():
    """If five seeds agree, one pattern of 32 on each side is as extreme: p = 2/32."""
    h = {"direction": "greater", "exact": True}
    row = one(h, decay_runs(n=5))
    assert (row["p"], row["answer"]) == (2 / 32, "undecided")
    assert row["seeds"] == 6  # 2/64
    assert one(h, decay_runs(n=6))["answer"] == "supported"


@pytest.mark.parametrize(
    ("shift", "h", "side"),
    [
        (0.05, {"direction": "greater"}, "p"),
        (-0.05, {"direction": "less"}, "p"),
        (0.05, {"direction": "differs"}, "p"),
        (0.00, {"equivalent_within": 0.02}, "p"),
        (-0.05, {"direction": "greater"}, "refuted_p"),
        (0.00, {"direction": "differs"}, "refuted_p"),
        (0.05, {"equivalent_within": 0.02}, "refuted_p"),
    ],
)
@pytest.mark.parametrize("rule", [{}, SMALL])
def test_a_p_equal_to_alpha_decides_nothing(shift, h, side, rule):
    """If five seeds agree, p is exactly 1/32 or 2/32, and so is alpha here."""
    runs, exact = decay_runs(shift, n=5), h | {"exact": True}
    if rule and "direction" in h and shift == 0:
        side = "negligible_p"
    p = one(exact, runs, **rule)[side]
    assert p in (1 / 32, 2 / 32)
    answer = {"p": "supported", "refuted_p": "refuted", "negligible_p": "negligible"}[side]
    assert one(exact, runs, alpha=p, **rule)["answer"] == "undecided"
    assert one(exact, runs, alpha=np.nextafter(p, 1), **rule)["answer"] == answer


def test_the_share_of_unstable_runs_is_tested_exactly():
    runs = decay_runs()
    runs["unstable"] = (runs["arm"] == "weight_decay=0.3").astype(float)
    row = one({"test": [*SLOWER["test"][:2], "unstable"], "direction": "greater"}, runs)
    assert (row["test"], row["p"], row["answer"]) == ("exact", 2 / 64, "supported")


@pytest.mark.parametrize("rule", [{}, SMALL])
@pytest.mark.parametrize("runs", [decay_runs(spread=0.0), decay_runs(0.0, 0.0), decay_runs(n=1)])
def test_without_spread_or_pairs_nothing_is_decided(runs, rule):
    row = one(SLOWER, runs, **rule)
    assert (row["answer"], row["sentence"]) == ("undecided", "Ask again.")


def test_two_seeds_can_decide():
    """With one degree of freedom the two-sided p is 1 - 2/pi atan(t), by Student's closed form."""
    runs = centred(0.05, n=2)
    t = 0.05 / (deltas(runs, "0.3").std() / 2**0.5)
    row = one({"direction": "less"}, runs, alpha=0.2, **SMALL)
    assert row["refuted_p"] == pytest.approx(1 - 2 / np.pi * np.arctan(t))
    assert row["answer"] == "refuted"


def test_diverged_runs_are_no_pairs():
    runs = decay_runs(n=8)
    runs.loc[(runs["arm"] == "weight_decay=0.3") & (runs["seed"] == 3), "loss"] = np.nan
    row = one(SLOWER, runs, **SMALL)
    assert (row["n"], row["answer"]) == (7, "supported")
    runs.loc[runs["arm"] == "weight_decay=0.3", "loss"] = np.nan
    assert one(SLOWER, runs, **SMALL)["answer"] == "undecided"


def test_arms_that_a_study_lacks_are_asked_elsewhere():
    other = SAME | {"test": ["beta1=0.9", "weight_decay=0", "loss"]}
    assert [*results(decay_runs(), slower=SLOWER, other=other).index] == ["slower"]


# Families


@pytest.fixture(scope="module")
def second():
    return read_plan("second.yaml")


def confirmatory():
    """Return runs of the second plan's arms: `rescued` equals `none`, the others do not."""
    include = [
        {"name": "rescued",
         "levels": {"model.embedding_norm": "layernorm", "model.branch_multiplier": 35.36}}
    ]  # fmt: skip
    factors = {"model.embedding_norm": ["none", "layernorm", "rmsnorm", "scale"]}
    study = design(factors=factors, include=include, seeds=list(range(8)))
    shift = {"none": 0.0, "rescued": 0.0, "layernorm": 0.1, "rmsnorm": 0.11, "scale": 0.102}

    def of(scale, base, sign):
        def value(arm, seed):
            own = noise(seed, list(shift).index(arm.id), int(base))
            return base + sign * shift[arm.id] * scale + 0.003 * scale * own

        return value

    return runs_of(
        study,
        of(1, 2, 1),
        macro_accuracy_zero_shot=of(0.2, 0.6, -1),
        macro_accuracy_few_shot=of(0.2, 0.7, -1),
        gradient_cosine=of(1, 0.5, 1),
    )


@pytest.mark.slow
def test_families_are_tested_as_their_plan_says(second):
    runs = confirmatory()
    contrasts, tests = planned_contrasts(runs, second, rng())
    for name, family in second.families.items():
        own = tests[tests["family"] == name].set_index(["arm", "baseline", "measure"])
        asked = [(*pair, m) for m in family.measures for pair in family.contrasts]
        assert sorted(own.index) == sorted(asked)
        peers = []
        for arm, baseline, measure in own.index:
            values = runs.pivot(index="seed", columns="arm", values=measure)
            one, other = values[arm], values[baseline]
            if family.test == "equivalence":
                margin = second.smallest_effect_of_interest[measure]
                peers.append(ttost_paired(one, other, -margin, margin)[0])
            else:
                peers.append(stats.ttest_rel(one, other).pvalue)
        assert own["p"].tolist() == pytest.approx(peers)
        assert own["p_holm"].tolist() == pytest.approx(multipletests(peers, method="holm")[1])
        assert set(own["test"]) == {family.test}
    answer = tests.set_index(["family", "arm", "baseline", "measure"])["answer"]
    assert answer["primary", "layernorm", "none", "perplexity"] == "harms"
    assert answer["smoothness", "layernorm", "none", "gradient_cosine"] == "helps"
    assert answer["mechanism", "rescued", "none", "perplexity"] == "undecided"
    key = ("equivalence", "rescued", "none", "macro_accuracy_zero_shot")
    assert answer[key] == "no difference beyond ± 0.01"
    # A contrast in two families keeps one row, and both tests.
    assert not contrasts.duplicated(["arm", "baseline", "measure"]).any()
    keys = "arm == 'rescued' and baseline == 'none' and measure == 'perplexity'"
    assert tests.query(keys)["family"].tolist() == ["mechanism", "equivalence"]
    (row,) = contrasts.query(keys).to_dict("records")
    (difference,) = tests.query(keys + " and test == 't'").to_dict("records")
    assert (row["family"], row["test"]) == ("mechanism", "t")
    assert row["p_holm"] == difference["p_holm"]
    alone = contrasts.query("arm == 'layernorm' and baseline == 'rmsnorm'")
    assert set(alone["family"]) == {""}  # only tested for equivalence: its difference is not


@pytest.mark.parametrize(("delta", "said"), [(0.1, "rises"), (-0.1, "falls")])
def test_a_measure_of_which_neither_way_is_better_rises_or_falls(delta, said):
    contrast = {"arm": "a", "baseline": "b", "measure": "grad_norm", "n": 8, "t_p": 1e-4}
    contrast |= {"mean_delta": delta, "t_low": delta, "t_high": delta, "sd_delta": 0.01}
    plan = plan_of(families={"f": {"contrasts": [["a", "b"]], "measures": ["grad_norm"]}})
    tests = family_tests(pd.DataFrame([contrast]), {("a", "b"): ["f"]}, plan)
    assert tests["answer"].tolist() == [said]


@pytest.mark.parametrize(("calmer", "worse"), [(8, 0), (6, 1), (5, 0), (3, 3), (0, 2), (0, 0)])
def test_the_exact_test_of_unstable_runs_is_mcnemars(calmer, worse):
    rest = [0] * (8 - calmer - worse)
    runs = runs_of(two_arms(8), lambda arm, seed: 2.0)
    before, after = [1] * calmer + [0] * worse + rest, [0] * calmer + [1] * worse + rest
    runs["unstable"] = [float(x) for x in before + after]
    family = Family(contrasts=[["layernorm", "none"]], measures=["unstable"], test="exact")
    plan = plan_of(families={"stability": family.model_dump()})
    contrasts, tests = planned_contrasts(runs, plan, rng())
    peer = mcnemar([[len(rest), worse], [calmer, 0]], exact=True).pvalue
    (row,) = tests.to_dict("records")
    assert row["p"] == pytest.approx(peer)
    said = {True: "helps" if calmer > worse else "harms", False: "undecided"}[peer < 0.05]
    assert row["answer"] == (said if calmer + worse else "no difference in any seed")
    (contrast,) = contrasts.query("measure == 'unstable'").to_dict("records")
    assert (contrast["family"], contrast["test"]) == ("stability", "exact")
    assert np.isnan(contrast["t_p"])  # a t test says nothing about a share


def test_a_test_without_a_p_says_so_and_counts_in_its_family(second):
    runs = confirmatory()
    lost = (runs["arm"] == "rmsnorm") & (runs["seed"] > 0)
    runs.loc[lost, ["perplexity", "macro_accuracy_zero_shot", "macro_accuracy_few_shot"]] = np.nan
    _, tests = planned_contrasts(runs, second, rng())
    primary = tests[tests["family"] == "primary"].set_index(["arm", "measure"])
    assert set(primary.loc["rmsnorm", "answer"]) == {"not tested"}
    assert primary["p_holm"].min() == pytest.approx(6 * primary["p"].min())


def test_pairs_stay_within_their_setting(second):
    arms = [(v, s) for s in ("a", "b") for v in ("none", "layernorm", "rmsnorm", "new")]
    runs = pd.DataFrame(arms, columns=["variant", "setting"]).assign(seed=0)
    runs["arm"] = runs["variant"] + "," + runs["setting"]
    runs["baseline"] = "none," + runs["setting"]
    assert planned_pairs(runs, second) == {
        pair: families
        for s in ("a", "b")
        for pair, families in {
            (f"layernorm,{s}", f"none,{s}"): ["primary", "smoothness"],
            (f"rmsnorm,{s}", f"none,{s}"): ["primary", "smoothness"],
            (f"layernorm,{s}", f"rmsnorm,{s}"): ["equivalence"],
            (f"new,{s}", f"none,{s}"): [],
        }.items()
    }


def test_arms_against_an_arm_that_is_not_their_baseline_are_contrasted_too():
    h = {"says": "…", "test": ["weight_decay=0.3", "weight_decay=0.1", "loss"]}
    plan = decay_plan(hypotheses={"h": h | {"direction": "differs"}})
    contrasts, _ = planned_contrasts(decay_runs(), plan, rng())
    pairs = set(zip(contrasts["arm"], contrasts["baseline"], strict=True))
    assert ("weight_decay=0.3", "weight_decay=0.1") in pairs
    assert list(contrasts["measure"].unique()) == ["loss", "perplexity"]  # the plan's first
