"""What the text itself allows: losses of counting models and, of a known source, of the source.

Perplexities mean little without them. A run above the unigram loss has not learnt how often
characters occur; one above the bigram loss uses no context that counting pairs does not.
"""

import numpy as np
import pandas as pd

from lib.analysis.finding import Finding

NAMES = {
    "uniform_loss": "a uniform guess",
    "unigram_loss": "a unigram model",
    "bigram_loss": "a bigram model",
    "source_loss": "the text's own source",
}
"""Reference (see `RunResult.references`) → what it is the held-out loss of."""
TEXT = "corpus.source"


def reference_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per text and reference: nats per held-out character, perplexity, and how many
    of the arms on this text have a higher mean loss. Empty for runs that know none."""
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


def reference_finding(runs: pd.DataFrame) -> Finding:
    """Give the table with its sentences."""
    table = reference_table(runs)
    words = [
        f"{row.text}: {row.reference} has {row.nats:.3f} nats, perplexity {row.perplexity:.2f}; "
        f"{row.arms_above} of {row.arms} arms are above it."
        for row in table.itertuples()
    ]
    return Finding("references", "What the text allows", table, words)
