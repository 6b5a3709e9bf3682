"""Choose the text to hold out: about a tenth of every source, not the end of the whole corpus.

About every tenth document is held out as a whole. A long text is cut, and its last tenth is held
out. The split depends only on the texts and their order, not on the tokenizer, the machine or the
files' times.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lib.config.schema import TRAIN_SHARE

PARTS = ("train", "dev", "test")
_STEP = 19
"""Every 19th document is in dev, and another 19th in test. 19 is prime. If two or three sources
alternate, a step that is a multiple of two or three would always hit the same source."""
FEWEST = _STEP // 2 + 2
"""The fewest documents that can be split: dev and test then have one each."""
SHORT = 10 * 256
"""A file with fewer characters than this stays whole, like a document."""
_LEAST_OF_SOURCE = 1024
_LEAST_OF_TEXT = 4096
"""Measure at least this many characters of a source, and of a text (or all that it has). If there
are too many sources or texts for that, some are not measured at all."""

Lengths = NDArray[np.int64]
Names = NDArray[np.str_]


class Piece(NamedTuple):
    """A piece of text, the part it belongs to (train, dev, test), and the file it comes from."""

    part: str
    file: str
    text: str


Pieces = Callable[[], Iterator[Piece]]
"""Yields all texts of a corpus in order. Each call is one pass over them."""


def parts_of(n: int) -> Names:
    """Return the part of each of `n` documents, (n,). Dev gets the first one and every 19th after
    it; test gets the eleventh and every 19th after it."""
    parts = np.full(n, "train")
    parts[::_STEP] = "dev"
    parts[FEWEST - 1 :: _STEP] = "test"
    return parts


def nearest_end(text: str, share: float, low: float, high: float) -> int:
    """Return the position at which to cut a text: after the blank line nearest to `share` of its
    length. If there is no blank line between the shares `low` and `high`, cut after a line end
    there. If there is none either, cut exactly at `share`."""
    wanted = share * len(text)
    for boundary in (r"\n\n+", r"\n"):
        ends = (match.end() for match in re.finditer(boundary, text))
        fitting = (end for end in ends if low < end / len(text) < high)
        nearest = min(fitting, key=lambda end: abs(end - wanted), default=None)
        if nearest is not None:
            return nearest
    return int(wanted)


def halves(heldout: str) -> dict[str, str]:
    """Split held-out text near its middle into dev and test."""
    middle = nearest_end(heldout, 0.5, 0.25, 0.75)
    return {"dev": heldout[:middle], "test": heldout[middle:]}


def split_texts(
    documents: Callable[[], Iterator[tuple[str, str]]], lengths: Lengths, *, are_documents: bool
) -> tuple[Pieces, str]:
    """Split several texts. `documents` yields each with the name of its file; `lengths` has the
    length of each. Return a function that yields the pieces in the order of the texts, and a
    description of the held-out text.

    Documents, and files shorter than `SHORT`, stay whole: `parts_of` gives each its part. Longer
    files are cut near the start of their last tenth (see `nearest_end`). If there are fewer than
    `FEWEST` texts that would stay whole, they are cut as well.
    """
    whole = np.flatnonzero(are_documents | (lengths < SHORT))
    if len(whole) < FEWEST:
        whole = whole[:0]
    part_of = dict(zip(whole.tolist(), parts_of(len(whole)).tolist(), strict=True))

    def read() -> Iterator[Piece]:
        for i, (file, text) in enumerate(documents()):
            if i in part_of:
                yield Piece(part_of[i], file, text)
                continue
            cut = nearest_end(text, TRAIN_SHARE, 0.85, 0.95)
            for part, piece in ({"train": text[:cut]} | halves(text[cut:])).items():
                if piece.strip("\n"):
                    yield Piece(part, file, piece.strip("\n"))

    what = "documents" if are_documents else "files"
    said = []
    if len(whole):
        said.append(documents_held_out(lengths[whole], what if are_documents else "short files"))
    if len(whole) < len(lengths):
        said.append(f"the last tenth of each of {len(lengths) - len(whole)} {what}")
    return read, " and ".join(said)


def documents_held_out(lengths: Lengths, what: str = "documents") -> str:
    """Describe how many documents, of these `lengths`, are held out, and how much of the text that
    is. It is more than a tenth if a long one is among them."""
    n = len(lengths)
    trained = parts_of(n) == "train"
    share = 1 - lengths[trained].sum() / lengths.sum()
    return f"{n - trained.sum()} of {n} {what}, about every tenth ({share:.0%} of their text)"


def but_none_of(parts: Names, sources: Sequence[str]) -> str:
    """Name the sources (a file of documents, or a folder of texts) without any held-out text: they
    have too few documents. Return "" if there are none."""
    held_out = {source for source, part in zip(sources, parts, strict=True) if part != "train"}
    missing = sorted({*sources} - held_out)
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return f", none of {', '.join(missing[:3])}{more}" if missing else ""


def measured(parts: Names, lengths: Lengths, sources: Sequence[str], most: int) -> Lengths:
    """Return how many characters of each text to keep, (n,), so that dev and test have at most
    `most` each. Texts of the training part are kept whole.

    The characters are divided among the sources, so that each source is measured, and then among
    the texts of each source. A text takes two more than its length, for the blank line at its end.
    """
    kept = lengths.copy()
    for part in ("dev", "test"):
        texts = np.flatnonzero(parts == part).tolist()
        wanted = lengths[texts] + 2
        names, source_of = np.unique([sources[i] for i in texts], return_inverse=True)
        totals = np.bincount(source_of, wanted, len(names)).astype(np.int64)
        for source, share in enumerate(_share_out(totals, most, _LEAST_OF_SOURCE).tolist()):
            own = source_of == source
            given = _share_out(wanted[own], share, _LEAST_OF_TEXT)
            kept[np.array(texts)[own]] = (given - 2).clip(min=0)
    return kept


def _share_out(wanted: Lengths, most: int, least: int) -> Lengths:
    """Divide `most` characters as equally as possible. Return the shares, (n,); none is larger than
    `wanted`.

    If there are too few to give `least` (or all it wants) to each, some get nothing. The others are
    spread evenly: they are chosen in the order of i · φ mod 1 (φ: the golden ratio). If kinds of
    texts alternate, a fixed step could keep hitting the same kind.
    """
    order = np.argsort(np.arange(len(wanted)) * 0.6180339887498949 % 1, kind="stable")
    enough = int(np.searchsorted(np.minimum(wanted[order], least).cumsum(), most)) + 1
    # Short ones first: what they do not need is left for the longer ones.
    chosen = sorted(order[:enough].tolist(), key=lambda i: int(wanted[i]))
    given = np.zeros_like(wanted)
    left = most
    for place, i in enumerate(chosen):
        given[i] = min(wanted[i], left // (len(chosen) - place))
        left -= given[i]
    return given


def beginning(text: str, length: int) -> str:
    """Cut a text to at most `length` characters. If their second half has a line end, cut there."""
    if len(text) <= length:
        return text
    end = text.rfind("\n", length // 2, length)
    return text[: end if end > 0 else length]
