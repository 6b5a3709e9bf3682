"""What is read: the corpus and the task suite made of it.

Imports only `lib.study`. Start reading at `corpus`.
"""
