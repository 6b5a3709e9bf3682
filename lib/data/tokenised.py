"""A corpus as ids on the disk, written once: split, deduplicated, tokenized, indexed.

The last tenth of the documents, of a mixture that of each source, is held out; its first half is
dev, its second test. The tokenizer is learned from the training part alone. Whoever asks again
finds what was written, as long as the source's files have their sizes and times of change; a
writing that was killed is taken up again, and a damaged shard is written again.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from lib.data.documents import parted
from lib.data.errors import CorpusError
from lib.data.mixture import Mixture
from lib.data.shards import (
    MOST_TEXT,
    Shards,
    Text,
    is_whole,
    read_description,
    write_shards,
    write_whole,
)
from lib.data.sources import places
from lib.data.subwords import ByteTokenizer, PairTokenizer, pieces, read_tokenizer, train_pairs
from lib.data.tokenizer import Characters, Tokenizer
from lib.study.fields import CorpusConfig, digest
from lib.study.paths import output_root

PARTS = ("train", "dev", "test")
MOST_LEARNED = 2**30
"""Characters of the training part that a tokenizer is learned from, at the most."""
_FORMAT = 2
_CHECKED = "checked.json"
"""Of each shard that was found whole, its time of change and its hash."""
_WHOLE: set[tuple[Path, int, str]] = set()
"""The same, of those that this process found whole itself."""


class Source(Protocol):
    """What is tokenized."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def fingerprint(self) -> object:
        """What tells whether it is as before."""
        ...

    def __iter__(self) -> Iterator[str]: ...


@dataclass(frozen=True)
class OneText:
    """A text without documents, and the characters at which its held-out part and test begin."""

    name: str
    fingerprint: object
    text: str
    cut: int
    test: int

    def __iter__(self) -> Iterator[str]:
        yield from (self.text[: self.cut], self.text[self.cut : self.test], self.text[self.test :])


@dataclass(frozen=True)
class LongText:
    """A text file too large to be held, as pieces."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def fingerprint(self) -> list[int]:
        return [self.path.stat().st_size, self.path.stat().st_mtime_ns]

    def __iter__(self) -> Iterator[str]:
        rest = ""
        with self.path.open(encoding="utf-8", newline="") as file:
            try:
                while block := file.read(2**20):
                    *whole, rest = pieces(rest + block)
                    yield from whole
                    if len(rest) >= 2**20:  # a text without words
                        yield rest
                        rest = ""
            except UnicodeDecodeError:
                raise CorpusError(f"{self.name}: not UTF-8; convert it (iconv -t UTF-8)") from None
        if rest:
            yield rest


@dataclass(frozen=True)
class Tokenised:
    """What was written: the ids of each part, and the account of how."""

    tokenizer: Tokenizer
    parts: dict[str, Shards]
    account: dict[str, Any]
    """sha256 (of the documents), documents and characters per part, duplicates (training documents
    that stand there before), removed (whether those were left out), heldout_in_train (held-out
    documents that stand in the training part), sources (what a mixture took of each), and
    tokenizer_sha256 and shards."""


def tokenise(
    config: CorpusConfig, source: Source, documents: bool, trust: bool = False
) -> Tokenised:
    """Find or write the ids of a source in `data/tokens/`. `documents`: it is made of documents,
    each of which ends with a token. Shards are hashed once in a process, or, to `trust` the last
    process that did so, only where their size or time of change is another one since.

    Raises CorpusError for what cannot be read, has too few documents or a symbol that the tokenizer
    lacks, or does not go with the tokenizer or with deduplication.
    """
    if config.deduplicate and not documents:
        raise CorpusError(
            f"corpus.deduplicate: {source.name} is one text, without documents; remove the field"
        )
    given = _given(config.tokenizer)
    asked = [_FORMAT, source.fingerprint, config.tokenizer, given and digest(given)]
    asked += [config.deduplicate, documents]
    key = digest([config.source, *asked])[:12]
    folder = output_root() / "data" / "tokens" / f"{source.name}-{key}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        account = _index(folder)
        if account is None or _damaged(folder, account, trust):
            with FileLock(folder / ".lock"):  # who waited for it finds what another one wrote
                account = _index(folder)
                if account and (damaged := _damaged(folder, account, trust)):
                    print(f"{damaged} of {folder.name} is damaged. It is made anew.")
                    account = None
                if account is None:
                    account = _write(config, source, documents, given, folder)
                    write_whole(folder / "index.json", json.dumps(account, indent=1).encode())
    except OSError as error:
        raise CorpusError(f"{source.name}: its tokens cannot be kept: {error}") from None
    tokenizer = _tokenizer(*account["tokenizer"])
    files = {
        part: [(folder / s["file"], s["tokens"]) for s in account["shards"] if s["part"] == part]
        for part in PARTS
    }
    shards = {part: Shards(files[part], account["shards"][0]["dtype"]) for part in PARTS}
    return Tokenised(tokenizer, shards, account | {"tokenizer_sha256": tokenizer.sha256})


def _given(tokenizer: str) -> str:
    """The content of a tokenizer.json that is given by its path; else ""."""
    if not tokenizer.endswith(".json"):
        return ""
    return read_tokenizer(places(tokenizer, "corpus.tokenizer"), tokenizer)


def _index(folder: Path) -> dict[str, Any] | None:
    """Read the account of a finished writing; None when there is none, or its files are not all
    there."""
    try:
        account: dict[str, Any] = json.loads((folder / "index.json").read_text("utf-8"))
        for shard in account["shards"]:
            size = shard["tokens"] * int(shard["dtype"][-1])
            if (folder / shard["file"]).stat().st_size != size:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return account


def _damaged(folder: Path, account: dict[str, Any], trust: bool) -> str | None:
    """Name a shard that is not as it was written; None when all are. Of whole ones that is asked
    once in a process, or of a process before this one, since it reads them."""
    checked: dict[str, Any] = (read_description(folder / _CHECKED) or {}) if trust else {}
    found = {}
    for shard in account["shards"]:
        path = folder / str(shard["file"])
        as_read = found[path.name] = [path.stat().st_mtime_ns, shard["sha256"]]
        if (path, *as_read) not in _WHOLE and checked.get(path.name) != as_read:
            if not is_whole(path, shard):
                return path.name
            _WHOLE.add((path, *as_read))
    if not trust or checked != found:
        with suppress(OSError):  # tokens may lie where nothing can be written
            write_whole(folder / _CHECKED, json.dumps(found).encode())
    return None


def _write(
    config: CorpusConfig, source: Source, documents: bool, given: str, folder: Path
) -> dict[str, Any]:
    number, characters, sha256 = _survey(source)
    if isinstance(source, OneText):
        bounds = [1, 2]
    elif isinstance(source, Mixture):
        bounds = source.bounds
    else:
        bounds = parted(number, source.name, "join them into one text")

    def texts_of_parts() -> Iterator[tuple[str, str]]:
        for i, text in enumerate(filter(None, source)):
            yield PARTS[(i >= bounds[0]) + (i >= bounds[1])], text

    learned = (text for part, text in texts_of_parts() if part == "train")
    made = _learned(config.tokenizer, learned, given, source.name, documents)
    account: Counter[str] = Counter()
    texts = _texts(texts_of_parts(), account, config.deduplicate, documents)
    processes = (_cores() or 1) if characters > MOST_TEXT else 1
    shards = write_shards(texts, folder, partial(_tokenizer, *made), processes)
    found = {part: [shard for shard in shards if shard["part"] == part] for part in PARTS}
    if empty := [part for part in PARTS if not found[part]]:
        raise CorpusError(f"{source.name}: too short: no {' and no '.join(empty)} part")
    return {
        "sha256": sha256,
        "documents": {part: account[part] for part in PARTS} if documents else None,
        "characters": {part: sum(s["characters"] for s in found[part]) for part in PARTS},
        "duplicates": account["duplicates"],
        "removed": config.deduplicate,
        "heldout_in_train": account["heldout_in_train"],
        "tokenizer": made,
        "shards": shards,
        **({"sources": source.account} if isinstance(source, Mixture) else {}),
    }


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _survey(source: Source) -> tuple[int, int, str]:
    """Read a source to its end: count its documents and characters, and hash it. One text has the
    hash of its file."""
    sha256, number, characters = hashlib.sha256(), 0, 0
    one = isinstance(source, (OneText, LongText))
    for text in filter(None, source):
        content = text.encode()
        sha256.update(content if one else len(content).to_bytes(8, "big") + content)
        number += 1
        characters += len(text)
    return number, characters, sha256.hexdigest()


def _texts(
    parted: Iterable[tuple[str, str]], account: Counter[str], deduplicate: bool, documents: bool
) -> Iterator[Text]:
    """Cut documents into pieces, and count them and their duplicates."""
    seen: set[bytes] = set()
    for part, text in parted:
        if documents:
            key = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if part == "train":
                account["duplicates"] += key in seen
                if deduplicate and key in seen:
                    continue
                seen.add(key)
            else:
                account["heldout_in_train"] += key in seen
        account[part] += 1
        *whole, last = pieces(text)
        yield from (Text(part, piece, False) for piece in whole)
        yield Text(part, last, documents)


def _learned(
    tokenizer: str, texts: Iterable[str], given: str, name: str, documents: bool
) -> tuple[str, str, str, bool]:
    """Make what `_tokenizer` makes a tokenizer of."""
    content = given
    if tokenizer == "characters":
        known = {"\n"}  # what solved examples are parted by
        for text in texts:
            known.update(text)
        content = "".join(sorted(known))
    elif tokenizer.startswith("bpe-") and not given:
        content = train_pairs(_limited(texts), int(tokenizer.removeprefix("bpe-")))
    return tokenizer, content, name, documents


def _limited(texts: Iterable[str]) -> Iterator[str]:
    """The first `MOST_LEARNED` characters, to the end of a text."""
    read = 0
    for text in texts:
        if read > MOST_LEARNED:
            return
        read += len(text)
        yield text


@lru_cache(maxsize=4)
def _tokenizer(tokenizer: str, content: str, name: str, documents: bool) -> Tokenizer:
    """Make a tokenizer of its name in the parameters, its content, and the corpus's name."""
    if tokenizer == "characters":
        return Characters(name, content, documents)
    return PairTokenizer(content, tokenizer) if content else ByteTokenizer()
