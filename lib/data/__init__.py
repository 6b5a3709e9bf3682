"""What is read: the corpus and the task suite made of it.

Imports only `lib.config`. Start reading at `text`: `load_corpus` finds a text or documents, splits
and encodes them (`tokens`), and `sample_batch` draws from them.
"""
