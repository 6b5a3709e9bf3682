"""What turns text into ids and back. Ids count from 0.

An id is a character, a byte, or several bytes in a row: byte-pair encoding (Sennrich et al. 2016,
arXiv 1508.07909) as in GPT-2, by Hugging Face's `tokenizers`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from lib.data.sources import CorpusError, find, pieces
from lib.study.schema import digest

Ids = NDArray[np.int64]
END_OF_DOCUMENT = "\x03"
"""How the end of a document is listed among symbols (ASCII: end of text). Decoded, it is a blank
line."""
_END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "</s>", "<eos>", "<|im_end|>")
"""Names of the end of a document in known tokenizers; the first in those written here."""
_VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_HIDDEN = sorted({*range(256)} - {*_VISIBLE})
BYTE_SYMBOLS = {chr(b): b for b in _VISIBLE} | {chr(256 + i): b for i, b in enumerate(_HIDDEN)}
"""How GPT-2 writes bytes in a vocabulary: printable ones as they are, others from U+0100 on."""


@dataclass(frozen=True)
class Characters:
    """A token per character: those of the training part, sorted, and perhaps a last one that ends
    documents."""

    name: str
    """Of the corpus, for messages."""
    text: str
    """All characters that it knows."""
    ends_documents: bool = False
    sha256: None = None
    """Of its file; there is none, as the corpus says all."""

    @property
    def symbols(self) -> str:
        """What each id stands for, (V,)."""
        return self.text + (END_OF_DOCUMENT if self.ends_documents else "")

    @property
    def end_of_document(self) -> int | None:
        """The id after each document; None where there are none."""
        return len(self.text) if self.ends_documents else None

    @property
    def characters(self) -> Ids:
        """Characters that each id writes, (V,)."""
        return np.array([1] * len(self.text) + [0] * self.ends_documents)

    def encode(self, text: str) -> Ids:
        """Write a text as ids (n,); CorpusError for a symbol that the training part does not
        hold."""
        codes, points = _code_points(self.text), _code_points(text)
        ids = np.searchsorted(codes, points).clip(max=len(codes) - 1)
        if (unseen := points[codes[ids] != points]).size:
            raise CorpusError(
                f"{self.name}: symbol {', '.join(repr(chr(i)) for i in np.unique(unseen)[:5])} was "
                "unseen in training (the first 90 % of the text); remove it, move it into the "
                "training part, or set corpus.tokenizer to bytes"
            )
        return ids

    def encode_all(self, texts: list[str]) -> Iterable[Ids]:
        """Write several texts as ids."""
        return map(self.encode, texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Write ids as text."""
        known = [*self.text, "\n\n"]
        return "".join(known[i] for i in ids)

    def to_json(self) -> str:
        """Return a `tokenizer.json` of Hugging Face that gives the same ids for the same text.
        Characters that the corpus lacks cannot be encoded."""
        vocabulary = {symbol: i for i, symbol in enumerate(self.text)}
        peer = tokenizers.Tokenizer(models.WordLevel(vocabulary, _END_NAMES[0]))
        peer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        peer.decoder = decoders.Fuse()
        if self.ends_documents:
            peer.add_special_tokens([AddedToken(_END_NAMES[0], special=True)])
        return str(peer.to_str(pretty=True))

    @property
    def end_name(self) -> str | None:
        """What the token that ends a document is called there; None where there is none."""
        return _END_NAMES[0] if self.ends_documents else None


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


class Bytes:
    """A token per byte of UTF-8, and one that ends documents: any text can be written with them."""

    sha256: str | None = None
    end_of_document = 256
    end_name = _END_NAMES[0]

    def __init__(self) -> None:
        self.tokens = [*(bytes([b]) for b in range(256)), b""]
        """The bytes of each id; those of the end of a document are none."""

    @cached_property
    def symbols(self) -> list[str]:
        symbols = [token.decode("utf-8", "replace") for token in self.tokens]
        symbols[self.end_of_document] = END_OF_DOCUMENT
        return symbols

    @cached_property
    def characters(self) -> Ids:
        # A byte 10…… goes on with a character that another one began.
        return np.array([sum(b & 0xC0 != 0x80 for b in token) for token in self.tokens])

    def encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def encode_all(self, texts: list[str]) -> Iterable[Ids]:
        return map(self.encode, texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Write ids as text; bytes that are no UTF-8 as �, ends of documents as blank lines."""
        parts = (b"\n\n" if i == self.end_of_document else self.tokens[i] for i in ids)
        return b"".join(parts).decode("utf-8", "replace")

    def to_json(self) -> str:
        peer = tokenizers.Tokenizer(models.BPE(dict(BYTE_SYMBOLS), []))
        peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        peer.decoder = decoders.ByteLevel()
        peer.add_special_tokens([AddedToken(self.end_name, special=True)])
        return str(peer.to_str(pretty=True))


class BytePairs(Bytes):
    """Byte-pair encoding from a `tokenizer.json`.

    Raises CorpusError, naming `where` it came from, for a file that is none, that does not work on
    bytes, or that has no token for the end of a document.
    """

    def __init__(self, content: str, where: str) -> None:
        self._content = content
        try:
            self._peer = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises nothing narrower
            raise CorpusError(
                f"corpus.tokenizer: {where} is no tokenizer.json of Hugging Face ({error})"
            ) from None
        decoder = json.loads(content).get("decoder") or {}
        kinds = {d.get("type") for d in decoder.get("decoders", [decoder])}
        if "ByteLevel" not in kinds:
            raise CorpusError(
                f"corpus.tokenizer: {where} does not work on bytes, so that it cannot write any "
                "text; give a byte-level one, such as GPT-2's, or bpe-<size>"
            )
        self._peer.encode_special_tokens = True  # in a text they are text
        self._peer.no_truncation()
        self._peer.no_padding()
        vocabulary = self._peer.get_vocab(with_added_tokens=True)
        ends = [name for name in _END_NAMES if name in vocabulary]
        if not ends:
            raise CorpusError(
                f"corpus.tokenizer: {where} has no token for the end of a document; "
                f"add one of {', '.join(_END_NAMES)}"
            )
        self.sha256, self.end_name = digest(json.loads(content)), ends[0]
        self.end_of_document = vocabulary.pop(self.end_name)
        self.tokens = [b""] * (max(self.end_of_document, *vocabulary.values()) + 1)
        for token, i in vocabulary.items():
            in_bytes = all(symbol in BYTE_SYMBOLS for symbol in token)
            self.tokens[i] = bytes(BYTE_SYMBOLS[c] for c in token) if in_bytes else token.encode()

    def encode(self, text: str) -> Ids:
        return np.array(self._peer.encode(text, add_special_tokens=False).ids, np.int64)

    def encode_all(self, texts: list[str]) -> Iterable[Ids]:
        # At once: the library takes all cores.
        encodings = self._peer.encode_batch_fast(texts, add_special_tokens=False)
        return (np.array(encoding.ids, np.int64) for encoding in encodings)

    def to_json(self) -> str:
        return self._content


Tokenizer = Characters | Bytes


def make_tokenizer(tokenizer: str, content: str, name: str, ends_documents: bool) -> Tokenizer:
    """Make a tokenizer of `corpus.tokenizer`, what was learned or read for it, and the corpus's
    name."""
    if tokenizer == "characters":
        return Characters(name, content, ends_documents)
    return BytePairs(content, tokenizer) if content else Bytes()


def learn_pairs(texts: Iterable[str], size: int) -> str:
    """Learn a byte-pair encoding of `size` tokens; return its `tokenizer.json`.

    Words are split as GPT-2 splits them. Raises CorpusError when the texts have too few pairs.
    """
    peer = tokenizers.Tokenizer(models.BPE())
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[_END_NAMES[0]],
        initial_alphabet=sorted(BYTE_SYMBOLS),
        show_progress=False,
    )
    peer.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
    if (learned := peer.get_vocab_size()) < size:
        raise CorpusError(
            f"corpus.tokenizer: bpe-{size} is too large: the training part gives {learned} tokens; "
            f"take bpe-{learned} or less, or a longer text"
        )
    return str(peer.to_str(pretty=True))


def read_tokenizer(name: str) -> str:
    """Read the `tokenizer.json` that `corpus.tokenizer` names; CorpusError where there is none."""
    reason = "is no file; give characters, bytes, bpe-<size> or the path of a tokenizer.json"
    try:
        path = find(name, "corpus.tokenizer")
        if path and path.is_file():
            return path.read_text("utf-8")
    except OSError as error:
        reason = f"cannot be read: {error.strerror}; give another path"
    except UnicodeError as error:
        reason = f"is no tokenizer.json of Hugging Face ({error})"
    raise CorpusError(f"corpus.tokenizer: '{name}' {reason}")
