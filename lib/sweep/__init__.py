"""Execute notebooks, one or a whole sweep; and the command line.

May import every room. Start reading at `cli`, then at `sweep.run_sweep`, which lists the steps in
order. Snakemake's jobs are in `notebooks/Snakefile`; they run `execute`.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "kaggle": ["pack", "resume_from_inputs", "run_study", "show"],
        "live": ["LiveCurve"],
    },
)
