"""The study's thin library; one concept per file, imports flow one way (see its README)."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def exports(room: str, files: dict[str, list[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a room, by which `from lib.data import load_corpus` works.

    `files` lists the names that each file exports; a file is imported when one of them is asked
    for. Notebooks import from rooms, so a file can be renamed without touching them.
    """
    homes = {name: file for file, names in files.items() for name in names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"{room} exports no {name!r}")
        return getattr(import_module(f"{room}.{homes[name]}"), name)

    return find
