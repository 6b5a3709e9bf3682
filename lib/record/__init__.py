"""The record: executed notebooks, raw files, parameters and plans of studies, by hash.

Imports `lib.config`, `lib.results` and `lib.stats`, and no torch. Start reading at `verify`.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "archive": ["Record"],
    },
)
