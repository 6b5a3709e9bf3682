"""From a text to batches: find it, verify it, split it, encode it, draw windows.

A corpus is the path of any UTF-8 text, or of documents: a folder of texts, JSON lines or Parquet.
`tinyshakespeare` and `synthetic` are known by name. Start reading at `load_corpus`.
"""

import bz2
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lib.config.files import sha256
from lib.config.paths import corpus_places, find, output_root, relative
from lib.config.schema import TRAIN_SHARE, CorpusConfig, digest
from lib.data import split
from lib.data.split import PARTS, Lengths, Piece
from lib.data.tokens import (
    Characters,
    CorpusError,
    Ids,
    Texts,
    Tokenized,
    Tokenizer,
    pieces,
    tokenize,
)

if TYPE_CHECKING:  # it takes a second to import, and a sweep with nothing to do does not need it
    import torch
    from torch import Tensor

__all__ = ["PARTS", "CorpusError"]
MAX_SEARCHED = 2**24
"""Characters. The training part of a longer corpus is not searched for what it shares with held-out
text."""


@dataclass(frozen=True)
class Corpus:
    """A verified text, or documents, encoded and split. Ids count from 0."""

    name: str
    sha256: str
    """Of the text after `plain`. Of a folder or documents: of the names and hashes of all files."""
    whole: Tokenized
    train: Ids
    """About nine tenths, cut to the configured fraction; (n,), in memory or memory-mapped."""
    dev: Ids
    """Half of what is held out (see `lib.data.split`), cut to `corpus.measured_characters`; (n,),
    int64. Choices are made here."""
    test: Ids
    """The other half, likewise. Results are reported here."""
    ends: dict[str, Lengths]
    """Part → the positions at which its files end. No window reaches from one file into the next.
    A single text has one end in each part. So have documents: windows do reach from one document
    into the next."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self.whole.tokenizer

    @property
    def symbols(self) -> Sequence[str]:
        """The symbol of each id. With characters it is one string, sorted."""
        return self.tokenizer.symbols

    @property
    def vocab_size(self) -> int:
        return len(self.symbols)

    @property
    def held_out(self) -> str:
        """What is held out, in words."""
        return self.whole.held_out

    @property
    def unit(self) -> str:
        """What an id is called in tables: characters or tokens."""
        return "characters" if isinstance(self.tokenizer, Characters) else "tokens"

    @property
    def heldout(self) -> "Tensor":
        """Dev and test, one after the other."""
        import torch

        return torch.from_numpy(np.concatenate((self.dev, self.test)))

    @property
    def heldout_texts(self) -> "list[Tensor]":
        """Dev and test as they are scored. Of a folder read in characters, each file is a text;
        otherwise dev and test together are one."""

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
        """All predictions in dev and test: the id before, and the id that is predicted, (n,)
        each."""

        import torch

        texts = self.heldout_texts
        before = torch.cat([text[:-1] for text in texts])
        return before, torch.cat([text[1:] for text in texts])

    @property
    def training_text(self) -> str:
        """The whole training part, whatever fraction is trained on. "" if it is too long to be
        searched."""
        short = self.whole.n_characters <= MAX_SEARCHED
        return self.decode(self.whole.parts["train"]) if short else ""

    @property
    def beginning(self) -> "Tensor":
        """The id that a text without context starts from, (1,): the end of a document; for a corpus
        without documents a line break; if it has none, the first id of the training part."""
        if self.whole.has_documents:
            import torch

            return torch.tensor([self.tokenizer.end_of_document])
        return self.encode("\n" if "\n" in self.symbols else self.decode(self.train[:1]))[:1]

    def encode(self, text: str) -> "Tensor":
        """Map a text to ids (n,); CorpusError for a symbol that the tokenizer cannot write."""
        import torch

        return torch.from_numpy(self.tokenizer.encode(text).astype(np.int64))

    def decode(self, ids: "Tensor | Ids") -> str:
        """Map ids (n,) back to text; the end of a document becomes a blank line."""
        return self.tokenizer.decode(np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids))

    def require_length(self, block_size: int) -> None:
        """Raise CorpusError unless every part holds a window of `block_size` and its targets."""
        for part in PARTS:
            length = np.diff(self.ends[part], prepend=0).max(initial=0)
            if length <= block_size:
                of, remedy = "", "give a longer text"
                if self.whole.lengths:
                    of = " of its longest file"
                    remedy = (
                        f"join files, or, if there are {split.FEWEST} or more, take "
                        "corpus.tokenizer bytes, whose windows go on over files"
                    )
                raise CorpusError(
                    f"{self.name}: too short: the {part} part has {length} {self.unit}{of} and "
                    f"model.block_size {block_size} needs {block_size + 1}; {remedy}"
                )


def load_corpus(config: CorpusConfig) -> Corpus:
    """Find, verify, split and encode a corpus.

    Raises CorpusError if a known one cannot be downloaded; if a file is no text, has no documents,
    is too short or is not UTF-8; or if the held-out part has a symbol that the training part lacks.
    """
    try:
        if config.source in KNOWN:
            return _one_text(config, config.source, _known_text(config.source))
        path = find(config.source)
        # Neither: a device or a pipe, which may never end.
        if path is None or not (path.is_file() or path.is_dir()):
            fault = f"is neither a text file, nor a folder, nor a known corpus ({', '.join(KNOWN)})"
            raise CorpusError(f"corpus.source: '{config.source}' {fault}; give a path")
        files = _document_files(path)
        if files:
            return _documents(config, path, files)
        return _one_text(config, path.name, path.read_bytes())
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
"""Name → its file, the file's SHA-256, and its origin.

`synthetic` is a play that a probabilistic grammar wrote; `papers/embedding-norm/synthetic_text.py`
writes it again, and computes its exact entropy. Its file is beside this one, compressed by bz2. It
has no suffix `.bz2`, because Kaggle would unpack it."""


def _known_text(name: str) -> bytes:
    """Read a known text: from beside this file, from a place for corpora, or after a download to
    `data/` (pooch shows a progress bar, checks the hash, and then moves it into place)."""
    file_name, file_hash, url = KNOWN[name]
    folder = (output_root() / "data").resolve()
    for path in [Path(__file__).with_name(file_name), *corpus_places(file_name)]:
        if path.is_file() and sha256(path) == file_hash:  # not another text of the same name
            data = path.read_bytes()
            return bz2.decompress(data) if name == "synthetic" else data
    try:
        import pooch  # here, because Kaggle's images without internet may lack it

        pooch.get_logger().setLevel("WARNING")
        found = pooch.retrieve(url, file_hash, file_name, folder, progressbar=True)
        return Path(found).read_bytes()
    except Exception as error:
        raise CorpusError(
            f"{name}: no file with SHA-256 {file_hash[:12]}… is here or was downloaded "
            f"({type(error).__name__}). Put it at {relative(folder / file_name)} (from {url}); "
            f"attach a Kaggle input with {file_name}; or set corpus.source to a text file's path"
        ) from error


def plain(text: str) -> str:
    """Replace all line ends by line feeds, and remove byte-order marks."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")


def _one_text(config: CorpusConfig, name: str, data: bytes) -> Corpus:
    """Split and encode a single text: the first nine tenths to train on, then dev and test."""
    try:
        text = plain(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        fault = f"{name}: not UTF-8 at byte {error.start:,}; unpack it, or convert it by iconv"
        raise CorpusError(fault) from None
    del data  # a text may be large, and there are several copies of it below
    if len(text) < 20:
        raise CorpusError(f"{name}: empty or too short: {len(text)} characters; give 20 or more")
    key = hashlib.sha256(text.encode()).hexdigest()
    texts = split.split_text(text, int(TRAIN_SHARE * len(text)))
    held_out = "the last tenth"
    if config.tokenizer == "characters":
        parts = [Piece("train", name, texts["train"])]
        parts += [
            Piece(part, name, texts[part][: config.measured_characters]) for part in ("dev", "test")
        ]
        return _cut(config, name, key, _in_characters(parts, len(text), held_out))

    def read() -> Iterator[tuple[str, str]]:
        return ((part, piece) for part, of in texts.items() for piece in pieces(of))

    whole = tokenize(name, key, config.tokenizer, lambda: (read, held_out), has_documents=False)
    return _cut(config, name, key, whole)


def _in_characters(
    parts: list[Piece], n_characters: int, held_out: str, *, are_files: bool = False
) -> Tokenized:
    """Join the texts of each part, and encode them by characters. Raises CorpusError, naming the
    file, for a symbol that the training part lacks."""
    texts = {part: "".join(piece.text for piece in parts if piece.part == part) for part in PARTS}
    characters = Characters(texts["train"])
    for part, file, text in parts:
        unseen = [] if part == "train" else sorted(set(text).difference(characters.symbols))
        if unseen:
            raise CorpusError(
                f"corpus.tokenizer: symbol {', '.join(map(repr, unseen[:5]))} was unseen in "
                f"training: only the held-out part of {file} has it; remove it, or take bytes"
            )
    ids = {part: characters.encode(text) for part, text in texts.items()}
    lengths = {}
    if are_files:
        lengths = {part: [len(of.text) for of in parts if of.part == part] for part in PARTS}
    return Tokenized(characters, ids, n_characters, False, held_out, lengths)


# ---- documents


def _one(file: Path) -> Iterator[str]:
    """Yield the text of a file."""
    yield file.read_text("utf-8")


def _lines(file: Path) -> Iterator[Any]:
    """Yield the field `text` of each line of JSON; None where it has none."""
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    document = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {number} is no JSON: {error}") from None
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
    """Return a file's suffix in lower case; for a broken link its name."""
    return file.suffix.lower() if file.is_file() else file.name


def _document_files(path: Path) -> list[Path]:
    """List the files of a folder, or the one file of JSON lines or Parquet. The list is empty for
    any other file, which is a single text. CorpusError for a folder with files of several kinds, or
    with a link to another folder.
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

    Read in characters, each document or file ends with a blank line, and no question of the suite
    reaches across it. No window reaches from one file into another. Windows do reach from one
    document into the next, because many documents are shorter than a window.
    """
    name = path.name
    are_files = _suffix(files[0]) == ".txt"
    # File names may hold bytes that are no UTF-8; these are escaped.
    named = {
        os.fsencode(file.relative_to(path.parent)).decode("utf-8", "backslashreplace"): file
        for file in files
    }
    # Documents are held out by file, texts by folder.
    sources = {file: str(Path(file).parent) if are_files else file for file in named}
    key = digest({file.relative_to(path).as_posix(): _text_hash(file) for file in files})
    if config.tokenizer == "characters":
        key = digest([key, config.tokenizer])
        most = config.measured_characters
        whole = _documents_in_characters(name, most, named, sources, are_files=are_files)
        return _cut(config, name, key, whole)

    def prepare() -> tuple[Texts, str]:
        found = []
        sizes = []
        for file, text in _read(named):
            found.append(sources[file])
            sizes.append(len(text))
        n = len(sizes)
        if n < split.FEWEST:
            raise CorpusError(f"{name}: too few documents: {n}; give {split.FEWEST} or more")
        lengths = np.array(sizes)
        parts = split.parts_of(n)
        kept = split.measured(parts, lengths, found, config.measured_characters)

        def read() -> Iterator[tuple[str, str]]:
            for part, length, (_, text) in zip(parts, kept.tolist(), _read(named), strict=True):
                if length:
                    yield part, split.beginning(text, length)

        return read, split.documents_held_out(lengths) + split.but_none_of(parts, found)

    texts = digest([key, config.measured_characters])  # of held-out documents no more is tokenized
    whole = tokenize(name, texts, config.tokenizer, prepare, has_documents=True)
    return _cut(config, name, key, whole)


def _documents_in_characters(
    name: str, most: int, files: dict[str, Path], sources: dict[str, str], *, are_files: bool
) -> Tokenized:
    """Split documents, or the texts of a folder, and encode them by characters. Dev and test get
    `most` characters each."""
    documents = list(_read(files))
    n = sum(len(text) for _, text in documents)
    if n < 20:
        raise CorpusError(f"{name}: empty or too short: {n} characters; give 20 or more")
    pieces, held_out = split.split_texts(documents, are_documents=not are_files)
    parts = np.array([piece.part for piece in pieces])
    lengths = np.array([len(piece.text) for piece in pieces])
    kept = split.measured(parts, lengths, [piece.file for piece in pieces], most)
    held_out += split.but_none_of(parts, [sources[piece.file] for piece in pieces])
    beginnings = [
        piece._replace(text=f"{split.beginning(piece.text, length)}\n\n")
        for piece, length in zip(pieces, kept.tolist(), strict=True)
        if length
    ]
    return _in_characters(beginnings, n, held_out, are_files=are_files)


def _text_hash(file: Path) -> str:
    """Hash a file without holding it in memory; of a text, hash what `plain` makes of it."""
    if _suffix(file) == ".parquet":
        return sha256(file)
    hashed = hashlib.sha256()
    with file.open(encoding="utf-8", errors="replace") as text:
        while part := text.read(2**20):  # \r\n is read as \n, also across two parts
            hashed.update(plain(part).encode())
    return hashed.hexdigest()


def _read(files: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield all documents that are not empty, in order, as (name of the file, text after `plain`).
    CorpusError, naming the file, for one that cannot be read."""
    for name, file in files.items():
        try:
            # Not by `datasets`, which takes a path for a pattern, and may read other files.
            for text in _READERS[_suffix(file)](file):
                if not isinstance(text, str):
                    raise ValueError("not every document has a 'text' that is one")
                text.encode()  # raises for half of a surrogate pair
                text = plain(text)
                if text:
                    yield name, text
        except Exception as error:  # readers raise many kinds
            reason = " ".join(str(error).split())[:200]
            raise CorpusError(f"{name}: cannot be read as documents: {reason}") from None


# ---- ids


def _cut(config: CorpusConfig, name: str, key: str, whole: Tokenized) -> Corpus:
    """Cut a tokenized corpus to what a run reads. Of the training part that is the first `fraction`
    of each file, or of all documents together; of dev and test, the tokens that end within the
    first `measured_characters`."""
    lengths = whole.lengths or {part: [len(ids)] for part, ids in whole.parts.items()}
    ends = {part: np.cumsum(of, dtype=np.int64) for part, of in lengths.items()}
    train = whole.parts["train"]
    kept = [int(config.fraction * length) for length in lengths["train"]]
    if config.fraction < 1 and whole.lengths:
        texts = zip(np.split(train, ends["train"][:-1]), kept, strict=True)
        train = np.concatenate([text[:n] for text, n in texts])
    train = train[: sum(kept)]
    ends["train"] = np.cumsum(kept, dtype=np.int64)
    heldout = []
    for part in ("dev", "test"):
        # At most five tokens per character: four bytes, and the end of a document.
        ids = whole.parts[part][: 5 * config.measured_characters].astype(np.int64)
        characters = whole.tokenizer.characters[ids].cumsum()
        n = np.searchsorted(characters, config.measured_characters, side="right")
        heldout.append(ids[:n])
        ends[part] = ends[part].clip(max=n)
    dev, test = heldout
    return Corpus(name, key, whole, train, dev, test, ends)


# ---- windows


def windows_before(ends: Lengths, block_size: int) -> Lengths:
    """Count the windows (`block_size` ids and the one after) that lie within one file, cumulated
    over the files of a part, which end at `ends`: (files,)."""
    return (np.diff(ends, prepend=0) - block_size).clip(min=0).cumsum()


def window_starts(ends: Lengths, block_size: int, numbers: Lengths) -> Lengths:
    """Number all windows that `windows_before` counts, 0, 1, …; return where those with these
    numbers start."""
    before = windows_before(ends, block_size)
    file = np.searchsorted(before, numbers, side="right")
    # before[file] - 1 is the last window of the file, which starts at its end - block_size - 1.
    return ends[file] - block_size - (before[file] - numbers)


def sample_batch(
    ids: Ids, ends: Lengths, batch_size: int, block_size: int, generator: "torch.Generator"
) -> "tuple[Tensor, Tensor]":
    """Draw random windows of a part's ids (n,), each within one of the files that end at `ends`.
    Return inputs and targets, the next tokens: (B, T) each."""
    import torch

    n = int(windows_before(ends, block_size)[-1])
    drawn = torch.randint(n, (batch_size,), generator=generator).numpy()
    starts = window_starts(ends, block_size, drawn)
    windows = np.stack([ids[start : start + block_size + 1] for start in starts.tolist()])
    batch = torch.from_numpy(windows.astype(np.int64))
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def evenly_spaced_windows(ids: Ids, ends: Lengths, n: int, block_size: int) -> "Tensor":
    """Return `n` windows of a part's ids, evenly spaced over all that it has: (n, T + 1)."""
    import torch

    last = windows_before(ends, block_size)[-1] - 1
    starts = window_starts(ends, block_size, np.linspace(0, last, n).astype(np.int64))
    return torch.from_numpy(np.stack([ids[start : start + block_size + 1] for start in starts]))
