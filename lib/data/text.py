"""From bytes to batches: find, verify, encode, split, draw.

Any UTF-8 text works as a corpus, by path; `tinyshakespeare` and `synthetic` are known by name.
Other tokenizers than characters, documents, and texts too large to be held are read by
`lib.data.tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lib.data.sources import CorpusError, MissingCorpusError, OneText, Source, find_source
from lib.data.tokenizer import END_OF_DOCUMENT, Characters, Tokenizer
from lib.data.tokens import Shards, tokenize
from lib.study.schema import TRAIN_SHARE, CorpusConfig

__all__ = ["CorpusError", "MissingCorpusError"]
TOKEN_CLASSES = ("alphabetic", "numeric", "punctuation", "whitespace", "end of document")
MAX_TEXT = 2**24
"""Characters of a tokenized corpus that is held as a text too, for the suite to be made of."""
MAX_MEASURED = 2**16
"""Characters that dev and test are cut to, each: the same text, whatever the tokenizer."""


@dataclass(frozen=True)
class _Split:
    """A verified text, encoded and split. Ids are int64 on the CPU."""

    name: str
    sha256: str
    tokenizer: Tokenizer
    train: Tensor | Shards
    """The leading 90 %, cut to the configured fraction; (n,)."""
    heldout: Tensor
    """The last 10 %, dev and test of it each cut to `MAX_MEASURED` characters; (n,)."""
    dev_length: int
    """Tokens of `heldout` before the dev/test cut."""

    @property
    def symbols(self) -> Sequence[str]:
        """What each id stands for; for characters the vocabulary in one string, sorted."""
        return self.tokenizer.symbols

    @property
    def unit(self) -> str:
        """What is counted: characters or tokens."""
        return "characters" if isinstance(self.tokenizer, Characters) else "tokens"

    @property
    def vocab_size(self) -> int:
        return len(self.symbols)

    @property
    def dev(self) -> Tensor:
        """The first half of the held-out part: choices are made here."""
        return self.heldout[: self.dev_length]

    @property
    def test(self) -> Tensor:
        """The second half of the held-out part: results are reported here."""
        return self.heldout[self.dev_length :]

    def encode(self, text: str) -> Tensor:
        """Map a text to ids (n,); CorpusError for a symbol that the tokenizer cannot write."""
        return torch.from_numpy(self.tokenizer.encode(text))

    def most_tokens(self, text: str) -> int:
        """Bound how many tokens a text takes, whatever the tokenizer has learned: as many as it has
        characters, or bytes."""
        return len(text) if self.unit == "characters" else len(text.encode())

    def decode(self, ids: Tensor) -> str:
        """Map ids (n,) back to text; the end of a document becomes a blank line."""
        return self.tokenizer.decode(ids.tolist())

    def require_length(self, block_size: int) -> None:
        """Raise CorpusError unless every part holds a window of `block_size` and its targets."""
        for part in ("train", "dev", "test"):
            length = len(getattr(self, part))
            if length <= block_size:
                raise CorpusError(
                    f"{self.name}: too short: the {part} part has {length} {self.unit} and "
                    f"model.block_size {block_size} needs {block_size + 1}; give a longer text, "
                    "a larger corpus.fraction or a smaller block_size"
                )


@dataclass(frozen=True)
class TextCorpus(_Split):
    """One text, held in memory, of which each character is a token."""

    text: str
    """The whole."""

    @property
    def training_text(self) -> str:
        """The leading 90 % of the text, whatever fraction is trained on."""
        return self.text[: int(TRAIN_SHARE * len(self.text))]

    @property
    def n_characters(self) -> int:
        """Of the whole text."""
        return len(self.text)

    @property
    def beginning(self) -> Tensor:
        """The id that stands before a text without context, (1,): a line break, or where there is
        none the symbol that the training part begins with."""
        return self.encode("\n" if "\n" in self.symbols else self.text[0])[:1]


@dataclass(frozen=True)
class TokenCorpus(_Split):
    """Documents, or one text in other tokens than characters: ids on the disk."""

    parts: dict[str, Shards]
    """The whole of train, dev and test."""
    metadata: dict[str, Any]
    """sha256 (of the documents), documents and characters per part, duplicates (training documents
    that stand there before), removed (whether those were left out), heldout_in_train (held-out
    documents that stand in the training part), sources (what a mixture took of each), and
    tokenizer_sha256 and shards."""

    @property
    def text(self) -> str:
        """The whole; "" where it is too long to be held."""
        return "".join(self._texts)

    @property
    def training_text(self) -> str:
        """The training part, whatever fraction is trained on; "" where `text` is."""
        return next(iter(self._texts), "")

    @cached_property
    def _texts(self) -> list[str]:
        fits = self.n_characters <= MAX_TEXT
        return [self.tokenizer.decode(ids) for ids in self.parts.values()] if fits else []

    @property
    def n_characters(self) -> int:
        """Of all parts."""
        return sum(self.metadata["characters"].values())

    @property
    def beginning(self) -> Tensor:
        """The id that stands before a text without context, (1,): the end of the document before,
        or where there are none a line break."""
        if self.metadata["documents"]:
            return torch.tensor([self.tokenizer.end_of_document])
        return self.encode("\n")[:1]


Corpus = TextCorpus | TokenCorpus


def load_corpus(config: CorpusConfig) -> Corpus:
    """Find, verify, encode and split a corpus.

    Raises MissingCorpusError when a known one cannot be had, and CorpusError when a file is no text
    file or too large, has a wrong hash, is empty or too short, is not UTF-8, or holds a symbol in
    its held-out part that training never sees.
    """
    try:
        source = find_source(config)
        plain = config.tokenizer == "characters" and not config.deduplicate
        if plain and isinstance(source, OneText):
            return _in_memory(config, source)
        return _on_disk(config, source)
    except OSError as error:
        location = f"s: '{error.filename}'" if config.sources else f": '{config.source}'"
        raise CorpusError(
            f"corpus.source{location} cannot be read: {error.strerror}; give another path"
        ) from None


def _in_memory(config: CorpusConfig, source: OneText) -> TextCorpus:
    """Encode a text, of which each character is a token, and cut it to what a run reads."""
    train, dev, test = (text for _, text in source.parts())
    tokenizer = Characters(source.name, "".join(sorted(set(train))))
    ids = torch.from_numpy(tokenizer.encode(train[: int(config.fraction * len(train))]))
    dev, test = (dev[:MAX_MEASURED], test[:MAX_MEASURED])
    heldout = torch.from_numpy(tokenizer.encode(dev + test))
    return TextCorpus(
        source.name, source.fingerprint, tokenizer, ids, heldout, len(dev), source.text
    )


def _on_disk(config: CorpusConfig, source: Source) -> TokenCorpus:
    """Tokenize a source, or find it tokenized, and cut it to what a run reads."""
    tokenizer, parts, metadata = tokenize(config, source)
    train = parts["train"].cut(int(config.fraction * len(parts["train"])))
    dev, test = (_measured(parts[part], tokenizer) for part in ("dev", "test"))
    heldout = torch.cat([dev, test])
    fields = (source.name, metadata["sha256"], tokenizer, train, heldout, len(dev))
    return TokenCorpus(*fields, parts, metadata)


def _measured(ids: Shards, tokenizer: Tokenizer) -> Tensor:
    """Cut ids (n,) to the tokens that end within the first `MAX_MEASURED` characters."""
    # A character is written in four bytes at the most, and the end of a document adds a token.
    beginning = ids[: 5 * MAX_MEASURED]
    ends = torch.from_numpy(tokenizer.characters)[beginning].cumsum(0)
    return beginning[: int(torch.searchsorted(ends, MAX_MEASURED, right=True))]


def sample_batch(
    ids: Tensor | Shards,
    batch_size: int,
    block_size: int,
    generator: torch.Generator,
    rows: slice = slice(None),
) -> tuple[Tensor, Tensor]:
    """Draw random windows; return inputs and next tokens, both (B, T). Of a batch that several
    share, only the `rows` of one are read."""
    starts = torch.randint(len(ids) - block_size, (batch_size,), generator=generator)[rows]
    windows = torch.stack([ids[start : start + block_size + 1] for start in starts.tolist()])
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def token_class(symbol: str) -> str:
    """Name the class of one symbol, one of `TOKEN_CLASSES`: that of all its characters but white
    space around them; punctuation is whatever is of no other class, also parts of characters."""
    if symbol in (END_OF_DOCUMENT, "\x04"):  # ASCII: end of text, end of transmission
        return "end of document"
    if symbol.isspace():
        return "whitespace"
    word = symbol.strip()
    if word.isalpha():
        return "alphabetic"
    return "numeric" if word.isnumeric() else "punctuation"
