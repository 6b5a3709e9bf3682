"""How notebooks are executed: one of them, honestly; a whole sweep; and the command line.

May import every room. Start reading at `cli`.
"""
