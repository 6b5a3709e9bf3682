"""Many runs: read their results, compare them, and decide as the plan prescribes.

Imports only `lib.config` and `lib.results`, and no torch. Start reading at `runs`, then `paired`,
`hypotheses` and `verdict`.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "factorial": ["by_setting"],
        "opening": ["answer_sentences", "arm_table", "loss_first", "question", "seed_numbers"],
        "paired": ["paired_rows", "t_test"],
        "runs": [
            "collect",
            "melt_columns",
            "read_parquet",
            "read_table",
            "seed_differences",
            "study_results",
            "tidy",
        ],
        "tables": [
            "by_arm",
            "cautions",
            "contrast_overview",
            "provenance_table",
            "readable",
            "repetitions",
            "result_table",
            "section",
            "seed_tables",
            "statistics",
            "summary_table",
        ],
        "verdict": ["analyse"],
    },
)
