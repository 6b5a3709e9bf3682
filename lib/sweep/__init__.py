"""The command line, and the execution of notebooks: of one, or of a whole sweep.

May import every room. Start reading at `cli`. Then read `sweep.run_sweep`, which lists the steps in
order. Snakemake's jobs are in `notebooks/Snakefile`; each of them calls `execute`.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "kaggle": ["pack", "resume_from_inputs", "run_study", "show"],
        "live": ["LiveCurve"],
    },
)
