"""A corpus as ids on the disk, written once: split, deduplicated, tokenized, hashed.

The last tenth of the documents, of a mixture that of each source, is held out; its first half is
dev, its second test. The tokenizer is learned from the training part alone. Whoever asks again
finds what was written, as long as the source's files have their sizes and times of change.

A shard is a file of ids and a description beside it, written last. So a writing that was killed is
taken up again, and of a damaged corpus only the damaged shard is written again.
"""

import hashlib
import json
from bisect import bisect, bisect_right
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

from lib.data.sources import CorpusError, Mixture, Source, pieces
from lib.data.tokenizer import Tokenizer, learn_pairs, make_tokenizer, read_tokenizer
from lib.study.fields import CorpusConfig, digest
from lib.study.files import write_bytes
from lib.study.paths import output_root

PARTS = ("train", "dev", "test")
LONGEST_SHARD = 2**23
"""Characters of one shard, roughly."""
MOST_LEARNED = 2**30
"""Characters of the training part that a tokenizer is learned from, at the most."""
_FORMAT = 2
_CHECKED = "checked.json"
"""Of each shard that was found whole, its size, time of change and hash."""
_WHOLE: dict[Path, object] = {}
"""The same, of those that this process found whole itself."""


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
    config: CorpusConfig, source: Source, trust: bool
) -> tuple[Tokenizer, dict[str, Shards], dict[str, Any]]:
    """Find or write the ids of a source in `data/tokens/`; return their tokenizer, the ids of each
    part, and what `TokenCorpus.metadata` says. Shards are hashed once in a process, or, to `trust`
    the last process that did so, only where their size or time of change is another one since.

    Raises CorpusError for what cannot be read, has too few documents or a symbol that the tokenizer
    lacks, or does not go with the tokenizer or with deduplication.
    """
    if config.deduplicate and not source.ends:
        raise CorpusError(
            f"corpus.deduplicate: {source.name} is one text, without documents; remove the field"
        )
    given = read_tokenizer(config.tokenizer) if config.tokenizer.endswith(".json") else ""
    identity = [config.source, _FORMAT, source.fingerprint, config.tokenizer]
    identity += [given and digest(given), config.deduplicate, source.ends]
    folder = output_root() / "data" / "tokens" / f"{source.name}-{digest(identity)[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        metadata = _find(folder, trust)
        if metadata is None:
            with FileLock(folder / ".lock"):  # who waited for it finds what another one wrote
                metadata = _find(folder, trust) or _write(config, source, given, folder)
    except OSError as error:
        raise CorpusError(f"{source.name}: its tokens cannot be kept: {error}") from None
    tokenizer = make_tokenizer(*metadata["tokenizer"])
    parts = {}
    for part in PARTS:
        shards = [shard for shard in metadata["shards"] if shard["part"] == part]
        files = [(folder / shard["file"], shard["tokens"]) for shard in shards]
        parts[part] = Shards(files, shards[0]["dtype"])
    return tokenizer, parts, metadata | {"tokenizer_sha256": tokenizer.sha256}


def _find(folder: Path, trust: bool) -> dict[str, Any] | None:
    """Read the metadata of a finished writing; None where there is none. Where a shard is not as it
    was written, say so, and forget the metadata."""
    metadata = _read_json(folder / "index.json")
    if metadata.pop("digest", None) != digest(metadata):
        return None
    checked = _read_json(folder / _CHECKED) if trust else {}
    states = {p.name: [p.stat().st_size, p.stat().st_mtime_ns] for p in folder.glob("*.bin")}
    whole = {}
    for shard in metadata["shards"]:
        name, path = shard["file"], folder / shard["file"]
        state = whole[name] = [states.get(name), shard["sha256"]]
        if state not in (_WHOLE.get(path), checked.get(name)):
            if not _is_whole(path, shard):
                print(f"{name} of {folder.name} is damaged. It is made anew.")
                (folder / "index.json").unlink(missing_ok=True)
                return None
            _WHOLE[path] = state
    if not trust or checked != whole:
        with suppress(OSError):  # tokens may lie where nothing can be written
            write_bytes(folder / _CHECKED, json.dumps(whole).encode())
    return metadata


def _write(config: CorpusConfig, source: Source, given: str, folder: Path) -> dict[str, Any]:
    """Write the shards of a source and their metadata, which it returns."""
    number, sha256 = _survey(source)
    bounds = source.bounds(number)

    def documents() -> Iterator[tuple[str, str]]:
        for i, text in enumerate(filter(None, source)):
            yield PARTS[bisect(bounds, i)], text

    learned = given or _learn(config.tokenizer, documents())
    of_tokenizer = (config.tokenizer, learned, source.name, source.ends)
    tokenizer, counts = make_tokenizer(*of_tokenizer), Counter[str]()
    texts = _pieces(documents(), counts, config.deduplicate, source.ends)
    shards = [
        _write_shard(folder / f"{number:06d}.bin", group, tokenizer)
        for number, group in enumerate(_grouped(texts))
    ]
    characters = dict.fromkeys(PARTS, 0)
    for shard in shards:
        characters[shard["part"]] += shard["characters"]
    if empty := [part for part in PARTS if not characters[part]]:
        raise CorpusError(f"{source.name}: too short: no {' and no '.join(empty)} part")
    metadata = {
        "sha256": sha256,
        "documents": {part: counts[part] for part in PARTS} if source.ends else None,
        "characters": characters,
        "duplicates": counts["duplicates"],
        "removed": config.deduplicate,
        "heldout_in_train": counts["heldout_in_train"],
        "tokenizer": of_tokenizer,
        "shards": shards,
        **({"sources": source.taken} if isinstance(source, Mixture) else {}),
    }
    sealed = metadata | {"digest": digest(metadata)}
    write_bytes(folder / "index.json", json.dumps(sealed, indent=1).encode())
    return metadata


def _survey(source: Source) -> tuple[int, str]:
    """Read a source to its end: count its documents, and hash it. One text has the hash of its
    file."""
    sha256, number = hashlib.sha256(), 0
    for text in filter(None, source):
        number += 1
        content = text.encode()
        sha256.update(len(content).to_bytes(8, "big") + content if source.ends else content)
    return number, sha256.hexdigest()


def _learn(tokenizer: str, documents: Iterable[tuple[str, str]]) -> str:
    """Learn of the training part what a tokenizer needs: the characters, or a `tokenizer.json`."""
    train = (text for part, text in documents if part == "train")
    if tokenizer == "characters":
        known = {"\n"}  # what solved examples are parted by
        for text in train:
            known.update(text)
        return "".join(sorted(known))
    return "" if tokenizer == "bytes" else learn_pairs(_limited(train), int(tokenizer[4:]))


def _limited(texts: Iterable[str]) -> Iterator[str]:
    """The first `MOST_LEARNED` characters, to the end of a text."""
    read = 0
    for text in texts:
        if read > MOST_LEARNED:
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


def _pieces(
    documents: Iterable[tuple[str, str]], counts: Counter[str], deduplicate: bool, ends: bool
) -> Iterator[Piece]:
    """Cut documents into pieces, and count them and their duplicates."""
    seen: set[bytes] = set()
    for part, text in documents:
        if ends:
            key = hashlib.blake2b(text.encode(), digest_size=16).digest()
            counts["duplicates" if part == "train" else "heldout_in_train"] += key in seen
            if part == "train":
                if deduplicate and key in seen:
                    continue
                seen.add(key)
        counts[part] += 1
        *whole, last = pieces(text)
        yield from (Piece(part, piece, False) for piece in whole)
        yield Piece(part, last, ends)


def _grouped(texts: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Gather pieces of one part until they fill a shard."""
    group: list[Piece] = []
    size = 0
    for text in texts:
        if group and (text.part != group[0].part or size + len(text.text) > LONGEST_SHARD):
            yield group
            group, size = [], 0
        group.append(text)
        size += len(text.text)
    if group:
        yield group


def _write_shard(path: Path, group: list[Piece], tokenizer: Tokenizer) -> dict[str, Any]:
    """Write one shard, unless it is there, and return its description. Its key is the hash of texts
    and tokenizer: what of the same key is there is taken as it is."""
    key = hashlib.sha256(f"{tokenizer.sha256} {tokenizer.symbols!r}".encode())
    for text in group:
        key.update(f"{text.ends} {len(text.text)} {text.text}".encode())
    described = path.with_suffix(".json")
    before = _read_json(described)
    if before.get("key") == key.hexdigest() and _is_whole(path, before):
        return before
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
    write_bytes(path, content)
    write_bytes(described, json.dumps(description).encode())
    return description


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of this folder; {} where there is none, or it was left half written."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_whole(path: Path, description: dict[str, Any]) -> bool:
    """Tell whether a shard's file is as its description says."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == description["sha256"]
