"""Write and check records of studies: executed notebooks, raw tables, parameters, plans, hashes.

Imports `lib.config`, `lib.results` and `lib.stats`, never torch. Start reading at `verify`.
"""

from lib import exports

__getattr__ = exports(
    __name__,
    {
        "archive": ["Record"],
    },
)
