"""Where a text comes from: a known one by name, others by path, and documents in folders and files.

Start at `find_source`, at the end. A source of documents yields them one by one, in the order of
the files' names: files of a folder, lines of JSON or rows of Parquet, or several of these mixed by
share.
"""

import bz2
import hashlib
import heapq
import io
import json
import re
from bisect import bisect
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lib.study.io import ROOT, corpus_places, output_root, relative
from lib.study.schema import TRAIN_SHARE, CorpusConfig
from lib.study.yaml import UserError


class CorpusError(UserError):
    """A corpus that cannot be used; the message says why and what to do."""


class MissingCorpusError(CorpusError):
    """A known corpus that is neither here nor to be downloaded."""


class KnownCorpus(NamedTuple):
    """A text that has a name, and how to tell that it is the right one."""

    file_name: str
    sha256: str
    url: str = ""


KNOWN = {
    "tinyshakespeare": KnownCorpus(
        "tinyshakespeare.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    ),
    "synthetic": KnownCorpus(
        "synthetic.packed", "bc3e66b4fb25b09f41c78ae498e032fc39865a15dfd3347e6fe1485652ab12a3"
    ),
}
"""`synthetic` is a play that a probabilistic grammar wrote. It stands beside this file, compressed;
no suffix says so, as Kaggle unpacks what it knows. `papers/embedding-norm/synthetic_text.py` writes
it again, and its exact entropy."""


def _known_text(name: str) -> bytes:
    """Read a known text, which lies beside this file or where a corpus may lie, or download it.
    Raises CorpusError for one with another hash."""
    entry = KNOWN[name]
    paths = [Path(__file__).parent / entry.file_name, *corpus_places(entry.file_name)]
    for path in filter(Path.is_file, paths):
        data = path.read_bytes()
        with suppress(OSError):  # what is no such stream has another hash too
            data = bz2.decompress(data) if path.suffix == ".packed" else data
        if (sha256 := hashlib.sha256(data).hexdigest()) != entry.sha256:
            remedy = f"restore {path}" if path == paths[0] else f"delete {path} and rerun"
            raise CorpusError(
                f"{name}: wrong hash: {len(data):,} bytes with SHA-256 {sha256}, expected "
                f"{entry.sha256}; {remedy}"
            )
        return data
    return _download(name, entry)


_REMEDY = "give the path of a UTF-8 text"


def find(path: str, field: str = "corpus.source") -> Path | None:
    """Find a path, seen from the working folder or from the repository; None where there is none.
    `field` is the one that names it."""
    try:
        candidates = [Path(path).expanduser(), ROOT / path]
    except RuntimeError:
        raise CorpusError(f"{field}: '{path}' names no user's folder; give another path") from None
    return next((candidate for candidate in candidates if candidate.exists()), None)


def _download(name: str, entry: KnownCorpus) -> bytes:
    """Fetch into `data/`; pooch shows a progress bar, checks the hash and then moves into place."""
    folder = output_root() / "data"
    try:
        import pooch  # only here: a Kaggle kernel without internet never needs it

        pooch.get_logger().setLevel("WARNING")
        sha256 = f"sha256:{entry.sha256}"
        path = pooch.retrieve(entry.url, sha256, entry.file_name, folder, progressbar=True)
        return Path(path).read_bytes()
    except Exception as error:
        reason = "wrong hash" if isinstance(error, ValueError) else type(error).__name__
        raise MissingCorpusError(
            f"{name}: not found and not downloaded ({reason}). Provide it in one of three ways: "
            f"put it at {relative(folder / entry.file_name)} (from {entry.url}); attach a Kaggle "
            f"input that holds {entry.file_name}; or set corpus.source to a text file's path"
        ) from error


# ---- one text, or documents

PARTS = ("train", "dev", "test")


@dataclass(frozen=True)
class OneText:
    """A text without documents: nine tenths to train on, and dev and test."""

    name: str
    fingerprint: str
    """SHA-256 of its file."""
    text: str
    ends = False

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield train, dev and test."""
        cut = int(TRAIN_SHARE * len(self.text))
        middle = cut + _middle(self.text[cut:])
        yield from zip(
            PARTS, (self.text[:cut], self.text[cut:middle], self.text[middle:]), strict=True
        )


def _middle(heldout: str) -> int:
    """Length of dev: up to the blank line (else the line end) nearest to the middle."""
    middle = len(heldout) / 2
    for boundary in (r"\n\n+", r"\n"):
        ends = [match.end() for match in re.finditer(boundary, heldout)]
        if ends := [end for end in ends if 0.25 < end / len(heldout) < 0.75]:
            return min(ends, key=lambda end: abs(end - middle))
    return int(middle)


FIELD = "text"
"""The field of a line, or column of a table, that holds a document."""
_COMPRESSED = (".gz", ".zst")
_KINDS = {kind + packed: kind for kind in (".txt", ".jsonl") for packed in ("", *_COMPRESSED)}
_KINDS |= {".parquet": ".parquet"}
"""How the files of documents end, and their kind."""
_ALLOWED = ".txt, .jsonl (both also .gz or .zst) or .parquet"


@dataclass(frozen=True)
class Documents:
    """Files of one kind, and the documents in them."""

    name: str
    folder: Path
    files: tuple[Path, ...]
    kind: str
    ends: bool = True
    """Whether each ends with a token. Pieces of a text too large to be held do not."""

    @property
    def fingerprint(self) -> list[list[object]]:
        """Name, size and time of change of every file: what tells whether they are as before."""
        states = [(path, path.stat()) for path in self.files]
        return [[self._shown(path), state.st_size, state.st_mtime_ns] for path, state in states]

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield the documents that are not empty, each with its part."""
        number = sum(1 for _ in filter(None, self))
        bounds = _bounds(number, self.name, "join them into one text")
        for index, text in enumerate(filter(None, self)):
            yield PARTS[bisect(bounds, index)], text

    def __iter__(self) -> Iterator[str]:
        """Read the documents; CorpusError, naming file and line, for what cannot be read."""
        readers = {".txt": _read_text, ".jsonl": _read_lines, ".parquet": _read_rows}
        read = readers[self.kind] if self.ends else _read_pieces
        for path in self.files:
            name = self._shown(path)
            try:
                for text in read(path, name):
                    text.encode()  # JSON can name halves of characters
                    yield text
            except UnicodeError:
                raise CorpusError(f"{name}: not UTF-8; convert it (iconv -t UTF-8)") from None
            except (OSError, pa.ArrowException) as error:
                reason = " ".join(str(error).split())[:200]
                raise CorpusError(f"{name}: damaged or not of its kind: {reason}") from None

    def _shown(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _open(path: Path) -> io.BufferedReader:
    """Open a file for reading bytes, decompressed by its suffix."""
    return io.BufferedReader(pa.input_stream(path))


def _read_text(path: Path, _: str) -> Iterator[str]:
    with _open(path) as file:
        yield file.read().decode()


def _read_pieces(path: Path, _: str) -> Iterator[str]:
    rest = ""
    with path.open(encoding="utf-8", newline="") as file:
        while block := file.read(2**20):
            *complete, rest = pieces(rest + block)
            yield from complete
            if len(rest) >= 2**20:  # a text without words
                yield rest
                rest = ""
    yield rest


def _read_lines(path: Path, name: str) -> Iterator[str]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                content: Any = json.loads(line)
            except UnicodeError:
                raise
            except (ValueError, RecursionError) as error:
                raise CorpusError(f"{name}, line {number}: no valid JSON: {error}") from None
            text = content.get(FIELD) if isinstance(content, dict) else None
            if not isinstance(text, str):
                raise CorpusError(
                    f"{name}, line {number}: no field '{FIELD}' with a text; each line needs one"
                )
            yield text


def _read_rows(path: Path, name: str) -> Iterator[str]:
    with pq.ParquetFile(path) as table:
        columns = {field.name: field.type for field in table.schema_arrow}
        if FIELD not in columns:
            raise CorpusError(
                f"{name}: no column '{FIELD}' (there are {', '.join(columns)}); rename the one "
                "that holds the documents"
            )
        if columns[FIELD] not in (pa.string(), pa.large_string()):
            raise CorpusError(f"{name}: column '{FIELD}' is {columns[FIELD]}, not text")
        for batch in table.iter_batches(batch_size=1024, columns=[FIELD]):
            yield from (text or "" for text in batch.column(0).to_pylist())


_PIECE = re.compile(r"(?s).{65536,}?(?<=[^\W_])(?= [^\W_])|.+")


def pieces(text: str) -> list[str]:
    """Cut a long text where tokens end anyway: before a space between letters or digits, where the
    patterns of GPT-2 and its successors begin a word. The pieces' tokens are the text's."""
    return _PIECE.findall(text)


def _bounds(number: int, name: str, remedy: str) -> list[int]:
    """Say at which of so many documents dev begins, and at which test. Raises CorpusError, with a
    remedy beside that of more documents, where they are too few."""
    cut = int(TRAIN_SHARE * number)
    if cut < 1 or number - cut < 2:
        raise CorpusError(
            f"{name}: too few documents: {number}, and a tenth of them is held out, for dev and "
            f"test; give 11 or more, or {remedy}"
        )
    return [cut, (cut + number) // 2]


def find_documents(path: Path, field: str = "corpus.source") -> Documents | None:
    """List the documents of a folder, or of one file of JSON lines or Parquet; None for another
    file, which is one text. `field` is the one that names it.

    Raises CorpusError for a folder without files or with files of several kinds, and for a
    compressed text or file of another kind.
    """
    if not path.is_dir():
        kind = _kind(path)
        if kind in (".jsonl", ".parquet"):
            return Documents(path.name, path.parent, (path,), kind)
        if path.suffix in _COMPRESSED:
            fault = "one packed text" if kind else f"neither {_ALLOWED}"
            raise CorpusError(f"{field}: {path.name} is {fault}; unpack it")
        return None
    names = sorted(file.relative_to(path) for file in path.rglob("*") if not file.is_dir())
    names = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    if not names:
        raise CorpusError(f"{field}: folder '{path.name}' is empty; put {_ALLOWED} files there")
    for name in names:
        if not (path / name).is_file():
            raise CorpusError(f"{field}: {name} is no plain file; take it out of the folder")
        if not _kind(name):
            raise CorpusError(f"{field}: {name} is neither {_ALLOWED}; take it out of {path.name}")
    kinds = list(dict.fromkeys(map(_kind, names)))
    if len(kinds) > 1:
        kinds_held = " and ".join(kinds)
        raise CorpusError(f"{field}: folder {path.name} holds {kinds_held} files; keep one kind")
    return Documents(path.name, path, tuple(path / name for name in names), kinds[0])


def _kind(path: Path) -> str:
    """Name the kind of a file by how its name ends; "" for another kind."""
    return next((kind for end, kind in _KINDS.items() if path.name.endswith(end)), "")


# ---- documents of several sources


@dataclass(frozen=True)
class Mixture:
    """Documents of several sources, mixed by share, whatever the sizes of the sources.

    Each source is read from its beginning on, until the first that has too little for its share is
    used up. A document is taken whole or not at all, and none twice. They come in turns, first
    those of the training part, then dev's, then test's; of what is taken of each source, the last
    tenth is held out, so that all parts hold all sources.
    """

    name: str
    documents: dict[str, Documents]
    shares: dict[str, float]
    """Of the mixture's characters, by source; they sum to 1."""
    ends = True

    @property
    def fingerprint(self) -> list[object]:
        """What tells whether the mixture is as before."""
        return [[name, self.shares[name], d.fingerprint] for name, d in self.documents.items()]

    @cached_property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Characters of each document that is not empty, by source."""
        sources = self.documents.items()
        return {name: np.fromiter(map(len, filter(None, d)), np.int64) for name, d in sources}

    @cached_property
    def _filled(self) -> dict[str, NDArray[np.float64]]:
        """Of how much of a mixture each document taken makes its source's share full."""
        total = min(self.lengths[name].sum() / share for name, share in self.shares.items())
        ends = {name: np.cumsum(self.lengths[name] / share) for name, share in self.shares.items()}
        return {name: end[end <= total * (1 + 1e-9)] for name, end in ends.items()}

    @property
    def taken(self) -> dict[str, dict[str, float]]:
        """By source: its share, characters and documents taken, and documents there are."""
        return {
            name: {
                "share": self.shares[name],
                "characters": int(self.lengths[name][: len(filled)].sum()),
                "documents": len(filled),
                "of_documents": len(self.lengths[name]),
            }
            for name, filled in self._filled.items()
        }

    def _ends_of(self, name: str) -> list[int]:
        """Return at which document of a source each part begins, and the last ends."""
        number = len(self._filled[name])
        return [0, *_bounds(number, f"corpus.sources: '{name}'", "cut long ones up"), number]

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield the documents, part by part: always of the source furthest behind its share."""
        for number, part in enumerate(PARTS):
            queues = []
            for order, (name, documents) in enumerate(self.documents.items()):
                begin, end = self._ends_of(name)[number : number + 2]
                positions = np.append(0, self._filled[name])[begin:end]
                texts = islice(filter(None, documents), begin, end)
                queues.append(zip(positions, [order] * len(positions), texts, strict=True))
            yield from ((part, text) for _, _, text in heapq.merge(*queues))


Source = OneText | Documents | Mixture


def find_mixture(name: str, shares: dict[str, float]) -> Mixture:
    """Find the documents of `corpus.sources`. Raises CorpusError for a source that is not there, is
    one text, or holds no documents."""
    sources, field = {}, "corpus.sources"
    for source in shares:
        path = find(source, field)
        documents = find_documents(path, field) if path else None
        if documents is None:
            raise CorpusError(
                f"corpus.sources: '{source}' holds no documents; give folders of texts, .jsonl "
                "(also .gz or .zst) or .parquet"
            )
        sources[source] = documents
    mixture = Mixture(name, sources, shares)
    if empty := [source for source, lengths in mixture.lengths.items() if not lengths.size]:
        raise CorpusError(f"corpus.sources: '{empty[0]}' is empty; take it out, or fill it")
    return mixture


# ---- from parameters to a source


MAX_BYTES = 10**9
"""Bytes of a text that is held in memory; its ids take eight times as much."""
MAX_ENCODED = 2**28
"""The same where it is read only once, to be tokenized."""


def find_source(config: CorpusConfig) -> Source:
    """Find what `corpus.source` or `corpus.sources` name: documents, or one text.

    Raises MissingCorpusError when a known one cannot be had, CorpusError for what is no text or
    holds no documents, and OSError for what cannot be read.
    """
    name = config.source
    if config.sources:
        return find_mixture(name, config.sources)
    if name in KNOWN:
        data = _known_text(name)
    elif not (path := find(name)):
        raise CorpusError(
            f"corpus.source: '{name}' is neither a text file nor a known corpus "
            f"({', '.join(KNOWN)}); {_REMEDY}"
        )
    elif documents := find_documents(path):
        return documents
    elif not path.is_file():  # it may never end
        raise CorpusError(f"corpus.source: '{name}' is a device; {_REMEDY}")
    else:
        name, size = path.name, path.stat().st_size
        if size > (MAX_BYTES if config.tokenizer == "characters" else MAX_ENCODED):
            return Documents(name, path.parent, (path,), ".txt", ends=False)
        data = path.read_bytes() if size else b""  # a kernel's file says 0, and may never end
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{name}: not UTF-8 at byte {error.start:,}; convert it (iconv -t UTF-8)"
        ) from None
    if len(text) < 20:
        raise CorpusError(
            f"{name}: empty or too short: {len(text)} characters; give a text of 20 or more"
        )
    return OneText(name, hashlib.sha256(data).hexdigest(), text)
