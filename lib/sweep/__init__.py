"""How notebooks are executed: one of them, honestly; a whole sweep; and the command line.

May import every room. Start reading at `cli`, then `sweep.run_sweep`: what it does stands there in
order, then in `notebooks/Snakefile`, whose jobs are `execute`.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "kaggle": ["pack", "resume_from_inputs", "run_study", "show"],
        "live": ["LiveCurve"],
    },
)
