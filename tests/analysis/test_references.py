import numpy as np
import pandas as pd
import pytest

from lib.analysis.findings import reference_finding, reference_table
from tests.analysis.samples import design, noise, runs_of

STUDY = design(factors={"model.embedding_norm": ["none", "layernorm", "scale"]})
LOSS = {"none": 2.0, "layernorm": 3.0, "scale": 4.0}


def runs() -> pd.DataFrame:
    return runs_of(STUDY, lambda arm, seed: LOSS[arm.id] + 0.01 * noise(seed))


def test_each_reference_has_its_perplexity_and_the_arms_above_it() -> None:
    table = reference_table(runs()).set_index("reference")
    assert table["nats"].tolist() == [4.2, 3.35, 2.5]
    assert table.loc["a bigram model", "perplexity"] == pytest.approx(np.exp(2.5))
    assert table["arms_above"].tolist() == [0, 1, 2]
    assert reference_finding(runs()).words[1] == (
        "synthetic: a unigram model has 3.350 nats, perplexity 28.50; 1 of 3 arms are above it."
    )


def test_two_texts_are_kept_apart_and_old_results_have_no_reference() -> None:
    table = runs()
    other = table.assign(**{"corpus.source": "other", "bigram_loss": 1.0})
    joined = reference_table(pd.concat([table, other]))
    assert joined.groupby("text", sort=False)["nats"].min().tolist() == [2.5, 1.0]
    assert reference_table(runs_of(STUDY, lambda *_: 2.0, references={})).empty
