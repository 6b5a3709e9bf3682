"""What turns text into ids and back, where an id is a character. Ids count from 0."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lib.data.errors import CorpusError

Ids = NDArray[np.int64]
END_OF_DOCUMENT = "\x03"
"""How the end of a document is listed among symbols (ASCII: end of text). Decoded, it is a blank
line."""


@dataclass(frozen=True)
class Characters:
    """A token per character: those of the training part, sorted, and perhaps a last one that ends
    documents. Other tokenizers, in `lib.data.subwords`, have the same methods."""

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
        known, asked = _codes(self.text), _codes(text)
        ids = np.searchsorted(known, asked).clip(max=len(known) - 1)
        if (unseen := asked[known[ids] != asked]).size:
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


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
