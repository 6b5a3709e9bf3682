"""What is drawn, from tables that `lib.stats` made.

Imports `lib.config` and `lib.stats`, and no torch. Start reading at `study`.
"""
