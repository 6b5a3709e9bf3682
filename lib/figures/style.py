"""What all figures share: how a variant looks, the layout of a sheet, saving, showing.

Figures are as wide as a printed column or page, so that their text keeps its size in print. They
have no title: what a title would say stands in the caption, and above the figure in the notebook.
"""

import colorsys
import hashlib
import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Image as DisplayedImage
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from lib.study.io import atomic_write, write_bytes
from lib.study.schema import Level

STYLE: Any = {  # matplotlib types the keys of a style one by one
    "figure.dpi": 100,
    "savefig.dpi": 110,
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 2.6,  # two periods of the longest dash pattern
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
}

COLUMN_WIDTH, PAGE_WIDTH = 3.25, 6.75
"""Of the printed paper, in inches."""
_WRAPPED = {1: 1, 2: 2, 3: 3, 4: 2}  # panels → panels side by side; more: 3


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


def looks(table: pd.DataFrame) -> dict[str, Variant]:
    """Give the look of every variant of a table, in the order in which they are drawn: as they
    stand there, or, of the levels of an ordered factor, a categorical column, as that orders
    them."""
    names = table["variant"]
    if not isinstance(names.dtype, pd.CategoricalDtype):
        return {name: variant(name) for name in names.unique()}
    ordered_looks, present = ordered(list(names.cat.categories)), set(names)
    return {name: look for name, look in ordered_looks.items() if name in present}


def variants(table: pd.DataFrame) -> Iterator[tuple[Variant, pd.DataFrame]]:
    """Give the look of every variant of a table, in order, with its rows."""
    for name, look in looks(table).items():
        yield look, table[table["variant"] == name]


def line(look: Variant) -> dict[str, Any]:
    """Write a variant's line as matplotlib's keywords."""
    dashes: Any = (0, look.dashes) if look.dashes else "-"
    return {"color": look.colour, "linestyle": dashes, "linewidth": 1.3, "label": look.label}


def offsets(table: pd.DataFrame, width: float) -> Any:
    """Offsets of a table's variants, spread over `width`, so that their marks do not overlap."""
    n = table["variant"].nunique()
    return width * (np.arange(n) - (n - 1) / 2) / max(n - 1, 1)


@contextmanager
def facets(
    name: str,
    folder: Path,
    rows: Sequence[str],
    columns: Sequence[str],
    height: float | Sequence[float] = 1.6,
) -> Iterator[dict[tuple[str, str], Axes]]:
    """Give an `ax` per (row, column) to draw on; then save the figure and show it.

    Columns are settings. The rows of a single column stand side by side. `height` is that of a row,
    or of each, in inches.
    """
    with plt.rc_context(STYLE):
        side_by_side = len(columns) if len(columns) > 1 else _WRAPPED.get(len(rows), 3)
        panels = [(row, column) for row in rows for column in columns]
        lines = -(-len(panels) // side_by_side)
        width = COLUMN_WIDTH if len(panels) == 1 else PAGE_WIDTH
        row_heights = [height] * len(rows) if isinstance(height, float | int) else height
        tall = [of_row for of_row in row_heights for _ in columns]
        heights = [max(tall[i : i + side_by_side]) for i in range(0, len(tall), side_by_side)]
        figure, axes = plt.subplots(
            lines, side_by_side, figsize=(width, sum(heights) + 0.4), squeeze=False,
            height_ratios=heights,
        )  # fmt: skip
        for unused in axes.flat[len(panels) :]:
            figure.delaxes(unused)
        yield dict(zip(panels, axes.flat, strict=False))
        if len(columns) > 1:
            _align(axes, columns)
        for i, ax in enumerate(figure.axes):
            ax.set_ylabel(_wrap(ax.get_ylabel(), int(14 * heights[i // side_by_side])))
            ax.set_xlabel(_wrap(ax.get_xlabel(), int(10 * width / side_by_side)))
        _common_legend(figure)
        save(figure, folder, name)
        show(figure)


def spread(items: Sequence[str], at_most: int) -> list[str]:
    """Take at most `at_most` items, evenly spaced, with the first and the last."""
    if len(items) <= at_most:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, at_most).round().astype(int)]


def in_lines(setting: str, between: str = " = ") -> str:
    """Write a setting with a line per factor."""
    return setting.replace("_", " ").replace(",", "\n").replace("=", between)


def level_text(level: Level) -> str:
    """Write a level as short as it goes: 0.0003 as 3e-4. Pandas writes a level of None as NaN."""
    level = None if pd.isna(level) else level
    if isinstance(level, bool) or not isinstance(level, int | float):
        return str(level).lower()
    mantissa, _, exponent = f"{level:.2e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}" if 0 < level < 0.01 else f"{level:g}"


def widen(ax: Axes, differences: pd.Series) -> None:
    """Give differences of many magnitudes an axis that is linear only around zero."""
    sizes = differences.abs()
    sizes = sizes[sizes > 0]
    if sizes.max() > 12 * sizes.median():
        ax.set_yscale("symlog", linthresh=sizes.median())


def _wrap(text: str, width: int) -> str:
    return "\n".join(
        textwrap.fill(line, width, break_on_hyphens=False) for line in text.splitlines()
    )


def _align(axes: Any, settings: Sequence[str]) -> None:
    """Name each column by its setting, and make the panels of a row of one scale comparable: one
    range, unless that would flatten a panel to less than a sixth of its height. An axis that is
    linear only around zero (`widen`) is its panel's own."""
    between = " = " if len(settings) <= 4 else "\n= "
    for ax, setting in zip(axes[0], settings, strict=True):
        ax.set_title(in_lines(setting, between))
    for row in axes:
        row[0].set_ylabel(max((ax.get_ylabel() for ax in row), key=len))
        for ax in row[1:]:
            ax.set_ylabel("")
        scales = {ax.get_yscale() for ax in row}
        if len(scales) > 1 or "symlog" in scales:
            continue
        logarithmic = scales == {"log"}
        limits = np.array([ax.get_ylim() for ax in row])
        spans = np.ptp(np.log(limits) if logarithmic else limits, axis=1)
        common = limits[:, 0].min(), limits[:, 1].max()
        if abs(np.ptp(np.log(common) if logarithmic else common)) <= 6 * spans.min():
            for ax in row:
                ax.set_ylim(*common)
                ax.tick_params(labelleft=ax is row[0])
    for upper, lower in zip(axes[:-1].flat, axes[1:].flat, strict=True):
        if upper.get_xlabel() == lower.get_xlabel():
            upper.set_xlabel("")


def _common_legend(figure: Figure) -> None:
    """Put one legend below all panels, in place of theirs."""
    entries: dict[str, dict[type, Any]] = {}
    for ax in figure.axes:
        if legend := ax.get_legend():
            legend.remove()
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, {}).setdefault(type(handle), handle)
    if entries:  # a line and a mark of one label stand over each other
        handles: Any = [tuple(kinds.values()) for kinds in entries.values()]
        longest = 0.5 + 0.06 * max(len(label) for label in entries)  # inches
        lines = math.ceil(len(entries) / max(1, int(figure.get_figwidth() / longest)))
        side_by_side = math.ceil(len(entries) / lines)
        figure.legend(handles, list(entries), loc="outside lower center", ncols=side_by_side)


def show(figure: Figure, *, colours: int = 64) -> None:
    """Show a figure in a notebook as a small PNG: a record of many notebooks stays small."""
    png = small_png(figure, "figure", colours)
    display(DisplayedImage(png, width=int(figure.bbox.width)))
    plt.close(figure)  # or the notebook would show it again


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PDF and PNG, the same bytes for the same data; return both paths."""
    pdf, png = folder / f"{name}.pdf", folder / f"{name}.png"
    with atomic_write(pdf) as temporary:
        figure.savefig(temporary, metadata={"CreationDate": None})
    write_bytes(png, small_png(figure, plt.rcParams["savefig.dpi"]))
    return [pdf, png]


def small_png(figure: Figure, dpi: float | str, colours: int = 64) -> bytes:
    """Draw a PNG of few colours: 64 are enough for lines to keep theirs, at a quarter of the usual
    size, and 8 for one line and its text, at an eighth of it."""
    full, small = BytesIO(), BytesIO()
    figure.savefig(full, format="png", dpi=dpi)
    image = Image.open(full).convert("RGB").quantize(colours, Image.Quantize.FASTOCTREE)
    image.save(small, "png", optimize=True)
    return small.getvalue()
