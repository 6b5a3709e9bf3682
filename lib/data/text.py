"""From a text to batches: find, verify, encode, split, draw.

Any UTF-8 text works as a corpus, by path, and so do documents: a folder of texts, JSON lines or
Parquet. `tinyshakespeare` and `synthetic` are known by name. Start reading at `load_corpus`.
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
"""Characters of a corpus whose training part is searched for what it shares with others."""
MAX_MEASURED = 2**16
"""Characters that dev and test are cut to, each: the same text, whatever the tokenizer."""


@dataclass(frozen=True)
class Corpus:
    """A verified text, or documents, encoded and split. Ids count from 0."""

    name: str
    sha256: str
    """Of the text as `plain` gives it; of a folder or documents, of names and hashes of files."""
    whole: Tokenized
    train: Ids
    """About nine tenths, cut to the configured fraction; (n,), in memory or memory-mapped."""
    dev: Ids
    """Half of what is held out (see `lib.data.split`), cut to `MAX_MEASURED` characters; (n,),
    int64. Choices are made here."""
    test: Ids
    """The other half, likewise. Results are reported here."""
    ends: dict[str, Lengths]
    """Where the files end in train, dev and test: no window goes on from one file to the next. One
    text ends once in each part, and so do documents, over which windows go on."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self.whole.tokenizer

    @property
    def symbols(self) -> Sequence[str]:
        """What each id stands for; of characters, the vocabulary in one string, sorted."""
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
        """What is counted: characters or tokens."""
        return "characters" if isinstance(self.tokenizer, Characters) else "tokens"

    @property
    def heldout(self) -> "Tensor":
        """Dev and test, one after the other."""
        import torch

        return torch.from_numpy(np.concatenate((self.dev, self.test)))

    @property
    def heldout_texts(self) -> "list[Tensor]":
        """Dev and test as they are scored: file by file, and anything else as one text."""
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
        """Dev and test as pairs of neighbours, (n,) each: what stands before, and what is
        predicted."""
        import torch

        texts = self.heldout_texts
        before = torch.cat([text[:-1] for text in texts])
        return before, torch.cat([text[1:] for text in texts])

    @property
    def training_text(self) -> str:
        """The training part, whatever fraction is trained on; "" where it is too long to be
        searched."""
        short = self.whole.n_characters <= MAX_SEARCHED
        return self.decode(self.whole.parts["train"]) if short else ""

    @property
    def beginning(self) -> "Tensor":
        """The id that stands before a text without context, (1,): the end of the document before,
        or a line break, or where there is none what the training part begins with."""
        if self.whole.has_documents:
            import torch

            return torch.tensor([self.tokenizer.end_of_document])
        return self.encode("\n" if "\n" in self.symbols else self.decode(self.train[:1]))[:1]

    def encode(self, text: str) -> "Tensor":
        """Map a text to ids (n,); CorpusError for a symbol that the tokenizer cannot write."""
        import torch

        return torch.from_numpy(self.tokenizer.encode(text))

    def decode(self, ids: "Tensor | Ids") -> str:
        """Map ids (n,) back to text; the end of a document becomes a blank line."""
        return self.tokenizer.decode(ids.tolist())

    def require_length(self, block_size: int) -> None:
        """Raise CorpusError unless every part holds a window of `block_size` and its targets."""
        for part in PARTS:
            length = np.diff(self.ends[part], prepend=0).max(initial=0)
            if length <= block_size:
                of, remedy = "", "give a longer text"
                if self.whole.lengths:
                    of = " of its longest file"
                    remedy = "give longer ones, or corpus.tokenizer bytes, which goes on over files"
                raise CorpusError(
                    f"{self.name}: too short: the {part} part has {length} {self.unit}{of} and "
                    f"model.block_size {block_size} needs {block_size + 1}; {remedy}"
                )


def load_corpus(config: CorpusConfig) -> Corpus:
    """Find, verify, encode and split a corpus.

    Raises CorpusError when a known one cannot be had, or a file is no text or holds no documents,
    is too short, is not UTF-8, or holds a symbol in its held-out part that training never sees.
    """
    try:
        if config.source in KNOWN:
            return _one_text(config, config.source, _known_text(config.source))
        path = find(config.source)
        if path is None or not (path.is_file() or path.is_dir()):  # a device may never end
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
"""Name → its file, the SHA-256 of that, and from where it comes.

`synthetic` is a play that a probabilistic grammar wrote. It stands beside this file, compressed;
no suffix says so, as Kaggle unpacks what it knows. `papers/embedding-norm/synthetic_text.py` writes
it again, and its exact entropy."""


def _known_text(name: str) -> bytes:
    """Read a known text, which lies beside this file or where a corpus may lie, or else download it
    to `data/`: pooch shows a progress bar, checks the hash and then moves it into place."""
    file_name, file_hash, url = KNOWN[name]
    folder = output_root() / "data"
    for path in [Path(__file__).with_name(file_name), *corpus_places(file_name)]:
        if path.is_file() and sha256(path) == file_hash:  # another text may have its name
            data = path.read_bytes()
            return bz2.decompress(data) if name == "synthetic" else data
    try:
        import pooch  # only here: a Kaggle kernel without internet never needs it

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
    """End lines by line feeds alone, and take out byte-order marks."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")


def _one_text(config: CorpusConfig, name: str, data: bytes) -> Corpus:
    """Split a text: nine tenths to train on, then dev and test."""
    try:
        text = plain(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        fault = f"{name}: not UTF-8 at byte {error.start:,}; unpack it, or convert it by iconv"
        raise CorpusError(fault) from None
    if len(text) < 20:
        raise CorpusError(f"{name}: empty or too short: {len(text)} characters; give 20 or more")
    key = hashlib.sha256(text.encode()).hexdigest()
    texts = split.split_text(text, int(TRAIN_SHARE * len(text)))
    held_out = "the last tenth"
    if config.tokenizer == "characters":
        parts = [Piece("train", name, texts["train"])]
        parts += [Piece(part, name, texts[part][:MAX_MEASURED]) for part in ("dev", "test")]
        return _cut(config, name, key, _in_characters(parts, len(text), held_out))

    def read() -> Iterator[tuple[str, str]]:
        return ((part, piece) for part, of in texts.items() for piece in pieces(of))

    whole = tokenize(name, key, config.tokenizer, lambda: (read, held_out), has_documents=False)
    return _cut(config, name, key, whole)


def _in_characters(
    parts: list[Piece], n_characters: int, held_out: str, *, are_files: bool = False
) -> Tokenized:
    """Encode the texts of each part by characters, one after the other. Raises CorpusError for a
    symbol that training never sees."""
    texts = {part: "".join(piece.text for piece in parts if piece.part == part) for part in PARTS}
    characters = Characters(texts["train"])
    for _, file, text in parts:
        unseen = sorted(set(text).difference(characters.symbols))
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
    """Return a file's suffix in lower case; of a link to no file its name."""
    return file.suffix.lower() if file.is_file() else file.name


def _document_files(path: Path) -> list[Path]:
    """List the files of documents in a folder, or the one file of JSON lines or Parquet; none for
    another file, which is one text. CorpusError for a folder that does not hold files of one kind,
    or holds a link to another folder.
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
    """Split documents, or, read in characters, the texts of a folder: see `lib.data.split`.

    In characters a blank line ends each document or file. No question of the suite reaches over
    it, and no window reaches from one file to another. From one document to the next windows go on,
    whatever the tokenizer: many are shorter than a window.
    """
    name = path.name
    are_files = _suffix(files[0]) == ".txt"
    # A name that is no UTF-8 can be written all the same.
    named = {
        os.fsencode(file.relative_to(path.parent)).decode("utf-8", "backslashreplace"): file
        for file in files
    }
    # Of documents the source is their file, of texts their folder.
    sources = {file: str(Path(file).parent) if are_files else file for file in named}
    key = digest({file.relative_to(path).as_posix(): _text_hash(file) for file in files})
    if config.tokenizer == "characters":
        key = digest([key, config.tokenizer])
        return _cut(
            config, name, key, _documents_in_characters(name, named, sources, are_files=are_files)
        )

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
        kept = split.measured(parts, lengths, found, MAX_MEASURED)

        def read() -> Iterator[tuple[str, str]]:
            for part, length, (_, text) in zip(parts, kept.tolist(), _read(named), strict=True):
                if length:
                    yield part, split.beginning(text, length)

        return read, split.documents_held_out(lengths) + split.but_none_of(parts, found)

    whole = tokenize(name, key, config.tokenizer, prepare, has_documents=True)
    return _cut(config, name, key, whole)


def _documents_in_characters(
    name: str, files: dict[str, Path], sources: dict[str, str], *, are_files: bool
) -> Tokenized:
    """Split and encode documents by characters, or the texts of a folder."""
    documents = list(_read(files))
    n = sum(len(text) for _, text in documents)
    if n < 20:
        raise CorpusError(f"{name}: empty or too short: {n} characters; give 20 or more")
    pieces, held_out = split.split_texts(documents, are_documents=not are_files)
    parts = np.array([piece.part for piece in pieces])
    lengths = np.array([len(piece.text) for piece in pieces])
    kept = split.measured(parts, lengths, [piece.file for piece in pieces], MAX_MEASURED)
    held_out += split.but_none_of(parts, [sources[piece.file] for piece in pieces])
    beginnings = [
        piece._replace(text=f"{split.beginning(piece.text, length)}\n\n")
        for piece, length in zip(pieces, kept.tolist(), strict=True)
        if length
    ]
    return _in_characters(beginnings, n, held_out, are_files=are_files)


def _text_hash(file: Path) -> str:
    """Hash a file, without holding it in memory: of a text the `plain` one."""
    if _suffix(file) == ".parquet":
        return sha256(file)
    hashed = hashlib.sha256()
    with file.open(encoding="utf-8", errors="replace") as text:
        while part := text.read(2**20):  # \r\n is read as \n, also across two parts
            hashed.update(plain(part).encode())
    return hashed.hexdigest()


def _read(files: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield the documents that are not empty, `plain`, each behind the name of its file, in order.
    CorpusError, naming the file, for what cannot be read."""
    for name, file in files.items():
        try:
            # By its own reader: that of `datasets` takes a path for a pattern, and reads others.
            for text in _READERS[_suffix(file)](file):
                if not isinstance(text, str):
                    raise ValueError("not every document has a 'text' that is one")
                text.encode()  # half of a surrogate pair cannot be
                text = plain(text)
                if text:
                    yield name, text
        except Exception as error:  # whatever a reader raises
            reason = " ".join(str(error).split())[:200]
            raise CorpusError(f"{name}: cannot be read as documents: {reason}") from None


# ---- ids


def _cut(config: CorpusConfig, name: str, key: str, whole: Tokenized) -> Corpus:
    """Cut a tokenized corpus to what a run reads: the training part to the beginning of each file,
    dev and test to the tokens that end within their first `MAX_MEASURED` characters."""
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
        # A character is written in four bytes at the most, and the end of a document adds a token.
        ids = whole.parts[part][: 5 * MAX_MEASURED].astype(np.int64)
        characters = whole.tokenizer.characters[ids].cumsum()
        n = np.searchsorted(characters, MAX_MEASURED, side="right")
        heldout.append(ids[:n])
        ends[part] = ends[part].clip(max=n)
    dev, test = heldout
    return Corpus(name, key, whole, train, dev, test, ends)


# ---- windows


def windows_before(ends: Lengths, block_size: int) -> Lengths:
    """Count the windows of `block_size` and its targets that lie in one file, up to the end of each
    file, (files,). `ends` are those of a part."""
    return (np.diff(ends, prepend=0) - block_size).clip(min=0).cumsum()


def window_starts(ends: Lengths, block_size: int, numbers: Lengths) -> Lengths:
    """Return where the windows with these numbers start, of all that `windows_before` counts."""
    before = windows_before(ends, block_size)
    file = np.searchsorted(before, numbers, side="right")
    # The last window of a file starts `block_size` + 1 before its end.
    return ends[file] - block_size - (before[file] - numbers)


def sample_batch(
    ids: Ids, ends: Lengths, batch_size: int, block_size: int, generator: "torch.Generator"
) -> "tuple[Tensor, Tensor]":
    """Draw random windows of a part's ids (n,), each within one of the files that end at `ends`;
    return inputs and next tokens, both (B, T)."""
    import torch

    n = int(windows_before(ends, block_size)[-1])
    drawn = torch.randint(n, (batch_size,), generator=generator).numpy()
    starts = window_starts(ends, block_size, drawn)
    windows = np.stack([ids[start : start + block_size + 1] for start in starts.tolist()])
    batch = torch.from_numpy(windows.astype(np.int64))
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def evenly_spaced_windows(ids: Ids, ends: Lengths, n: int, block_size: int) -> "Tensor":
    """Join `n` windows, evenly spaced over all of a part's, into (n, T + 1)."""
    import torch

    last = windows_before(ends, block_size)[-1] - 1
    starts = window_starts(ends, block_size, np.linspace(0, last, n).astype(np.int64))
    return torch.from_numpy(np.stack([ids[start : start + block_size + 1] for start in starts]))
