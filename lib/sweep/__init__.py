"""How notebooks are executed: one of them, honestly; a whole sweep; and the command line.

May import every room. Start reading at `cli`, then `sweep.run_sweep`: what it does stands there in
order, then in `notebooks/Snakefile`, whose jobs are `execute`.
"""
