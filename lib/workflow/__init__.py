"""How notebooks are executed: one of them, honestly; a whole sweep; and the command line.

May import every room. Start reading at `cli`; of a sweep, at `sweep.run_sweep`: what it does stands
there in order, `preflight`, `staleness`, `rehearsal`, then `notebooks/Snakefile`, whose jobs are
`execution`, in kernels that are `forked` from a `warm` process, followed by `progress`.
"""
