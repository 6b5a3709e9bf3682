"""The processes of a run over a corpus that takes long to hash, and that do not wait long."""

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from lib.data import tokens
from lib.run import distributed

SECONDS, PATIENCE = 1, 2


def prepare(put: Callable[[object, str, Any], None]) -> None:
    """Keep tokens in the folder that SLOW_SHARDS names."""
    folder = Path(os.environ["SLOW_SHARDS"])
    put(tokens, "output_root", lambda: folder)


def _slowly(path: Path) -> str | None:
    """Hash a shard, and count it for the rank."""
    time.sleep(SECONDS)
    count = Path(os.environ["SLOW_SHARDS"], f"hashed-{os.environ['RANK']}")
    count.write_text(str(int(count.read_text() if count.exists() else 0) + 1))
    return hash_of(path)


hash_of = tokens._hash_of
if __name__ == "__main__":
    prepare(setattr)
    tokens._hash_of = _slowly
    distributed.PATIENCE = timedelta(seconds=PATIENCE)
    sys.exit(distributed.main(sys.argv[1:]))
