"""Documents of several sources, mixed by share: one corpus is, say, two thirds web pages and one
third books, whatever the sizes of the two."""

from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

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

    @property
    def fingerprint(self) -> list[object]:
        """What tells whether the mixture is as before."""
        return [[name, self.shares[name], d.fingerprint] for name, d in self.documents.items()]

    @cached_property
    def account(self) -> dict[str, dict[str, float]]:
        """By source: the share asked, characters and documents taken, and documents there are."""
        taken = {name: {"characters": 0, "documents": 0} for name in self.documents}
        for name, text in self._in_turns():
            taken[name]["characters"] += len(text)
            taken[name]["documents"] += 1
        return {
            name: {"share": self.shares[name], **taken[name], "of_documents": self._sizes[name][1]}
            for name in self.documents
        }

    @property
    def bounds(self) -> list[int]:
        """At which document dev begins, and at which test."""
        return [sum(bound) for bound in zip(*self._bounds.values(), strict=True)]

    def __iter__(self) -> Iterator[str]:
        for part in range(3):
            taken: Counter[str] = Counter()
            for name, text in self._in_turns():
                if bisect(self._bounds[name], taken[name]) == part:
                    yield text
                taken[name] += 1

    @cached_property
    def _bounds(self) -> dict[str, list[int]]:
        """The bounds of each source, counted in its own documents."""
        return {
            name: parted(int(taken["documents"]), f"corpus.sources: '{name}'", "cut long ones up")
            for name, taken in self.account.items()
        }

    @cached_property
    def _sizes(self) -> dict[str, tuple[int, int]]:
        """Characters and documents of each source."""
        sizes = {}
        for name, documents in self.documents.items():
            lengths = [len(text) for text in documents if text]
            sizes[name] = (sum(lengths), len(lengths))
        return sizes

    def _in_turns(self) -> Iterator[tuple[str, str]]:
        """Read documents, each with its source: always of the one furthest behind its share."""
        total = min(self._sizes[name][0] / share for name, share in self.shares.items())
        texts = {name: filter(None, documents) for name, documents in self.documents.items()}
        filled = dict.fromkeys(texts, 0.0)  # how much of the whole a source's share is worth so far
        while texts:
            name = min(texts, key=filled.__getitem__)
            text = next(texts[name], None)
            after = filled[name] + len(text or "") / self.shares[name]
            if text is None or after > total * (1 + 1e-9):
                del texts[name]
                continue
            filled[name] = after
            yield name, text


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
    if empty := [source for source, (characters, _) in mixture._sizes.items() if not characters]:
        raise CorpusError(f"corpus.sources: '{empty[0]}' is empty; take it out, or fill it")
    return mixture
