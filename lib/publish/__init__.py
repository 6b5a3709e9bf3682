"""What is published of the record: the paper, the READMEs' answers, and the site.

Imports `lib.record` and the rooms below it, and no torch. Start reading at `paper`, or at `site`.
"""
