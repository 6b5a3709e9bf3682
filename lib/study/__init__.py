"""What is asked: parameters, plan, measures, variants, places, and the schema of a result.

Imports no other room and no torch. Start reading at `config`.
"""
