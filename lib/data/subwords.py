"""Tokens that are bytes, alone or several in a row: any text can be written with them.

Byte-pair encoding (Sennrich et al. 2016, arXiv 1508.07909) on bytes, as in GPT-2, by Hugging Face's
`tokenizers`.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as HuggingFace
from tokenizers import decoders, models, pre_tokenizers, trainers

from lib.data.errors import CorpusError
from lib.data.tokenizer import END_OF_DOCUMENT, Characters, Ids
from lib.study.fields import digest

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "</s>", "<eos>", "<|im_end|>")
"""Names of the end of a document in known tokenizers."""
_VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_HIDDEN = sorted({*range(256)} - {*_VISIBLE})
BYTE_SYMBOLS = {chr(b): b for b in _VISIBLE} | {chr(256 + i): b for i, b in enumerate(_HIDDEN)}
"""How GPT-2 writes bytes in a vocabulary: printable ones as they are, others from U+0100 on."""
_PIECE = re.compile(r"(?s).{65536,}?(?<=[^\W_])(?= [^\W_])|.+")


def pieces(text: str) -> list[str]:
    """Cut a long text where tokens end anyway: before a space between letters or digits, where the
    patterns of GPT-2 and its successors begin a word. The pieces' tokens are the text's."""
    return _PIECE.findall(text)


class ByteTokenizer:
    """A token per byte of UTF-8, and one that ends documents."""

    sha256: str | None = None
    end_of_document = 256

    def __init__(self) -> None:
        self.tokens = [*(bytes([b]) for b in range(256)), b""]
        """The bytes of each id; those of the end of a document are none."""

    @cached_property
    def symbols(self) -> list[str]:
        known = [token.decode("utf-8", "replace") for token in self.tokens]
        known[self.end_of_document] = END_OF_DOCUMENT
        return known

    @cached_property
    def characters(self) -> Ids:
        # A byte 10…… goes on with a character that another one began.
        return np.array([sum(b & 0xC0 != 0x80 for b in token) for token in self.tokens])

    def encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def encode_all(self, texts: list[str]) -> Iterator[Ids]:
        """Write several texts."""
        return map(self.encode, texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Write ids as text; bytes that are no UTF-8 as �, ends of documents as blank lines."""
        parts = (b"\n\n" if i == self.end_of_document else self.tokens[i] for i in ids)
        return b"".join(parts).decode("utf-8", "replace")


class PairTokenizer(ByteTokenizer):
    """Byte-pair encoding from a `tokenizer.json`.

    Raises CorpusError, naming `where` it came from, for a file that is none, that does not work on
    bytes, or that has no token for the end of a document.
    """

    def __init__(self, content: str, where: str) -> None:
        try:
            self._peer = HuggingFace.from_str(content)
        except Exception as error:  # the library raises nothing narrower
            raise CorpusError(
                f"corpus.tokenizer: {where} is no tokenizer.json of Hugging Face ({error})"
            ) from None
        decoder = json.loads(content).get("decoder") or {}
        kinds = {each.get("type") for each in decoder.get("decoders", [decoder])}
        if "ByteLevel" not in kinds:
            raise CorpusError(
                f"corpus.tokenizer: {where} does not work on bytes, so that it cannot write any "
                "text; give a byte-level one, such as GPT-2's, or bpe-<size>"
            )
        self._peer.encode_special_tokens = True  # in a text they are text
        self._peer.no_truncation()
        self._peer.no_padding()
        known = self._peer.get_vocab(with_added_tokens=True)
        ends = [known[name] for name in _ENDS if name in known]
        if not ends:
            raise CorpusError(
                f"corpus.tokenizer: {where} has no token for the end of a document; "
                f"add one of {', '.join(_ENDS)}"
            )
        self.sha256, self.end_of_document = digest(json.loads(content)), ends[0]
        self.tokens = [b""] * (max(known.values()) + 1)
        for token, i in known.items():
            if i != self.end_of_document:
                in_bytes = all(symbol in BYTE_SYMBOLS for symbol in token)
                self.tokens[i] = (
                    bytes(BYTE_SYMBOLS[c] for c in token) if in_bytes else token.encode()
                )

    def encode(self, text: str) -> Ids:
        return np.array(self._peer.encode(text, add_special_tokens=False).ids, np.int64)

    def encode_all(self, texts: list[str]) -> Iterator[Ids]:
        """Write several texts at once."""
        for text in self._peer.encode_batch_fast(texts, add_special_tokens=False):
            yield np.array(text.ids, np.int64)


Tokenizer = Characters | ByteTokenizer


def train_pairs(texts: Iterable[str], size: int) -> str:
    """Learn a byte-pair encoding of `size` tokens; return its `tokenizer.json`.

    Words are split as GPT-2 splits them. Raises CorpusError when the texts have too few pairs.
    """
    peer = HuggingFace(models.BPE())
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[_ENDS[0]],
        initial_alphabet=sorted(BYTE_SYMBOLS),
        show_progress=False,
    )
    peer.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
    if (found := peer.get_vocab_size()) < size:
        raise CorpusError(
            f"corpus.tokenizer: bpe-{size} is too large: the training part gives {found} tokens; "
            f"take bpe-{found} or less, or a longer text"
        )
    return str(peer.to_str(pretty=True))


def read_tokenizer(places: list[Path], given: str) -> str:
    """Read a `tokenizer.json` from the first place that has one; `given` is what the field says."""
    why = "is no file; give characters, bytes, bpe-<size> or the path of a tokenizer.json"
    try:
        if path := next(filter(Path.is_file, places), None):
            return path.read_text("utf-8")
    except OSError as error:
        why = f"cannot be read: {error.strerror}; give another path"
    except UnicodeError as error:
        why = f"is no tokenizer.json of Hugging Face ({error})"
    raise CorpusError(f"corpus.tokenizer: '{given}' {why}")
