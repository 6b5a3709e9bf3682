import ast
import itertools
import re
from typing import get_args

import pytest
from matplotlib.colors import to_rgb
from matplotlib.markers import MarkerStyle

from lib.figures.style import VARIANTS, Variant, variant
from lib.study.io import ROOT
from lib.study.schema import EmbeddingNorm

UNKNOWN = [f"{factor}={i}" for factor in ("n_layer", "x", "mlp_ratio") for i in range(1, 101)]


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2), 0 for black and 1 for white."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_normalization_of_the_schema_is_registered() -> None:
    assert set(get_args(EmbeddingNorm)) <= set(VARIANTS)


def test_the_readme_says_of_a_variant_what_the_registry_says() -> None:
    text = (ROOT / "lib" / "README.md").read_text("utf-8")
    table = text.partition("| variant | input of block 1 |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table.replace("`E_tok + E_pos`", "E_tok + E_pos"),
                      re.MULTILINE)  # fmt: skip
    assert rows
    assert rows == [(name, VARIANTS[name].description) for name, _ in rows]


def test_registered_variants_and_that_of_the_recipe_differ_in_all_that_is_seen() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (line,) = re.findall(r"^    \"half\": Variant\((.*)\),$", text, re.MULTILINE)
    looks = VARIANTS | {"half": Variant(*ast.literal_eval(f"({line})"))}
    for one, other in itertools.combinations(looks.values(), 2):
        assert one.colour != other.colour
        assert one.dashes != other.dashes
        assert one.marker != other.marker
        assert one.label != other.label


def test_an_unknown_variant_never_looks_like_a_registered_one() -> None:
    for name, known in itertools.product(UNKNOWN, VARIANTS.values()):
        look = variant(name)
        assert look.label == name
        assert look.dashes != known.dashes
        assert look.marker != known.marker
        apart = [abs(a - b) for a, b in zip(to_rgb(look.colour), to_rgb(known.colour), strict=True)]
        assert max(apart) > 0.1


def test_unknown_variants_differ_from_one_another_however_many_there_are() -> None:
    looks = {(look.colour, look.dashes, look.marker) for look in map(variant, UNKNOWN)}
    assert len(looks) == len(UNKNOWN)
    first, _, _, fourth = map(variant, ["n_layer=2", "n_layer=4", "n_layer=8", "n_layer=16"])
    assert first.colour != fourth.colour
    assert (first.dashes, first.marker) != (fourth.dashes, fourth.marker)


def test_an_unknown_variants_look_is_fixed_by_its_name_alone() -> None:
    forwards, backwards = map(variant, UNKNOWN), map(variant, reversed(UNKNOWN))
    assert list(forwards) == list(backwards)[::-1]


@pytest.mark.parametrize("name", [*VARIANTS, *UNKNOWN])
def test_every_look_shows_on_white_and_is_one_that_matplotlib_draws(name: str) -> None:
    look = variant(name)
    assert 1.05 / (luminance(look.colour) + 0.05) > 2  # contrast with white
    assert len(look.dashes) % 2 == 0
    assert MarkerStyle(look.marker).get_path().vertices.size
