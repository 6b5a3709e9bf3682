"""The study's thin library; one concept per file, imports flow one way (see its README).

Python takes a compiled file for its source's by size and time, which tools set as they like. Those
of this library are made such that their sources' bytes decide, before any of them is imported.
"""

import py_compile
import sys
from importlib.util import cache_from_source
from pathlib import Path

for _source in map(str, Path(__file__).parent.rglob("*.py")):
    _compiled = Path(cache_from_source(_source))
    try:
        if _compiled.is_file() and _compiled.read_bytes()[4:8] != b"\3\0\0\0":
            _by_bytes = py_compile.PycInvalidationMode.CHECKED_HASH
            py_compile.compile(_source, quiet=2, invalidation_mode=_by_bytes)
    except OSError:  # it cannot be replaced: this process reads none
        sys.pycache_prefix = __file__  # no folder
