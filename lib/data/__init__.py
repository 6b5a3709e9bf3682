"""What is read: the corpus and the task suite made of it.

Imports only `lib.config`. Start reading at `text`: `load_corpus` finds a text or documents, splits
and encodes them (`tokens`), and `sample_batch` draws from them.
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
