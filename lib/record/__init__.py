"""The record: executed notebooks, raw files, parameters and plans of studies, by hash.

It imports `lib.config`, `lib.stats` and `lib.figures`. Start at `verify`.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "archive": ["Record"],
    },
)
