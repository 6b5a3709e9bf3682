"""What is read: the corpus and the task suite made of it.

Imports only `lib.study`. Start reading at `corpus`: `load_corpus` finds a text (`sources`), encodes
it (`tokenizer`) in memory or on the disk (`tokens`), and `sample_batch` draws from it.
"""
