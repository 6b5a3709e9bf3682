"""Figures, drawn from the tables of `lib.stats`.

Imports `lib.config`, `lib.results` and `lib.stats`, and no torch. Start reading at `study`.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "effects": ["differences", "forest", "interaction", "mark"],
        "study": ["StudyFigures"],
        "style": ["facets", "line", "variant"],
        "training": [
            "difference",
            "reference_lines",
            "show_measurement",
            "show_symbols",
            "show_training",
            "trend",
        ],
    },
)
