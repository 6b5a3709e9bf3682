"""The documents of a corpus that is more than one text: files of a folder, lines of JSON, rows of
Parquet. They are read in the order of the files' names, one after the other.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from lib.data.errors import CorpusError
from lib.study.constants import TRAIN_SHARE

COLUMN = "text"
"""The field of a line, or column of a table, that holds a document."""
KINDS = (".txt", ".jsonl", ".parquet")
COMPRESSED = (".gz", ".zst")
_ALLOWED = ".txt, .jsonl (both also .gz or .zst) or .parquet"


@dataclass(frozen=True)
class Documents:
    """Files of one kind, and the documents in them."""

    name: str
    folder: Path
    files: tuple[Path, ...]
    kind: str

    @property
    def fingerprint(self) -> list[list[object]]:
        """Name, size and time of change of every file: what tells whether they are as before."""
        states = [(path, path.stat()) for path in self.files]
        return [[self._shown(path), state.st_size, state.st_mtime_ns] for path, state in states]

    def __iter__(self) -> Iterator[str]:
        """Read the documents; CorpusError, naming file and line, for what cannot be read."""
        read = {".txt": self._text, ".jsonl": self._lines, ".parquet": self._rows}[self.kind]
        for path in self.files:
            name = self._shown(path)
            try:
                for text in read(path):
                    text.encode()  # JSON can name halves of characters
                    yield text
            except UnicodeError:
                raise CorpusError(f"{name}: not UTF-8; convert it (iconv -t UTF-8)") from None
            except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
                why = " ".join(str(error).split())[:200]
                raise CorpusError(f"{name}: damaged or not of its kind: {why}") from None

    def _shown(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _text(self, path: Path) -> Iterator[str]:
        with _opened(path) as file:
            yield file.read().decode()

    def _lines(self, path: Path) -> Iterator[str]:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _of_json(line, f"{self._shown(path)}, line {number}")

    def _rows(self, path: Path) -> Iterator[str]:
        with pq.ParquetFile(path) as table:
            schema = table.schema_arrow
            if COLUMN not in schema.names:
                columns = ", ".join(schema.names)
                raise CorpusError(
                    f"{self._shown(path)}: no column '{COLUMN}' (there are {columns}); rename the "
                    "one that holds the documents"
                )
            kind = schema.field(COLUMN).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise CorpusError(f"{self._shown(path)}: column '{COLUMN}' is {kind}, not text")
            for batch in table.iter_batches(batch_size=1024, columns=[COLUMN]):
                yield from (text or "" for text in batch.column(0).to_pylist())


def _of_json(line: bytes, where: str) -> str:
    try:
        content: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        if isinstance(error, UnicodeError):
            raise
        raise CorpusError(f"{where}: no valid JSON: {error}") from None
    text = content.get(COLUMN) if isinstance(content, dict) else None
    if not isinstance(text, str):
        raise CorpusError(f"{where}: no field '{COLUMN}' with a text; each line needs one")
    return text


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, decompressed by its suffix."""
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            yield io.BufferedReader(file)
    elif path.suffix == ".zst":
        with pa.input_stream(str(path), compression="zstd") as stream:
            yield io.BufferedReader(stream)
    else:
        with path.open("rb") as file:
            yield file


def kind_of(path: Path) -> str:
    """Name the kind of a file by its suffix, with or without that of a compression; "" for another
    kind."""
    suffixes = [suffix for suffix in path.suffixes[-2:] if suffix not in COMPRESSED]
    packed = path.suffix in COMPRESSED
    kind = suffixes[-1] if suffixes else ""
    return kind if kind in KINDS and not (packed and kind == ".parquet") else ""


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
    files = sorted(
        file
        for file in path.rglob("*")
        if not file.is_dir()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not files:
        raise CorpusError(f"{field}: folder '{path.name}' is empty; put {_ALLOWED} files there")
    for file in files:
        shown = file.relative_to(path).as_posix()
        if not file.is_file():
            raise CorpusError(f"{field}: {shown} is no plain file; take it out of the folder")
        if not kind_of(file):
            raise CorpusError(f"{field}: {shown} is neither {_ALLOWED}; take it out of {path.name}")
        if kind_of(file) != kind_of(files[0]):
            raise CorpusError(
                f"{field}: folder {path.name} holds {kind_of(files[0])} and {kind_of(file)} "
                "files; keep one kind"
            )
    return Documents(path.name, path, tuple(files), kind_of(files[0]))
