"""The synthetic text: a play without end, by a small probabilistic grammar written for it.

It needs no file and no network, and its entropy is known: `play().nll` is the loss, character by
character, that no model can beat (see `lib.data.markov`). It has structure at several ranges:
spelling; verbs that agree with their subjects, also across a relative clause or a line break;
questions, known by their first word and ended by their mark; and two casts, court and town, who
differ in the words they prefer and in `thou` and `you`.
"""

import hashlib
from collections.abc import Iterable
from functools import cache
from string import Template

from lib.data.grammar import expand
from lib.data.markov import Rule, Rules, Source, generate

LENGTH = 1_100_000
SHA256 = "bc3e66b4fb25b09f41c78ae498e032fc39865a15dfd3347e6fe1485652ab12a3"
"""Of the text. Another grammar, other words or another seed give another text."""
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


@cache
def play() -> Source:
    """The source that the synthetic text comes from."""
    return Source(_rules())


def synthetic_text() -> str:
    """Write the synthetic text, the same on every machine; ValueError if SHA256 names another."""
    text = generate(_rules(), "court speech", LENGTH, _SEED)
    found = hashlib.sha256(text.encode()).hexdigest()
    if found != SHA256:
        raise ValueError(f"synthetic: lib/data/synthetic.py writes another text: SHA256 = {found}")
    return text


@cache
def _rules() -> Rules:
    rules: dict[str, list[Rule]] = {}
    for cast, differences in _DIFFERENCES.items():
        rules |= expand(Template(_GRAMMAR).substitute(differences), _words(cast), cast)
    return rules


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
