"""From bytes to batches: find, verify, encode, split, draw.

Any UTF-8 text works as a corpus, by path; `tinyshakespeare` and `synthetic` are known by name.
"""

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lib.data import synthetic
from lib.study.constants import TINYSHAKESPEARE_LENGTH, TRAIN_SHARE
from lib.study.fields import CorpusConfig
from lib.study.paths import ROOT, corpus_places, output_root, shown

TOKEN_CLASSES = ("alphabetic", "numeric", "punctuation", "whitespace", "end of document")
_END_OF_DOCUMENT = "\x03\x04"  # ASCII end of text, end of transmission


LARGEST = 10**9
"""Bytes of a text; its ids take eight times as much memory."""


class CorpusError(ValueError):
    """A corpus that cannot be used; the message says why and what to do."""


class MissingCorpusError(CorpusError):
    """A known corpus that is neither here nor to be downloaded."""


@dataclass(frozen=True)
class KnownCorpus:
    """Where a corpus comes from and how to tell that it is the right one."""

    file_name: str
    url: str
    length: int
    sha256: str
    write: Callable[[], str] | None = None
    """Writes the text where there is nothing to download."""


KNOWN = {
    "tinyshakespeare": KnownCorpus(
        file_name="tinyshakespeare.txt",
        url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        length=TINYSHAKESPEARE_LENGTH,
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
    "synthetic": KnownCorpus(
        "synthetic.txt", "", synthetic.LENGTH, synthetic.SHA256, synthetic.synthetic_text
    ),
}


@dataclass(frozen=True)
class Corpus:
    """A verified text, encoded and split. Ids are positions in `symbols`, int64 on the CPU."""

    name: str
    sha256: str
    text: str
    symbols: str
    """The vocabulary: every symbol of the training part, sorted."""
    train: Tensor
    """The leading 90 %, cut to the configured fraction; (n,)."""
    heldout: Tensor
    """The last 10 %; (n,)."""
    dev_length: int
    """Characters of `heldout` before the dev/test cut."""

    @property
    def vocab_size(self) -> int:
        return len(self.symbols)

    @property
    def beginning(self) -> str:
        """What stands before a text that has no context: a line break, or, where the training part
        has none, the symbol that it begins with."""
        return "\n" if "\n" in self.symbols else self.text[0]

    @property
    def dev(self) -> Tensor:
        """The first half of the held-out part: choices are made here."""
        return self.heldout[: self.dev_length]

    @property
    def test(self) -> Tensor:
        """The second half of the held-out part: results are reported here."""
        return self.heldout[self.dev_length :]

    def encode(self, text: str) -> Tensor:
        """Map a text to ids (n,); CorpusError for a symbol that the training part does not hold."""
        return _encode(text, self.symbols, self.name)

    def decode(self, ids: Tensor) -> str:
        """Map ids (n,) back to text."""
        return "".join(self.symbols[i] for i in ids.tolist())

    def require_length(self, block_size: int) -> None:
        """Raise CorpusError unless every part holds a window of `block_size` and its targets."""
        for part in ("train", "dev", "test"):
            length = len(getattr(self, part))
            if length <= block_size:
                raise CorpusError(
                    f"{self.name}: too short: the {part} part has {length} characters and "
                    f"model.block_size {block_size} needs {block_size + 1}; give a longer text, "
                    "a larger corpus.fraction or a smaller block_size"
                )


def load_corpus(config: CorpusConfig) -> Corpus:
    """Find, verify, encode and split a corpus.

    Raises MissingCorpusError when a known one cannot be had, and CorpusError when a file is no text
    file or too large, has a wrong hash, is empty or too short, is not UTF-8, or holds a symbol in
    its held-out part that training never sees.
    """
    try:
        data, known = _read(config.source)
    except OSError as error:
        raise CorpusError(
            f"corpus.source: '{config.source}' cannot be read: {error.strerror}; {_GIVE}"
        ) from None
    sha256 = hashlib.sha256(data).hexdigest()
    name = config.source if known else Path(config.source).name
    if known and (len(data), sha256) != (known.length, known.sha256):
        raise CorpusError(
            f"{name}: wrong hash: {len(data):,} bytes with SHA-256 {sha256}, expected "
            f"{known.length:,} bytes with {known.sha256}; delete that {known.file_name} and rerun"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{name}: not UTF-8 at byte {error.start:,}; convert it (iconv -t UTF-8)"
        ) from None
    if len(text) < 20:
        raise CorpusError(f"{name}: empty or too short: {len(text)} characters")

    cut = int(TRAIN_SHARE * len(text))
    symbols = "".join(sorted(set(text[:cut])))
    train = _encode(text[: int(config.fraction * cut)], symbols, name)
    heldout = _encode(text[cut:], symbols, name)
    return Corpus(name, sha256, text, symbols, train, heldout, _dev_length(text[cut:]))


def _encode(text: str, symbols: str, name: str) -> Tensor:
    ids = {symbol: i for i, symbol in enumerate(symbols)}
    try:
        return torch.tensor([ids[symbol] for symbol in text], dtype=torch.int64)
    except KeyError:
        unseen = sorted(set(text) - set(symbols))
        raise CorpusError(
            f"{name}: symbol {', '.join(map(repr, unseen[:5]))} was unseen in training "
            "(the first 90 % of the text); remove it, or move it into the training part"
        ) from None


def _read(source: str) -> tuple[bytes, KnownCorpus | None]:
    known = KNOWN.get(source)
    if known is None:
        return _own_text(source), None
    for path in corpus_places(known.file_name):
        if path.is_file():
            data = path.read_bytes()
            if known.write is None or hashlib.sha256(data).hexdigest() == known.sha256:
                return data, known
    if known.write:
        return _written(known.write(), known), known
    return _download(source, known).read_bytes(), known


def _own_text(source: str) -> bytes:
    """Read a text by its path. What is no plain file is refused unread: it may never end."""
    try:
        for path in (Path(source).expanduser(), ROOT / source):
            if path.exists():
                if not path.is_file():
                    raise CorpusError(f"corpus.source: '{source}' is a folder or device; {_GIVE}")
                if (size := path.stat().st_size) > LARGEST:
                    raise CorpusError(f"{path.name}: {size:,} bytes are too many; take {LARGEST:,}")
                return path.read_bytes() if size else b""  # 0 is also what a kernel's file says
    except RuntimeError:  # of expanduser
        raise CorpusError(f"corpus.source: '{source}' names no user's folder; {_GIVE}") from None
    raise CorpusError(
        f"corpus.source: '{source}' is neither a text file nor a known corpus "
        f"({', '.join(KNOWN)}); {_GIVE}"
    )


_GIVE = "give the path of a UTF-8 text"


def _written(text: str, known: KnownCorpus) -> bytes:
    """Keep a text that was written here in `data/`, unless that folder cannot be written."""
    data, path = text.encode(), output_root() / "data" / known.file_name
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
    return data


def _download(name: str, known: KnownCorpus) -> Path:
    """Fetch into `data/`; pooch shows a progress bar, checks the hash and then moves into place."""
    folder = output_root() / "data"
    try:
        import pooch  # only here: a Kaggle kernel without internet never needs it

        pooch.get_logger().setLevel("WARNING")
        return Path(
            pooch.retrieve(
                known.url, f"sha256:{known.sha256}", known.file_name, folder, progressbar=True
            )
        )
    except Exception as error:
        reason = "wrong hash" if isinstance(error, ValueError) else type(error).__name__
        raise MissingCorpusError(
            f"{name}: not found and not downloaded ({reason}). Provide it in one of "
            f"three ways: put it at {shown(folder / known.file_name)} (from {known.url}); attach a "
            f"Kaggle input that holds {known.file_name}; or set corpus.source to a text file's path"
        ) from error


def _dev_length(heldout: str) -> int:
    """Length of dev: up to the blank line (else the line end) nearest to the middle."""
    middle = len(heldout) / 2
    for boundary in (r"\n\n+", r"\n"):
        ends = [match.end() for match in re.finditer(boundary, heldout)]
        if ends := [end for end in ends if 0.25 < end / len(heldout) < 0.75]:
            return min(ends, key=lambda end: abs(end - middle))
    return int(middle)


def sample_batch(
    ids: Tensor, batch_size: int, block_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw random windows; return inputs and next characters, both (B, T)."""
    starts = torch.randint(len(ids) - block_size, (batch_size,), generator=generator)
    windows = torch.stack([ids[start : start + block_size + 1] for start in starts.tolist()])
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def token_class(symbol: str) -> str:
    """Name the class of one symbol, one of `TOKEN_CLASSES`."""
    if symbol in _END_OF_DOCUMENT:
        return "end of document"
    if symbol.isspace():
        return "whitespace"
    if symbol.isalpha():
        return "alphabetic"
    return "numeric" if symbol.isnumeric() else "punctuation"
