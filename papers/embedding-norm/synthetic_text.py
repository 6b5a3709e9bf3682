"""What wrote the corpus `synthetic`, and the least loss that a model can have on it.

    python papers/embedding-norm/synthetic_text.py

prints the SHA-256 of the text and, for each block size of `lib.data.describe.SOURCE_LOSS`, the
loss that stands there. The library only reads the text; nothing imports this file.

The text is a play without end, by a small probabilistic grammar written for it. It has structure at
several ranges: spelling; verbs that agree with their subjects, also across a relative clause or a
line break; questions, known by their first word and ended by their mark; and two casts, court and
town, who differ in the words they prefer and in `thou` and `you`.

Its rules are slots. A slot holds strings, each with a weight and the next slot. No string of a slot
begins another, so that a state and a character decide the next state: the source is unifilar, and
its entropy rate is the mean entropy of the next character over states (Shannon 1948). Whoever reads
from the middle does not know the state; the forward algorithm says what can be known.
"""

import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from string import Template

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

LENGTH = 1_100_000
_SEED = b"embedded text 1"

_SPEAKERS = {
    "court": "Queen Isaura, Prince Aldemar, Lord Chancellor, Lady Wrenfield, Lord Harrowgate, "
    "Herald Finch, Duke of Oxmere, Princess Maudlen, Fool Pimpern, Sir Quillon, Lord Varrick",
    "town": "Old Tobbin, Jenny Fairlock, First Miller, Second Miller, Ferryman Ott, Widow Crabbe, "
    "Zachary Pell, Innkeeper Barrow, Kit Underhay, Goodwife Yarrow, Uncle Ebb, Nan of the Mill",
}
_DIFFERENCES = {
    "court": {"thou": 7, "you": 1, "friend": "my lord", "court": 1, "town": 2},
    "town": {"thou": 1, "you": 7, "friend": "neighbour", "court": 2, "town": 1},
}
_NOUNS = """quarrel jest zeal journey sorrow fortune honour daughter brother father mother window
    candle sword letter market river garden shadow promise question answer secret village soldier
    harvest kettle ladder mirror needle orchard pebble ribbon saddle thunder whisper anvil basket
    feather lantern meadow puzzle quiver vessel exile lover neighbour stranger master servant
    tower bridge corner cradle dagger finger goblet hammer island jewel kingdom lesson morrow"""
_HEADS = """sea moon sun star storm frost wind rain snow fire oak elm thorn rose corn gold iron
    silver stone salt blood bone heart hand night dawn day winter summer hound raven hawk lamb bee
    king mill apple barley copper ember"""
_TAILS = """light song field stone water gate bell path house ward craft guard bread word fall
    side wood smith wright storm bird ship hill wall yard root keeper breaker dancer maker"""
_ADJECTIVES = """bright dark cold warm proud humble gentle bitter sweet silent swift slow quick
    strange noble weary merry hollow golden crooked narrow broad ancient young old wild tame pale
    ruddy faithful false true kind cruel lazy jealous zealous foolish brave careful idle honest
    lonely heavy lofty murky wretched blessed hungry"""
_VERBS = """ask call turn guard fear follow mend burn mark hunt warn crown trust doubt mourn greet
    reward wound plant gather conquer join annoy enjoy betray obey destroy haunt expect reject
    protect comfort murder ransom summon pardon remember discover deliver render hinder plunder
    ponder anoint adorn scorn spurn learn court want need crack lock pluck mock check pick knock"""
_ADVERBS = "still often seldom ever truly gladly barely surely oft now again soon"

_GRAMMAR = """
sentence     : 55 / > after | 45 *speech
speech       : 90 *line | 5 Why > ask | 5 How > ask
after        : $court {court}:/ > @court speech | $town {town}:/ > @town speech
line         : 50 *Opening | 7 And > clause | 5 But > clause | 4 For > clause | 3 When > clause
             | 3 Yet > clause | 3 If > clause | 2 Though > clause | 3 O > call
clause       : 24 *opening | 6 {adverb} > opening
opening      : $thou thou > thou | $you you > plural | 1 ye > plural | 9 I > I | 4 he > third
             | 4 she > third | 3 it > third | 4 we > plural | 4 they > plural | 12 the > subject
             | 4 my > subject | 2 thy > subject | 3 {plain}s > plural | 2 every > each | 1 'tis > be
call         : 2 {adjective} > call | 1 {plain}, > clause

subject      : 4 {adjective} > subject | 8 {noun} > one | 3 {noun}s > many
each         : 1 {plain} > one
one          : 12 *third | 4 of the > one of | 4 that > one that
one of       : 5 {plain} > third | 1 {plain}/ > Third
one that     : 1 {verb}s the > one of | 1 {verb}eth my > one of
many         : 12 *plural | 4 of the > many of | 4 that > many that
many of      : 5 {plain} > plural | 1 {plain}/ > Plural
many that    : 1 {verb} the > many of | 1 have {verb}ed the > many of

I            : 9 am > be | 8 have > have | 3 do > do | 5 will > do | 4 shall > do | 3 was > be
             | 7 {verb} > object | 2 {adverb} > I
thou         : 9 art > be | 8 hast > have | 4 dost > do | 5 wilt > do | 4 shalt > do | 3 wert > be
             | 7 {verb}est > object | 2 {adverb} > thou
third        : 10 is > be | 7 hath > have | 3 doth > do | 3 does > do | 5 will > do | 4 shall > do
             | 3 was > be | 5 {verb}s > object | 4 {verb}eth > object | 2 {adverb} > third
plural       : 10 are > be | 8 have > have | 3 do > do | 5 will > do | 4 shall > do | 3 were > be
             | 9 {verb} > object | 2 {adverb} > plural
Third        : 5 Is > be | 4 Hath > have | 2 Doth > do
Plural       : 5 Are > be | 4 Have > have | 2 Shall > do

be           : 9 {adjective} ~ pause | 5 no > noun | 5 the > noun | 2 never > be
             | 2 more {adjective} than > object
have         : 9 {verb}ed > object | 3 no > noun | 1 never > have
do           : 9 {verb} > object | 1 never > do
object       : 9 the > noun | 6 my > noun | 4 this > noun | 3 thy > noun | 4 his > noun
             | 3 her > noun | 3 their > noun | 2 me ~ stop | 2 him ~ stop | 2 them ~ stop
             | 4 {plain}s and > last
noun         : 3 {adjective} > noun | 10 {noun} ~ pause
tail         : 6 of the > last | 4 in the > last | 3 with no > last | 3 beside the > last
             | 2 at my > last | 2 o'er the > last | 2 upon thy > last | 1 and > clause
             | 1 when > clause
last         : 3 {adjective} > last | 10 {noun} ~ stop
aside        : 3 $friend ~ stop | 3 good {name} ~ stop | 1 and so > clause

ask          : $thou art thou > ask be | $thou hast thou > ask have | $thou wilt thou > ask do
             | $you are you > ask be | $you have you > ask have | $you will you > ask do
             | 3 is he > ask be | 3 is she > ask be | 3 are they > ask be | 3 am I > ask be
             | 3 hath he > ask have | 3 hath she > ask have | 3 have we > ask have
             | 3 doth he > ask do | 3 doth she > ask do | 3 will they > ask do | 3 shall I > ask do
ask be       : 6 {adjective} ~ asked | 3 so > ask be
ask have     : 1 {verb}ed the > ask noun | 1 {verb}ed my > ask noun
ask do       : 1 {verb} the > ask noun | 1 {verb} my > ask noun
ask noun     : 3 {adjective} > ask noun | 10 {noun} ~ asked
ask tail     : 2 in the > ask last | 2 of the > ask last | 1 for the > ask last
ask last     : 1 {plain}?/ > sentence

stop         : 5 ,/ > line | 4 ./ > sentence | 2 ;/ > line | 1 !/ > sentence | 2 / > line
             | 1 :/ > line
pause        : 5 *stop | 3 > tail | 1 , > aside
asked        : 4 ?/ > sentence | 3 > ask tail
"""

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


# ---- the grammar, written out

# A notation for the rules of a finite-state source, short enough to read. An entry is a slot and,
# between bars, its alternatives: a weight, a string, `>` and the next slot. A blank follows the
# string, or a line break for `/`. `{noun}` stands for any word of a class. `~ ending` puts each
# alternative of that slot behind the string. `*start` takes over a slot's alternatives; `*Start`
# also gives them a capital. `@` begins the full name of a slot elsewhere.

_UNIT = 1 << 40
"""What weights are shares of."""
_ALTERNATIVE = re.compile(r"(\d+) (?:\*(?P<lender>.+)|(?P<text>.*?) ?(?P<sign>[>~]) (?P<slot>.+))")

Words = Mapping[str, Sequence[str]]
"""Class → its words, the frequent ones first."""


def expand(grammar: str, words: Words, name: str) -> dict[str, list[Rule]]:
    """Write a grammar out, word by word, into slots that are called `name` and a blank and theirs.

    Weights are integers. Words of a class follow the law of Zipf and Mandelbrot: the r-th is
    drawn as often as 1 / (r + 7). Raises ValueError for an alternative that cannot be read.
    """
    slots = {}
    for entry in re.split(r"\n+(?! )", grammar.strip()):
        slot, alternatives = entry.split(":", 1)
        slots[slot.strip()] = re.split(r"\s+\|\s+", alternatives.strip())
    return {
        f"{name} {slot}": [
            (weight, string, following[1:] if following[0] == "@" else f"{name} {following}")
            for weight, string, following in _strings(slot, slots, words)
        ]
        for slot in slots
    }


def _strings(slot: str, slots: Mapping[str, list[str]], words: Words) -> list[Rule]:
    """Write out one slot; its weights sum to `_UNIT`, rounded down."""
    matches = [_ALTERNATIVE.fullmatch(alternative) for alternative in slots[slot]]
    total = sum(int(match[1]) for match in matches if match)
    rules: list[Rule] = []
    for match, alternative in zip(matches, slots[slot], strict=True):
        if not match:
            raise ValueError(f"slot {slot!r}: cannot read {alternative!r}")
        lender, text, following = match["lender"], match["text"], match["slot"]
        if lender:
            found = _strings(lender.lower(), slots, words)
            if lender[0].isupper():
                found = [(w, re.sub("[a-z]", _upper, s, count=1), n) for w, s, n in found]
        elif match["sign"] == "~":
            ends = _strings(following, slots, words)
            texts = _texts(text, words)
            found = [(v * w // _UNIT, s + end, n) for v, s in texts for w, end, n in ends]
        else:
            text = f"{text[:-1]}\n" if text.endswith("/") else f"{text} "
            found = [(w, s, following) for w, s in _texts(text, words)]
        share = _UNIT * int(match[1]) // total
        rules += [(share * weight // _UNIT, string, n) for weight, string, n in found]
    return rules


def _upper(match: re.Match[str]) -> str:
    return match[0].upper()


def _texts(text: str, words: Words) -> list[tuple[int, str]]:
    """Put each word of a text's class in its place."""
    match = re.search(r"{(\w+)}", text)
    if not match:
        return [(_UNIT, text)]
    shares = [_UNIT // (rank + 8) for rank in range(len(words[match[1]]))]
    found = zip(shares, words[match[1]], strict=True)
    return [(_UNIT * n // sum(shares), text.replace(match[0], word)) for n, word in found]


def rules() -> Rules:
    """Write out the grammar of both casts."""
    written: dict[str, list[Rule]] = {}
    for cast, differences in _DIFFERENCES.items():
        written |= expand(Template(_GRAMMAR).substitute(differences), _words(cast), cast)
    return written


def _words(cast: str) -> dict[str, list[str]]:
    """Words by class, the frequent ones first, in an order of the cast's own. Of the compound nouns
    each cast has half."""

    def shuffled(words: Iterable[str]) -> list[str]:
        return sorted(words, key=lambda word: hashlib.sha256(f"{cast} {word}".encode()).digest())

    heads, tails, verbs = _HEADS.split(), _TAILS.split(), _VERBS.split()
    plain = shuffled({*_NOUNS.split(), *heads, *tails})
    compounds = [head + tail for head in heads for tail in tails if head != tail]
    made = [head + tail for head in heads for tail in ("less", "born", "bound")]
    formed = [before + verb for before in ("over", "out", "un") for verb in verbs]
    speakers = {other: _SPEAKERS[other].split(", ") for other in _SPEAKERS}
    return {
        "plain": plain,
        "noun": plain + shuffled(compounds[cast == "town" :: 2]),
        "adjective": shuffled(_ADJECTIVES.split()) + shuffled(made),
        "verb": shuffled(verbs) + shuffled(formed),
        "adverb": shuffled(_ADVERBS.split()),
        "name": shuffled(name for names in speakers.values() for name in names),
        **{other: shuffled(names) for other, names in speakers.items()},
    }


def main() -> None:
    """Write the text, and print its hash and its losses."""
    text = generate(rules(), "court speech", LENGTH, _SEED)
    print("SHA-256", hashlib.sha256(text.encode()).hexdigest())
    source, heldout = Source(rules()), text[int(0.9 * LENGTH) :]
    print("endless", source.entropy_rate)
    for block_size in (1, 2, 3, 4, 6, 8, 12, 16, 24, *(2**n for n in range(5, 13))):
        print(block_size, float(source.nll(heldout, block_size).mean()))


if __name__ == "__main__":
    main()
