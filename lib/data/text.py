"""From a text to batches: find it, verify it, split it, encode it, draw windows.

A corpus is any UTF-8 text, or documents: a folder of texts, JSON lines or Parquet. It is given by
its path; `tinyshakespeare` and `synthetic` are known by name. Start reading at `load_corpus`.
"""

import bz2
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lib.config.files import sha256
from lib.config.paths import corpus_places, find, output_root, relative
from lib.config.schema import TRAIN_SHARE, CorpusConfig, digest
from lib.config.yaml import Json
from lib.data import split
from lib.data.cache import cached
from lib.data.split import PARTS, Lengths, Piece
from lib.data.tokens import (
    Characters,
    CorpusError,
    Ids,
    Texts,
    Tokenized,
    Tokenizer,
    mapped,
    pieces,
    tokenize,
)

if TYPE_CHECKING:  # torch takes a second to import, and a sweep with nothing to do needs no torch
    import torch
    from torch import Tensor

__all__ = ["PARTS", "CorpusError"]
MAX_SEARCHED = 2**24
"""If a corpus has more characters than this, its training part is not searched for held-out text.
"""
_BLOCK = 2**20
"""Characters of a text to read at once."""


@dataclass(frozen=True)
class Corpus:
    """A verified text, or documents, encoded and split. Ids count from 0."""

    name: str
    sha256: str
    """Hash of the text after `plain`. For a folder or documents: hash of the names and hashes of
    all files."""
    whole: Tokenized
    train: Ids
    """The training part, about nine tenths, cut to the configured fraction; (n,), in memory or
    memory-mapped."""
    dev: Ids
    """Half of the held-out part (see `lib.data.split`), cut to `corpus.measured_characters`; (n,),
    int64. Choices are made on it."""
    test: Ids
    """The other half, cut in the same way. Results are reported on it."""
    ends: dict[str, Lengths]
    """Part → the positions at which its files end. No window reaches from one file into the next.
    A single text has one end in each part. Documents also have one, because windows may reach from
    one document into the next."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self.whole.tokenizer

    @property
    def symbols(self) -> Sequence[str]:
        """The symbol of each id; with the tokenizer `characters`, one sorted string."""
        return self.tokenizer.symbols

    @property
    def vocab_size(self) -> int:
        return len(self.symbols)

    @property
    def held_out(self) -> str:
        """A description of the held-out text: see `Tokenized`."""
        return self.whole.held_out

    @property
    def unit(self) -> str:
        """The word for ids in tables and messages: characters or tokens."""
        return "characters" if isinstance(self.tokenizer, Characters) else "tokens"

    @property
    def heldout(self) -> "Tensor":
        """Dev and test, one after the other."""
        import torch

        return torch.from_numpy(np.concatenate((self.dev, self.test)))

    @property
    def heldout_texts(self) -> "list[Tensor]":
        """Dev and test as the texts that are scored. In a folder read as characters, each file is a
        text; otherwise dev and test together are one text."""

        import torch

        if not self.whole.lengths:
            return [self.heldout]
        return [
            torch.from_numpy(text)
            for ids, ends in ((self.dev, self.ends["dev"]), (self.test, self.ends["test"]))
            for text in np.split(ids, ends[:-1])
        ]

    @property
    def predictions(self) -> "tuple[Tensor, Tensor]":
        """All predictions in dev and test: the ids before, and the ids to predict, (n,) each."""

        import torch

        texts = self.heldout_texts
        before = torch.cat([text[:-1] for text in texts])
        return before, torch.cat([text[1:] for text in texts])

    @property
    def training_text(self) -> str:
        """The whole training part as text, even if only a fraction is trained on. "" if it is too
        long to be searched."""
        short = self.whole.n_characters <= MAX_SEARCHED
        return self.decode(self.whole.parts["train"]) if short else ""

    @property
    def beginning(self) -> "Tensor":
        """The id to start from if there is no context, (1,). It is the end of a document; in a
        corpus without documents a line break; without line breaks, the first id of the training
        part."""
        if self.whole.has_documents:
            import torch

            return torch.tensor([self.tokenizer.end_of_document])
        return self.encode("\n" if "\n" in self.symbols else self.decode(self.train[:1]))[:1]

    def encode(self, text: str) -> "Tensor":
        """Map a text to ids (n,). Raises CorpusError for a symbol that the tokenizer lacks."""
        import torch

        return torch.from_numpy(self.tokenizer.encode(text).astype(np.int64))

    def decode(self, ids: "Tensor | Ids") -> str:
        """Map ids (n,) back to text. The end of a document becomes a blank line."""
        return self.tokenizer.decode(np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids))

    def require_length(self, block_size: int) -> None:
        """Raise CorpusError unless every part is long enough for a window of `block_size` and its
        targets."""
        for part in PARTS:
            length = np.diff(self.ends[part], prepend=0).max(initial=0)
            if length <= block_size:
                of, remedy = "", "give a longer text"
                if self.whole.lengths:
                    of = " of its longest file"
                    remedy = (
                        f"join files, or, if there are {split.FEWEST} or more, use "
                        "corpus.tokenizer bytes: its windows may span several files"
                    )
                raise CorpusError(
                    f"{self.name}: too short: the {part} part has {length} {self.unit}{of} and "
                    f"model.block_size {block_size} needs {block_size + 1}; {remedy}"
                )


def load_corpus(config: CorpusConfig) -> Corpus:
    """Find, verify, split and encode a corpus.

    Raises CorpusError if a known corpus cannot be downloaded; if a file is not a text, has no
    documents, is too short or is not UTF-8; or if the held-out part has a symbol that the training
    part lacks.
    """
    try:
        if config.source in KNOWN:
            return _one_text(config, config.source, _known_text(config.source))
        path = find(config.source)
        # Neither a file nor a folder: a device or a pipe, which may never end.
        if path is None or not (path.is_file() or path.is_dir()):
            fault = f"is neither a text file, nor a folder, nor a known corpus ({', '.join(KNOWN)})"
            raise CorpusError(f"corpus.source: '{config.source}' {fault}; give a path")
        files = _document_files(path)
        if files:
            return _documents(config, path, files)
        return _one_text(config, path.name, path)
    except (OSError, RuntimeError) as error:
        raise CorpusError(f"corpus.source: '{config.source}' cannot be used: {error}") from None


# ---- one text


KNOWN = {
    "tinyshakespeare": (
        "tinyshakespeare.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    ),
    "synthetic": (
        "synthetic.packed",
        "0ea75633f7dbe6dc04eab041f5185f76ef2090b5faf4380da9d1f9565834fe59",
        "lib/data of the repository",
    ),
}
"""Name → the corpus's file, the SHA-256 of the file, and its origin.

`synthetic` is a play that a probabilistic grammar wrote. `papers/embedding-norm/synthetic_text.py`
writes the same play again, and computes its exact entropy. The file is in this folder, compressed
by bz2. It has no suffix `.bz2`, because Kaggle would unpack it."""


def _known_text(name: str) -> Path:
    """Find a known text in this folder or in `corpus_places`; otherwise download it to `data/`.
    (pooch shows a progress bar, checks the hash, and then moves the file into place.)"""
    file_name, file_hash, url = KNOWN[name]
    folder = (output_root() / "data").resolve()
    for path in [Path(__file__).with_name(file_name), *corpus_places(file_name)]:
        if path.is_file() and sha256(path) == file_hash:  # another text may have the same name
            return path
    try:
        import pooch  # imported here because Kaggle's images, without internet, may lack it

        pooch.get_logger().setLevel("WARNING")
        return Path(pooch.retrieve(url, file_hash, file_name, folder, progressbar=True))
    except Exception as error:
        raise CorpusError(
            f"{name}: no file with SHA-256 {file_hash[:12]}… was found or downloaded "
            f"({type(error).__name__}). Put it at {relative(folder / file_name)} (from {url}); "
            f"attach a Kaggle input with {file_name}; or set corpus.source to a text file's path"
        ) from error


def plain(text: str) -> str:
    """Replace all line ends by line feeds, and remove byte-order marks."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")


def _blocks(file: Path, name: str) -> Iterator[str]:
    """Yield a text after `plain` in blocks. Raises CorpusError if it is not UTF-8."""
    is_packed = file.name == KNOWN["synthetic"][0]
    with (
        bz2.open(file) if is_packed else file.open("rb") as data,
        io.TextIOWrapper(data, encoding="utf-8") as text,
    ):
        try:
            while block := text.read(_BLOCK):  # \r\n is read as \n, even across two blocks
                yield plain(block)
        except UnicodeDecodeError as error:
            place = data.tell() - len(error.object) + error.start
            fault = f"{name}: not UTF-8 at byte {place:,}; unpack it, or convert it by iconv"
            raise CorpusError(fault) from None


def _text_hash(file: Path, name: str) -> str:
    """Hash a text after `plain`, or the bytes of a Parquet file. Raises CorpusError if a text is
    not UTF-8."""
    if _suffix(file) == ".parquet":
        return sha256(file)
    hashed = hashlib.sha256()
    for block in _blocks(file, name):
        hashed.update(block.encode())
    return hashed.hexdigest()


def _kept_hash(name: str, files: list[Path], make: Callable[[], str]) -> str:
    """Return the hash of texts that `make` computes. Hashing takes seconds per gigabyte, so the
    hash is cached as long as the files have the same sizes and times. (No program can set back the
    time of a change.)"""
    stats = [(str(file.resolve()), file.stat()) for file in files]
    state = [[path, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for path, s in stats]
    if time.time_ns() < max(s.st_ctime_ns for _, s in stats) + 2e9:
        return make()  # another change may follow so soon that it gets the same time
    _, index = cached("hashes", name, state, lambda _: {"sha256": make()})
    return str(index["sha256"])


def _one_text(config: CorpusConfig, name: str, file: Path) -> Corpus:
    """Split and encode a single text: the first nine tenths to train on, then dev and test."""

    def sha256_now() -> str:
        return _kept_hash(name, [file], lambda: _text_hash(file, name))

    key = sha256_now()
    in_characters = config.tokenizer == "characters"
    # A symbol does no harm if it occurs only in held-out text that is not measured.
    most = config.measured_characters if in_characters else None

    def prepare() -> Texts:
        n = sum(map(len, _blocks(file, name)))
        if n < 20:
            raise CorpusError(f"{name}: empty or too short: {n} characters; give 20 or more")

        def train(rest: list[str]) -> Iterator[str]:
            left = int(TRAIN_SHARE * n)
            for block in _blocks(file, name):
                if left:
                    yield block[:left]
                rest.append(block[left:])
                left = max(left - len(block), 0)

        def read() -> Iterator[Piece]:
            heldout: list[str] = []
            for text in train(heldout) if in_characters else pieces(train(heldout)):
                yield Piece("train", name, text)
            rest = "".join(heldout)
            heldout.clear()  # free memory: a tenth of a long text is long
            for part, own in split.halves(rest).items():
                for text in [own[:most]] if in_characters else pieces([own]):
                    yield Piece(part, name, text)

        return Texts(read, n, "the last tenth", lambda: sha256_now() != key)

    return _cut(config, name, key, tokenize(name, digest([key, most]), config.tokenizer, prepare))


# ---- documents


def _one(file: Path) -> Iterator[str]:
    """Yield the text of a file."""
    yield "".join(_blocks(file, file.name))


def _lines(file: Path) -> Iterator[Any]:
    """Yield the field `text` of each line of JSON; None if a line has none."""
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    document = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {number} is not JSON: {error}") from None
                yield document.get("text") if isinstance(document, dict) else None


def _rows(file: Path) -> Iterator[Any]:
    """Yield the column `text` of a Parquet file."""
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(file).iter_batches(1000, columns=["text"]):
        yield from batch["text"].to_pylist()


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".txt": _one,
    ".jsonl": _lines,
    ".ndjson": _lines,
    ".parquet": _rows,
}


def _suffix(file: Path) -> str:
    """Return a file's suffix in lower case; for a broken link, its name."""
    return file.suffix.lower() if file.is_file() else file.name


def _document_files(path: Path) -> list[Path]:
    """List the document files of a path: all files of a folder, or one file of JSON lines or
    Parquet. The list is empty for any other file, because that is a single text. Raises CorpusError
    for a folder with files of several kinds, or with a link to another folder.
    """
    if path.is_file():
        return [path] if _suffix(path) in _READERS and _suffix(path) != ".txt" else []
    inside = (file for file in path.rglob("*") if file.is_file() or file.is_symlink())
    names = sorted(file.relative_to(path) for file in inside)
    files = [path / name for name in names if "/." not in f"/{name.as_posix()}"]
    suffixes = {_suffix(file) for file in files}
    readers = {_READERS.get(suffix) for suffix in suffixes}
    if len(readers) != 1 or None in readers:
        wanted = ", ".join(_READERS)
        found = ", ".join(sorted(suffixes)[:9]) or "none"
        fault = f"folder '{path.name}' must hold files of one kind: {wanted}; it holds {found}"
        raise CorpusError(f"corpus.source: {fault}")
    return files


def _documents(config: CorpusConfig, path: Path, files: list[Path]) -> Corpus:
    """Split and encode documents, or a folder of texts: see `lib.data.split`.

    With the tokenizer `characters`, each document or file ends with a blank line, and no question
    of the suite spans it. No window reaches from one file into another. Windows do reach from one
    document into the next, because many documents are shorter than a window.
    """
    name = path.name
    are_files = _suffix(files[0]) == ".txt"
    # File names may contain bytes that are not UTF-8; these are escaped.
    named = {
        os.fsencode(file.relative_to(path.parent)).decode("utf-8", "backslashreplace"): file
        for file in files
    }
    # The source of a document is its file; the source of a text is its folder.
    sources = {file: str(Path(file).parent) if are_files else file for file in named}

    def sha256_now() -> str:
        hashes = {f.relative_to(path).as_posix(): (f, told) for told, f in named.items()}
        return _kept_hash(
            name,
            files,
            lambda: digest({file: _text_hash(*of) for file, of in hashes.items()}),
        )

    now = sha256_now()
    in_characters = config.tokenizer == "characters"
    in_files = are_files and in_characters
    key = digest([now, config.tokenizer]) if in_characters else now

    def prepare() -> Texts:
        lengths = np.array([len(text) for _, text in _read(named)], np.int64)
        n = int(lengths.sum())
        if in_characters and n < 20:
            raise CorpusError(f"{name}: empty or too short: {n} characters; give 20 or more")
        if not in_characters and len(lengths) < split.FEWEST:
            few = f"too few documents: {len(lengths)}; give {split.FEWEST} or more"
            few += ", or join the files into one text" if are_files else ""
            raise CorpusError(f"{name}: {few}")
        read_all, held_out = split.split_texts(
            lambda: _read(named), lengths, are_documents=not in_files
        )
        found = [(part, file, len(text)) for part, file, text in read_all()]
        parts = np.array([part for part, _, _ in found])
        folders = [sources[file] for _, file, _ in found]
        kept = split.measured(
            parts,
            np.array([length for _, _, length in found]),
            [file for _, file, _ in found] if in_characters else folders,
            config.measured_characters,
        )

        def read() -> Iterator[Piece]:
            end = "\n\n" if in_characters else ""
            for length, piece in zip(kept.tolist(), read_all(), strict=True):
                if length:
                    yield piece._replace(text=split.beginning(piece.text, length) + end)

        held_out += split.but_none_of(parts, folders)
        return Texts(read, n, held_out, lambda: sha256_now() != now)

    whole = tokenize(
        name,
        digest([key, config.measured_characters]),  # held-out documents are tokenized only so far
        config.tokenizer,
        prepare,
        has_documents=not in_characters,
        in_files=in_files,
    )
    return _cut(config, name, key, whole)


def _read(files: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield all documents that are not empty, in order, as (file name, text after `plain`). Raises
    CorpusError, with the file's name, if a document cannot be read."""
    for name, file in files.items():
        try:
            # Not with `datasets`: it takes a path for a pattern, and may read other files.
            for text in _READERS[_suffix(file)](file):
                if not isinstance(text, str):
                    raise ValueError("a document has no 'text', or its 'text' is not a string")
                text.encode()  # raises for half of a surrogate pair
                text = plain(text)
                if text:
                    yield name, text
        except Exception as error:  # readers raise many kinds of errors
            reason = " ".join(str(error).split())[:200]
            raise CorpusError(f"{name}: cannot be read as documents: {reason}") from None


# ---- ids


def _cut(config: CorpusConfig, name: str, key: str, whole: Tokenized) -> Corpus:
    """Cut a tokenized corpus to the part that a run reads: the first `fraction` of each training
    file, or of all training documents together; and of dev and test, the tokens that end within the
    first `measured_characters`."""
    lengths = whole.lengths or {part: [len(ids)] for part, ids in whole.parts.items()}
    ends = {part: np.cumsum(of, dtype=np.int64) for part, of in lengths.items()}
    train = whole.parts["train"]
    kept = [int(config.fraction * length) for length in lengths["train"]]
    if config.fraction < 1 and whole.lengths:
        texts = zip(np.split(train, ends["train"][:-1]), kept, strict=True)

        def make(folder: Path) -> Json:
            with (folder / "train.bin").open("wb") as file:
                file.writelines(text[:n].tobytes() for text, n in texts)
            return {}

        folder, _ = cached("tokens", name, [key, config.fraction], make)
        train = mapped(folder / "train.bin", train.dtype)
    train = train[: sum(kept)]
    ends["train"] = np.cumsum(kept, dtype=np.int64)
    heldout = []
    for part in ("dev", "test"):
        # A character takes at most five tokens: four bytes, and the end of a document.
        ids = whole.parts[part][: 5 * config.measured_characters].astype(np.int64)
        characters = whole.tokenizer.characters[ids].cumsum()
        n = np.searchsorted(characters, config.measured_characters, side="right")
        heldout.append(ids[:n])
        ends[part] = ends[part].clip(max=n)
    dev, test = heldout
    return Corpus(name, key, whole, train, dev, test, ends)


# ---- windows


def windows_before(ends: Lengths, block_size: int) -> Lengths:
    """Count the windows (`block_size` ids and the next one) that lie within one file. Return the
    cumulative counts over the files of a part, (files,). The files end at `ends`."""
    return (np.diff(ends, prepend=0) - block_size).clip(min=0).cumsum()


def window_starts(ends: Lengths, block_size: int, numbers: Lengths) -> Lengths:
    """Return the start of each window in `numbers`. The windows that `windows_before` counts are
    numbered 0, 1, … in order."""
    before = windows_before(ends, block_size)
    file = np.searchsorted(before, numbers, side="right")
    # before[file] - 1 is the last window of the file, which starts at its end - block_size - 1.
    return ends[file] - block_size - (before[file] - numbers)


def sample_batch(
    ids: Ids, ends: Lengths, batch_size: int, block_size: int, generator: "torch.Generator"
) -> "tuple[Tensor, Tensor]":
    """Draw random windows from a part's ids (n,), each within one of the files that end at `ends`.
    Return inputs and targets (the next tokens), (B, T) each."""
    import torch

    n = int(windows_before(ends, block_size)[-1])
    drawn = torch.randint(n, (batch_size,), generator=generator).numpy()
    starts = window_starts(ends, block_size, drawn)
    windows = np.stack([ids[start : start + block_size + 1] for start in starts.tolist()])
    batch = torch.from_numpy(windows.astype(np.int64))
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def evenly_spaced_windows(ids: Ids, ends: Lengths, n: int, block_size: int) -> "Tensor":
    """Return `n` windows of a part's ids, evenly spaced over all its windows: (n, T + 1)."""
    import torch

    last = windows_before(ends, block_size)[-1] - 1
    starts = window_starts(ends, block_size, np.linspace(0, last, n).astype(np.int64))
    return torch.from_numpy(np.stack([ids[start : start + block_size + 1] for start in starts]))
