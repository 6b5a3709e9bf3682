"""A corpus as ids on the disk, written once: split, deduplicated, tokenized, hashed.

The last tenth of the documents, of a mixture that of each source, is held out; its first half is
dev, its second test. The tokenizer is learned from the training part alone. Whoever asks again
finds what was written, as long as the source's files have their sizes and times of change.

A shard is a file of ids, named by the hash of what they stand for. So a writing that was killed is
taken up again, and of a damaged corpus only the damaged shard is written again.
"""

import hashlib
import json
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from lib.data.sources import PARTS, CorpusError, Mixture, Source, pieces
from lib.data.tokenizer import Tokenizer, learn_pairs, make_tokenizer, read_tokenizer
from lib.study.io import output_root, sha256, write_bytes
from lib.study.schema import CorpusConfig, digest

MAX_SHARD = 2**23
"""Characters of one shard, roughly."""
MAX_LEARNED = 2**30
"""Characters of the training part that a tokenizer is learned from, at the most."""
_FORMAT = 3
_CHECKED = "checked.json"
"""Of each shard that was found whole, its size, time of change and hash."""


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

    def __getitem__(self, window: slice) -> Tensor:
        start, stop, _ = window.indices(len(self))
        number, parts = bisect_right(self._ends, start), [np.zeros(0, self._dtype)]
        while start < stop:
            path, n = self._files[number]
            within, end = start - self._ends[number] + n, min(stop, self._ends[number])
            offset = within * self._dtype.itemsize
            parts.append(np.fromfile(path, self._dtype, end - start, offset=offset))
            start, number = end, number + 1
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))

    def cut(self, length: int) -> "Shards":
        """Return the first `length` ids."""
        return Shards(self._files, self._dtype.str, length)


def tokenize(
    config: CorpusConfig, source: Source
) -> tuple[Tokenizer, dict[str, Shards], dict[str, Any]]:
    """Find or write the ids of a source in `data/tokens/`; return their tokenizer, the ids of each
    part, and what `TokenCorpus.metadata` says. A shard is hashed where its size or time of change
    is another one than when that was last done.

    Raises CorpusError for what cannot be read, has too few documents or a symbol that the tokenizer
    lacks, or does not go with the tokenizer or with deduplication.
    """
    if config.deduplicate and not source.ends:
        raise CorpusError(
            f"corpus.deduplicate: {source.name} is one text, without documents; remove the field"
        )
    content = read_tokenizer(config.tokenizer) if config.tokenizer.endswith(".json") else ""
    identity = [config.source, _FORMAT, source.fingerprint, config.tokenizer]
    identity += [content and digest(content), config.deduplicate, source.ends]
    folder = output_root() / "data" / "tokens" / f"{source.name}-{digest(identity)[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        metadata = _find(folder)
        if metadata is None:
            with FileLock(folder / ".lock"):  # who waited for it finds what another one wrote
                metadata = _find(folder) or _write(config, source, content, folder)
    except OSError as error:
        raise CorpusError(f"{source.name}: its tokens cannot be kept: {error}") from None
    tokenizer = make_tokenizer(*metadata["tokenizer"])
    parts = {}
    for part in PARTS:
        shards = [shard for shard in metadata["shards"] if shard["part"] == part]
        files = [(folder / shard["file"], shard["tokens"]) for shard in shards]
        parts[part] = Shards(files, shards[0]["dtype"])
    return tokenizer, parts, metadata | {"tokenizer_sha256": tokenizer.sha256}


def _find(folder: Path) -> dict[str, Any] | None:
    """Read the metadata of a finished writing; None where there is none. A shard that is not as it
    was written is named and goes, and the metadata with it."""
    metadata = _read_json(folder / "index.json")
    if metadata.pop("digest", None) != digest(metadata):
        return None
    checked, current = _read_json(folder / _CHECKED), {}
    states = {p.name: [p.stat().st_size, p.stat().st_mtime_ns] for p in folder.glob("*.bin")}
    for shard in metadata["shards"]:
        name = shard["file"]
        state = current[name] = [states.get(name), shard["sha256"]]
        if state != checked.get(name) and _hash_of(folder / name) != shard["sha256"]:
            print(f"{name} of {folder.name} is damaged. It is made anew.", file=sys.stderr)
            for path in (folder / name, folder / "index.json"):
                path.unlink(missing_ok=True)
            return None
    if checked != current:
        with suppress(OSError):  # tokens may lie where nothing can be written
            write_bytes(folder / _CHECKED, json.dumps(current).encode())
    return metadata


def _write(config: CorpusConfig, source: Source, content: str, folder: Path) -> dict[str, Any]:
    """Write the shards of a source and their metadata, which it returns."""
    learned = content or _learn(config.tokenizer, source)
    tokenizer_args = (config.tokenizer, learned, source.name, source.ends)
    tokenizer, tally = make_tokenizer(*tokenizer_args), Tally()
    texts = _pieces(source, tally, config.deduplicate)
    shards = [
        _write_shard(folder, number, group, tokenizer)
        for number, group in enumerate(_grouped(texts))
    ]
    characters = dict.fromkeys(PARTS, 0)
    for shard in shards:
        characters[shard["part"]] += shard["characters"]
    if empty := [part for part in PARTS if not characters[part]]:
        raise CorpusError(f"{source.name}: too short: no {' and no '.join(empty)} part")
    metadata = {
        "sha256": tally.sha256.hexdigest(),
        "documents": {part: tally[part] for part in PARTS} if source.ends else None,
        "characters": characters,
        "duplicates": tally["duplicates"],
        "removed": config.deduplicate,
        "heldout_in_train": tally["heldout_in_train"],
        "tokenizer": tokenizer_args,
        "shards": shards,
        **({"sources": source.taken} if isinstance(source, Mixture) else {}),
    }
    sealed = metadata | {"digest": digest(metadata)}
    write_bytes(folder / "index.json", json.dumps(sealed, indent=1).encode())
    return metadata


class Tally(Counter[str]):
    """What reading a source to its end tells: documents by part, duplicates, and the hash of all.
    One text has the hash of its file."""

    def __init__(self) -> None:
        super().__init__()
        self.sha256 = hashlib.sha256()


def _learn(tokenizer: str, source: Source) -> str:
    """Learn of the training part what a tokenizer needs: the characters, or a `tokenizer.json`."""
    train = (text for part, text in source.parts() if part == "train")
    if tokenizer == "characters":
        symbols = {"\n"}  # what solved examples are parted by
        for text in train:
            symbols.update(text)
        return "".join(sorted(symbols))
    return "" if tokenizer == "bytes" else learn_pairs(_limited(train), int(tokenizer[4:]))


def _limited(texts: Iterable[str]) -> Iterator[str]:
    """Cut a text after its first `MAX_LEARNED` characters."""
    read = 0
    for text in texts:
        if read > MAX_LEARNED:
            return
        read += len(text)
        yield text


class Piece(NamedTuple):
    """A document, or a piece of one."""

    part: str
    """train, dev or test."""
    text: str
    ends: bool
    """Whether a document ends with it."""


def _pieces(source: Source, tally: Tally, deduplicate: bool) -> Iterator[Piece]:
    """Cut documents into pieces, and count them and their duplicates."""
    seen: set[bytes] = set()
    for part, text in source.parts():
        content = text.encode()
        tally.sha256.update(len(content).to_bytes(8, "big") + content if source.ends else content)
        if source.ends:
            key = hashlib.blake2b(content, digest_size=16).digest()
            tally["duplicates" if part == "train" else "heldout_in_train"] += key in seen
            if part == "train":
                if deduplicate and key in seen:
                    continue
                seen.add(key)
        if text:
            tally[part] += 1
            *rest, last = pieces(text)
            yield from (Piece(part, piece, False) for piece in rest)
            yield Piece(part, last, source.ends)


def _grouped(texts: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Gather pieces of one part until they fill a shard."""
    group: list[Piece] = []
    size = 0
    for text in texts:
        if group and (text.part != group[0].part or size + len(text.text) > MAX_SHARD):
            yield group
            group, size = [], 0
        group.append(text)
        size += len(text.text)
    if group:
        yield group


def _write_shard(
    folder: Path, number: int, group: list[Piece], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Write one shard, unless it is there, and return its description."""
    key = hashlib.sha256(f"{tokenizer.sha256} {tokenizer.symbols!r}".encode())
    for text in group:
        key.update(f"{text.ends} {len(text.text)} {text.text}".encode())
    path = folder / f"{number:06d}-{key.hexdigest()[:16]}.bin"
    dtype = np.dtype("<u2" if len(tokenizer.symbols) <= 2**16 else "<u4")
    if not path.is_file():
        parts = []
        for text, ids in zip(group, tokenizer.encode_all([t.text for t in group]), strict=True):
            end = [tokenizer.end_of_document] if text.ends else []
            parts += [ids.astype(dtype), np.array(end, dtype)]
        write_bytes(path, np.concatenate(parts).tobytes())
    return {
        "file": path.name,
        "part": group[0].part,
        "dtype": dtype.str,
        "tokens": path.stat().st_size // dtype.itemsize,
        "characters": sum(len(text.text) for text in group),
        "sha256": _hash_of(path),
    }


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of this folder; {} where there is none, or it was left half written."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _hash_of(path: Path) -> str | None:
    """Compute the SHA-256 of a file; None where there is none."""
    return sha256(path) if path.is_file() else None
