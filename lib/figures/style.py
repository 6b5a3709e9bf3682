"""What all figures share: how a variant looks, the layout of a sheet, saving, showing.

A variant is a level of a study's first factor. Figures are as wide as a printed column or page, so
that their text keeps its size in print. They have no title: the caption says what a title would.
"""

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Image as DisplayedImage
from IPython.display import display
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation
from PIL import Image

from lib.config.files import atomic_write, write_bytes

plt.rcdefaults()  # whatever a user's matplotlibrc says


@dataclass(frozen=True)
class Variant:
    """How a variant is called and drawn."""

    label: str
    colour: str
    """As `#RRGGBB`."""
    dashes: tuple[float, ...]
    """Lengths on and off, in line widths; () is a solid line."""
    marker: str
    """As matplotlib writes it."""


# Okabe & Ito's colours, dark to light; dashes and markers tell them apart in grey.
VARIANTS = {
    "none": Variant("none", "#000000", (), "o"),
    "layernorm": Variant("LayerNorm", "#0072B2", (5, 1.5), "s"),
    "rmsnorm": Variant("RMSNorm", "#D55E00", (1.5, 1.5), "^"),
    "center": Variant("center", "#009E73", (5, 1.5, 1, 1.5), "D"),
    "scale": Variant("scale", "#CC79A7", (3, 1, 1, 1, 1, 1), "v"),
    "grad_shrink": Variant("grad_shrink", "#E69F00", (8, 2), "P"),
    "rescued": Variant("rescued", "#56B4E9", (1, 1), "X"),
}
"""Name → look; the baseline first."""

# Of levels without a look of their own, in turn: of 42 no two share both colour and dashes.
_COLOURS = ("#882255", "#117733", "#332288", "#AA4499", "#999933", "#44AA99")
_MARKERS = ("*", "h", "p", "<", ">", "d")
_DASHES = (
    (4, 1, 1, 1),
    (2, 1),
    (6, 1.5, 1, 1.5, 1, 1.5),
    (3, 3),
    (8, 1.5, 2, 1.5),
    (1, 2),
    (4, 1, 4, 1, 1, 1),
)


def variant(name: str) -> Variant:
    """Return the look of a registered variant; any other is labelled by its name and drawn as a
    baseline is."""
    return VARIANTS.get(name) or replace(VARIANTS["none"], label=name)


def looks(names: Iterable[str], *, ordered: bool = False) -> dict[str, Variant]:
    """Return the looks of a study's variants: its baseline, the first, is black and solid, and no
    other is. Levels that are `ordered` are one hue from light to dark."""
    names = list(names)
    spare = map(Variant, repeat(""), cycle(_COLOURS), cycle(_DASHES), cycle(_MARKERS))
    shades = colormaps["Blues"](np.linspace(0.35, 1, len(names)))
    found = {}
    for shade, name in zip(shades, names, strict=True):
        known = variant(name)
        look = known if known.dashes and not ordered else next(spare)
        colour = to_hex(shade) if ordered else look.colour
        if name == names[0]:
            look = VARIANTS["none"]
            colour = look.colour
        found[name] = replace(look, label=known.label, colour=colour)
    return found


def table_looks(table: pd.DataFrame) -> dict[str, Variant]:
    """Return the look of every variant in a table, in the order in which they are drawn: as a
    categorical column, which names all of the study, orders them. Of any other, as of a single run,
    each has the look that is registered."""
    present = table["variant"].unique()
    dtype = table["variant"].dtype
    if not isinstance(dtype, pd.CategoricalDtype):
        return {name: variant(name) for name in present}
    every = looks(dtype.categories, ordered=bool(dtype.ordered))
    return {name: look for name, look in every.items() if name in present}


def in_order(table: pd.DataFrame, levels: Any) -> pd.DataFrame:
    """Order the variants of a table as `levels`, from variant to level of the first factor: the
    baseline, which is first, then the others; numbers from the lowest to the highest."""
    baseline, *others = levels
    ordered = all(type(levels[name]) in (int, float) for name in others)
    if ordered:
        others.sort(key=levels.get)
    return table.astype({"variant": pd.CategoricalDtype([baseline, *others], ordered=ordered)})


def variants(table: pd.DataFrame) -> Iterator[tuple[Variant, pd.DataFrame]]:
    """Yield the look of every variant of a table, in order, with its rows."""
    for name, look in table_looks(table).items():
        yield look, table[table["variant"] == name]


def line(look: Variant) -> dict[str, Any]:
    """Write a variant's line as matplotlib's keywords."""
    dashes: Any = (0, look.dashes) if look.dashes else "-"
    return {"color": look.colour, "linestyle": dashes, "linewidth": 1.3, "label": look.label}


STYLE: Any = {  # matplotlib types the keys of a style one by one
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.handlelength": 2.6,  # two periods of the longest dash pattern
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
}


@contextmanager
def facets(
    name: str, folder: Path, rows: Sequence[str], columns: Sequence[str], height: float = 1.6
) -> Iterator[dict[tuple[str, str], Axes]]:
    """Yield an `ax` per (row, column) to draw on; then save the figure and show it.

    Columns are settings, and panels of a row have one range. The rows of a single column stand
    side by side, two or three in a line. `height` is that of a line of panels in inches.
    """
    with plt.rc_context(STYLE):
        panels = [(row, column) for row in rows for column in columns]
        is_grid = len(columns) > 1
        side_by_side = 2 if len(panels) == 4 else min(3, len(panels))
        if is_grid:
            side_by_side = len(columns)
        lines = math.ceil(len(panels) / side_by_side)
        width = 3.25 if len(panels) == 1 else 6.75  # a column and a page of the printed paper
        figure, axes = plt.subplots(
            lines,
            side_by_side,
            figsize=(width, lines * height + 0.4),
            sharey="row" if is_grid else "none",
            squeeze=False,
        )
        for unused in axes.flat[len(panels) :]:
            figure.delaxes(unused)
        yield dict(zip(panels, axes.flat, strict=False))
        for ax in figure.axes:
            ax.set_ylabel(textwrap.fill(ax.get_ylabel(), int(10 * height), break_on_hyphens=False))
        for ax, setting in zip(axes[0], columns, strict=False):
            factors = setting.replace("_", " ").replace("=", " = ").split(",")
            fit = int(14 * width / side_by_side)  # letters that a line holds
            ax.set_title("\n".join(textwrap.fill(factor, fit) for factor in factors))
        if is_grid:
            for ax in axes[:, 1:].flat:
                ax.set_ylabel("")
        entries: dict[str, Any] = {}
        for ax in figure.axes:
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                entries.setdefault(label, handle)
        if entries:
            longest = 0.5 + 0.06 * max(map(len, entries))  # inches
            n = max(1, int(width / longest))
            figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=n)
        save(figure, folder, name)


def aside(table: pd.DataFrame, width: float) -> Iterator[tuple[Variant, float, pd.DataFrame]]:
    """Yield the look of every variant of a table, how far its marks stand aside, and its rows:
    marks are spread over `width`, so that they do not overlap."""
    n = table["variant"].nunique()
    for i, (look, part) in enumerate(variants(table)):
        yield look, width * (i - (n - 1) / 2) / max(n - 1, 1), part


class _Plain(LogFormatterSciNotation):
    """Writes ticks of a logarithmic axis as plain numbers: 1, 2, 4, 10, where there is room."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        shown = f"{x:.0e}"[0] in "124" and super().__call__(x, pos)
        return f"{x:g}" if shown else ""


def spread(ax: Axes, values: pd.Series) -> None:
    """Show all of what spans more than a factor of ten: on a logarithmic axis."""
    if (values > 0).all() and values.max() > 10 * values.min():
        ax.set_yscale("log")
        ax.yaxis.set(major_formatter=_Plain(), minor_formatter=_Plain())


def ticks(ax: Axes, names: Sequence[str]) -> None:
    """Write names at the places 0, 1, … of the x axis; aslant if they would run into each other."""
    ax.set_xticks(range(len(names)), names)
    longest = 7 * max(map(len, names), default=0)  # pixels
    if longest * len(names) >= ax.bbox.width:
        plt.setp(ax.get_xticklabels(), rotation=40, ha="right", rotation_mode="anchor")


def show(figure: Figure, colours: int = 64) -> bytes:
    """Show a figure in a notebook as a small PNG, which is returned."""
    png = small_png(figure, colours)
    display(DisplayedImage(png, width=int(figure.bbox.width)))
    plt.close(figure)  # or the notebook would show it again
    return png


def save(figure: Figure, folder: Path, name: str) -> None:
    """Show a figure, and write it as that PNG and as PDF: the same bytes for the same data."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf  # fonts, which no run needs

    write_bytes(folder / f"{name}.png", show(figure))
    figure.set_layout_engine("none")  # it is laid out now
    with atomic_write(folder / f"{name}.pdf") as temporary:
        # `Figure.savefig` would draw it once more to lay it out.
        FigureCanvasPdf(figure).print_pdf(temporary, metadata={"CreationDate": None})


def small_png(figure: Figure, colours: int = 64) -> bytes:
    """Draw a PNG of few colours: 64 are enough for lines to keep theirs, at a quarter of the usual
    size, and 8 for one line and its text, at an eighth of it."""
    canvas, small = FigureCanvasAgg(figure), BytesIO()
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    palette = image.quantize(colours, Image.Quantize.FASTOCTREE)
    palette.save(small, "png", optimize=True)
    return small.getvalue()
