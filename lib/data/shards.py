"""Ids on the disk: written in parallel by processes that may be killed, read without loading.

A shard is a file of ids and a description beside it, written last. A shard that is whole is not
written again.
"""

import hashlib
import json
import multiprocessing
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lib.data.tokenizer import Ids, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

MOST_TEXT = 2**23
"""Characters of one shard, roughly: a process holds one."""


class Text(NamedTuple):
    """A document, or a piece of one."""

    part: str
    """train, dev or test."""
    text: str
    ends: bool
    """Whether a document ends with it."""


class Shards:
    """Ids in files, one behind the other: a sequence whose slices are tensors (n,) of int64.

    A file is mapped when it is first read, and stays so; what was read of it is the system's to
    keep or to drop.
    """

    def __init__(self, files: list[tuple[Path, int]], dtype: str, length: int | None = None):
        self._files, self._dtype = files, np.dtype(dtype)
        self._ends = [*accumulate(n for _, n in files)]
        total = self._ends[-1] if files else 0
        self._length = total if length is None else min(length, total)
        self._maps: dict[int, NDArray[Any]] = {}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: slice) -> "Tensor":
        import torch  # only here: processes that write shards do without

        start, stop, _ = place.indices(self._length)
        return torch.from_numpy(self.read(start, stop))

    def cut(self, length: int) -> "Shards":
        """The first `length` ids."""
        return Shards(self._files, self._dtype.str, length)

    def read(self, start: int, stop: int) -> Ids:
        """Read ids number `start` … `stop` - 1."""
        stop = min(stop, self._length)
        parts: list[NDArray[Any]] = []
        number = bisect_right(self._ends, start)
        while start < stop:
            path, n = self._files[number]
            first = self._ends[number] - n
            upto = min(stop, first + n)
            if number not in self._maps:
                self._maps[number] = np.memmap(path, self._dtype, "r", shape=(n,))
            parts.append(self._maps[number][start - first : upto - first].astype(np.int64))
            start, number = upto, number + 1
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def all(self) -> Iterator[int]:
        """Read all ids, one after the other."""
        for block in self.blocks():
            yield from block.tolist()

    def blocks(self, size: int = 2**20) -> Iterator[Ids]:
        """Read all, in blocks of `size` ids."""
        for start in range(0, self._length, size):
            yield self.read(start, start + size)


Making = Callable[[], Tokenizer]
"""Makes the tokenizer; called once per shard, in the process that writes it."""


def write_shards(
    texts: Iterable[Text], folder: Path, make: Making, processes: int
) -> list[dict[str, Any]]:
    """Write texts as ids to `folder`, in several processes; return the descriptions of the shards
    in order: file, key, part, dtype, tokens, characters and sha256.

    The key is the hash of texts and tokenizer: a shard of the same key is taken as it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting: deque[Callable[[], dict[str, Any]]] = deque()
    written = []
    with ExitStack() as stack:
        pool = stack.enter_context(_pool(processes)) if processes > 1 else None
        for number, group in enumerate(_grouped(texts)):
            write = partial(_write, folder / f"{number:06d}.bin", group, make)
            waiting.append(pool.submit(write).result if pool else write)
            if len(waiting) > 2 * processes:
                written.append(waiting.popleft()())
        written += [result() for result in waiting]
    return written


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


def _pool(processes: int) -> ProcessPoolExecutor:
    # Spawned: a fork of a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, _end_with_parent)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, also after `kill -9`."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a core has a process of its own
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _write(path: Path, group: list[Text], make: Making) -> dict[str, Any]:
    """Write one shard, unless it is there, and return its description."""
    tokenizer = make()
    described = path.with_suffix(".json")
    key = hashlib.sha256(f"{tokenizer.sha256} {tokenizer.symbols!r}".encode())
    for text in group:
        key.update(f"{text.ends} {len(text.text)} {text.text}".encode())
    found = read_description(described)
    if found and found["key"] == key.hexdigest() and is_whole(path, found):
        return found
    ends = tokenizer.end_of_document
    parts: list[Ids] = []
    for text, ids in zip(group, tokenizer.encode_all([t.text for t in group]), strict=True):
        parts.append(ids)
        if text.ends and ends is not None:
            parts.append(np.array([ends]))
    dtype = "<u2" if len(tokenizer.symbols) <= 2**16 else "<u4"
    content = np.concatenate(parts).astype(dtype).tobytes()
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
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def is_whole(path: Path, description: dict[str, Any]) -> bool:
    """Tell whether a shard's file is as its description says."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == description["sha256"]
