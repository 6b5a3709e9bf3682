"""What is tokenized: one text, or the documents of a corpus that is more than one, which are files
of a folder, lines of JSON or rows of Parquet. They are read in the order of the files' names.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lib.data.errors import CorpusError
from lib.data.subwords import pieces
from lib.study.constants import TRAIN_SHARE

COLUMN = "text"
"""The field of a line, or column of a table, that holds a document."""
COMPRESSED = (".gz", ".zst")
KINDS = {kind + packed: kind for kind in (".txt", ".jsonl") for packed in ("", *COMPRESSED)}
KINDS |= {".parquet": ".parquet"}
"""How the files of documents end, and their kind."""
_ALLOWED = ".txt, .jsonl (both also .gz or .zst) or .parquet"


@dataclass(frozen=True)
class OneText:
    """A text without documents, and the characters at which its held-out part and test begin."""

    name: str
    fingerprint: str
    text: str
    cuts: tuple[int, int]
    ends = False

    def __iter__(self) -> Iterator[str]:
        begins = (0, *self.cuts, None)
        yield from (self.text[begins[part] : begins[part + 1]] for part in range(3))

    def bounds(self, _: int) -> list[int]:
        """Each part is one piece."""
        return [1, 2]


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

    def bounds(self, number: int) -> list[int]:
        """At which of so many documents dev begins, and at which test."""
        return parted(number, self.name, "join them into one text")

    def __iter__(self) -> Iterator[str]:
        """Read the documents; CorpusError, naming file and line, for what cannot be read."""
        readers = {".txt": _text, ".jsonl": _lines, ".parquet": _rows}
        read = readers[self.kind] if self.ends else _pieces
        for path in self.files:
            name = self._shown(path)
            try:
                for text in read(path, name):
                    text.encode()  # JSON can name halves of characters
                    yield text
            except UnicodeError:
                raise CorpusError(f"{name}: not UTF-8; convert it (iconv -t UTF-8)") from None
            except (OSError, pa.ArrowException) as error:
                why = " ".join(str(error).split())[:200]
                raise CorpusError(f"{name}: damaged or not of its kind: {why}") from None

    def _shown(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _opened(path: Path) -> io.BufferedReader:
    """Open a file for reading bytes, decompressed by its suffix."""
    return io.BufferedReader(pa.input_stream(path))


def _text(path: Path, _: str) -> Iterator[str]:
    with _opened(path) as file:
        yield file.read().decode()


def _pieces(path: Path, _: str) -> Iterator[str]:
    rest = ""
    with path.open(encoding="utf-8", newline="") as file:
        while block := file.read(2**20):
            *whole, rest = pieces(rest + block)
            yield from whole
            if len(rest) >= 2**20:  # a text without words
                yield rest
                rest = ""
    yield rest


def _lines(path: Path, name: str) -> Iterator[str]:
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                content: Any = json.loads(line)
            except UnicodeError:
                raise
            except (ValueError, RecursionError) as error:
                raise CorpusError(f"{name}, line {number}: no valid JSON: {error}") from None
            text = content.get(COLUMN) if isinstance(content, dict) else None
            if not isinstance(text, str):
                raise CorpusError(
                    f"{name}, line {number}: no field '{COLUMN}' with a text; each line needs one"
                )
            yield text


def _rows(path: Path, name: str) -> Iterator[str]:
    with pq.ParquetFile(path) as table:
        columns = {field.name: field.type for field in table.schema_arrow}
        if COLUMN not in columns:
            raise CorpusError(
                f"{name}: no column '{COLUMN}' (there are {', '.join(columns)}); rename the one "
                "that holds the documents"
            )
        if columns[COLUMN] not in (pa.string(), pa.large_string()):
            raise CorpusError(f"{name}: column '{COLUMN}' is {columns[COLUMN]}, not text")
        for batch in table.iter_batches(batch_size=1024, columns=[COLUMN]):
            yield from (text or "" for text in batch.column(0).to_pylist())


def parted(number: int, name: str, remedy: str) -> list[int]:
    """Say at which of so many documents dev begins, and at which test. Raises CorpusError, with a
    remedy beside that of more documents, where they are too few."""
    cut = int(TRAIN_SHARE * number)
    if cut < 1 or number - cut < 2:
        raise CorpusError(
            f"{name}: too few documents: {number}, and a tenth of them is held out, for dev and "
            f"test; give 11 or more, or {remedy}"
        )
    return [cut, (cut + number) // 2]


def kind_of(path: Path) -> str:
    """Name the kind of a file by how its name ends; "" for another kind."""
    return next((kind for end, kind in KINDS.items() if path.name.endswith(end)), "")


def find_documents(path: Path, field: str = "corpus.source") -> Documents | None:
    """List the documents of a folder, or of one file of JSON lines or Parquet; None for another
    file, which is one text. `field` is the one that names it.

    Raises CorpusError for a folder without files or with files of several kinds, and for a
    compressed text or file of another kind.
    """
    if not path.is_dir():
        kind = kind_of(path)
        if kind in (".jsonl", ".parquet"):
            return Documents(path.name, path.parent, (path,), kind)
        if path.suffix in COMPRESSED:
            what = "one packed text" if kind else f"neither {_ALLOWED}"
            raise CorpusError(f"{field}: {path.name} is {what}; unpack it")
        return None
    names = sorted(file.relative_to(path) for file in path.rglob("*") if not file.is_dir())
    names = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    if not names:
        raise CorpusError(f"{field}: folder '{path.name}' is empty; put {_ALLOWED} files there")
    for name in names:
        if not (path / name).is_file():
            raise CorpusError(f"{field}: {name} is no plain file; take it out of the folder")
        if not kind_of(name):
            raise CorpusError(f"{field}: {name} is neither {_ALLOWED}; take it out of {path.name}")
    kinds = list(dict.fromkeys(map(kind_of, names)))
    if len(kinds) > 1:
        found = " and ".join(kinds)
        raise CorpusError(f"{field}: folder {path.name} holds {found} files; keep one kind")
    return Documents(path.name, path, tuple(path / name for name in names), kinds[0])
