"""Which arms differ in what: names of levels and arms, the effects of a grid, and weights of arms,
whose weighted sum is a difference."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from lib.config.schema import (
    CODE,
    Level,
)

_EQUALISING = {"training.iterations", "training.warmup_iterations"}
"""What an arm of a grid may set beside its levels, so that it sees as many tokens as the others."""


def arm_id(levels: dict[str, Level], paths: Mapping[str, str] = {}) -> str:
    """Write levels as a readable, path-safe name, e.g. `layernorm,embedding_std=0.02`; of those
    that are paths what `told_apart` says."""
    parts = []
    for factor, value in levels.items():
        name = level_name(factor, value, paths)
        says_itself = isinstance(value, str) and factor != "corpus.source"
        parts.append(name.partition("=")[2] if says_itself else name)
    return ",".join(parts) or "baseline"


def levels_of(arms: Mapping[str, Mapping[str, Level]]) -> dict[str, str]:
    """Write the levels of all factors of every arm of a grid, each with its field:
    `embedding_norm=none,tied=false`; "" of an arm that sets further fields than its steps."""
    factors = set.intersection(*map(set, arms.values())) if arms else set()
    paths = told_apart(*(level for levels in arms.values() for level in levels.values()))
    cells = {}
    for arm, levels in arms.items():
        names = [level_name(f, level, paths) for f, level in levels.items() if f in factors]
        cells[arm] = ",".join(names) if levels.keys() - factors <= _EQUALISING else ""
    return cells


def effects_of(cells: Iterable[str]) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Name every effect of a grid, from what `levels_of` writes of its arms: its name, its kind
    (main, interaction, or simple: either of them at one setting of the other factors), and the
    pairs of levels that it is the difference of (see `arm_weights`). None where
    fewer than two factors have levels to compare."""
    grid = [tuple(cell.split(",")) for cell in cells if cell]
    columns = [list(dict.fromkeys(column)) for column in zip(*grid, strict=True)]
    factors = {i: levels for i, levels in enumerate(columns) if len(levels) > 1}
    if len(factors) < 2:
        return
    for i, (first, *others) in factors.items():
        rest = [names[:i] + names[i + 1 :] for names in grid]
        settings = dict.fromkeys(map(",".join, rest))
        for level in others:
            effect = f"{level} - {first}"
            yield effect, "main", [(level, first)]
            for setting in settings:
                pair = f"{level},{setting}", f"{first},{setting}"
                yield f"{effect} at {setting}", "simple", [pair]
    for i, j in itertools.combinations(factors, 2):
        (first, *others), (second, *more) = factors[i], factors[j]
        beside = [[name for k, name in enumerate(names) if k not in (i, j)] for names in grid]
        settings = dict.fromkeys(map(",".join, beside))
        for one, other in itertools.product(others, more):
            apart = [(f"{one},{of}", f"{first},{of}") for of in (other, second)]
            yield f"{one} × {other}", "interaction", apart
            for setting in settings if len(settings) > 1 else ():  # of a third factor
                within = [(f"{level},{setting}", f"{base},{setting}") for level, base in apart]
                yield f"{one} × {other} at {setting}", "simple", within


def told_apart(*levels: Level) -> dict[str, str]:
    """Write each level that is a path by its last names, as few as no other level ends with:
    `data/a/input.txt` beside `data/b/input.txt` is `a-input.txt`."""
    paths = {Path(level).parts: level for level in levels if isinstance(level, str)}
    names = {}
    for parts, level in paths.items():
        others = [other for other in paths if other != parts]
        n = next(n for n in range(1, len(parts) + 2) if parts[-n:] not in {o[-n:] for o in others})
        names[level] = "-".join(part.strip("/") or "root" for part in parts[-n:])
    return names


def level_name(factor: str, value: Level, paths: Mapping[str, str] = {}) -> str:
    """Write a level with its field, e.g. `embedding_norm=layernorm`."""
    text = f"{value:.12g}" if isinstance(value, float) else str(value).lower()
    if factor == CODE:
        text = str(value).replace("/", "-")  # a branch may be a/b
    if factor in ("corpus.source", "corpus.tokenizer"):
        text = paths.get(str(value), Path(text).name)
    return f"{factor.rpartition('.')[2]}={text}"


def arms_called(name: str, arms: Mapping[str, str]) -> list[str]:
    """Name the arms (arm → its variant) that a name means: the one, or all of that variant."""
    return [name] if name in arms else [arm for arm, variant in arms.items() if variant == name]


def arm_weights(
    pairs: Sequence[Sequence[str]], variants: Mapping[str, str], levels: Mapping[str, str]
) -> dict[str, float]:
    """Weigh arms so that their weighted sum is a difference: of the two arms, variants or levels
    that a pair names (several levels stand as in `tied=false,activation=gelu`), and of the first
    pair minus the second. Arms of a level are paired with those that are equal else, where all
    sides have them. Both mappings are by arm. Empty where no arms are meant, or a variant is
    several."""
    weights: dict[str, float] = defaultdict(float)
    settings = setting_weights(pairs, variants, levels)
    for of_setting in settings:
        for arm, weight in of_setting.items():
            weights[arm] += weight / len(settings)
    return {arm: weight for arm, weight in weights.items() if weight}


def setting_weights(
    pairs: Sequence[Sequence[str]], variants: Mapping[str, str], levels: Mapping[str, str]
) -> list[dict[str, float]]:
    """Weigh arms as `arm_weights` does, in each setting by itself: a difference over settings is
    the mean of these."""
    by_cell = {frozenset(cell.split(",")): arm for arm, cell in levels.items()}
    found = [_pairs_called(one, other, variants, by_cell) for one, other in pairs]
    settings = []
    for setting in set.intersection(*map(set, found)):
        weights: dict[str, float] = defaultdict(float)
        for sign, of_setting in zip((1.0, -1.0), found, strict=False):
            arm, other = of_setting[setting]
            weights[arm] += sign
            weights[other] -= sign
        settings.append(weights)
    return settings


def _pairs_called(
    one: str, other: str, variants: Mapping[str, str], by_cell: Mapping[frozenset[str], str]
) -> dict[frozenset[str], tuple[str, str]]:
    """Pair the arms that two names mean, by the levels that both have beside those named."""
    arms, others = (arms_called(name, variants) for name in (one, other))
    if len(arms) == len(others) == 1:
        return {frozenset(): (arms[0], others[0])}
    asked = frozenset(one.split(","))
    instead = frozenset(other.split(","))
    found = {}
    for cell, arm in by_cell.items():
        rest = cell - asked
        if asked <= cell and rest | instead in by_cell:
            found[rest] = (arm, by_cell[rest | instead])
    return found
