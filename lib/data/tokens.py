"""Tokenizers, and token ids on the disk.

A token is a character, a byte, or a sequence of bytes. Sequences come from byte-pair encoding
(Sennrich et al. 2016, arXiv 1508.07909) as in GPT-2, computed by Hugging Face's `tokenizers`. Ids
count from 0.
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
"""Token ids (n,). Long arrays use the smallest dtype that holds the vocabulary: see `narrow`."""
MAX_LENGTH = 2**24
"""Most characters that are tokenized at once: BPE takes 150 bytes of memory per character."""
MAX_LEARNED = 2**27
"""If a text has more characters than this, bpe-<size> is learned from a sample of about so many."""
TOKEN_CLASSES = ("alphabetic", "numeric", "punctuation", "whitespace", "end of document")
END_OF_DOCUMENT = "\x03"
"""The symbol of the token that ends a document (ASCII: end of text). The token itself decodes to a
blank line."""
_END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "</s>", "<eos>", "<|im_end|>")
"""Names that known tokenizers give the token that ends a document. Ours use the first name."""
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [b for b in range(256) if b not in _PRINTABLE]
BYTE_SYMBOLS = {chr(b): b for b in _PRINTABLE} | {chr(256 + i): b for i, b in enumerate(_OTHERS)}
"""Character → the byte that GPT-2 writes as this character in a vocabulary. A printable byte is
written as itself, any other as a character from U+0100 on."""


_SLICE = 2**20
"""Characters that are encoded, or tokens that are decoded, at once."""


class CorpusError(UserError):
    """A corpus that cannot be used; the message says why and what to do."""


class Characters:
    """A tokenizer with one token per character that occurs in a text, in sorted order."""

    sha256 = end_of_document = end_name = None
    """There is no tokenizer file, and no token that ends a document."""

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = "".join(sorted(set(symbols)))
        """The character of each id, (V,)."""
        self.characters = np.ones(len(self.symbols), np.int64)
        """How many characters each id decodes to, (V,)."""
        self._codes = np.array([*map(ord, self.symbols)], "<u4")
        self._ids = np.full(0x110000, -1, np.int32)  # Unicode code → id; -1: no token
        self._ids[self._codes] = np.arange(len(self.symbols))

    def encode(self, text: str, where: str = "") -> Ids:
        """Encode a text as ids (n,). Raises CorpusError for a character without a token; the
        message says `where` the character is."""
        ids = np.empty(len(text), narrow(len(self.symbols)))
        start = 0
        for codes in _codes(text):
            found = self._ids[codes]
            if (found < 0).any():
                unseen = sorted(set(text).difference(self.symbols))
                fault = f"symbol {', '.join(map(repr, unseen[:5]))} was unseen in training{where}"
                raise CorpusError(f"corpus.tokenizer: {fault}; remove it, or use bytes")
            ids[start : start + len(found)] = found
            start += len(found)
        return ids

    def decode(self, ids: Ids) -> str:
        """Decode ids (n,) to text."""
        return self._codes[ids].tobytes().decode("utf-32-le")

    def to_json(self) -> str:
        """Return a Hugging Face `tokenizer.json` that gives the same ids for the same text."""
        peer = Peer(models.WordLevel({symbol: i for i, symbol in enumerate(self.symbols)}))
        peer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        peer.decoder = decoders.Fuse()
        return str(peer.to_str(pretty=True))


def _codes(text: str) -> Iterator[NDArray[np.uint32]]:
    """Yield the Unicode codes of a text (n,) slice by slice, because each takes four bytes."""
    for start in range(0, len(text), _SLICE):
        part = text[start : start + _SLICE]
        yield np.frombuffer(part.encode("utf-32-le", "surrogatepass"), "<u4")


def narrow(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest unsigned dtype that holds all ids of a vocabulary."""
    return np.min_scalar_type(vocab_size - 1)


class BytePairs:
    """A tokenizer with bytes and sequences of bytes as tokens, read from a `tokenizer.json`.

    Raises CorpusError if the file is not a tokenizer, does not work on bytes, or has no token that
    ends a document. The message says `where` the file came from.
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
            fault = f"{where} is not a tokenizer.json that can be used: {error}"
            raise CorpusError(f"corpus.tokenizer: {fault}") from None
        # "<|endoftext|>" in a text is read as ordinary characters.
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
        # Names of added tokens are plain text, not BYTE_SYMBOLS.
        added = self._peer.get_added_tokens_decoder()
        for token, i in vocabulary.items():
            in_bytes = i not in added and BYTE_SYMBOLS.keys() >= {*token}
            self.tokens[i] = bytes(BYTE_SYMBOLS[c] for c in token) if in_bytes else token.encode()
        self.symbols = [token.decode("utf-8", "replace") for token in self.tokens]
        self.symbols[self.end_of_document] = END_OF_DOCUMENT
        # How many Unicode characters begin in each token. A byte 0b10xxxxxx continues a character.
        self.characters = np.array([sum(b & 0xC0 != 0x80 for b in token) for token in self.tokens])

    def encode(self, text: str) -> Ids:
        """Encode a text as ids (n,)."""
        return np.array(self.encode_all([text])[0], np.int64)

    def encode_all(self, texts: list[str]) -> Sequence[Sequence[int] | Ids]:
        """Encode several texts on all cores. Raises CorpusError for a text that cannot be encoded,
        or that decodes to another text; the message names the first symbol that is lost."""
        longest = max((len(text) for text in texts), default=0)
        if longest > MAX_LENGTH:
            fault = f"{longest:,} characters in a row without a space, or in one document"
            raise CorpusError(f"corpus.source: {fault}; split them: at most {MAX_LENGTH:,} fit")
        if self._where == "bytes":  # the library gives the same ids in 400 times the time
            return [np.frombuffer(text.encode(), np.uint8) for text in texts]
        try:
            encodings = self._peer.encode_batch_fast(texts, add_special_tokens=False)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic in Rust (over a regex, say) is not an Exception
            raise CorpusError(f"corpus.tokenizer: cannot encode this text: {error}") from None
        all_ids = [encoding.ids for encoding in encodings]
        for text, ids in zip(texts, all_ids, strict=True):
            if b"".join([self.tokens[i] for i in ids]) != text.encode():
                pairs = zip_longest(text, self.decode(np.array(ids)), fillvalue="")
                lost = next((symbol for symbol, read in pairs if symbol != read), "\ufffd")
                fault = f"{self._where} loses text: {lost!r} is lost in decoding; use another one"
                raise CorpusError(f"corpus.tokenizer: {fault}, or bpe-<size>")
        return all_ids

    def decode(self, ids: Ids) -> str:
        """Decode ids (n,) to text. Invalid UTF-8 becomes �, the end of a document becomes a blank
        line."""
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
    """Read a `tokenizer.json`. Raises CorpusError if it is not there."""
    file = find(name)
    if file is None or not file.is_file():
        remedy = "give characters, bytes, bpe-<size> or the path of a tokenizer.json"
        raise CorpusError(f"corpus.tokenizer: there is no file '{name}'; {remedy}")
    return file.read_text("utf-8", "replace")


def learn(tokenizer: str, train: Iterable[str]) -> str:
    """Learn a tokenizer from texts. Return its `tokenizer.json`; for `characters`, return all
    characters that occur in the texts. Raises CorpusError if the texts give too few tokens for
    `bpe-<size>`."""
    if tokenizer == "characters":
        occurs = np.zeros(0x110000, np.bool_)  # Unicode code → whether it occurs
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
        fault = f"{tokenizer} is too large: the training part gives {learned} tokens; use fewer"
        raise CorpusError(f"corpus.tokenizer: {fault}")
    return str(peer.to_str())


def token_class(symbol: str) -> str:
    """Return the class of a symbol, one of `TOKEN_CLASSES`, without white space around it. Anything
    that fits no other class counts as punctuation, even part of a character."""
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
"""A batch of texts is tokenized as soon as it has this many characters."""
_PIECE = re.compile(r"(?s).{65536,}?(?<=[^\W_])(?= [^\W_])|.+")


class Texts(NamedTuple):
    """All texts of a corpus, before they are encoded."""

    read: Pieces
    n_characters: int
    held_out: str
    have_changed: Callable[[], bool]
    """Returns whether the texts have changed since they were hashed."""


def pieces(blocks: Iterable[str]) -> Iterator[str]:
    """Cut a long text, given in blocks, into pieces that can be tokenized one by one: their tokens
    together are the tokens of the whole text. Cut only before a space between letters or digits,
    because there GPT-2's pattern, and those of later models, begin a word."""
    rest = ""
    for block in blocks:
        *whole, rest = _PIECE.findall(rest + block) or [""]
        yield from whole
        if len(rest) > MAX_LENGTH:  # `encode_all` will refuse it
            break
    yield rest


class Tokenized(NamedTuple):
    """A whole corpus in ids."""

    tokenizer: Tokenizer
    parts: dict[str, Ids]
    """train, dev and test, (n,) each, memory-mapped. With the tokenizer `characters`, dev and test
    hold only the text that is measured."""
    n_characters: int
    """Length of the whole text."""
    has_documents: bool
    """Whether a token ends each document. If not, the corpus is one text."""
    held_out: str
    """A description of the held-out text. If the vocabulary was learned from a sample, it also
    gives the size of the sample."""
    lengths: dict[str, list[int]]
    """Part → length of each file in it, for a folder of texts with the tokenizer `characters`. No
    window reaches from one file into the next. Empty for a single text, and for documents."""


def tokenize(
    name: str,
    key: str,
    tokenizer: str,
    prepare: Callable[[], Texts],
    *,
    has_documents: bool = False,
    in_files: bool = False,
) -> Tokenized:
    """Encode a corpus, or read its ids from `data/tokens/` if it was encoded before (see `cached`).

    `prepare` returns the texts, and `key` is a hash of them. `has_documents` is as in `Tokenized`.
    With `in_files`, the result has `lengths`.

    Raises CorpusError for a tokenizer that does not exist or cannot encode the texts, and OSError
    if the ids cannot be written.
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
            # Spread by the golden ratio. A fixed step could keep hitting the same kind of text.
            train = (text for i, text in enumerate(train) if i * 0.6180339887498949 % 1 < share)
            held_out += f"; {tokenizer} was learned from {share:.1%} of the rest, evenly spread"
        vocabulary = content or learn(tokenizer, train)
        lengths = _write(texts.read(), made(vocabulary), folder, has_documents=has_documents)
        if texts.have_changed():
            raise CorpusError(f"{name}: it changed while it was read; start again")
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
    """Memory-map a file of ids, so that it is read only as far as it is needed. An empty file
    cannot be mapped; it gives an empty array."""
    if file.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(file, dtype, "r").view(np.ndarray)  # slices of a memmap take twice as long


def _batches(texts: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Group texts into batches of about `_BATCH` characters, to bound the memory."""
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
    """Encode texts and write the ids of each part to a file. Return part → how many ids each text
    file in it has."""
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
