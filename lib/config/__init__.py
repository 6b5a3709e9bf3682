"""Parameters and plan of a study, measures, paths, and the keys that identify the code of runs.

Imports no other room and no torch. Start reading at `schema`, then `study`.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "claim": ["claim_status", "load_plan"],
        "errors": ["one_line_errors"],
        "files": ["write_json"],
        "paths": ["relative", "result_file", "run_folder", "study_folder"],
        "provenance": ["plan_log"],
        "study": ["load_study", "scratch"],
    },
)
