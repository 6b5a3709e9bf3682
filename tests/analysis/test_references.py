import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.analysis.references import above_source, reference_findings, reference_table
from tests.analysis.samples import REFERENCES, design, noise, runs_of

STUDY = design(factors={"model.embedding_norm": ["none", "layernorm", "scale"]})
LOSS = {"none": 2.0, "layernorm": 3.0, "scale": 4.0}


def runs(**more: float) -> pd.DataFrame:
    return runs_of(
        STUDY, lambda arm, seed: LOSS[arm.id] + 0.01 * noise(seed), references=REFERENCES | more
    )


def test_each_reference_has_its_perplexity_and_the_arms_above_it() -> None:
    table = reference_table(runs()).set_index("reference")
    assert table["nats"].tolist() == [4.2, 3.35, 2.5]
    assert table.loc["a bigram model", "perplexity"] == pytest.approx(np.exp(2.5))
    assert table["arms_above"].tolist() == [0, 1, 2]
    references, above = reference_findings(runs(), 0.05)
    assert references.words[1] == (
        "synthetic: a unigram model has 3.350 nats, perplexity 28.50; 1 of 3 arms are above it."
    )
    assert above.table.empty


def test_losses_are_read_above_a_known_source() -> None:
    table = runs(source_loss=1.5)
    row = above_source(table, 0.05).set_index("arm").loc["layernorm"]
    own = table.loc[table["arm"] == "layernorm", "loss"]
    peer = stats.ttest_1samp(own - 1.5, 0).confidence_interval()
    assert row["nats_above_source"] == pytest.approx(own.mean() - 1.5)
    assert (row["t_low"], row["t_high"]) == pytest.approx((peer.low, peer.high))
    _, above = reference_findings(table, 0.05)
    assert above.words[0].startswith("none: +0.5")
    assert above.words[0].endswith("nats above the source of the text (n = 3).")


def test_two_texts_are_kept_apart_and_old_results_have_no_reference() -> None:
    table = runs()
    other = table.assign(**{"corpus.source": "other", "bigram_loss": 1.0})
    joined = reference_table(pd.concat([table, other]))
    assert joined.groupby("text", sort=False)["nats"].min().tolist() == [2.5, 1.0]
    assert reference_table(runs_of(STUDY, lambda *_: 2.0, references={})).empty
