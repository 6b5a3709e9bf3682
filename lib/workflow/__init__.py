"""How notebooks are executed: one of them, honestly; a whole sweep.

May import every room. Start reading at `execution`.
"""
