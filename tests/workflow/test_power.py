"""What seeds can show is said before they run, from the spread of a study that has run."""

import math
import re
from typing import Any

import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from lib.study.plan import Plan
from lib.study.study import Study, load_study
from lib.study.yaml import ConfigError
from lib.workflow import cli, estimate
from tests.analysis.samples import design, noise, runs_of

DECAY = "training.weight_decay"


def decay(n: int = 8, **content: Any) -> Study:
    factors = {DECAY: [0.0, 0.3]} | content.pop("factors", {})
    return design(name="decay", factors=factors, seeds=list(range(n)), **content)


def report(study: Study, *asked: Any, **options: Any) -> str:
    plan = estimate.plan_of(study)
    assert plan
    return "\n".join(estimate.power_report(study, plan, *asked, **options))


def test_a_stated_spread_gives_the_power_of_the_textbook() -> None:
    text = report(decay(), 0.5, 0.4, {"core-hours here": 16.0, "T4-hours": 4.0})
    _, header, row, _, prices, price = text.splitlines()
    assert header.endswith("true difference  sd power (n = 8) seeds for 80%")
    *_, difference, sd, found, seeds = row.split()
    assert (difference, sd) == ("+0.5", "0.4")
    assert float(found) == pytest.approx(TTestPower().power(0.5 / 0.4, 8, 0.05), abs=0.015)
    needed = math.ceil(TTestPower().solve_power(0.5 / 0.4, None, 0.05, 0.8))
    assert int(seeds) == needed
    assert prices.split() == ["hypothesis", "core-hours", "here", "T4-hours"]
    hours = [float(word) for word in price.split()[1:]]
    assert hours == pytest.approx([needed * 16 / 8, needed * 4 / 8])
    assert max(map(len, text.splitlines())) <= 80
    assert "warning" not in text
    assert "warning: weight_decay=0.3: 4 seeds have a power of" in report(decay(4), 0.5, 0.4)


def claiming(**claim: Any) -> Plan:
    test = {"says": "…", "test": ["weight_decay=0.3", "weight_decay=0", "loss"]}
    content = {"title": "t", "question": "q", "confirmatory": ["decay"]}
    content |= {"hypotheses": {"h": test | claim}, "smallest_effect_of_interest": {"loss": 0.05}}
    return Plan.model_validate(content)


def test_the_seeds_of_a_power_are_those_that_support() -> None:
    """A difference below the smallest of interest is refuted by fewer."""
    said = [*estimate.power_report(decay(), claiming(direction="differs"), 0.02, 0.02)]
    needed = math.ceil(TTestPower().solve_power(1.0, None, 0.05, 0.8))
    assert int(said[1].split()[-1]) == needed
    assert said[-1].endswith(f"and 0.80 is wished for; {needed} seeds have it")


@pytest.mark.parametrize(
    ("claim", "effect", "why"),
    [
        (
            {"direction": "differs"},
            0.0,
            "a true difference of +0 is not ≠ 0",
        ),
        ({"direction": "greater", "beyond": 0.1}, 0.1, "a true difference of +0.1 is not > 0.1"),
        ({"direction": "less", "beyond": 0.1}, 0.05, "a true difference of -0.05 is not < -0.1"),
        ({"equivalent_within": 0.1}, -0.2, "a true difference of -0.2 is not within ± 0.1"),
        ({"direction": "differs"}, 1e-6, "more than 1,024 seeds have it"),
    ],
)
def test_no_seeds_show_what_is_not_so(claim: dict[str, Any], effect: float, why: str) -> None:
    said = [*estimate.power_report(decay(), claiming(**claim), effect, 0.02)]
    assert said[1].endswith("more than 1,024")
    assert said[-1].endswith(why)


@pytest.mark.parametrize("words", ["--effect=nan", "--effect=inf", "--spread=nan", "--spread=0"])
def test_an_effect_or_spread_is_a_number(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", "smoke", words]) == 2
    flag, _, value = words.partition("=")
    kind = "a number, in the measure's units" if flag == "--effect" else "a number above 0"
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line == f"error: estimate: {flag}: {value}; give {kind}; see ./run_all.sh estimate --help"
    )


def test_without_a_spread_or_an_effect_power_is_unknown() -> None:
    assert report(decay(), 0.5).startswith("Power is unknown: name a pilot study")
    said = report(decay(), None, 0.4)
    assert said == (
        "Power of weight_decay=0.3 is unknown: state the effect, the difference that matters."
    )


def ladder_runs() -> pd.DataFrame:
    """Perplexities whose differences spread half as much after four times the steps."""
    study = decay(4, factors={"training.iterations": [100, 400]})

    def perplexity(arm: Any, seed: int) -> float:
        own = {100: 1.0, 400: 0.5}[arm.levels["training.iterations"]] * noise(seed, 1)
        return 10 + 0.1 * noise(seed) + (own if arm.levels[DECAY] else 0.0)

    return runs_of(study, lambda *_: 2.4, perplexity=perplexity)


def test_a_ladder_says_which_number_of_steps_is_cheapest(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = ladder_runs()
    monkeypatch.setattr(estimate, "pilot_runs", lambda *_: runs)
    text = report(decay(), 0.5, "ladder", {"core-hours here": 16.0})
    plan = estimate.plan_of(decay())
    assert plan
    designs = estimate.designs_by_steps(plan, runs, 0.5)
    sds = {}
    for steps, part in runs.groupby("training.iterations"):
        values = part.pivot(index="seed", columns="variant", values="perplexity")
        sds[steps] = (values["weight_decay=0.3"] - values["weight_decay=0"]).std()
    assert designs["sd"].tolist() == pytest.approx([sds[100], sds[400]])
    assert designs["seeds"].tolist() == [
        math.ceil(TTestPower().solve_power(0.5 / sds[steps], None, 0.05, 0.8)) for steps in sds
    ]
    cheapest = designs.loc[(designs["steps"] * designs["seeds"]).idxmin()]
    assert f"Cheapest: {cheapest['steps']} steps with {cheapest['seeds']} seeds" in text
    low, high = (3 / stats.chi2.ppf([0.975, 0.025], 3)) ** 0.5
    assert f"(4 seeds: the true one is {low:.2g} to {high:.2g} times as large)" in text


def test_a_spread_that_few_seeds_show_may_be_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three seeds, whose sd the true one may be 6.3 times: a textbook's power says the rest."""
    runs = runs_of(decay(3), lambda *_: 2.4, perplexity=lambda arm, s: noise(s, len(arm.id)))
    monkeypatch.setattr(estimate, "pilot_runs", lambda *_: runs)
    deltas = runs.pivot(index="seed", columns="arm", values="perplexity").diff(axis=1).iloc[:, -1]
    worst = (2 / stats.chi2.ppf(0.025, 2)) ** 0.5
    effect = 2 * deltas.std()  # enough for eight seeds, if this sd is the true one
    text = report(decay(), effect, "pilot")
    found = re.search(r"warning: weight_decay=0.3: the power is (\S+) if the spread is (\S+)", text)
    assert found
    assert float(found[1]) == pytest.approx(TTestPower().power(2 / worst, 8, 0.05), abs=0.02)
    assert found[2] == f"{worst:.2g}"
    assert "which 3 seeds cannot rule out; more seeds of pilot would tell" in text
    assert "warning" not in report(decay(), 4 * worst * deltas.std(), "pilot")


def test_the_spread_of_a_recorded_study_is_that_of_its_runs() -> None:
    study = load_study("final")
    plan = estimate.plan_of(study)
    assert plan
    runs = estimate.pilot_runs("final", plan)
    deltas = runs.pivot(index="seed", columns="arm", values="perplexity")
    sd = (deltas["layernorm"] - deltas["none"]).std()
    row = next(line for line in report(study, 0.5, "final").splitlines() if "layernorm" in line)
    assert f"{sd:.4g}" in row.split()
    with pytest.raises(ConfigError, match="spread: 'finale' is unknown; did you mean 'final'"):
        estimate.pilot_runs("finale", plan)


def test_a_study_that_shows_no_spread_is_refused_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", "smoke", "--spread=nope"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: spread: 'nope' is unknown; did you mean 'dose'?")


def test_the_spread_of_a_plateau_is_that_of_the_recorded_traces() -> None:
    """Plateaus as plain counting has them, by seed; see `tests.analysis.test_stability`."""
    h = {"says": "…", "test": ["layernorm", "none", "plateau"], "direction": "less"}
    content = {"title": "t", "question": "q", "confirmatory": ["stability-confirm"]}
    content |= {"hypotheses": {"h": h}, "smallest_effect_of_interest": {"plateau": 20}}
    plan = Plan.model_validate(content)
    plateaus = estimate.pilot_runs("stability-confirm", plan).pivot(
        index="seed", columns="arm", values="plateau"
    )
    sd = (plateaus["layernorm"] - plateaus["none"]).std()
    assert sorted(plateaus["none"]) == [21, 21, 22, 24, 26, 27, 76, 87]
    study = load_study("stability-confirm")
    said = "\n".join(estimate.power_report(study, plan, None, "stability-confirm"))
    assert f"{sd:.4g}" in said.splitlines()[2].split()


def test_estimate_says_price_and_power(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", "smoke", "--effect", "0.5", "--spread", "final"]) == 0
    said = capsys.readouterr().out
    assert "smoke: 2 arms × 2 seeds" in said
    assert "What 2 seeds can show, with the spread of final (5 seeds" in said
    assert "core-hours here" in said
