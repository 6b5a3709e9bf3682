"""What is published: the record, the site around it, the paper.

Imports `lib.study`, `lib.analysis` and `lib.figures`, and no torch. Start reading at `archive`.
"""
