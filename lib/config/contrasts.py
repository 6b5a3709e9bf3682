"""Names of levels and arms, and the effects in a grid of arms. Each effect has weights of arms: the
weighted sum of a measure over the arms is the effect.

Levels are compared as values. Their names are for people and plans. Only `setting_weights` reads
names, because a plan refers to levels by name.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lib.config.schema import CODE, Level

Levels = Mapping[str, Level]
"""Dotted field → level."""
Cell = frozenset[tuple[str, Level]]
"""Levels as a set: the key of a cell of the grid."""
Weights = dict[str, float]
"""Arm → its weight in a difference."""
LABELS = {
    "none": "no layer",
    "layernorm": "LayerNorm",
    "rmsnorm": "RMSNorm",
    "scale": "multiplier",
    "warmup_cosine": "warm-up + cosine",
    "warmup_stable_decay": "warm-up + late decay",
    "adamw": "AdamW",
    "muon": "Muon",
}
"""Level → its label in figures and sentences. Other levels are called by their names."""
_EQUALISING = {"training.iterations", "training.warmup_iterations"}
"""Fields that an arm of the grid may also set, to see as many tokens as the other arms."""


def level_name(factor: str, value: Level, paths: Mapping[str, str] = {}) -> str:
    """Write a level with its field, e.g. `embedding_norm=layernorm`."""
    text = f"{value:.12g}" if isinstance(value, float) else str(value).lower()
    if factor == CODE:
        text = str(value).replace("/", "-")  # a branch may be a/b
    if factor in ("corpus.source", "corpus.tokenizer"):
        text = paths.get(str(value), Path(text).name)
    return f"{factor.rpartition('.')[2]}={text}"


def arm_id(levels: Levels, paths: Mapping[str, str] = {}) -> str:
    """Write levels as a readable, path-safe name, e.g. `layernorm,embedding_std=0.02`. `paths` maps
    levels that are paths to their short names: see `short_names`."""
    parts = []
    for factor, value in levels.items():
        name = level_name(factor, value, paths)
        says_itself = isinstance(value, str) and factor != "corpus.source"
        parts.append(name.partition("=")[2] if says_itself else name)
    return ",".join(parts) or "baseline"


def spoken(name: str) -> str:
    """Write the name of an arm, an effect or a difference with the labels of its levels:
    `LayerNorm − no layer` for `embedding_norm=layernorm - embedding_norm=none`."""
    # This must not match in `gradient_clip=none`.
    level = r"(?<![\w=])(?:(?:embedding_norm|schedule|optimizer)=)?([a-z_]+)(?![\w=])"
    words = re.sub(level, lambda found: LABELS.get(found[1], found[0]), short_commits(name))
    return words.replace(" - ", " − ").replace(",", ", ")


def short_commits(text: str) -> str:
    """Cut each commit in a text, a hash of 40 digits, to its first 12."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", text)


def short_names(*levels: Level) -> dict[str, str]:
    """Map each level that is a path to a short name: as many of its last parts as it takes to be
    unique. If there is also `data/b/input.txt`, `data/a/input.txt` becomes `a-input.txt`."""
    paths = {Path(level).parts: level for level in levels if isinstance(level, str)}
    names = {}
    for parts, level in paths.items():
        others = [other for other in paths if other != parts]
        n = next(n for n in range(1, len(parts) + 2) if parts[-n:] not in {o[-n:] for o in others})
        names[level] = "-".join(part.strip("/") or "root" for part in parts[-n:])
    return names


class Grid:
    """The arms of a study that differ in nothing but the levels of its factors."""

    def __init__(self, arms: Mapping[str, Levels]) -> None:
        """Make the grid from the levels of every arm. An arm that also sets other fields is not in
        the grid, unless these fields only equalise the number of tokens."""
        every = list(arms.values())
        factors = [of for of in every[0] if all(of in levels for levels in every)] if every else []
        of_grid = [arm for arm in arms if arms[arm].keys() - {*factors} <= _EQUALISING]
        self.cells = [{factor: arms[arm][factor] for factor in factors} for arm in of_grid]
        self.levels = {of: list(dict.fromkeys(cell[of] for cell in self.cells)) for of in factors}
        self._paths = short_names(*(level for levels in every for level in levels.values()))
        self._arm_of = dict(zip((frozenset(x.items()) for x in self.cells), of_grid, strict=True))

    def level_names(self) -> dict[str, tuple[str, Level]]:
        """Map every level's name, such as `tied=false`, to its factor and the level."""
        every = [(factor, level) for factor, levels in self.levels.items() for level in levels]
        return {self.write(dict([level])): level for level in every}

    def write(self, levels: Levels) -> str:
        """Write levels as a plan names them: `tied=false,activation=gelu`."""
        return ",".join(level_name(*level, self._paths) for level in levels.items())

    def pairs(self, one: Cell, other: Cell) -> dict[Cell, tuple[str, str]]:
        """Pair each arm that has the levels `one` with the arm that has the levels `other` instead,
        and is equal in all else. Keys are the levels that both arms share."""
        return {
            rest: (arm, self._arm_of[rest | other])
            for cell, arm in self._arm_of.items()
            if one <= cell and (rest := cell - one) | other in self._arm_of
        }

    def settings(self, *factors: str) -> list[dict[str, Level]]:
        """List the combinations of levels of all other factors."""
        rests = [{of: cell[of] for of in cell if of not in factors} for cell in self.cells]
        return list({frozenset(rest.items()): rest for rest in rests}.values())


class Effect(NamedTuple):
    """A difference that a grid shows."""

    name: str
    kind: str
    """main, interaction, or simple: a main effect or an interaction in one setting of the other
    factors."""
    pairs: list[tuple[str, str]]
    """Pairs of a level and the level that it is compared with, written as in a plan. An interaction
    is the difference of the first pair minus the difference of the second pair."""
    weights: Weights


def effects_of(arms: Mapping[str, Levels]) -> Iterator[Effect]:
    """Yield every effect in the grid of some arms (arm → levels). An effect needs arms that differ
    in nothing else. Yield nothing if fewer than two factors vary."""
    grid = Grid(arms)
    varied = {
        factor: [{factor: level} for level in levels]
        for factor, levels in grid.levels.items()
        if len(levels) > 1
    }
    if len(varied) < 2:
        return
    for factor, (first, *others) in varied.items():
        settings = grid.settings(factor)
        for level in others:
            name = f"{grid.write(level)} - {grid.write(first)}"
            yield from _effects(grid, name, "main", [(level, first)], settings)
    for factor, factor_2 in itertools.combinations(varied, 2):
        (first, *others), (second, *more) = varied[factor], varied[factor_2]
        settings = grid.settings(factor, factor_2)
        for one, other in itertools.product(others, more):
            name = f"{grid.write(one)} × {grid.write(other)}"
            pairs = [(one | of, first | of) for of in (other, second)]
            yield from _effects(grid, name, "interaction", pairs, settings)


def _effects(
    grid: Grid,
    name: str,
    kind: str,
    pairs: Sequence[tuple[dict[str, Level], dict[str, Level]]],
    settings: Sequence[dict[str, Level]],
) -> Iterator[Effect]:
    """Yield an effect averaged over the settings of the other factors. If there are several
    settings, also yield the effect in each of them."""
    each = [(name, kind, dict[str, Level]())]
    if len(settings) > 1:
        each += [(f"{name} at {grid.write(setting)}", "simple", setting) for setting in settings]
    for effect, of, setting in each:
        sides = [(one | setting, other | setting) for one, other in pairs]
        found = [grid.pairs(*(frozenset(side.items()) for side in pair)) for pair in sides]
        if weights := _mean(_by_setting(found).values()):
            named = [(grid.write(one), grid.write(other)) for one, other in sides]
            yield Effect(effect, of, named, weights)


def arms_called(name: str, variants: Mapping[str, str]) -> list[str]:
    """List the arms that a name refers to: one arm, or all arms of a variant. `variants` maps arms
    to their variants."""
    return [name] if name in variants else [arm for arm, of in variants.items() if of == name]


def arm_weights(
    pairs: Sequence[Sequence[str]],
    variants: Mapping[str, str],
    arms: Mapping[str, Levels],
    share: float = 1.0,
) -> Weights:
    """Return weights of arms, so that the weighted sum of the arms is the difference of a pair. A
    pair names two arms, variants or levels, as plans do (`tied=false,activation=gelu`). With two
    pairs, the weighted sum is the first difference minus a share of the second.

    Levels mean all arms that have them. Each arm is paired with the arm that is equal in all else,
    and a setting is left out if one side lacks it. `variants` maps arms to their variants, `arms`
    maps them to their levels. Return {} if a pair names no arms, or a variant with several arms.
    """
    return _mean(setting_weights(pairs, variants, arms, share).values())


def setting_weights(
    pairs: Sequence[Sequence[str]],
    variants: Mapping[str, str],
    arms: Mapping[str, Levels],
    share: float = 1.0,
) -> dict[str, Weights]:
    """Return the weights of `arm_weights` for each setting separately: name of the setting
    (`tied=false`) → weights. `arm_weights` returns their mean over settings."""
    grid = Grid(arms)
    named = grid.level_names()
    found = []
    for pair in pairs:
        one, other = (arms_called(name, variants) for name in pair)
        if len(one) == len(other) == 1:
            found.append({Cell(): (one[0], other[0])})
        elif all(level in named for name in pair for level in name.split(",")):
            sides = (frozenset(named[level] for level in name.split(",")) for name in pair)
            found.append(grid.pairs(*sides))
        else:
            found.append({})
    return {
        grid.write({of: level for of in grid.levels for name, level in cell if name == of}): weights
        for cell, weights in _by_setting(found, share).items()
    }


def _by_setting(
    found: Sequence[Mapping[Cell, tuple[str, str]]], share: float = 1.0
) -> dict[Cell, Weights]:
    """Return the weights for each setting that all pairs have. They give the difference of the
    first pair minus a share of the difference of the second."""
    first, *rest = found
    settings = {}
    for setting in first:
        if all(setting in pair for pair in rest):
            weights: Weights = defaultdict(float)
            for sign, pair in zip((1.0, -share), found, strict=False):
                arm, other = pair[setting]
                weights[arm] += sign
                weights[other] -= sign
            settings[setting] = weights
    return settings


def _mean(settings: Collection[Weights]) -> Weights:
    """Average weights over settings, and drop arms that cancel."""
    weights: Weights = defaultdict(float)
    for of_setting in settings:
        for arm, weight in of_setting.items():
            weights[arm] += weight / len(settings)
    return {arm: weight for arm, weight in weights.items() if weight}
