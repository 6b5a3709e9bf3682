"""Ids on the disk: a writing that is killed is taken up again, and reading loads nothing else.

A shard is a file of ids and a description beside it, written last. A shard that is whole is not
written again.
"""

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib.data.subwords import Tokenizer

MOST_TEXT = 2**23
"""Characters of one shard, roughly."""


class Text(NamedTuple):
    """A document, or a piece of one."""

    part: str
    """train, dev or test."""
    text: str
    ends: bool
    """Whether a document ends with it."""


class Shards:
    """Ids in files, one behind the other: a sequence whose slices are tensors (n,) of int64. No
    file stays open, as there may be more of them than a process may open."""

    def __init__(self, files: list[tuple[Path, int]], dtype: str, length: int | None = None):
        self._files, self._dtype = files, np.dtype(dtype)
        self._ends = [*accumulate(n for _, n in files)]
        self._length = self._ends[-1] if length is None else length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self), 2**20):
            yield from self[start : start + 2**20].tolist()

    def __getitem__(self, place: slice) -> Tensor:
        start, stop, _ = place.indices(len(self))
        number, parts = bisect_right(self._ends, start), [np.zeros(0, self._dtype)]
        while start < stop:
            path, n = self._files[number]
            within, end = start - self._ends[number] + n, min(stop, self._ends[number])
            offset = within * self._dtype.itemsize
            parts.append(np.fromfile(path, self._dtype, end - start, offset=offset))
            start, number = end, number + 1
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))

    def cut(self, length: int) -> "Shards":
        """The first `length` ids."""
        return Shards(self._files, self._dtype.str, length)


def write_shards(texts: Iterable[Text], folder: Path, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Write texts as ids to `folder`; return the descriptions of the shards in order: file, key,
    part, dtype, tokens, characters and sha256.

    The key is the hash of texts and tokenizer: a shard of the same key is taken as it is.
    """
    return [
        _write(folder / f"{number:06d}.bin", group, tokenizer)
        for number, group in enumerate(_grouped(texts))
    ]


def _grouped(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Gather texts of one part until they fill a shard."""
    group: list[Text] = []
    size = 0
    for text in texts:
        if group and (text.part != group[0].part or size + len(text.text) > MOST_TEXT):
            yield group
            group, size = [], 0
        group.append(text)
        size += len(text.text)
    if group:
        yield group


def _write(path: Path, group: list[Text], tokenizer: Tokenizer) -> dict[str, Any]:
    """Write one shard, unless it is there, and return its description."""
    described = path.with_suffix(".json")
    key = hashlib.sha256(f"{tokenizer.sha256} {tokenizer.symbols!r}".encode())
    for text in group:
        key.update(f"{text.ends} {len(text.text)} {text.text}".encode())
    found = read_description(described)
    if found and found["key"] == key.hexdigest() and is_whole(path, found):
        return found
    dtype = "<u2" if len(tokenizer.symbols) <= 2**16 else "<u4"
    parts = []
    for text, ids in zip(group, tokenizer.encode_all([t.text for t in group]), strict=True):
        end = [tokenizer.end_of_document] if text.ends else []
        parts += [ids.astype(dtype), np.array(end, dtype)]
    content = np.concatenate(parts).tobytes()
    description = {
        "file": path.name,
        "key": key.hexdigest(),
        "part": group[0].part,
        "dtype": dtype,
        "tokens": sum(map(len, parts)),
        "characters": sum(len(text.text) for text in group),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    write_whole(path, content)
    write_whole(described, json.dumps(description).encode())
    return description


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that has its name only when it is complete."""
    partial_file = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial_file.write_bytes(content)
        partial_file.replace(path)
    finally:
        partial_file.unlink(missing_ok=True)


def read_description(path: Path) -> dict[str, Any] | None:
    """Read a JSON file of this folder; None where there is none, or it was left half written."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def is_whole(path: Path, description: dict[str, Any]) -> bool:
    """Tell whether a shard's file is as its description says."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == description["sha256"]
