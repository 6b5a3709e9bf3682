"""What is drawn, from tables that `lib.analysis` made.

Imports `lib.study` and `lib.analysis`, and no torch. Start reading at `study`.
"""
