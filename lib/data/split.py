"""Which text is held out: a share of every document, file and source, not the end of the whole.

Documents are held out whole, about every tenth. A long text is held out by its tail. The split
depends only on what is read and its order: not on the tokenizer, the machine, or files' times.
"""

import re
from collections.abc import Sequence

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


def parts_of(n: int) -> dict[str, Lengths]:
    """Return which of `n` documents are of each part: dev has the first, test the eleventh, and
    then each every 19th."""
    place = np.arange(n) % _STEP
    dev = place == 0
    test = place == FEWEST - 1
    return {
        "train": np.flatnonzero(~(dev | test)),
        "dev": np.flatnonzero(dev),
        "test": np.flatnonzero(test),
    }


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


def split_text(text: str, cut: int | None = None) -> dict[str, str]:
    """Split one text: to train on up to `cut` (nine tenths), then dev to the blank line (else the
    line end) nearest to the middle of the rest, then test."""
    if cut is None:
        cut = int(TRAIN_SHARE * len(text))
    middle = cut + nearest_end(text[cut:], 0.5, 0.25, 0.75)
    return {"train": text[:cut], "dev": text[cut:middle], "test": text[middle:]}


def split_texts(texts: list[str], are_documents: bool) -> tuple[dict[str, dict[int, str]], str]:
    """Split several texts; return part → number of a text → what the part has of it, and in words
    what is held out.

    Documents, and files shorter than `SHORT`, are held out whole, as `parts_of` says. Longer files,
    and all texts where too few are whole, are cut each by itself, about a tenth from the end: at a
    blank line, else a line end; a file with neither there is cut amid a line.
    """
    whole = [i for i, text in enumerate(texts) if are_documents or len(text) < SHORT]
    if len(whole) < FEWEST:
        whole = []
    cut = sorted(set(range(len(texts))).difference(whole))
    parts = {
        part: {whole[place]: texts[whole[place]] for place in places}
        for part, places in parts_of(len(whole)).items()
    }
    for i in cut:
        pieces = split_text(texts[i], nearest_end(texts[i], TRAIN_SHARE, 0.85, 0.95))
        for part, piece in pieces.items():
            if piece.strip("\n"):
                parts[part][i] = piece.strip("\n")
    said = []
    if whole:
        what = "documents" if are_documents else "short files"
        lengths = np.array([len(texts[i]) for i in whole], np.int64)
        said.append(documents_held_out(lengths, what))
    if cut:
        what = "documents" if are_documents else "files"
        said.append(f"the last tenth of each of {len(cut)} {what}")
    in_order = {part: dict(sorted(of.items())) for part, of in parts.items()}
    return in_order, " and ".join(said)


def documents_held_out(lengths: Lengths, what: str = "documents") -> str:
    """Return in words how many documents of these `lengths` are held out, and how much of their
    text, which is more than a tenth if a long one is among them."""
    n = len(lengths)
    train = parts_of(n)["train"]
    share = 1 - lengths[train].sum() / lengths.sum()
    return f"{n - len(train)} of {n} {what}, about every tenth ({share:.0%} of their text)"


def measured(lengths: Lengths, sources: Sequence[str], most: int) -> Lengths:
    """Share out `most` characters over texts of these lengths, (n,), first over their sources, so
    that each is measured, then over the texts of each; return how many of each are measured. Each
    takes a blank line more."""
    wanted = lengths + 2
    names, of = np.unique(sources, return_inverse=True)
    totals = np.bincount(of, wanted, len(names)).astype(np.int64)
    given = np.zeros_like(wanted)
    for source, share in enumerate(_share_out(totals, most, _LEAST_OF_SOURCE).tolist()):
        own = of == source
        given[own] = _share_out(wanted[own], share, _LEAST_OF_TEXT)
    return (given - 2).clip(min=0)


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
