"""Every outcome of the three criteria, on made-up verdicts."""

import numpy as np
import pandas as pd
import pytest

from lib.config.claim import ClaimStatus
from lib.stats.decision import decide, shown_change
from lib.stats.verdict import analyse
from tests.stats.samples import NORMS, design, noise, plan_of, runs_of, trace_of

QUALITY = "accuracy"
HARM = {"says": "…", "test": ["layernorm", "none", QUALITY], "direction": "less", "family": "a"}
CURE = {"says": "…", "test": ["layernorm", "none", "unstable"], "direction": "less"}
RULE = {"rise": 0.5, "last": 10, "start": 0.5}
TOLERANT = {"instability": RULE | {"tolerated_share": 1.0}}


def plan(**content):
    usual = {
        "hypotheses": {"harm": HARM, "cure": CURE},
        "primary": [QUALITY],
        "secondary": ["ece", "inference_tokens_per_second"],
        "smallest_effect_of_interest": {QUALITY: 0.02},
        "instability": RULE,
    }
    return plan_of(**usual | content)


def decided(asked, accuracy=0.0, spiky=(), ece=0.0, speed=0.0, high="", spread=1.0):
    """Decide on LayerNorm, which shifts accuracy, ECE and speed by these amounts in eight runs.
    Runs of `spiky` arms have a transient, those of the `high` arm start above chance."""
    study = design(name="s", factors=NORMS, seeds=list(range(8)))

    def of(base, shift, scale, key):
        return lambda arm, seed: (
            base + (arm.id != "none") * shift + scale * noise(seed, len(arm.id), key)
        )

    runs = runs_of(
        study,
        lambda arm, seed: 2.0 + 0.1 * noise(seed),
        accuracy=of(0.3, accuracy, 0.003 * spread, 5),
        ece=of(0.02, ece, 0.001, 6),
        inference_tokens_per_second=of(1000.0, speed, 5.0, 7),
    )
    trace = trace_of(runs, lambda arm, seed: 1.0 if arm in spiky else 0.0)
    trace.loc[(trace["arm"] == high) & (trace["step"] == 1), "loss"] = 9.0
    claim = ClaimStatus("s", asked.hash, "CONFIRMATORY", [])
    verdict = analyse(study, asked, claim, runs, trace, pd.DataFrame(), pd.DataFrame())
    (decision,) = verdict.decisions
    return decision["decision"], decision["rule"]


NO_TEST = {"hypotheses": {"cure": CURE}, "primary": [QUALITY]}
FAMILY = {"families": {"f": {"contrasts": [["layernorm", "none"]], "measures": [QUALITY]}}}
SAME = {"says": "…", "test": ["layernorm", "none", QUALITY], "equivalent_within": 0.02}
EXACT = {"hypotheses": {"harm": HARM | {"exact": True}, "cure": CURE}}
EQUAL = {"hypotheses": {"same": SAME, "cure": CURE}}
SMALL = {"small_effects": "negligible"}
BOTH = {"hypotheses": {"harm": HARM, "same": SAME, "cure": CURE}}


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize(
    ("content", "made", "outcome"),
    [
        # 1. The baseline is stable.
        ({}, {"accuracy": -0.05}, ("keep the baseline", "regression")),
        (FAMILY | NO_TEST, {"accuracy": -0.05}, ("keep the baseline", "regression")),
        (EQUAL, {"accuracy": -0.05}, ("keep the baseline", "regression")),
        (EQUAL, {"accuracy": -0.005}, ("keep the baseline", "tie")),
        (BOTH, {"accuracy": -0.01}, ("keep the baseline", "regression")),
        (EXACT, {"spread": 0.0}, ("keep the baseline", "tie")),  # equal runs refute it
        ({}, {"spiky": ("layernorm",)}, ("keep the baseline", "stability")),
        ({}, {"accuracy": 0.05}, ("replicate before adopting", "improvement")),
        (NO_TEST, {"accuracy": -0.05}, ("undecided", "no test")),
        (SMALL, {"accuracy": -0.05}, ("keep the baseline", "regression")),
        (SMALL, {"accuracy": 0.05}, ("replicate before adopting", "improvement")),
        (SMALL, {}, ("keep the baseline", "tie")),
        (SMALL, {"ece": -0.01}, ("adopt the arm", "tie")),
        (SMALL, {"spiky": ("none",)}, ("adopt the arm", "cost")),
        # 3. A tie: calibration first, then speed.
        ({}, {"ece": -0.01}, ("adopt the arm", "tie")),
        ({}, {"ece": 0.01, "speed": 200.0}, ("keep the baseline", "tie")),
        ({}, {"speed": 200.0}, ("adopt the arm", "tie")),
        ({}, {}, ("keep the baseline", "tie")),
        # 2. The baseline is unstable.
        ({}, {"spiky": ("none",)}, ("adopt the arm", "cost")),
        ({}, {"spiky": ("none",), "accuracy": 0.1}, ("adopt the arm", "cost")),
        ({}, {"spiky": ("none",), "accuracy": -0.05}, ("keep the baseline", "cost")),
        ({}, {"spiky": ("none",), "accuracy": -0.018, "spread": 3.0}, ("undecided", "cost")),
        ({"smallest_effect_of_interest": {"loss": 1}}, {"spiky": ("none",)}, ("undecided", "cost")),
        (TOLERANT, {"spiky": ("none",)}, ("keep the baseline", "tie")),
        (TOLERANT, {"spiky": ("none",), "high": "layernorm"}, ("keep the baseline", "tie")),
        ({}, {"spiky": ("none", "layernorm")}, ("keep the baseline", "stability")),
        ({"alpha": 0.001}, {"spiky": ("none",)}, ("keep the baseline", "stability")),  # 2/256
        # Not judged.
        ({}, {"high": "none"}, ("undecided", "stability")),
        ({}, {"spiky": ("none",), "high": "layernorm"}, ("undecided", "stability")),
    ],
)  # fmt: skip
def test_a_decision_follows_the_three_criteria(content, made, outcome):
    assert decided(plan(**content), **made) == outcome


@pytest.mark.parametrize(
    ("answer", "low", "p_holm", "shown"),
    [
        ("negligible", -0.01, np.nan, "negligible"),
        ("negligible", 0.001, np.nan, "negligible"),  # not zero, but too small to matter
        ("negligible", 0.001, 0.01, "better"),  # a family shows it
        ("supported", 0.001, np.nan, "better"),
        ("refuted", 0.001, np.nan, "better"),
        ("refuted", -0.01, np.nan, "none"),  # in older plans, as too small
        ("undecided", 0.001, np.nan, "none"),
    ],
)
def test_shown_change_of_a_measure(answer, low, p_holm, shown):
    found = {"measure": QUALITY, "mean_delta": 0.005, "t_low": low, "t_high": 0.01}
    hypothesis = found | {"answer": answer, "claim": "> 0"}
    assert shown_change(found | {"p_holm": p_holm}, [hypothesis], 0.05) == shown
    assert shown_change(found | {"p_holm": np.nan}, [], 0.05) == ""


def test_no_decisions_if_the_plan_tests_no_stability():
    runs = runs_of(design(factors=NORMS), lambda arm, seed: 2.0)
    shares = pd.DataFrame({"arm": ["none", "layernorm"], "share": np.nan})
    for asked in (plan(instability=None), plan(hypotheses={"harm": HARM})):
        assert decide(runs, pd.DataFrame(), pd.DataFrame(), shares, asked) == []
