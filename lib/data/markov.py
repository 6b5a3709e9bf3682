"""A finite-state source of characters, whose every probability is known exactly.

Its rules are slots. A slot holds strings, each with a weight and the next slot. No string of a slot
begins another, so that a state and a character decide the next state: the source is
unifilar, and its entropy rate is the mean entropy of the next character over states (Shannon 1948).
Whoever reads from the middle does not know the state; the forward algorithm says what can be known.
"""

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Rule = tuple[int, str, str]
"""Weight, string, next slot. A weight is a positive integer, a share of its slot's sum."""
Rules = Mapping[str, Sequence[Rule]]
_WINDOWS = 1024
"""Windows that are followed at once; bounds the memory."""


def generate(rules: Rules, start: str, length: int, seed: bytes) -> str:
    """Write `length` characters from the slot `start` on.

    Integer arithmetic on the bits of SHAKE-256 gives the same text on every machine. A string is
    drawn by 64 bits, so that its probability is exact to 2^-64 times the sum of the weights.
    """
    cumulative = {slot: [*accumulate(weight for weight, _, _ in rules[slot])] for slot in rules}
    bits = hashlib.shake_256(seed).digest(8 * length)  # a string has one character or more
    slot, parts, written, place = start, [], 0, 0
    while written < length:
        upto = cumulative[slot]
        drawn = int.from_bytes(bits[place : place + 8], "little") * upto[-1] >> 64
        _, string, slot = rules[slot][bisect_right(upto, drawn)]
        parts.append(string)
        written += len(string)
        place += 8
    return "".join(parts)[:length]


class Source:
    """The source as a graph: E edges, each from a state by a character to a state, of S. A state is
    a slot and the beginning of its strings that has been written. Raises ValueError for a slot
    without strings, with a string that begins another, or a next slot that is not there."""

    def __init__(self, rules: Rules) -> None:
        reached: Counter[tuple[str, str]] = Counter()  # slot, text → weight of what begins so
        following: dict[tuple[str, str], str] = {}  # slot, whole string → next slot
        numbers = {slot: number for number, slot in enumerate(rules)}
        for slot, strings in rules.items():
            for weight, string, after in strings:
                if not string or weight <= 0 or after not in rules:
                    raise ValueError(f"slot {slot!r}: bad rule {(weight, string, after)}")
                following[slot, string] = after
                for place in range(len(string) + 1):
                    reached[slot, string[:place]] += weight
        between = np.zeros((len(rules), len(rules)))
        for slot, strings in rules.items():
            if not strings or any(reached[slot, string] > weight for weight, string, _ in strings):
                raise ValueError(f"slot {slot!r}: no strings, or one begins another")
            for weight, _, after in strings:
                between[numbers[slot], numbers[after]] += weight / reached[slot, ""]
        states = {state: i for i, state in enumerate(s for s in reached if s not in following)}
        self.symbols = "".join(sorted({text[-1] for _, text in reached if text}))
        edges = []
        for (slot, text), weight in reached.items():
            if text:
                before, symbol = (slot, text[:-1]), self.symbols.index(text[-1])
                whole = following.get((slot, text))
                state = states[(slot, text) if whole is None else (whole, "")]
                edges.append((states[before], symbol, weight / reached[before], state))
        self.state, self.symbol, self.probability, self.after = map(
            np.array, zip(*edges, strict=True)
        )
        """Of each edge: where it begins, its character, its probability there, where it ends."""
        per_weight = {
            slot: share / reached[slot, ""]
            for slot, share in zip(rules, _stationary(between), strict=True)
        }
        occupied = np.array([per_weight[state[0]] * reached[state] for state in states])
        self.stationary: NDArray[np.float64] = occupied / occupied.sum()
        """Of the state before a character at a random place of an endless text; (S,)."""

    @property
    def entropy_rate(self) -> float:
        """Nats per character of an endless text: the least loss with all of the past in sight."""
        shares = self.stationary[self.state] * self.probability
        return -float(shares @ np.log(self.probability))

    def nll(self, text: str, block_size: int) -> NDArray[np.float64]:
        """Negative log-likelihood (nats) of characters 1 … N-1 of a text cut at a random place.

        A model cannot do better on average: this is the source itself, and it reads the same
        adjacent windows of `block_size`, so that the first of a window is predicted from one
        character and an unknown state. Infinite from where a window leaves the source's language.
        (N - 1,), by the forward algorithm (Rabiner 1989).
        """
        predicted = max(0, len(text) - 1)
        padded = np.full(predicted + block_size + 1, -1)
        padded[: len(text)] = [self.symbols.find(symbol) for symbol in text]
        begins = np.arange(0, predicted, block_size)
        windows = padded[begins[:, None] + np.arange(block_size + 1)]
        parts = [self._follow(windows[i : i + _WINDOWS]) for i in range(0, len(begins), _WINDOWS)]
        return np.concatenate([*parts, np.zeros(0)])[:predicted]

    def _follow(self, windows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Follow windows (W, T + 1), -1 for no known character, to their losses (W · T,)."""
        shares = self.stationary[self.state] * self.probability
        shares /= np.bincount(self.symbol, shares)[self.symbol]
        shape = len(self.symbols) + 1, len(self.stationary)  # the last row for no known character
        belief = csr_array((shares, (self.symbol, self.after)), shape=shape)[windows[:, 0]]
        edges = csr_array((self.probability, (self.state, np.arange(len(self.state)))))
        losses = np.empty((len(windows), windows.shape[1] - 1))
        for place in range(losses.shape[1]):
            joint = (belief @ edges).tocoo()
            read = self.symbol[joint.col] == windows[joint.row, place + 1]
            row, edge, chance = joint.row[read], joint.col[read], joint.data[read]
            likely = np.bincount(row, chance, minlength=len(windows))
            with np.errstate(divide="ignore"):
                losses[:, place] = -np.log(likely.clip(max=1))
            chance /= likely[row]
            belief = csr_array((chance, (row, self.after[edge])), shape=belief.shape)
        return losses.ravel()


def _stationary(transitions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distribution over K slots that the transitions (K, K) leave as it is."""
    n = len(transitions)
    balance = np.vstack([transitions.T - np.eye(n), np.ones(n)])
    solution: NDArray[np.float64] = np.linalg.lstsq(balance, np.eye(n + 1)[n], rcond=None)[0]
    return solution.clip(0)
