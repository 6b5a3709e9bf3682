"""Documents of several sources, mixed by share: one corpus is, say, two thirds web pages and one
third books, whatever the sizes of the two."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from lib.data.documents import Documents, find_documents, parted
from lib.data.errors import CorpusError
from lib.data.sources import places


@dataclass(frozen=True)
class Mixture:
    """Documents of each source from its beginning on, until the first source that has too little
    for its share is used up. A document is taken whole or not at all, and none twice.

    They come in turns, first those of the training part, then dev's, then test's; of what is taken
    of each source, the last tenth is held out, so that all parts hold all sources.
    """

    name: str
    documents: dict[str, Documents]
    shares: dict[str, float]
    """Of the mixture's characters, by source; they sum to 1."""
    ends = True

    @property
    def fingerprint(self) -> list[object]:
        """What tells whether the mixture is as before."""
        return [[name, self.shares[name], d.fingerprint] for name, d in self.documents.items()]

    @cached_property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Characters of each document that is not empty, by source."""
        sources = self.documents.items()
        return {name: np.fromiter(map(len, filter(None, d)), np.int64) for name, d in sources}

    @cached_property
    def _filled(self) -> dict[str, NDArray[np.float64]]:
        """Of how much of a mixture each document taken makes its source's share full."""
        total = min(self.lengths[name].sum() / share for name, share in self.shares.items())
        ends = {name: np.cumsum(self.lengths[name] / share) for name, share in self.shares.items()}
        return {name: end[end <= total * (1 + 1e-9)] for name, end in ends.items()}

    @property
    def account(self) -> dict[str, dict[str, float]]:
        """By source: the share asked, characters and documents taken, and documents there are."""
        return {
            name: {
                "share": self.shares[name],
                "characters": int(self.lengths[name][: len(filled)].sum()),
                "documents": len(filled),
                "of_documents": len(self.lengths[name]),
            }
            for name, filled in self._filled.items()
        }

    def _bounds(self, name: str) -> list[int]:
        """At which document of a source each part ends."""
        number = len(self._filled[name])
        return [0, *parted(number, f"corpus.sources: '{name}'", "cut long ones up"), number]

    def bounds(self, _: int) -> list[int]:
        """At which document dev begins, and at which test."""
        return [sum(ends) for ends in zip(*map(self._bounds, self.shares), strict=True)][1:3]

    def __iter__(self) -> Iterator[str]:
        """Read the documents, part by part: always of the source furthest behind its share."""
        for part in range(3):
            queues = []
            for place, (name, documents) in enumerate(self.documents.items()):
                begin, end = self._bounds(name)[part : part + 2]
                before = np.append(0, self._filled[name])[begin:end]
                texts = islice(filter(None, documents), begin, end)
                queues.append(zip(before, [place] * len(before), texts, strict=True))
            yield from (text for _, _, text in heapq.merge(*queues))


def find_mixture(name: str, shares: dict[str, float]) -> Mixture:
    """Find the documents of `corpus.sources`. Raises CorpusError for a source that is not there, is
    one text, or holds no documents."""
    found, field = {}, "corpus.sources"
    for source in shares:
        path = next((path for path in places(source, field) if path.exists()), None)
        documents = find_documents(path, field) if path else None
        if documents is None:
            raise CorpusError(
                f"corpus.sources: '{source}' holds no documents; give folders of texts, .jsonl "
                "(also .gz or .zst) or .parquet"
            )
        found[source] = documents
    mixture = Mixture(name, found, shares)
    if empty := [source for source, lengths in mixture.lengths.items() if not lengths.size]:
        raise CorpusError(f"corpus.sources: '{empty[0]}' is empty; take it out, or fill it")
    return mixture
