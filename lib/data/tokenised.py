"""A corpus as ids on the disk, written once: split, deduplicated, tokenized, indexed.

The last tenth of the documents, of a mixture that of each source, is held out; its first half is
dev, its second test. The tokenizer is learned from the training part alone. Whoever asks again
finds what was written, as long as the source's files have their sizes and times of change; a
writing that was killed is taken up again, and a damaged shard is written again.
"""

import hashlib
import json
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from lib.data.documents import Documents, OneText
from lib.data.errors import CorpusError
from lib.data.mixture import Mixture
from lib.data.shards import Shards, Text, is_whole, read_description, write_shards, write_whole
from lib.data.sources import places
from lib.data.subwords import (
    ByteTokenizer,
    PairTokenizer,
    Tokenizer,
    pieces,
    read_tokenizer,
    train_pairs,
)
from lib.data.tokenizer import Characters
from lib.study.fields import CorpusConfig, digest
from lib.study.paths import output_root

PARTS = ("train", "dev", "test")
MOST_LEARNED = 2**30
"""Characters of the training part that a tokenizer is learned from, at the most."""
_FORMAT = 2
_CHECKED = "checked.json"
"""Of each shard that was found whole, its size, time of change and hash."""
_WHOLE: dict[Path, object] = {}
"""The same, of those that this process found whole itself."""

Source = OneText | Documents | Mixture


def tokenise(
    config: CorpusConfig, source: Source, trust: bool
) -> tuple[Tokenizer, dict[str, Shards], dict[str, Any]]:
    """Find or write the ids of a source in `data/tokens/`; return their tokenizer, the ids of each
    part, and the account of how. Shards are hashed once in a process, or, to `trust` the last
    process that did so, only where their size or time of change is another one since.

    Raises CorpusError for what cannot be read, has too few documents or a symbol that the tokenizer
    lacks, or does not go with the tokenizer or with deduplication.
    """
    if config.deduplicate and not source.ends:
        raise CorpusError(
            f"corpus.deduplicate: {source.name} is one text, without documents; remove the field"
        )
    given = ""
    if config.tokenizer.endswith(".json"):
        given = read_tokenizer(places(config.tokenizer, "corpus.tokenizer"), config.tokenizer)
    asked = [config.source, _FORMAT, source.fingerprint, config.tokenizer, given and digest(given)]
    key = digest([*asked, config.deduplicate, source.ends])[:12]
    folder = output_root() / "data" / "tokens" / f"{source.name}-{key}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        account = _found(folder, trust)
        if account is None:
            with FileLock(folder / ".lock"):  # who waited for it finds what another one wrote
                account = _found(folder, trust)
                if account is None:
                    account = _write(config, source, given, folder)
                    sealed = account | {"digest": digest(account)}
                    write_whole(folder / "index.json", json.dumps(sealed, indent=1).encode())
    except OSError as error:
        raise CorpusError(f"{source.name}: its tokens cannot be kept: {error}") from None
    tokenizer = _tokenizer(*account["tokenizer"])
    parts = {}
    for part in PARTS:
        shards = [shard for shard in account["shards"] if shard["part"] == part]
        files = [(folder / shard["file"], shard["tokens"]) for shard in shards]
        parts[part] = Shards(files, shards[0]["dtype"])
    return tokenizer, parts, account | {"tokenizer_sha256": tokenizer.sha256}


def _found(folder: Path, trust: bool) -> dict[str, Any] | None:
    """Read the account of a finished writing; None where there is none. Where a shard is not as it
    was written, say so, and forget the account."""
    account = read_description(folder / "index.json") or {}
    if account.pop("digest", None) != digest(account):
        return None
    checked = (read_description(folder / _CHECKED) or {}) if trust else {}
    states = {p.name: [p.stat().st_size, p.stat().st_mtime_ns] for p in folder.glob("*.bin")}
    found = {}
    for shard in account["shards"]:
        name, path = shard["file"], folder / shard["file"]
        as_read = found[name] = [states.get(name), shard["sha256"]]
        if as_read not in (_WHOLE.get(path), checked.get(name)):
            if not is_whole(path, shard):
                print(f"{name} of {folder.name} is damaged. It is made anew.")
                (folder / "index.json").unlink(missing_ok=True)
                return None
            _WHOLE[path] = as_read
    if not trust or checked != found:
        with suppress(OSError):  # tokens may lie where nothing can be written
            write_whole(folder / _CHECKED, json.dumps(found).encode())
    return account


def _write(config: CorpusConfig, source: Source, given: str, folder: Path) -> dict[str, Any]:
    number, sha256 = _survey(source)
    bounds = source.bounds(number)

    def texts_of_parts() -> Iterator[tuple[str, str]]:
        for i, text in enumerate(filter(None, source)):
            yield PARTS[bisect(bounds, i)], text

    content = given or _learned(config.tokenizer, texts_of_parts())
    made = (config.tokenizer, content, source.name, source.ends)
    account: Counter[str] = Counter()
    texts = _texts(texts_of_parts(), account, config.deduplicate, source.ends)
    shards = write_shards(texts, folder, _tokenizer(*made))
    characters = dict.fromkeys(PARTS, 0)
    for shard in shards:
        characters[shard["part"]] += shard["characters"]
    if empty := [part for part in PARTS if not characters[part]]:
        raise CorpusError(f"{source.name}: too short: no {' and no '.join(empty)} part")
    return {
        "sha256": sha256,
        "documents": {part: account[part] for part in PARTS} if source.ends else None,
        "characters": characters,
        "duplicates": account["duplicates"],
        "removed": config.deduplicate,
        "heldout_in_train": account["heldout_in_train"],
        "tokenizer": made,
        "shards": shards,
        **({"sources": source.account} if isinstance(source, Mixture) else {}),
    }


def _survey(source: Source) -> tuple[int, str]:
    """Read a source to its end: count its documents, and hash it. One text has the hash of its
    file."""
    sha256, number = hashlib.sha256(), 0
    for text in filter(None, source):
        number += 1
        content = text.encode()
        sha256.update(len(content).to_bytes(8, "big") + content if source.ends else content)
    return number, sha256.hexdigest()


def _texts(
    parted: Iterable[tuple[str, str]], account: Counter[str], deduplicate: bool, ends: bool
) -> Iterator[Text]:
    """Cut documents into pieces, and count them and their duplicates."""
    seen: set[bytes] = set()
    for part, text in parted:
        if ends:
            key = hashlib.blake2b(text.encode(), digest_size=16).digest()
            account["duplicates" if part == "train" else "heldout_in_train"] += key in seen
            if part == "train":
                if deduplicate and key in seen:
                    continue
                seen.add(key)
        account[part] += 1
        *whole, last = pieces(text)
        yield from (Text(part, piece, False) for piece in whole)
        yield Text(part, last, ends)


def _learned(tokenizer: str, texts: Iterable[tuple[str, str]]) -> str:
    """What is learned of the training part: the characters, or a `tokenizer.json`."""
    train = (text for part, text in texts if part == "train")
    if tokenizer == "characters":
        known = {"\n"}  # what solved examples are parted by
        for text in train:
            known.update(text)
        return "".join(sorted(known))
    return "" if tokenizer == "bytes" else train_pairs(_limited(train), int(tokenizer[4:]))


def _limited(texts: Iterable[str]) -> Iterator[str]:
    """The first `MOST_LEARNED` characters, to the end of a text."""
    read = 0
    for text in texts:
        if read > MOST_LEARNED:
            return
        read += len(text)
        yield text


def _tokenizer(tokenizer: str, content: str, name: str, documents: bool) -> Tokenizer:
    """Make a tokenizer of its name in the parameters, its content, and the corpus's name."""
    if tokenizer == "characters":
        return Characters(name, content, documents)
    return PairTokenizer(content, tokenizer) if content else ByteTokenizer()
