"""The record: executed notebooks, raw files, parameters and plans of studies, by hash.

It imports `lib.study`, `lib.analysis` and `lib.figures`. Start at `verify`.
"""
