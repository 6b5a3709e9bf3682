import numpy as np
import pytest

from lib.analysis.paired import contrast_table
from lib.analysis.stability import judge_runs, stability_map
from lib.analysis.trade_off import trade_off
from lib.study.plan import INSTABILITY
from tests.analysis.samples import design, noise, runs_of, trace_of

STUDY = design(factors={"model.embedding_norm": ["none", "layernorm"]}, seeds=list(range(8)))


def test_each_arm_has_its_share_and_its_accuracy() -> None:
    runs = runs_of(
        STUDY,
        lambda arm, seed: 2.0,
        macro_accuracy_zero_shot=lambda arm, seed: (
            0.5 - 0.1 * (arm.id == "layernorm") + 0.01 * noise(seed, len(arm.id))
        ),
    )
    judged = judge_runs(runs, trace_of(runs, lambda arm, seed: float(arm == "none")), INSTABILITY)
    table = stability_map(runs, judged, 0.05)
    measures = ["perplexity", "macro_accuracy_zero_shot"]
    contrasts = contrast_table(runs, measures, np.random.default_rng(0))
    finding = trade_off(runs, table, contrasts)
    rows = finding.table.set_index("arm")
    assert rows["share"].to_dict() == {"none": 1.0, "layernorm": 0.0}
    assert rows["median_severity"].to_dict() == pytest.approx({"none": 1.0, "layernorm": 0.0})
    means = runs.groupby("arm")["macro_accuracy_zero_shot"].mean()
    assert rows["macro_accuracy_zero_shot"].to_dict() == pytest.approx(means.to_dict())
    (words,) = finding.words
    assert words.startswith(
        "layernorm: 0 of 8 unstable [0.00, 0.37], against 8 of 8 unstable [0.63, 1.00] of none; "
        "macro accuracy, zero-shot -0.0"
    )
    assert words.endswith("(n = 8: harms).")


def test_without_the_suite_perplexity_stands_for_the_cost() -> None:
    runs = runs_of(STUDY, lambda arm, seed: 2.0 + 0.01 * noise(seed, len(arm.id)))
    table = stability_map(runs, judge_runs(runs, trace_of(runs), INSTABILITY), 0.05)
    contrasts = contrast_table(runs, ["perplexity"], np.random.default_rng(0))
    assert "; validation perplexity " in trade_off(runs, table, contrasts).words[0]
