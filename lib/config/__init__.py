"""What is asked: a study's parameters, its plan, measures, places, and the code of a run by key.

Imports no other room and no torch. Start reading at `schema`, then `study`.
"""
