"""Tokenizers, and token ids on the disk.

A token is a character, a byte, or several bytes in a row: byte-pair encoding (Sennrich et al. 2016,
arXiv 1508.07909) as in GPT-2, by Hugging Face's `tokenizers`. Ids count from 0.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import ByteLevelBPETokenizer, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Peer

from lib.config.errors import UserError
from lib.config.paths import find
from lib.config.schema import digest
from lib.config.yaml import Json
from lib.data.cache import cached
from lib.data.split import PARTS, Piece, Pieces

Ids = NDArray[np.integer[Any]]
"""Token ids (n,). Long arrays have the smallest type that holds the vocabulary: see `narrow`."""
MAX_LENGTH = 2**24
"""Most characters that are tokenized at once: byte pairs take 150 bytes of memory for each."""
MAX_LEARNED = 2**27
"""Characters. Of a longer text, bpe-<size> is learned from a sample of about so many."""
TOKEN_CLASSES = ("alphabetic", "numeric", "punctuation", "whitespace", "end of document")
END_OF_DOCUMENT = "\x03"
"""Stands for the end of a document in lists of symbols (ASCII: end of text). Decoded, the end of a
document is a blank line."""
_END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "</s>", "<eos>", "<|im_end|>")
"""How known tokenizers name the token that ends a document. Ours use the first name."""
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [b for b in range(256) if b not in _PRINTABLE]
BYTE_SYMBOLS = {chr(b): b for b in _PRINTABLE} | {chr(256 + i): b for i, b in enumerate(_OTHERS)}
"""How GPT-2 writes bytes in a vocabulary, character → byte. Printable bytes are written as they
are, the others as characters from U+0100 on."""


_SLICE = 2**20
"""Characters that are looked up at once."""


class CorpusError(UserError):
    """A corpus that cannot be used; the message says why and what to do."""


class Characters:
    """A tokenizer with a token for each character that occurs in a text, in sorted order."""

    sha256 = end_of_document = end_name = None
    """There is no file, and no token that ends a document."""

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = "".join(sorted(set(symbols)))
        """The character of each id, (V,)."""
        self.characters = np.ones(len(self.symbols), np.int64)
        """How many characters each id writes, (V,)."""
        self._codes = np.array([*map(ord, self.symbols)], "<u4")
        self._ids = np.full(0x110000, -1, np.int32)  # by Unicode code; -1: no token
        self._ids[self._codes] = np.arange(len(self.symbols))

    def encode(self, text: str, where: str = "") -> Ids:
        """Encode a text as ids (n,); CorpusError for a character that has no token, which says
        `where` it is."""
        ids = np.empty(len(text), narrow(len(self.symbols)))
        start = 0
        for codes in _codes(text):
            found = self._ids[codes]
            if (found < 0).any():
                unseen = sorted(set(text).difference(self.symbols))
                fault = f"symbol {', '.join(map(repr, unseen[:5]))} was unseen in training{where}"
                raise CorpusError(f"corpus.tokenizer: {fault}; remove it, or take bytes")
            ids[start : start + len(found)] = found
            start += len(found)
        return ids

    def decode(self, ids: Ids) -> str:
        """Decode ids (n,) to text."""
        return self._codes[ids].tobytes().decode("utf-32-le")

    def to_json(self) -> str:
        """Return a `tokenizer.json` of Hugging Face that gives the same ids for the same text."""
        peer = Peer(models.WordLevel({symbol: i for i, symbol in enumerate(self.symbols)}))
        peer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        peer.decoder = decoders.Fuse()
        return str(peer.to_str(pretty=True))


def _codes(text: str) -> Iterator[NDArray[np.uint32]]:
    """Yield the Unicode codes of a text (n,), a slice at a time: they take four bytes each."""
    for start in range(0, len(text), _SLICE):
        part = text[start : start + _SLICE]
        yield np.frombuffer(part.encode("utf-32-le", "surrogatepass"), "<u4")


def narrow(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest unsigned type that holds all ids of a vocabulary."""
    return np.min_scalar_type(vocab_size - 1)


class BytePairs:
    """A tokenizer whose tokens are bytes and sequences of them, read from a `tokenizer.json`.

    Raises CorpusError for a file that is no tokenizer, that does not work on bytes, or that has no
    token for the end of a document. The message names `where` it came from.
    """

    def __init__(self, content: str, where: str) -> None:
        try:
            self._peer = Peer.from_str(content)
            vocabulary = self._peer.get_vocab(with_added_tokens=True)
            fields = json.loads(content)
            if '"ByteLevel"' not in json.dumps(fields.get("decoder")):
                raise ValueError("it does not work on bytes; give one like GPT-2's, or bpe-<size>")
            ends = [name for name in _END_NAMES if name in vocabulary]
            if not ends:
                raise ValueError(f"no token ends a document; add one of {', '.join(_END_NAMES)}")
        except Exception as error:  # the library raises nothing narrower
            fault = f"{where} is no tokenizer.json that can be used: {error}"
            raise CorpusError(f"corpus.tokenizer: {fault}") from None
        # If a text contains "<|endoftext|>", these are ordinary characters.
        self._peer.encode_special_tokens = True
        self._peer.no_truncation()
        self._peer.no_padding()
        self._where = where
        self._content = content
        self.sha256 = digest(fields)
        self.end_name = ends[0]
        self.tokens = [b""] * (max(vocabulary.values()) + 1)
        """The bytes of each id; b"" for the end of a document."""
        self.end_of_document = vocabulary.pop(self.end_name)
        added = (
            self._peer.get_added_tokens_decoder()
        )  # their names are plain text, not BYTE_SYMBOLS
        for token, i in vocabulary.items():
            in_bytes = i not in added and BYTE_SYMBOLS.keys() >= {*token}
            self.tokens[i] = bytes(BYTE_SYMBOLS[c] for c in token) if in_bytes else token.encode()
        self.symbols = [token.decode("utf-8", "replace") for token in self.tokens]
        self.symbols[self.end_of_document] = END_OF_DOCUMENT
        # Unicode characters that begin in a token: a byte 0b10xxxxxx continues one.
        self.characters = np.array([sum(b & 0xC0 != 0x80 for b in token) for token in self.tokens])

    def encode(self, text: str) -> Ids:
        """Encode a text as ids (n,)."""
        return np.array(self.encode_all([text])[0], np.int64)

    def encode_all(self, texts: list[str]) -> Sequence[Sequence[int] | Ids]:
        """Encode several texts, on all cores. CorpusError for a text that cannot be encoded, or
        whose ids do not decode to the same text; it names the first symbol that is lost."""
        longest = max((len(text) for text in texts), default=0)
        if longest > MAX_LENGTH:
            fault = f"{longest:,} characters in a row without a space, or in one document"
            raise CorpusError(f"corpus.source: {fault}; part them: {MAX_LENGTH:,} are the most")
        if self._where == "bytes":  # the library takes 400 times as long for the same
            return [np.frombuffer(text.encode(), np.uint8) for text in texts]
        try:
            encodings = self._peer.encode_batch_fast(texts, add_special_tokens=False)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic in Rust, over a regex say, is not an Exception
            raise CorpusError(f"corpus.tokenizer: cannot write this text: {error}") from None
        all_ids = [encoding.ids for encoding in encodings]
        for text, ids in zip(texts, all_ids, strict=True):
            if b"".join([self.tokens[i] for i in ids]) != text.encode():
                pairs = zip_longest(text, self.decode(np.array(ids)), fillvalue="")
                lost = next((symbol for symbol, read in pairs if symbol != read), "\ufffd")
                fault = f"{self._where} loses text: {lost!r} does not come back; take another"
                raise CorpusError(f"corpus.tokenizer: {fault}, or bpe-<size>")
        return all_ids

    def decode(self, ids: Ids) -> str:
        """Decode ids (n,) to text. Bytes that are no UTF-8 become �, ends of documents blank
        lines."""
        written = self.tokens.copy()
        written[self.end_of_document] = b"\n\n"
        slices = (ids[start : start + _SLICE].tolist() for start in range(0, len(ids), _SLICE))
        parts = [b"".join([written[i] for i in some]) for some in slices]
        return b"".join(parts).decode("utf-8", "replace")

    def to_json(self) -> str:
        """Return the `tokenizer.json`."""
        return self._content


Tokenizer = Characters | BytePairs


def read_tokenizer(name: str) -> str:
    """Read a `tokenizer.json`. CorpusError if it is not there."""
    file = find(name)
    if file is None or not file.is_file():
        remedy = "give characters, bytes, bpe-<size> or the path of a tokenizer.json"
        raise CorpusError(f"corpus.tokenizer: '{name}' is no file; {remedy}")
    return file.read_text("utf-8", "replace")


def learn(tokenizer: str, train: Iterable[str]) -> str:
    """Return the `tokenizer.json` of `bytes`, or of `bpe-<size>` learned from texts; of
    `characters`, those that occur. CorpusError if the texts give fewer tokens than that."""
    if tokenizer == "characters":
        occurs = np.zeros(0x110000, np.bool_)  # by Unicode code
        for text in train:
            for codes in _codes(text):
                occurs[codes] = True
        return "".join(map(chr, np.flatnonzero(occurs)))
    if tokenizer == "bytes":
        peer = ByteLevelBPETokenizer(dict(BYTE_SYMBOLS), [])
        peer.add_special_tokens([_END_NAMES[0]])
        return str(peer.to_str())
    peer = ByteLevelBPETokenizer()
    size = int(tokenizer.removeprefix("bpe-"))
    peer.train_from_iterator(train, size, 0, special_tokens=[_END_NAMES[0]], show_progress=False)
    learned = peer.get_vocab_size()
    if learned < size:
        fault = f"{tokenizer} is too large: the training part gives {learned} tokens; take fewer"
        raise CorpusError(f"corpus.tokenizer: {fault}")
    return str(peer.to_str())


def token_class(symbol: str) -> str:
    """Return the class of a symbol, one of `TOKEN_CLASSES`. White space around it does not count.
    Whatever is of no other class is punctuation, also a part of a character."""
    if symbol in (END_OF_DOCUMENT, "\x04"):  # ASCII: end of text, end of transmission
        return "end of document"
    if symbol.isspace():
        return "whitespace"
    word = symbol.strip()
    if word.isalpha():
        return "alphabetic"
    return "numeric" if word.isnumeric() else "punctuation"


# ---- on the disk

_BATCH = 2**20
"""Characters after which a batch of texts is tokenized."""
_PIECE = re.compile(r"(?s).{65536,}?(?<=[^\W_])(?= [^\W_])|.+")


class Texts(NamedTuple):
    """All texts of a corpus, to be encoded."""

    read: Pieces
    n_characters: int
    held_out: str
    have_changed: Callable[[], bool]
    """Whether they are no longer those that were hashed."""


def pieces(blocks: Iterable[str]) -> Iterator[str]:
    """Cut a long text, which comes in blocks, into pieces whose tokens, joined, are those of the
    text. A cut is before a space between letters or digits: there GPT-2's pattern, and those after
    it, begin a word."""
    rest = ""
    for block in blocks:
        *whole, rest = _PIECE.findall(rest + block) or [""]
        yield from whole
        if len(rest) > MAX_LENGTH:  # which is refused
            break
    yield rest


class Tokenized(NamedTuple):
    """A whole corpus in ids."""

    tokenizer: Tokenizer
    parts: dict[str, Ids]
    """train, dev and test, (n,) each, memory-mapped. Read in characters, dev and test are only what
    is measured."""
    n_characters: int
    """Of the whole text."""
    has_documents: bool
    """Whether a token ends each document. If not, the corpus is one text."""
    held_out: str
    """What is held out, in words; and how much a vocabulary was learned from, if not from all."""
    lengths: dict[str, list[int]]
    """For a folder of texts that is read in characters: part → length of each file in it. No window
    reaches from one file into the next. Empty for one text, and for documents."""


def tokenize(
    name: str,
    key: str,
    tokenizer: str,
    prepare: Callable[[], Texts],
    *,
    has_documents: bool = False,
    in_files: bool = False,
) -> Tokenized:
    """Read the ids of a corpus from `data/tokens/`, or write them first: see `cached`. `key` is a
    hash of its texts, which `prepare` returns. `has_documents` and `in_files` (whether they have
    `lengths`) are as in `Tokenized`.

    Raises CorpusError for a tokenizer that does not exist or cannot encode the texts, and OSError
    if the ids cannot be kept.
    """
    content = read_tokenizer(tokenizer) if tokenizer.endswith(".json") else ""

    def made(vocabulary: str) -> Tokenizer:
        in_characters = tokenizer == "characters"
        return Characters(vocabulary) if in_characters else BytePairs(vocabulary, tokenizer)

    def make(folder: Path) -> Json:
        texts = prepare()
        train = (piece.text for piece in texts.read() if piece.part == "train")
        held_out = texts.held_out
        if tokenizer.startswith("bpe-") and texts.n_characters > MAX_LEARNED:
            share = MAX_LEARNED / texts.n_characters
            # By the golden ratio: a fixed step could keep meeting the same kind of text.
            train = (text for i, text in enumerate(train) if i * 0.6180339887498949 % 1 < share)
            held_out += f"; {tokenizer} was learned from {share:.1%} of the rest, evenly spread"
        vocabulary = content or learn(tokenizer, train)
        lengths = _write(texts.read(), made(vocabulary), folder, has_documents=has_documents)
        if texts.have_changed():
            raise CorpusError(f"{name}: was changed while it was read; start again")
        return {
            "vocabulary": vocabulary,
            "n_characters": texts.n_characters,
            "held_out": held_out,
            "lengths": lengths if in_files else {},
        }

    folder, index = cached("tokens", name, [key, tokenizer, content, has_documents], make)
    found = made(index.pop("vocabulary"))
    dtype = narrow(len(found.symbols))
    parts = {part: mapped(folder / f"{part}.bin", dtype) for part in PARTS}
    return Tokenized(found, parts, has_documents=has_documents, **index)


def mapped(file: Path, dtype: np.dtype[Any]) -> Ids:
    """Map a file of ids into memory, where it is read when it is asked for. An empty one cannot be
    mapped."""
    if file.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(file, dtype, "r").view(np.ndarray)  # slices of a memmap take twice as long


def _batches(texts: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Group texts into batches that are bounded in characters, as memory is."""
    batch = []
    n_characters = 0
    for piece in texts:
        batch.append(piece)
        n_characters += len(piece.text)
        if n_characters >= _BATCH:
            yield batch
            batch = []
            n_characters = 0
    yield batch


def _encode(batch: list[Piece], tokenizer: Tokenizer) -> Iterable[Sequence[int] | Ids]:
    if isinstance(tokenizer, BytePairs):
        return tokenizer.encode_all([piece.text for piece in batch])
    where = ": only the held-out part of {} has it"
    return [tokenizer.encode(piece.text, where.format(piece.file)) for piece in batch]


def _write(
    texts: Iterator[Piece], tokenizer: Tokenizer, folder: Path, *, has_documents: bool
) -> dict[str, list[int]]:
    """Write the ids of texts to a file for each part. Return part → number of ids of each file."""
    dtype = narrow(len(tokenizer.symbols))
    end = np.array([tokenizer.end_of_document] if has_documents else [], dtype).tobytes()
    lengths: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
    with ExitStack() as stack:
        files = {part: stack.enter_context((folder / f"{part}.bin").open("wb")) for part in PARTS}
        for batch in _batches(texts):
            for piece, ids in zip(batch, _encode(batch, tokenizer), strict=True):
                files[piece.part].write(np.asarray(ids, dtype).tobytes() + end)
                lengths[piece.part][piece.file] += len(ids)
    return {part: [*of_files.values()] for part, of_files in lengths.items()}
