from typing import Any

import numpy as np
import pandas as pd
import pytest
from lib.analysis.findings import Analysis, analyse
from lib.analysis.sequential import nominal_level, sequential_p
from scipy import stats
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired

from lib.analysis.hypotheses import (
    MAX_SEEDS,
    answer_tests,
    expected_power,
    hypothesis_tests,
    out_of_reach,
    power_of,
    seeds_to_decide,
    spread_of,
)
from lib.analysis.verdict import for_terminal
from lib.study.plan import Hypothesis, Plan
from lib.study.preregistration import ClaimStatus
from lib.study.study import Study
from tests.analysis.samples import design, noise, runs_of, trace_of

DECAY = "training.weight_decay"
SLOWER = {
    "says": "Weight decay of 0.3 raises the loss by more than 0.02 nats.",
    "test": ["weight_decay=0.3", "weight_decay=0", "loss"],
    "direction": "greater",
    "beyond": 0.02,
    "if_supported": "Leave it off.",
    "if_undecided": "Ask again.",
}
SAME = {
    "says": "0.1 and 0 are equal within 0.02 nats.",
    "test": ["weight_decay=0.1", "weight_decay=0", "loss"],
    "equivalent_within": 0.02,
}
PLAN: dict[str, Any] = {
    "title": "Weight decay",
    "question": "Does weight decay slow a short training down?",
    "confirmatory": ["decay"],
    "hypotheses": {"slower": SLOWER, "same": SAME},
    "smallest_effect_of_interest": {"loss": 0.02},
}


def plan_of(**hypotheses: Any) -> Plan:
    return Plan.model_validate(PLAN | {"hypotheses": hypotheses})


def decay_study(n: int = 6) -> Study:
    return design(name="decay", factors={DECAY: [0.0, 0.1, 0.3]}, seeds=list(range(n)))


def decay_runs(shift: float = 0.05, spread: float = 0.005, n: int = 6) -> pd.DataFrame:
    """Losses to which weight decay of 0.3 adds `shift`, with some noise per arm and seed."""

    def loss(arm: Any, seed: int) -> float:
        own = {0.0: 0.0, 0.1: 0.001, 0.3: shift}[arm.levels[DECAY]]
        return 2.4 + own + 0.02 * noise(seed) + spread * noise(seed, len(arm.id), 1)

    return runs_of(decay_study(n), loss)


def deltas(runs: pd.DataFrame, level: str) -> pd.Series:
    losses = runs.pivot(index="seed", columns="arm", values="loss")
    return losses[f"weight_decay={level}"] - losses["weight_decay=0"]


def results(runs: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    table = hypothesis_tests(runs, plan, np.random.default_rng(0))
    return table.set_index("hypothesis", drop=False)


def one(h: dict[str, Any], runs: pd.DataFrame, **plan: Any) -> dict[Any, Any]:
    content = PLAN | {"hypotheses": {"h": h}} | plan
    (row,) = results(runs, Plan.model_validate(content)).to_dict("records")
    return row


def analysed(plan: Plan, runs: pd.DataFrame, *because: str) -> Analysis:
    items = pd.DataFrame(columns=["arm", "seed", "task", "shots", "item", "correct"])
    claim = ClaimStatus("decay", plan.hash, list(because))
    study = decay_study(runs["seed"].nunique())
    return analyse(study, plan, claim, runs, trace_of(runs), items, items)


def test_each_hypothesis_of_a_plan_about_weight_decay_gets_one_word() -> None:
    plan, runs = Plan.model_validate(PLAN), decay_runs()
    found = analysed(plan, runs)
    answers = found.as_json()["answers"]
    assert {name: a["answer"] for name, a in answers.items()} == dict.fromkeys(
        ("slower", "same"), "supported"
    )
    change = deltas(runs, "0.3")
    low, high = stats.ttest_1samp(change, 0).confidence_interval()
    said = (
        "Weight decay of 0.3 raises the loss by more than 0.02 nats. weight_decay=0.3 - "
        f"weight_decay=0 in validation loss (nats): {change.mean():+.4f} "
        f"[{low:+.4f}, {high:+.4f}], claimed is > 0.02 (n = 6, p "
    )
    assert answers["slower"]["reason"].startswith(said)
    assert answers["slower"]["reason"].endswith("Leave it off.")
    shown = found._repr_markdown_()
    assert shown.startswith(f"**slower supported**: {said}")
    for word in ("rule", "layer", "accuracy", "H0", "H1"):
        assert word not in shown
    rows = {row["hypothesis"]: row for row in found.as_json()["hypothesis_tests"]}
    p = stats.ttest_1samp(change, 0.02).pvalue
    both = ttost_paired(deltas(runs, "0.1"), np.zeros(6), -0.02, 0.02)[0]
    assert rows["slower"]["p"] == pytest.approx(p)
    assert rows["same"]["p"] == pytest.approx(both)
    assert sorted(row["p_holm"] for row in rows.values()) == pytest.approx(
        sorted([min(p, both) * 2, max(2 * min(p, both), max(p, both))])
    )
    assert found.as_json()["decisions"] == []


def test_a_p_of_1_is_not_printed_and_a_sought_number_of_seeds_is_at_most_1024() -> None:
    h = SLOWER | {"exact": True}
    row = one(h, decay_runs(n=8))
    assert row["refuted_p"] == 1
    row |= {"answer": "undecided", "seeds": MAX_SEEDS}
    said = answer_tests(pd.DataFrame([row]), 0.8)["h"].reason
    assert "false" not in said
    assert "Some 1024 seeds would decide it" in said
    row["seeds"] = np.inf
    assert "Not even 1,024 seeds" in answer_tests(pd.DataFrame([row]), 0.8)["h"].reason


def test_an_exploratory_study_answers_no_hypothesis() -> None:
    found = analysed(Plan.model_validate(PLAN), decay_runs(), "it names no plan").as_json()
    assert (found["answers"], found["hypothesis_tests"]) == ({}, [])


def test_a_terminal_shows_each_hypothesis_with_its_answer() -> None:
    plan, runs = Plan.model_validate(PLAN), decay_runs()
    lines = [*for_terminal(analysed(plan, runs).as_json(), 80)]
    change = deltas(runs, "0.3")
    low, high = stats.ttest_1samp(change, 0).confidence_interval()
    assert lines[:2] == ["CONFIRMATORY", "  slower: SUPPORTED"]
    assert "  same: SUPPORTED" in lines
    text = " ".join(" ".join(lines).split())
    assert f"{change.mean():+.4f} [{low:+.4f}, {high:+.4f}], claimed is > 0.02 (n = 6" in text
    assert "Leave it off." in text
    assert max(map(len, lines)) <= 80
    assert [*for_terminal(analysed(plan, runs, "its seeds differ").as_json(), 80)] == [
        "EXPLORATORY; its seeds differ"
    ]


def test_other_families_do_not_share_alpha() -> None:
    runs = decay_runs()
    alone = results(runs, plan_of(slower=SLOWER | {"family": "a"}, same=SAME))
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
def test_an_answer_follows_from_where_the_difference_lies(
    shift: float, h: dict[str, Any], answer: str, exact: bool
) -> None:
    bound = {"says": "…", "test": SLOWER["test"], "exact": exact} | h
    runs = decay_runs(shift, n=8)
    centre = deltas(runs, "0.3").mean() - shift  # the noise of eight seeds taken out
    runs.loc[runs["arm"] == "weight_decay=0.3", "loss"] -= centre
    row = one(bound, runs)
    assert (row["answer"], row["test"]) == (answer, "exact" if exact else "t")


@pytest.mark.parametrize(
    ("shift", "h", "limit"),
    [
        (0.0, {"direction": "differs"}, "beyond ± 0.02"),
        (0.0, {"direction": "greater"}, "> 0.02"),
        (0.05, {"direction": "less"}, "< -0.02"),
        (0.0, {"direction": "less", "if_refuted": "It does not."}, None),
        (0.0, {"direction": "greater", "beyond": 0.02}, None),
        (0.05, {"equivalent_within": 0.02}, None),
    ],
)
def test_what_is_refuted_says_which_difference_is_ruled_out(
    shift: float, h: dict[str, Any], limit: str | None
) -> None:
    """Where neither the claim nor the plan's own sentence does."""
    row = one({"says": "…", "test": SLOWER["test"]} | h, decay_runs(shift, n=8))
    said = f"Ruled out is {limit}, the smallest effect of interest."
    assert row["answer"] == "refuted"
    assert row["sentence"] == (said if limit else h.get("if_refuted", ""))


def test_without_a_smallest_effect_no_difference_cannot_be_told_from_a_small_one() -> None:
    h = {"says": "…", "test": SLOWER["test"], "direction": "differs"}
    assert one(h, decay_runs(0.0), smallest_effect_of_interest={})["refuted_p"] == 1


def test_an_exact_test_is_half_the_sign_flips_and_needs_enough_seeds() -> None:
    """Of five seeds that all say the same, one of 32 patterns is as extreme: p = 2/32."""
    h = {"says": "…", "test": SLOWER["test"], "direction": "greater", "exact": True}
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
        (0.05, {"direction": "greater", "beyond": 0.02}, "p"),
        (0.00, {"equivalent_within": 0.02}, "p"),
        (-0.05, {"direction": "greater"}, "refuted_p"),
        (0.05, {"direction": "less"}, "refuted_p"),
        (0.00, {"direction": "differs"}, "refuted_p"),
        (0.05, {"equivalent_within": 0.02}, "refuted_p"),
    ],
)
def test_a_p_equal_to_alpha_decides_nothing(shift: float, h: dict[str, Any], side: str) -> None:
    """Of five seeds that all agree p is 1/32 or 2/32, to the bit: so is alpha here."""
    bound = {"says": "…", "test": SLOWER["test"], "exact": True} | h
    runs = decay_runs(shift, n=5)
    p = one(bound, runs)[side]
    assert p in (1 / 32, 2 / 32)
    answer = "supported" if side == "p" else "refuted"
    assert one(bound, runs, alpha=p)["answer"] == "undecided"
    assert one(bound, runs, alpha=np.nextafter(p, 1))["answer"] == answer


@pytest.mark.parametrize(
    ("shift", "h"),
    [
        (0.25, {"direction": "greater", "beyond": 0.25}),
        (-0.25, {"direction": "less", "beyond": 0.25}),
        (0.25, {"direction": "differs", "beyond": 0.25}),
        (-0.25, {"direction": "differs", "beyond": 0.25}),
        (0.25, {"equivalent_within": 0.25}),
        (-0.25, {"equivalent_within": 0.25}),
    ],
)
def test_differences_of_the_bound_itself_lie_on_neither_side(
    shift: float, h: dict[str, Any]
) -> None:
    bound = {"says": "…", "test": SLOWER["test"], "exact": True} | h
    runs = decay_runs(n=8)
    runs["loss"] = 2.0 + shift * (runs["arm"] == "weight_decay=0.3")  # exact in binary
    row = one(bound, runs)
    assert {row["p"], row["refuted_p"]} <= {0.5, 1.0}  # one-sided, and twice that
    assert row["answer"] == "undecided"


def test_the_share_of_unstable_runs_is_tested_exactly() -> None:
    runs = decay_runs()
    runs["unstable"] = (runs["arm"] == "weight_decay=0.3").astype(float)
    h = {"says": "…", "test": [*SLOWER["test"][:2], "unstable"], "direction": "greater"}
    row = one(h, runs)
    assert (row["test"], row["p"], row["answer"]) == ("exact", 2 / 64, "supported")


def test_a_diverged_run_leaves_its_pair_out() -> None:
    runs = decay_runs()
    runs.loc[(runs["arm"] == "weight_decay=0.3") & (runs["seed"] == 2), "loss"] = np.nan
    row = one(SLOWER, runs)
    assert row["n"] == 5
    assert row["mean_delta"] == pytest.approx(deltas(runs, "0.3").drop(2).mean())


def test_without_spread_or_pairs_nothing_is_decided() -> None:
    runs = decay_runs(spread=0.0)
    found = analysed(plan_of(slower=SLOWER), runs).as_json()["answers"]["slower"]
    assert found["answer"] == "undecided"
    assert "no p" in found["reason"]
    assert found["reason"].endswith("Ask again. There are too few pairs, or they have no spread.")


def test_arms_that_a_study_lacks_are_asked_elsewhere() -> None:
    runs = decay_runs()
    other = SAME | {"test": ["beta1=0.9", "weight_decay=0", "loss"]}
    assert [*results(runs, plan_of(slower=SLOWER, other=other)).index] == ["slower"]


def test_arms_against_an_arm_that_is_not_their_baseline_are_contrasted_too() -> None:
    h = {"says": "…", "test": ["weight_decay=0.3", "weight_decay=0.1", "loss"]}
    found = analysed(plan_of(h=h | {"direction": "differs"}), decay_runs()).as_json()
    pairs = {(row["arm"], row["baseline"]) for row in found["contrasts"]}
    assert ("weight_decay=0.3", "weight_decay=0.1") in pairs
    assert {row["measure"] for row in found["contrasts"]} == {"loss"}


# Power

DIFFERS = Hypothesis.model_validate(
    {"says": "", "test": ["a", "b", "loss"], "direction": "differs"}
)
WITHIN = Hypothesis.model_validate(
    {"says": "", "test": ["a", "b", "loss"], "equivalent_within": 1.0}
)


@pytest.mark.parametrize(("d_z", "n"), [(0.0, 5), (0.5, 20), (1.0, 10), (1.682, 5)])
def test_power_of_a_difference_is_statsmodels(d_z: float, n: int) -> None:
    peer = TTestPower().power(d_z, n, 0.05)
    assert sum(power_of(DIFFERS, 0.3 * d_z, 0.3, n, 0.05)) == pytest.approx(peer, abs=0.01)


def test_power_of_an_equivalence_is_that_of_simulated_studies() -> None:
    rng = np.random.default_rng(1)
    samples = rng.normal(0.2, 1.0, size=(20_000, 12))
    error = samples.std(axis=1, ddof=1) / 12**0.5
    t = [(samples.mean(axis=1) - bound) / error for bound in (-1.0, 1.0)]
    both = np.mean((stats.t.sf(t[0], 11) < 0.05) & (stats.t.cdf(t[1], 11) < 0.05))
    assert power_of(WITHIN, 0.2, 1.0, 12, 0.05)[0] == pytest.approx(both, abs=0.015)


def test_seeds_to_decide_are_the_textbooks() -> None:
    """n for d = 0.5 and 1.0 at a power of 80 %: 34 and 10."""
    assert [seeds_to_decide(DIFFERS, d, 1.0, 0.05, 0.8) for d in (0.5, 1.0)] == [34, 10]
    assert seeds_to_decide(DIFFERS, 0.001, 1.0, 0.05, 0.8) == np.inf
    assert np.isnan(seeds_to_decide(DIFFERS, 1.0, np.nan, 0.05, 0.8))


def test_the_power_of_a_plan_follows_from_the_spread_of_another_study() -> None:
    plan, runs = Plan.model_validate(PLAN), decay_runs()
    spread = spread_of(plan, runs)
    assert spread["same"] == pytest.approx(deltas(runs, "0.1").std())
    pilot = runs[runs["arm"] != "weight_decay=0.1"]
    assert spread_of(plan, pilot)["same"] == spread["slower"]
    assert spread_of(plan, pilot.drop(columns="loss")) == {}
    assert spread_of(plan, pilot[pilot["seed"] == 0]) == {}  # one seed has no spread
    ladder = runs.assign(arm=runs["arm"] + ",rate=1", variant=runs["arm"], setting="rate=1")
    assert spread_of(plan, ladder) == spread  # whose arms have other factors as well
    assert expected_power(plan, {"same": 0.02}, 8)["hypothesis"].tolist() == ["same"]
    table = expected_power(plan, {"slower": 0.02, "same": 0.02}, 8).set_index("hypothesis")
    assert table["difference"].to_dict() == {"slower": 0.04, "same": 0.0}
    peer = TTestPower()  # two tests share alpha
    power = peer.power(1.0, 8, 0.025)
    assert table.loc["slower", "power"] == pytest.approx(power, abs=0.01)
    needed = int(np.ceil(peer.solve_power(1.0, None, 0.025, 0.8)))
    assert table.loc["slower", "seeds"] == needed
    larger = expected_power(plan, {"slower": 0.02, "same": 0.02}, 8, effect=0.05)
    assert larger["power"][0] > power


def test_an_exact_test_that_no_number_of_these_seeds_can_pass_is_named() -> None:
    """Of n seeds the smallest p is 2/2ⁿ: 1/32 of six is below .05, but not below half of it."""
    exact = {"exact": True}
    alone = plan_of(slower=SLOWER | exact)
    assert [*out_of_reach(alone, 6)] == []
    (said,) = out_of_reach(alone, 5)
    assert said == (
        "hypotheses.slower: the p of an exact test of 5 seeds is 0.0625 at the least, and must be "
        "below 0.05; 6 seeds can reach it"
    )
    equal = Plan.model_validate(PLAN | {"hypotheses": {"slower": SLOWER | exact}, "alpha": 2 / 32})
    assert [each[-21:] for each in out_of_reach(equal, 5)] == ["; 6 seeds can reach it"[-21:]]
    exactly = Hypothesis.model_validate(SLOWER | exact)
    assert power_of(exactly, 1.0, 0.1, 5, 2 / 32) == (0, 0)
    assert power_of(exactly, 1.0, 0.1, 6, 2 / 32)[0] > 0.99
    (said,) = out_of_reach(plan_of(slower=SLOWER | exact, same=SAME), 6)
    assert said.endswith("is 0.0312 at the least, and must be below 0.025; 7 seeds can reach it")
    share = SLOWER | {"test": ["weight_decay=0.3", "weight_decay=0", "unstable"]}
    assert len([*out_of_reach(plan_of(share=share), 5)]) == 1
    pairs = [["weight_decay=0.3", "weight_decay=0"], ["weight_decay=0.1", "weight_decay=0"]]
    family = {"contrasts": pairs, "measures": ["loss", "perplexity"], "test": "exact"}
    content = PLAN | {"families": {"all": family}}
    (said,) = out_of_reach(Plan.model_validate(content), 7)
    assert said.startswith("families.all: ")
    assert said.endswith("8 seeds can reach it")


# Looks

LOOKS = [4, 6, 8]


def looked(runs: pd.DataFrame, *hypotheses: dict[str, Any]) -> list[dict[Any, Any]]:
    plan = plan_of(**{f"h{i}": h for i, h in enumerate(hypotheses)})
    return hypothesis_tests(runs, plan, np.random.default_rng(0), LOOKS).to_dict("records")


def test_what_is_clear_at_the_first_look_is_decided_there() -> None:
    runs = decay_runs(0.2, n=8)
    early, late = looked(runs, SLOWER, SLOWER | {"beyond": 0.2})
    assert (early["answer"], early["look"], early["n"]) == ("supported", 1, 4)
    first = runs[runs["seed"].isin(range(4))]
    assert early["mean_delta"] == pytest.approx(deltas(first, "0.3").mean())
    one_sided = stats.ttest_1samp(deltas(first, "0.3"), 0.02, alternative="greater").pvalue
    assert early["p"] == pytest.approx(2 * float(sequential_p([one_sided], tuple(LOOKS))))
    level = nominal_level(0.05, tuple(LOOKS), 0)
    low, high = stats.ttest_1samp(deltas(first, "0.3"), 0).confidence_interval(1 - level)
    assert (early["t_low"], early["t_high"]) == pytest.approx((low, high))
    assert (late["answer"], late["look"], late["n"]) == ("undecided", 3, 8)
    said = answer_tests(pd.DataFrame([early, late]), 0.8)
    assert said["h0"].reason.endswith("Leave it off. Reached at look 1 of 3.")
    assert "seeds would decide it" in said["h1"].reason


def test_an_undecided_look_names_the_next() -> None:
    (row,) = looked(decay_runs(0.02, n=5), SLOWER)
    assert (row["answer"], row["look"], row["n"]) == ("undecided", 1, 4)
    (answer,) = answer_tests(pd.DataFrame([row]), 0.8).values()
    assert answer.reason.endswith("Ask again. The next look is after 6 seeds.")


def test_futility_is_a_difference_shown_to_be_too_small() -> None:
    (row,) = looked(decay_runs(0.0, spread=0.001, n=8), SLOWER)
    assert (row["answer"], row["look"]) == ("refuted", 1)


def test_an_exact_test_at_looks_waits_for_seeds_enough() -> None:
    """Of four seeds that all agree p is 1/8, of six 1/32, of eight 1/128."""
    (row,) = looked(decay_runs(n=8), SLOWER | {"exact": True})
    assert (row["answer"], row["look"]) == ("supported", 3)
    assert row["p"] == pytest.approx(
        2 * float(sequential_p([1 / 16, 1 / 64, 1 / 256], tuple(LOOKS)))
    )


def test_the_power_of_looks_is_near_that_of_all_seeds() -> None:
    plan = plan_of(slower=SLOWER)
    (once,) = expected_power(plan, {"slower": 0.02}, 16).to_dict("records")
    (early,) = expected_power(plan, {"slower": 0.02}, 16, None, [6, 10, 16]).to_dict("records")
    assert early["power"] == pytest.approx(once["power"], abs=0.04)
    assert 6 <= early["used"] < 14
    assert "used" not in once
