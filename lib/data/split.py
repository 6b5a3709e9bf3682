"""Which text is held out: a share of every document, file and source, not the end of the whole.

Documents are held out whole, about every tenth. A long text is held out by its tail. The split
depends only on what is read and its order: not on the tokenizer, the machine, or files' times.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lib.config.schema import TRAIN_SHARE

PARTS = ("train", "dev", "test")
_STEP = 19
"""Documents from one of dev to the next, and from one of test to the next. It is prime, so that
both meet all of two, three or more sources that documents come from by turns."""
FEWEST = _STEP // 2 + 2
"""Documents of which dev and test get one each."""
SHORT = 10 * 256
"""Characters: a file below these ten blocks of 256 is one document."""
_LEAST_OF_SOURCE = 1024
_LEAST_OF_TEXT = 4096
"""Characters that are measured of each, where it has them: of too many, some are left out."""

Lengths = NDArray[np.int64]
Names = NDArray[np.str_]


class Piece(NamedTuple):
    """What a part has of a text: all of it, or its beginning, middle or end."""

    part: str
    file: str
    text: str


def parts_of(n: int) -> Names:
    """Return the part of each of `n` documents, (n,): dev has the first, test the eleventh, and
    then each every 19th."""
    parts = np.full(n, "train")
    parts[::_STEP] = "dev"
    parts[FEWEST - 1 :: _STEP] = "test"
    return parts


def nearest_end(text: str, share: float, low: float, high: float) -> int:
    """Return the length of the beginning of a text that ends at the blank line (else the line end)
    nearest to a share of it, between two other shares; without any, at that share itself."""
    wanted = share * len(text)
    for boundary in (r"\n\n+", r"\n"):
        ends = [match.end() for match in re.finditer(boundary, text)]
        ends = [end for end in ends if low < end / len(text) < high]
        if ends:
            return min(ends, key=lambda end: abs(end - wanted))
    return int(wanted)


def split_text(text: str, cut: int) -> dict[str, str]:
    """Split one text: the training part up to `cut`, then dev to the blank line (else the line end)
    nearest to the middle of the rest, then test."""
    middle = cut + nearest_end(text[cut:], 0.5, 0.25, 0.75)
    return {"train": text[:cut], "dev": text[cut:middle], "test": text[middle:]}


def split_texts(
    documents: list[tuple[str, str]], *, are_documents: bool
) -> tuple[list[Piece], str]:
    """Split several texts, each behind the name of its file; return what each part has of them, in
    their order, and in words what is held out.

    Documents, and files shorter than `SHORT`, are held out whole, as `parts_of` says. Longer files,
    and all texts where too few are whole, are cut each by itself, about a tenth from the end: at a
    blank line, else a line end; a file with neither there is cut amid a line.
    """
    whole = [i for i, (_, text) in enumerate(documents) if are_documents or len(text) < SHORT]
    if len(whole) < FEWEST:
        whole = []
    part_of = dict(zip(whole, parts_of(len(whole)).tolist(), strict=True))
    pieces = []
    for i, (file, text) in enumerate(documents):
        if i in part_of:
            pieces.append(Piece(part_of[i], file, text))
            continue
        cut = nearest_end(text, TRAIN_SHARE, 0.85, 0.95)
        for part, piece in split_text(text, cut).items():
            if piece.strip("\n"):
                pieces.append(Piece(part, file, piece.strip("\n")))
    what = "documents" if are_documents else "files"
    said = []
    if whole:
        lengths = np.array([len(documents[i][1]) for i in whole])
        said.append(documents_held_out(lengths, what if are_documents else "short files"))
    if len(whole) < len(documents):
        said.append(f"the last tenth of each of {len(documents) - len(whole)} {what}")
    return pieces, " and ".join(said)


def documents_held_out(lengths: Lengths, what: str = "documents") -> str:
    """Return in words how many documents of these `lengths` are held out, and how much of their
    text, which is more than a tenth if a long one is among them."""
    n = len(lengths)
    trained = parts_of(n) == "train"
    share = 1 - lengths[trained].sum() / lengths.sum()
    return f"{n - trained.sum()} of {n} {what}, about every tenth ({share:.0%} of their text)"


def but_none_of(parts: Names, sources: Sequence[str]) -> str:
    """Return in words the sources (a file of documents, a folder of texts) of which nothing is held
    out, because they have too few documents."""
    held_out = {source for source, part in zip(sources, parts, strict=True) if part != "train"}
    missing = sorted({*sources} - held_out)
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return f", none of {', '.join(missing[:3])}{more}" if missing else ""


def measured(parts: Names, lengths: Lengths, sources: Sequence[str], most: int) -> Lengths:
    """Return how many characters are kept of texts of these lengths, (n,): of dev and of test
    `most`, shared out first over their sources, so that each is measured, then over the texts of
    each. Each takes a blank line more."""
    kept = lengths.copy()
    for part in ("dev", "test"):
        texts = np.flatnonzero(parts == part).tolist()
        wanted = lengths[texts] + 2
        names, of = np.unique([sources[i] for i in texts], return_inverse=True)
        totals = np.bincount(of, wanted, len(names)).astype(np.int64)
        for source, share in enumerate(_share_out(totals, most, _LEAST_OF_SOURCE).tolist()):
            own = of == source
            given = _share_out(wanted[own], share, _LEAST_OF_TEXT)
            kept[np.array(texts)[own]] = (given - 2).clip(min=0)
    return kept


def _share_out(wanted: Lengths, most: int, least: int) -> Lengths:
    """Share out `most`, as equally as can be, among as many as can have `least` or all they want:
    evenly spread ones, by multiples of the golden ratio, which no period of theirs can match."""
    order = np.argsort(np.arange(len(wanted)) * 0.6180339887498949 % 1, kind="stable")
    enough = int(np.searchsorted(np.minimum(wanted[order], least).cumsum(), most)) + 1
    chosen = sorted(order[:enough].tolist(), key=lambda i: int(wanted[i]))  # the short ones first
    given = np.zeros_like(wanted)
    left = most
    for place, i in enumerate(chosen):
        given[i] = min(wanted[i], left // (len(chosen) - place))
        left -= given[i]
    return given


def beginning(text: str, length: int) -> str:
    """Cut a text to `length` characters, or to the last line end in the second half of them."""
    if len(text) <= length:
        return text
    end = text.rfind("\n", length // 2, length)
    return text[: end if end > 0 else length]
