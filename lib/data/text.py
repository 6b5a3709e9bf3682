"""From a text to batches: find, verify, encode, split, draw.

Any UTF-8 text works as a corpus, by path, and so do documents: a folder of texts, JSON lines or
Parquet. `tinyshakespeare` and `synthetic` are known by name. Start reading at `load_corpus`.
"""

import bz2
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lib.config.files import sha256
from lib.config.paths import corpus_places, find, output_root, relative
from lib.config.schema import CorpusConfig, digest
from lib.data import split
from lib.data.split import PARTS
from lib.data.tokens import Characters, CorpusError, Ids, Tokenized, Tokenizer, pieces, tokenize

if TYPE_CHECKING:  # each takes a second to import, and a sweep with nothing to do needs neither
    import torch
    from datasets import Dataset
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
            length = len(getattr(self, part))
            if length <= block_size:
                raise CorpusError(
                    f"{self.name}: too short: the {part} part has {length} {self.unit} and "
                    f"model.block_size {block_size} needs {block_size + 1}; give a longer text"
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
    texts = split.split_text(text)
    held_out = "the last tenth"
    if config.tokenizer == "characters":
        parts = {
            "train": [(name, texts["train"])],
            "dev": [(name, texts["dev"][:MAX_MEASURED])],
            "test": [(name, texts["test"][:MAX_MEASURED])],
        }
        return _cut(config, name, key, _in_characters(parts, len(text), held_out))

    def read(_: Path) -> "tuple[dict[str, Dataset], str]":
        from datasets import Dataset

        parts = {part: Dataset.from_dict({"text": pieces(of)}) for part, of in texts.items()}
        return parts, held_out

    return _cut(config, name, key, tokenize(name, key, config.tokenizer, False, read))


def _in_characters(
    parts: dict[str, list[tuple[str, str]]], n_characters: int, held_out: str
) -> Tokenized:
    """Encode the texts of each part by characters, one after the other. `parts` has them behind the
    names of their files. Raises CorpusError for a symbol that training never sees."""
    texts = {part: "".join(text for _, text in of) for part, of in parts.items()}
    characters = Characters(texts["train"])
    for file, text in parts["dev"] + parts["test"]:
        unseen = sorted(set(text).difference(characters.symbols))
        if unseen:
            raise CorpusError(
                f"corpus.tokenizer: symbol {', '.join(map(repr, unseen[:5]))} was unseen in "
                f"training: only the held-out part of {file} has it; remove it, or take bytes"
            )
    ids = {part: characters.encode(text) for part, text in texts.items()}
    return Tokenized(characters, ids, n_characters, False, held_out)


# ---- documents

_KINDS = {".txt": "text", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}


def _kind(file: Path) -> str:
    """Return what a file holds, by its suffix in upper or lower case; of another file the suffix,
    and of a link to no file its name."""
    suffix = file.suffix.lower() if file.is_file() else file.name
    return _KINDS.get(suffix, suffix)


def _document_files(path: Path) -> list[Path]:
    """List the files of documents in a folder, or the one file of JSON lines or Parquet; none for
    another file, which is one text. CorpusError for a folder that does not hold files of one kind,
    or holds a link to another folder.
    """
    if path.is_file():
        return [path] if _kind(path) in ("json", "parquet") else []
    inside = (file for file in path.rglob("*") if file.is_file() or file.is_symlink())
    names = sorted(file.relative_to(path) for file in inside)
    files = [path / name for name in names if "/." not in f"/{name.as_posix()}"]
    kinds = {_kind(file) for file in files}
    if len(kinds) != 1 or not kinds.issubset(_KINDS.values()):
        wanted = ", ".join(_KINDS)
        found = ", ".join(sorted(kinds)[:9]) or "none"
        fault = f"folder '{path.name}' must hold files of one kind: {wanted}; it holds {found}"
        raise CorpusError(f"corpus.source: {fault}")
    return files


def _documents(config: CorpusConfig, path: Path, files: list[Path]) -> Corpus:
    """Split documents, or, read in characters, the texts of a folder: see `lib.data.split`.

    In characters each part is one text, with a blank line after each document or file. No question
    of the suite reaches over it. Windows do, in training and in evaluation, as they reach from one
    document to the next: there, characters are predicted from another file.
    """
    name = path.name
    are_files = _kind(files[0]) == "text"
    # A name that is no UTF-8 can be written all the same.
    named = {
        os.fsencode(file.relative_to(path.parent)).decode("utf-8", "backslashreplace"): file
        for file in files
    }
    key = digest({file.relative_to(path).as_posix(): _text_hash(file) for file in files})
    if config.tokenizer == "characters":
        names = []
        texts = []
        for file, text in _read(named):
            names.append(file)
            texts.append(text)
        n = sum(len(text) for text in texts)
        if n < 20:
            raise CorpusError(f"{name}: empty or too short: {n} characters; give 20 or more")
        of_parts, held_out = split.split_texts(texts, are_documents=not are_files)
        parts = {}
        for part, of in of_parts.items():
            own = [names[i] for i in of]
            most = MAX_MEASURED if part != "train" else 3 * n  # which is more than all
            measured = split.measured(list(of.values()), own, most)
            parts[part] = [(own[i], f"{text}\n\n") for i, text in measured.items()]
        whole = _in_characters(parts, n, held_out)
        return _cut(config, name, digest([key, config.tokenizer]), whole)

    def read(folder: Path) -> "tuple[dict[str, Dataset], str]":
        import pyarrow.compute as pc
        from datasets import Dataset

        rows = _on_disk(_read(named), folder)
        n = len(rows)
        if n < split.FEWEST:
            raise CorpusError(f"{name}: too few documents: {n}; give {split.FEWEST} or more")
        parts = {part: rows.select(places) for part, places in split.parts_of(n).items()}
        for part in ("dev", "test"):
            sources = parts[part]["file"]
            if are_files:  # a folder of texts is one source
                sources = [str(Path(file).parent) for file in sources]
            kept = split.measured(parts[part]["text"], sources, MAX_MEASURED)
            parts[part] = Dataset.from_dict({"text": list(kept.values())})
        lengths = pc.utf8_length(rows.data.column("text")).to_numpy()
        return parts, split.documents_held_out(lengths)

    return _cut(config, name, key, tokenize(name, key, config.tokenizer, True, read))


def _text_hash(file: Path) -> str:
    """Hash a file, without holding it in memory: of a text the `plain` one."""
    if _kind(file) == "parquet":
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
            for text in _READERS[_kind(file)](file):
                if not isinstance(text, str):
                    raise ValueError("not every document has a 'text' that is one")
                text.encode()  # half of a surrogate pair cannot be
                text = plain(text)
                if text:
                    yield name, text
        except Exception as error:  # whatever a reader raises
            reason = " ".join(str(error).split())[:200]
            raise CorpusError(f"{name}: cannot be read as documents: {reason}") from None


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


_READERS: dict[str, Callable[[Path], Iterable[Any]]] = {
    "text": lambda file: [file.read_text("utf-8")],
    "json": _lines,
    "parquet": _rows,
}


def _on_disk(documents: Iterator[tuple[str, str]], folder: Path) -> "Dataset":
    """Write documents to a folder; return them as columns `file` and `text`, read from there."""
    import pyarrow as pa
    from datasets import Dataset

    schema = pa.schema({"file": pa.string(), "text": pa.large_string()})
    folder.mkdir()
    file = str(folder / "documents.arrow")
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        while batch := [*islice(documents, 1000)]:
            writer.write_batch(pa.record_batch([*zip(*batch, strict=True)], schema))
    return Dataset.from_file(file)


# ---- ids


def _cut(config: CorpusConfig, name: str, key: str, whole: Tokenized) -> Corpus:
    """Cut a tokenized corpus to what a run reads: dev and test to the tokens that end within their
    first `MAX_MEASURED` characters."""
    train = whole.parts["train"][: int(config.fraction * len(whole.parts["train"]))]
    heldout = []
    for part in ("dev", "test"):
        # A character is written in four bytes at the most, and the end of a document adds a token.
        ids = whole.parts[part][: 5 * MAX_MEASURED].astype(np.int64)
        ends = whole.tokenizer.characters[ids].cumsum()
        n = np.searchsorted(ends, MAX_MEASURED, side="right")
        heldout.append(ids[:n])
    return Corpus(name, key, whole, train, *heldout)


def sample_batch(
    ids: Ids, batch_size: int, block_size: int, generator: "torch.Generator"
) -> "tuple[Tensor, Tensor]":
    """Draw random windows of ids (n,); return inputs and next tokens, both (B, T)."""
    import torch

    starts = torch.randint(len(ids) - block_size, (batch_size,), generator=generator)
    windows = np.stack([ids[start : start + block_size + 1] for start in starts.tolist()])
    batch = torch.from_numpy(windows.astype(np.int64))
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
