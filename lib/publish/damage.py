"""What is wrong with the files of a record, in a line for the pages that cannot show them."""

import re
from pathlib import Path
from typing import Any

from lib.publish.archive import MANIFEST, index_file, read_index
from lib.publish.evidence import changed_files
from lib.study.errors import UserError, explain_os
from lib.study.paths import shown

_NAME = re.compile(r"[a-z0-9_-]+")


def index_of(paper: Path) -> tuple[dict[str, dict[str, Any]], str]:
    """What the index of a paper's record names, and what is wrong with the index."""
    try:
        index: Any = read_index(paper)
    except UserError as error:
        return {}, str(error)
    if not isinstance(index, dict):
        return {}, f"{shown(index_file(paper))} must hold an entry per study; restore it"
    named = {
        n: entry for n, entry in index.items() if isinstance(entry, dict) and _NAME.fullmatch(n)
    }
    for name in index:
        if name not in named:
            return (
                named,
                f"{shown(index_file(paper))} names {name!r}, which is no study; restore it",
            )
    return named, ""


def changed(name: str) -> str:
    """Say which files of a record are not as its manifest says; empty where all are."""
    try:
        faults = [fault.removeprefix("../../") for fault in changed_files(name)]
    except (OSError, ValueError):
        faults = [f"its {MANIFEST}, or a file that it lists, cannot be read"]
    more = f" (and {len(faults) - 1} more)" if faults[1:] else ""
    return f"{faults[0]}{more}; restore it, or record the study again" if faults else ""


def why(error: Exception) -> str:
    """Say in a line why a file could not be read or shown."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return explain_os(error)
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return f"a file cannot be read as what it is ({said[:200]}); restore it, or delete it"
