"""Exact quantiles of more numbers than can be held.

Floats are in the order of their bits once these are turned into keys. One pass counts the upper
halves of all keys, another the lower halves of those that the quantiles lie among.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray


def quantiles(
    parts: Callable[[], Iterable[NDArray[np.floating]]], probabilities: list[float]
) -> list[float]:
    """Return what `np.quantile` says of all numbers in `parts`, which are finite and float32;
    `parts` yields arrays of any shape, each time that it is called."""
    upper = np.zeros(2**16, dtype=np.int64)
    for part in parts():
        upper += np.bincount(_keys(part) >> 16, minlength=2**16)
    ends = upper.cumsum()
    places = (ends[-1] - 1) * np.asarray(probabilities)
    ranks = np.unique([np.floor(places), np.ceil(places)]).astype(int)
    among = np.searchsorted(ends, ranks, side="right")  # the upper half of each rank's number
    wanted = np.unique(among)
    row = np.full(2**16, len(wanted))
    row[wanted] = np.arange(len(wanted))
    lower = np.zeros((len(wanted) + 1, 2**16), dtype=np.int64)
    for part in parts():
        keys = _keys(part)
        cells = row[keys >> 16] << 16 | keys & 0xFFFF
        lower += np.bincount(cells, minlength=lower.size).reshape(lower.shape)
    within = ranks - (ends - upper)[among]
    halves = [
        np.searchsorted(lower[row[high]].cumsum(), rank, side="right")
        for high, rank in zip(among, within, strict=True)
    ]
    numbers = dict(zip(ranks, _floats(among << 16 | np.array(halves)), strict=True))
    neighbours = ((numbers[np.floor(p)], numbers[np.ceil(p)]) for p in places)
    shares = places - np.floor(places)
    return [
        float(np.quantile(np.array(pair), [share])[0])  # numpy's own interpolation
        for pair, share in zip(neighbours, shares, strict=True)
    ]


def _keys(values: NDArray[np.floating]) -> NDArray[np.int64]:
    """Turn float32 numbers of any shape into keys of 32 bits in the same order; (n,)."""
    bits = values.astype(np.float32).ravel().view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | 0x80000000).astype(np.int64)


def _floats(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    """Turn keys back into numbers."""
    bits = keys.astype(np.uint32)
    return np.where(bits >> 31, bits & 0x7FFFFFFF, ~bits).astype(np.uint32).view(np.float32)
