"""Records of studies: executed notebooks, raw tables, parameters and plans, with their hashes.

Imports `lib.config`, `lib.results` and `lib.stats`, and no torch. Start reading at `verify`.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "archive": ["Record"],
    },
)
