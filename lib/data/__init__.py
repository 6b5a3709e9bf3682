"""The text that a run reads (its corpus), and the task suite made from that text.

Imports only `lib.config`. Start reading at `text`: `load_corpus` finds a text or documents, splits
them and encodes them (see `tokens`). `sample_batch` draws batches from the result.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "describe": [
            "corpora_of",
            "corpus_summary",
            "sampling_table",
            "suites_of",
            "token_class_table",
        ],
        "text": ["load_corpus"],
    },
)
