"""The record: executed notebooks, raw files, parameters and plans of studies, by hash.

It imports `lib.config` and `lib.stats`. Start at `verify`.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "archive": ["Record"],
    },
)
