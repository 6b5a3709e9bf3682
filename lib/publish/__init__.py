"""Build what readers see of the record: the paper, the answers in the READMEs, and the site.

Imports `lib.record` and the rooms below it, never torch. Start reading at `paper` or at `site`.
"""
