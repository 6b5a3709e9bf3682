"""Tokenizers, and token ids on the disk.

A token is a character, a byte, or several bytes in a row: byte-pair encoding (Sennrich et al. 2016,
arXiv 1508.07909) as in GPT-2, by Hugging Face's `tokenizers`. Ids count from 0.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import ByteLevelBPETokenizer, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Peer

from lib.config.errors import UserError
from lib.config.files import locked, sha256, write_json
from lib.config.paths import find, output_root
from lib.config.schema import digest
from lib.config.yaml import Json
from lib.data.split import PARTS

Ids = NDArray[np.integer[Any]]
MAX_LENGTH = 2**24
"""Characters that are tokenized at once: each takes 150 bytes of memory."""
TOKEN_CLASSES = ("alphabetic", "numeric", "punctuation", "whitespace", "end of document")
END_OF_DOCUMENT = "\x03"
"""How the end of a document is listed among symbols (ASCII: end of text). Decoded, it is a blank
line."""
_END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "</s>", "<eos>", "<|im_end|>")
"""Names of the end of a document in known tokenizers; the first in those learned here."""
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [b for b in range(256) if b not in _PRINTABLE]
BYTE_SYMBOLS = {chr(b): b for b in _PRINTABLE} | {chr(256 + i): b for i, b in enumerate(_OTHERS)}
"""How GPT-2 writes bytes in a vocabulary: printable ones as they are, others from U+0100 on."""


class CorpusError(UserError):
    """A corpus that cannot be used; the message says why and what to do."""


class Characters:
    """A token per character of a text, sorted."""

    sha256 = end_of_document = end_name = None
    """There is no file, and no token that ends a document."""

    def __init__(self, text: str) -> None:
        self.symbols = "".join(sorted(set(text)))
        """What each id stands for, (V,)."""
        self.characters = np.ones(len(self.symbols), np.int64)
        """Characters that each id writes, (V,)."""
        self._ids = {symbol: i for i, symbol in enumerate(self.symbols)}

    def encode(self, text: str) -> Ids:
        """Write a text as ids (n,); CorpusError for a character that is no token."""
        unseen = sorted(set(text).difference(self._ids))
        if unseen:
            fault = f"symbol {', '.join(map(repr, unseen[:5]))} was unseen in training"
            raise CorpusError(f"corpus.tokenizer: {fault}; remove it, or take bytes")
        return np.fromiter(map(self._ids.__getitem__, text), np.int64, len(text))

    def decode(self, ids: Iterable[int]) -> str:
        """Write ids as text."""
        return "".join([self.symbols[i] for i in ids])

    def to_json(self) -> str:
        """Return a `tokenizer.json` of Hugging Face that gives the same ids for the same text."""
        peer = Peer(models.WordLevel(self._ids))
        peer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        peer.decoder = decoders.Fuse()
        return str(peer.to_str(pretty=True))


class BytePairs:
    """Bytes and pairs of them, by the content of a `tokenizer.json`.

    Raises CorpusError, naming `where` it came from, for a file that is no tokenizer, that does not
    work on bytes, or that has no token for the end of a document.
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
        self._peer.encode_special_tokens = True  # in a text they are text
        self._peer.no_truncation()
        self._peer.no_padding()
        self._where = where
        self._content = content
        self.sha256 = digest(fields)
        self.end_name = ends[0]
        self.tokens = [b""] * (max(vocabulary.values()) + 1)
        """The bytes of each id; those of the end of a document are none."""
        self.end_of_document = vocabulary.pop(self.end_name)
        added = self._peer.get_added_tokens_decoder()  # these are written as they are
        for token, i in vocabulary.items():
            in_bytes = i not in added and BYTE_SYMBOLS.keys() >= {*token}
            self.tokens[i] = bytes(BYTE_SYMBOLS[c] for c in token) if in_bytes else token.encode()
        self.symbols = [token.decode("utf-8", "replace") for token in self.tokens]
        self.symbols[self.end_of_document] = END_OF_DOCUMENT
        # Characters of Unicode, not bytes: 10…… goes on with one that another byte began.
        self.characters = np.array([sum(b & 0xC0 != 0x80 for b in token) for token in self.tokens])

    def encode(self, text: str) -> Ids:
        """Write a text as ids (n,)."""
        return np.array(self.encode_all([text])[0], np.int64)

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """Write several texts as ids, on all cores; CorpusError for a text that cannot be written,
        or, naming the first symbol, one that its ids do not give back."""
        longest = max((len(text) for text in texts), default=0)
        if longest > MAX_LENGTH:
            fault = f"{longest:,} characters in a row without a space, or in one document"
            raise CorpusError(f"corpus.source: {fault}; part them: {MAX_LENGTH:,} are the most")
        try:
            encodings = self._peer.encode_batch_fast(texts, add_special_tokens=False)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as which a library in Rust panics, say over a regex
            raise CorpusError(f"corpus.tokenizer: cannot write this text: {error}") from None
        all_ids = [encoding.ids for encoding in encodings]
        for text, ids in zip(texts, all_ids, strict=True):
            if b"".join([self.tokens[i] for i in ids]) != text.encode():
                pairs = zip_longest(text, self.decode(ids), fillvalue="")
                lost = next((symbol for symbol, read in pairs if symbol != read), "\ufffd")
                fault = f"{self._where} loses text: {lost!r} does not come back; take another"
                raise CorpusError(f"corpus.tokenizer: {fault}, or bpe-<size>")
        return all_ids

    def decode(self, ids: Iterable[int]) -> str:
        """Write ids as text; bytes that are no UTF-8 as �, ends of documents as blank lines."""
        parts = (b"\n\n" if i == self.end_of_document else self.tokens[i] for i in ids)
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
    """Return the `tokenizer.json` of `bytes`, or of `bpe-<size>` learned from texts. CorpusError
    where they have too few pairs."""
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
    """Return the class of one symbol, one of `TOKEN_CLASSES`: that of all its characters but white
    space around them; punctuation is whatever is of no other class, also parts of characters."""
    if symbol in (END_OF_DOCUMENT, "\x04"):  # ASCII: end of text, end of transmission
        return "end of document"
    if symbol.isspace():
        return "whitespace"
    word = symbol.strip()
    if word.isalpha():
        return "alphabetic"
    return "numeric" if word.isnumeric() else "punctuation"


# ---- on the disk

_FORMAT = 11
_BATCH = 1000
_PIECE = re.compile(r"(?s).{65536,}?(?<=[^\W_])(?= [^\W_])|.+")
Texts = Callable[[], Iterator[tuple[str, str]]]
"""Reads all texts of a corpus in order, each behind its part; called once for each pass."""


def pieces(text: str) -> list[str]:
    """Cut a long text where tokens end anyway: before a space between letters or digits, where the
    patterns of GPT-2 and its successors begin a word. The pieces' tokens are the text's."""
    return _PIECE.findall(text)


class Tokenized(NamedTuple):
    """A corpus in ids."""

    tokenizer: Tokenizer
    parts: dict[str, Ids]
    """train, dev and test, (n,) each, in memory or memory-mapped."""
    n_characters: int
    """Of all parts; of documents that are held out, those that are measured."""
    has_documents: bool
    """Whether a token ends each document; else it is one text."""
    held_out: str
    """What is held out, in words."""
    lengths: dict[str, list[int]]
    """How much of each part each file has, of a folder that is read in characters: no window goes
    on from one file to the next. Empty for one text, and for documents."""


def tokenize(
    name: str,
    key: str,
    tokenizer: str,
    prepare: Callable[[], tuple[Texts, str]],
    *,
    has_documents: bool,
) -> Tokenized:
    """Find the ids of a corpus below `data/tokens/`, or write them. `prepare` returns its texts,
    and in words what is held out. What is there counts if it was made of the same texts (`key`),
    tokenizer and format, and is as it was written; else all of it is written again.

    Raises CorpusError for a tokenizer that is not there or does not go with the texts, and OSError
    where the ids cannot be kept.
    """
    content = read_tokenizer(tokenizer) if tokenizer.endswith(".json") else ""
    made_of = digest([_FORMAT, key, tokenizer, content, has_documents])
    folder = output_root() / "data" / "tokens" / f"{name}-{made_of[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(Path(f"{folder}.lock")):  # who waited for it finds what another one wrote
        if (index := _as_written(folder, made_of)) is None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            read, held_out = prepare()
            content = content or learn(
                tokenizer, (text for part, text in read() if part == "train")
            )
            pairs = BytePairs(content, tokenizer)
            n_characters = _write(read(), pairs, folder, has_documents=has_documents)
            index = {"tokenizer": content, "n_characters": n_characters, "held_out": held_out}
            write_json(folder / "index.json", index | {"digest": _digest(folder, made_of, index)})
    parts: dict[str, Ids] = {p.stem: np.memmap(p, "<u4", "r") for p in folder.glob("*.bin")}
    pairs = BytePairs(index["tokenizer"], tokenizer)
    return Tokenized(pairs, parts, index["n_characters"], has_documents, index["held_out"], {})


def _write(
    texts: Iterator[tuple[str, str]], pairs: BytePairs, folder: Path, *, has_documents: bool
) -> int:
    """Write the ids of texts, each behind its part, a file for each part; count the characters."""
    end = [pairs.end_of_document] if has_documents else []
    n_characters = 0
    with ExitStack() as stack:
        files = {part: stack.enter_context((folder / f"{part}.bin").open("wb")) for part in PARTS}
        while batch := [*islice(texts, _BATCH)]:
            all_ids = pairs.encode_all([text for _, text in batch])
            for (part, text), ids in zip(batch, all_ids, strict=True):
                files[part].write(np.array([*ids, *end], "<u4").tobytes())
                n_characters += len(text)
    return n_characters


def _digest(folder: Path, made_of: str, index: Json) -> str:
    """Hash what ids were made of, their index, and the ids beside it."""
    return digest([made_of, index, {path.name: sha256(path) for path in folder.glob("*.bin")}])


def _as_written(folder: Path, made_of: str) -> Json | None:
    """Read the index of a folder; None unless it is of the same texts and tokenizer, and it and
    all that lies beside it are as they were written."""
    with suppress(OSError, ValueError, LookupError):
        index: Json = json.loads((folder / "index.json").read_text("utf-8"))
        if index.pop("digest") == _digest(folder, made_of, index):
            return index
    return None
