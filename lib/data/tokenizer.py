"""What turns text into ids and back. Ids count from 0."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lib.data.errors import CorpusError

Ids = NDArray[np.int64]
END_OF_DOCUMENT = "\x03"
"""How the end of a document is listed among symbols (ASCII: end of text). Decoded, it is a blank
line."""


class Tokenizer(Protocol):
    """A vocabulary of V tokens, and how text is written in it."""

    @property
    def symbols(self) -> Sequence[str]:
        """What each id stands for, as far as it is text; (V,)."""
        ...

    @property
    def end_of_document(self) -> int | None:
        """The id after each document; None where there are none."""
        ...

    @property
    def sha256(self) -> str | None:
        """Hash of its file; None where its name and the corpus say all."""
        ...

    @property
    def characters(self) -> Ids | None:
        """Characters that each id writes, (V,); None: one each. A character of several tokens
        counts with its first."""
        ...

    def encode(self, text: str) -> Ids:
        """Write a text as ids (n,)."""
        ...

    def encode_all(self, texts: list[str]) -> Iterable[Ids]:
        """Write several texts as ids, perhaps at once."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Write ids as text."""
        ...


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

    @property
    def symbols(self) -> str:
        return self.text + (END_OF_DOCUMENT if self.ends_documents else "")

    @property
    def end_of_document(self) -> int | None:
        return len(self.text) if self.ends_documents else None

    @property
    def characters(self) -> Ids | None:
        return np.array([1] * len(self.text) + [0]) if self.ends_documents else None

    def encode(self, text: str) -> Ids:
        """Write a text as ids (n,); CorpusError for a symbol that the training part does not
        hold."""
        ids = {symbol: i for i, symbol in enumerate(self.text)}
        try:
            return np.array([ids[symbol] for symbol in text], dtype=np.int64)
        except KeyError:
            unseen = sorted(set(text) - set(self.text))
            raise CorpusError(
                f"{self.name}: symbol {', '.join(map(repr, unseen[:5]))} was unseen in training "
                "(the first 90 % of the text); remove it, move it into the training part, or set "
                "corpus.tokenizer to bytes"
            ) from None

    def encode_all(self, texts: list[str]) -> Iterable[Ids]:
        return map(self.encode, texts)

    def decode(self, ids: Iterable[int]) -> str:
        known = [*self.text, "\n\n"]
        return "".join(known[i] for i in ids)
