"""What the text itself allows: losses of counting models and, of a known source, of the source.

Perplexities mean little without them. A run above the unigram loss has not learnt how often
characters occur; one above the bigram loss uses no context that counting pairs does not.
"""

import numpy as np
import pandas as pd

from lib.analysis.finding import Finding, numbers
from lib.analysis.paired import t_test

NAMES = {
    "uniform_loss": "a uniform guess",
    "unigram_loss": "a unigram model",
    "bigram_loss": "a bigram model",
    "source_loss": "the text's own source",
}
"""Reference (see `RunResult.references`) → what it is the held-out loss of."""
TEXT = "corpus.source"


def reference_table(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per text and reference: nats per held-out character, perplexity, and how many of the
    arms on this text have a higher mean loss. Empty for runs that know none."""
    rows = []
    for text, part in runs.groupby(TEXT, sort=False):
        losses = part.groupby("arm")["loss"].mean().dropna()
        for reference, name in NAMES.items():
            nats = part[reference].mean() if reference in part else np.nan
            if not np.isnan(nats):
                rows.append(
                    {"text": text, "reference": name, "nats": nats, "perplexity": np.exp(nats)}
                    | {"arms_above": int((losses > nats).sum()), "arms": len(losses)}
                )
    return pd.DataFrame(rows)


def above_source(runs: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """One row per arm on a text of known source: n, mean nats above the source's loss, with the t
    interval of one sample. Empty without such a text."""
    if "source_loss" not in runs:
        return pd.DataFrame()
    rows = []
    for arm, part in runs.dropna(subset=["source_loss"]).groupby("arm", sort=False):
        test = t_test((part["loss"] - part["source_loss"]).dropna(), alpha)
        rows.append(
            {"arm": arm, "variant": part["variant"].iloc[0], "setting": part["setting"].iloc[0]}
            | {"n": test.n, "nats_above_source": test.mean_delta}
            | {"t_low": test.t_low, "t_high": test.t_high}
        )
    return pd.DataFrame(rows)


def reference_findings(runs: pd.DataFrame, alpha: float) -> list[Finding]:
    """Both tables with their sentences."""
    table, above = reference_table(runs), above_source(runs, alpha)
    words = [
        f"{row.text}: {row.reference} has {row.nats:.3f} nats, perplexity {row.perplexity:.2f}; "
        f"{row.arms_above} of {row.arms} arms are above it."
        for row in table.itertuples()
    ]
    sentences = [
        f"{row.arm}: {numbers(row.nats_above_source, row.t_low, row.t_high)} nats above the "
        f"source of the text (n = {row.n})."
        for row in above.itertuples()
    ]
    return [
        Finding("references", "What the text allows", table, words),
        Finding("above_source", "Above the source of the text", above, sentences),
    ]
