"""From a text to batches: find, verify, encode, split, draw.

Any UTF-8 text works as a corpus, by path, and so do documents: a folder of texts, JSON lines or
Parquet. `tinyshakespeare` and `synthetic` are known by name. Start reading at `load_corpus`.
"""

import bz2
import hashlib
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lib.config.io import corpus_places, find, output_root, relative, sha256
from lib.config.schema import TRAIN_SHARE, CorpusConfig, digest
from lib.data.tokens import Characters, CorpusError, Ids, Tokenized, Tokenizer, pieces, tokenize

if TYPE_CHECKING:  # importing it takes a second
    from datasets import Dataset

__all__ = ["CorpusError"]
PARTS = ("train", "dev", "test")
MAX_SEARCHED = 2**24
"""Characters of a corpus whose training part is searched for what it shares with others."""
MAX_MEASURED = 2**16
"""Characters that dev and test are cut to, each: the same text, whatever the tokenizer."""


@dataclass(frozen=True)
class Corpus:
    """A verified text, or documents, encoded and split. Ids count from 0."""

    name: str
    sha256: str
    """Of the text as `plain` gives it; of documents, that of their files' names and hashes."""
    whole: Tokenized
    train: Ids
    """The leading 90 %, cut to the configured fraction; (n,), in memory or memory-mapped."""
    dev: Tensor
    """The first half of the last 10 %, cut to `MAX_MEASURED` characters; (n,), int64. Choices are
    made here."""
    test: Tensor
    """The second half, likewise. Results are reported here."""

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
    def unit(self) -> str:
        """What is counted: characters or tokens."""
        return "characters" if isinstance(self.tokenizer, Characters) else "tokens"

    @property
    def heldout(self) -> Tensor:
        """Dev and test, one after the other."""
        return torch.cat((self.dev, self.test))

    @property
    def training_text(self) -> str:
        """The training part, whatever fraction is trained on; "" where it is too long to be
        searched."""
        short = self.whole.n_characters <= MAX_SEARCHED
        return self.decode(self.whole.parts["train"]) if short else ""

    @property
    def beginning(self) -> Tensor:
        """The id that stands before a text without context, (1,): the end of the document before,
        or a line break, or where there is none what the training part begins with."""
        if self.whole.has_documents:
            return torch.tensor([self.tokenizer.end_of_document])
        return self.encode("\n" if "\n" in self.symbols else self.decode(self.train[:1]))[:1]

    def encode(self, text: str) -> Tensor:
        """Map a text to ids (n,); CorpusError for a symbol that the tokenizer cannot write."""
        return torch.from_numpy(self.tokenizer.encode(text))

    def decode(self, ids: Tensor | Ids) -> str:
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
        if files := _document_files(path):
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
    (file_name, file_hash, url), folder = KNOWN[name], output_root() / "data"
    for path in [Path(__file__).with_name(file_name), *corpus_places(file_name)]:
        if path.is_file() and sha256(path) == file_hash:  # another text may have its name
            return bz2.decompress(path.read_bytes()) if name == "synthetic" else path.read_bytes()
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
    cut = int(TRAIN_SHARE * len(text))
    middle = cut + _middle(text[cut:])
    cuts = text[:cut], text[cut:middle], text[middle:]
    texts = dict(zip(PARTS, cuts, strict=True))

    def read(_: Path) -> "dict[str, Dataset]":
        from datasets import Dataset

        return {part: Dataset.from_dict({"text": pieces(of)}) for part, of in texts.items()}

    if config.tokenizer != "characters":
        return _cut(config, name, key, tokenize(name, key, config.tokenizer, False, read))
    characters = Characters(texts["train"])
    texts |= {part: texts[part][:MAX_MEASURED] for part in ("dev", "test")}
    ids = {part: characters.encode(of) for part, of in texts.items()}
    return _cut(config, name, key, Tokenized(characters, ids, len(text), False))


def _middle(heldout: str) -> int:
    """Length of dev: up to the blank line (else the line end) nearest to the middle."""
    middle = len(heldout) / 2
    for boundary in (r"\n\n+", r"\n"):
        ends = [match.end() for match in re.finditer(boundary, heldout)]
        if ends := [end for end in ends if 0.25 < end / len(heldout) < 0.75]:
            return min(ends, key=lambda end: abs(end - middle))
    return int(middle)


# ---- documents

_KINDS = {".txt": "text", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}


def _kind(file: Path) -> str:
    """Name what a file holds by its suffix, however that is written; of others the suffix, and of
    a link to no file its name."""
    suffix = file.suffix.lower() if file.is_file() else file.name
    return _KINDS.get(suffix, suffix)


def _document_files(path: Path) -> list[Path]:
    """List the files of documents in a folder, each once, or the one file of JSON lines or Parquet;
    none for another file, which is one text. CorpusError for a folder that does not hold files of
    one kind, or holds a link to another folder.
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
    by_place = {file.stat()[1:3]: file for file in reversed(files)}  # inode and device
    return sorted(by_place.values())


def _documents(config: CorpusConfig, path: Path, files: list[Path]) -> Corpus:
    """Split documents: nine tenths of them to train on, then dev and test. In characters they are
    one text, with blank lines between them."""
    if config.tokenizer == "characters":
        with tempfile.TemporaryDirectory() as cache:
            rows = _read_documents(path.name, files, Path(cache))
            return _one_text(config, path.name, "\n\n".join(rows["text"]).encode())

    def read(cache: Path) -> "dict[str, Dataset]":
        rows = _read_documents(path.name, files, cache)
        if (n := len(rows)) < 11:
            raise CorpusError(f"{path.name}: too few documents: {n}; give 11, or join them to one")
        cut = int(TRAIN_SHARE * n)
        middle = (cut + n) // 2
        bounds = range(cut), range(cut, middle), range(middle, n)
        return {part: rows.select(of) for part, of in zip(PARTS, bounds, strict=True)}

    key = digest({file.relative_to(path).as_posix(): _text_hash(file) for file in files})
    return _cut(config, path.name, key, tokenize(path.name, key, config.tokenizer, True, read))


def _text_hash(file: Path) -> str:
    """Hash a file, of lines whatever ends them."""
    if _kind(file) == "parquet":
        return sha256(file)
    return hashlib.sha256(plain(file.read_text("utf-8", "replace")).encode()).hexdigest()


def _read_documents(name: str, files: list[Path], cache: Path) -> "Dataset":
    """Read the documents that are not empty, `plain`, in the order of their files, into a column
    `text`.
    CorpusError for what cannot be read."""
    import datasets

    datasets.disable_progress_bars()
    read = getattr(datasets.Dataset, f"from_{_kind(files[0])}")
    whole = {"sample_by": "document"} if read == datasets.Dataset.from_text else {}
    try:
        rows = read([str(file) for file in files], cache_dir=str(cache), **whole)
        rows = rows.select_columns("text")
        if "string" not in str(rows.features["text"]) or rows.data["text"].null_count:
            raise ValueError("not every document has a 'text' that is one")
        return rows.map(_plain, batched=True, input_columns="text")
    except Exception as error:  # whatever its readers raise
        reason = " ".join(str(error.__cause__ or error).split())[:200]
        raise CorpusError(f"{name}: cannot be read as documents: {reason}") from None


def _plain(texts: list[str]) -> dict[str, list[str]]:
    return {"text": [*filter(None, map(plain, texts))]}


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
        heldout.append(torch.from_numpy(ids[:n]))
    return Corpus(name, key, whole, train, *heldout)


def sample_batch(
    ids: Ids, batch_size: int, block_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw random windows of ids (n,); return inputs and next tokens, both (B, T)."""
    starts = torch.randint(len(ids) - block_size, (batch_size,), generator=generator)
    windows = np.stack([ids[start : start + block_size + 1] for start in starts.tolist()])
    batch = torch.from_numpy(windows.astype(np.int64))
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
