"""The registry of variants: what each is called, how it looks in every figure, and what it does.

A variant is a level of a study's first factor. One that is not registered, say `n_layer=8`, gets a
look computed from its name, so that it looks the same whatever stands beside it.
"""

import colorsys
import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Marker = str | tuple[int, Literal[1], int]
"""As matplotlib writes it: a letter, or a star's (points, 1, angle)."""


@dataclass(frozen=True)
class Variant:
    """How a variant is called and drawn."""

    label: str
    colour: str
    """As `#RRGGBB`."""
    dashes: tuple[float, ...]
    """Lengths on and off, in line widths; () is a solid line."""
    marker: Marker
    description: str
    """The input of block 1."""


# Okabe & Ito's colours, dark to light; dashes and markers tell them apart in grey.
VARIANTS = {
    "none": Variant("none", "#000000", (), "o", "E_tok + E_pos (baseline)"),
    "layernorm": Variant(
        "LayerNorm", "#0072B2", (5, 1.5), "s", "LayerNorm, eps 1e-5, gain and bias"
    ),
    "rmsnorm": Variant("RMSNorm", "#D55E00", (1.5, 1.5), "^", "RMSNorm, eps 1e-6, gain"),
    "center": Variant("center", "#009E73", (5, 1.5, 1, 1.5), "D", "mean subtracted, nothing else"),
    "scale": Variant(
        "scale", "#CC79A7", (3, 1, 1, 1, 1, 1), "v",
        "multiplied by a constant that makes the initial RMS 1",
    ),
    "grad_shrink": Variant(
        "grad_shrink", "#E69F00", (8, 2), "P", "unchanged, with a tenth of the gradient"
    ),
    "rescued": Variant(
        "rescued", "#56B4E9", (1, 1), "X", "LayerNorm, and every branch as many times as strong"
    ),
}  # fmt: skip
"""Name → variant; the baseline first."""

_SPARE_MARKERS: list[Marker] = ["*", "h", "p", "<", ">", "d", (4, 1, 45), (6, 1, 0), (3, 1, 0)]


def variant(name: str) -> Variant:
    """Return a registered variant, or one computed from an unknown `name`, which never has the
    colour, dash pattern or marker of a registered one."""
    return VARIANTS.get(name) or _from_name(name)


def _from_name(name: str) -> Variant:
    colours = [[part / 255 for part in bytes.fromhex(v.colour[1:])] for v in VARIANTS.values()]
    for attempt in itertools.count():
        hash_bytes = hashlib.sha256(f"{attempt} {name}".encode()).digest()
        hue, lightness, on, gap, dots, mark = hash_bytes[:6]
        rgb = colorsys.hls_to_rgb(hue / 256, 0.25 + 0.25 * lightness / 256, 0.75)
        dashes = (2.0 + on % 6, 1 + gap % 3 / 2) + (1.0, 1.0) * (dots % 3)
        # Dark enough on white, and unlike any registered variant.
        grey = 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2]
        clear = grey < 0.5 and min(math.dist(rgb, other) for other in colours) > 0.2
        if clear and dashes not in [other.dashes for other in VARIANTS.values()]:
            break
    return Variant(name, _hex(rgb), dashes, _SPARE_MARKERS[mark % len(_SPARE_MARKERS)], "")


def ordered(names: Sequence[str]) -> dict[str, Variant]:
    """Give the levels of an ordered factor, the baseline and then the others in order, their looks:
    in shades of blue from light to dark, the baseline in black."""
    looks = {name: variant(name) for name in names}
    for i, name in enumerate(names):
        lightness = 0.62 - 0.4 * (i - 1) / max(1, len(names) - 2) if i else 0.0
        colour = _hex(colorsys.hls_to_rgb(0.57, lightness, 0.75))
        looks[name] = replace(looks[name], colour=colour, dashes=looks[name].dashes if i else ())
    return looks


def _hex(rgb: Iterable[float]) -> str:
    return "#" + "".join(f"{round(255 * part):02X}" for part in rgb)
