"""A finite-state source of characters, whose every probability is known exactly.

Its rules are slots. A slot holds strings, each with a weight and the next slot. No string of a slot
begins another, so that a state and a character decide the next state: the source is
unifilar, and its entropy rate is the mean entropy of the next character over states (Shannon 1948).
Whoever reads from the middle does not know the state; the forward algorithm says what can be known.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

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
    """The source as a matrix of probabilities: S states × V characters.

    A state is a slot and the beginning of its strings that has been written. Raises ValueError for
    a slot without strings, with a string that begins another, or a next slot that is not there.
    """

    def __init__(self, rules: Rules) -> None:
        self.symbols = "".join(
            sorted({c for slot in rules.values() for _, s, _ in slot for c in s})
        )
        ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        slots = {slot: state for state, slot in enumerate(rules)}
        edges: dict[tuple[int, int], int] = {}  # state, character → next state
        masses: dict[tuple[int, int], float] = {}  # state, character → probability since the slot
        reached = [1.0] * len(slots)  # probability, since its slot, of being in a state
        between = np.zeros((len(slots), len(slots)))
        home = [*range(len(slots))]  # state → its slot
        for slot, strings in rules.items():
            total = sum(weight for weight, _, _ in strings)
            if not strings:
                raise ValueError(f"slot {slot!r}: no strings")
            for weight, string, following in strings:
                if not string or weight <= 0 or following not in slots:
                    raise ValueError(f"slot {slot!r}: bad rule {(weight, string, following)}")
                share, state = weight / total, slots[slot]
                for place, symbol in enumerate(string):
                    edge = state, ids[symbol]
                    last = place == len(string) - 1
                    known = edges.get(edge)
                    if known is None:
                        known = slots[following] if last else len(reached)
                        if not last:
                            reached.append(0.0)
                            home.append(slots[slot])
                        edges[edge] = known
                    elif last or known < len(slots):
                        raise ValueError(f"slot {slot!r}: {string!r} and another begin alike")
                    masses[edge] = masses.get(edge, 0.0) + share
                    if not last:
                        reached[known] += share
                    state = known
                between[slots[slot], slots[following]] += share
        self.n_states = len(reached)
        states, symbols = np.array([*edges]).T
        self._next = np.zeros((self.n_states, len(self.symbols)), dtype=np.int64)
        self._next[states, symbols] = [*edges.values()]
        mass = np.array(reached)
        self.probabilities = np.zeros((self.n_states, len(self.symbols)))
        """Of the next character in each state; (S, V)."""
        self.probabilities[states, symbols] = np.array([*masses.values()]) / mass[states]
        occupied = _stationary(between)[home] * mass
        self.stationary: NDArray[np.float64] = occupied / occupied.sum()
        """Of the state before a character at a random place of an endless text; (S,)."""

    @property
    def entropy_rate(self) -> float:
        """Nats per character of an endless text: the least loss with all of the past in sight."""
        p = self.probabilities
        surprise = -np.log(p, where=p > 0, out=np.zeros_like(p))
        return float(self.stationary @ (p * surprise).sum(axis=1))

    def nll(self, text: str, block_size: int) -> NDArray[np.float64]:
        """Negative log-likelihood (nats) of characters 1 … N-1 of a text cut at a random place.

        A model cannot do better on average: this is the source itself, and it reads the same
        adjacent windows of `block_size`, so that the first of a window is predicted from one
        character and an unknown state. Infinite from where a window leaves the source's language.
        (N - 1,), by the forward algorithm (Rabiner 1989), which here needs only those states that
        what was read leaves possible.
        """
        known = {symbol: i for i, symbol in enumerate(self.symbols)}
        ids = np.array([known.get(symbol, -1) for symbol in text])
        if len(ids) < 2 or block_size < 1:
            return np.zeros(0)
        n_windows = -(-(len(ids) - 1) // block_size)
        padded = np.full(n_windows * block_size + 1, -1)
        padded[: len(ids)] = ids
        windows = np.lib.stride_tricks.sliding_window_view(padded, block_size + 1)[::block_size]
        parts = [self._window_nll(windows[i : i + _WINDOWS]) for i in range(0, n_windows, _WINDOWS)]
        return np.concatenate(parts).ravel()[: len(ids) - 1]

    def _window_nll(self, windows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Follow windows (W, T + 1), -1 for no known character, to their losses (W, T). Those that
        begin alike are one group for as long as they do."""
        n, length = windows.shape
        symbols, group = np.unique(windows[:, 0], return_inverse=True)
        starts = [self._after(symbol) for symbol in symbols]
        of = np.repeat(np.arange(len(starts)), [start.shape[1] for start in starts])
        state, belief = np.concatenate(starts, axis=1)
        state = state.astype(np.int64)
        losses = np.empty((n, length - 1))
        for place in range(1, length):
            key = group * (len(self.symbols) + 1) + windows[:, place] + 1
            key, group = np.unique(key, return_inverse=True)
            parent, symbol = np.divmod(key, len(self.symbols) + 1)
            # A group has the states and beliefs of the one that it comes from.
            first, last = np.searchsorted(of, parent, "left"), np.searchsorted(of, parent, "right")
            sizes = last - first
            of = np.repeat(np.arange(len(parent)), sizes)
            taken = np.arange(len(of)) + np.repeat(first - np.cumsum(sizes) + sizes, sizes)
            state, read = state[taken], symbol[of] - 1
            joint = belief[taken] * np.where(read >= 0, self.probabilities[state, read], 0)
            likely = np.bincount(of, joint, minlength=len(parent))
            with np.errstate(divide="ignore"):
                losses[:, place - 1] = -np.log(likely.clip(max=1))[group]
            left = joint > 0
            after = self._next[state[left], read[left]] + of[left] * self.n_states
            key, where = np.unique(after, return_inverse=True)
            of, state = np.divmod(key, self.n_states)
            belief = np.bincount(where, joint[left], minlength=len(key)) / likely[of]
        return losses

    def _after(self, symbol: int) -> NDArray[np.float64]:
        """States possible after one character at a random place, and their chances; (2, n), and
        none after an unknown one, -1."""
        if symbol < 0:
            return np.zeros((2, 0))
        joint = self.stationary * self.probabilities[:, symbol]
        belief = np.bincount(self._next[:, symbol], joint, minlength=self.n_states)
        states = np.flatnonzero(belief)
        return np.stack([states, belief[states] / joint.sum()])


def _stationary(transitions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distribution over K slots that the transitions (K, K) leave as it is."""
    n = len(transitions)
    balance = np.vstack([transitions.T - np.eye(n), np.ones(n)])
    solution: NDArray[np.float64] = np.linalg.lstsq(balance, np.eye(n + 1)[n], rcond=None)[0]
    return solution.clip(0)
