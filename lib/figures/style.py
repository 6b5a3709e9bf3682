"""Everything that all figures share: the looks of variants, the layout of panels, saving, showing.

A variant is a level of a study's first factor. Figures are as wide as a printed column or page, so
their text keeps its size in print. They have no titles, because the caption is the title.
"""

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import cycle, repeat
from operator import itemgetter
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

from lib.config.contrasts import LABELS, short_commits, spoken
from lib.config.files import atomic_write, write_bytes

plt.rcdefaults()  # ignore the user's matplotlibrc


@dataclass(frozen=True)
class Variant:
    """A variant's label, and the colour, dashes and marker to draw it with."""

    label: str
    colour: str
    """As `#RRGGBB`."""
    dashes: tuple[float, ...]
    """Lengths of dashes and gaps, in line widths; () is a solid line."""
    marker: str
    """As in matplotlib."""


# Okabe & Ito's colours, from dark to light. In grey, dashes and markers tell variants apart.
VARIANTS = {
    "none": Variant(LABELS["none"], "#000000", (), "o"),
    "layernorm": Variant(LABELS["layernorm"], "#0072B2", (5, 1.5), "s"),
    "rmsnorm": Variant(LABELS["rmsnorm"], "#D55E00", (1.5, 1.5), "^"),
    "center": Variant("center", "#009E73", (5, 1.5, 1, 1.5), "D"),
    "scale": Variant(LABELS["scale"], "#CC79A7", (3, 1, 1, 1, 1, 1), "v"),
    "grad_shrink": Variant("grad_shrink", "#E69F00", (8, 2), "P"),
    "rescued": Variant("rescued", "#56B4E9", (1, 1), "X"),
}
"""Name → look, the baseline first."""
# Levels that are not in VARIANTS use these in turn. Among 42 levels, no two have the same colour
# and the same dashes.
_COLOURS = ("#882255", "#117733", "#332288", "#AA4499", "#999933", "#44AA99")
LONGEST = 24
"""A label with more letters than this is not written at the end of its line."""
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
    """Return a variant's look from `VARIANTS`. If it has none there, use the baseline's look with
    the variant's name as its label."""
    return VARIANTS.get(name) or replace(VARIANTS["none"], label=spoken(name))


def looks(names: Iterable[str], *, ordered: bool = False) -> dict[str, Variant]:
    """Return the looks of a study's variants. `names` begin with the baseline. Only the baseline is
    black and solid. If the levels are `ordered`, the others share a hue, from light to dark."""
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
    """Return the look of every variant in a table, in the order in which to draw them.

    If the column `variant` is categorical (see `in_order`), its categories are all variants of the
    study. They decide the order and the looks. Otherwise, as for a single run, use `VARIANTS`.
    """
    present = table["variant"].unique()
    dtype = table["variant"].dtype
    if not isinstance(dtype, pd.CategoricalDtype):
        return {name: variant(name) for name in present}
    every = looks(dtype.categories, ordered=bool(dtype.ordered))
    return {name: look for name, look in every.items() if name in present}


def in_order(table: pd.DataFrame, levels: Any) -> pd.DataFrame:
    """Make the column `variant` categorical, with the baseline first and numbers in ascending
    order. `levels` maps all variants of the study to their level of the first factor, the baseline
    first."""
    baseline, *others = levels
    ordered = all(type(levels[name]) in (int, float) for name in others)
    if ordered:
        others.sort(key=levels.get)
    return table.astype({"variant": pd.CategoricalDtype([baseline, *others], ordered=ordered)})


def variants(table: pd.DataFrame) -> Iterator[tuple[Variant, pd.DataFrame]]:
    """Yield the look and the rows of every variant in a table, in order."""
    for name, look in table_looks(table).items():
        yield look, table[table["variant"] == name]


def line(look: Variant) -> dict[str, Any]:
    """Return matplotlib's keywords for a variant's line."""
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
    "axes.formatter.useoffset": False,  # an offset would cover a label
    "axes.formatter.limits": (-5, 6),
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
}


@contextmanager
def facets(
    name: str,
    folder: Path,
    rows: Sequence[str],
    columns: Sequence[str],
    height: float = 1.6,
    *,
    stacked: bool = False,
) -> Iterator[dict[tuple[str, str], Axes]]:
    """Yield an `ax` to draw on for each (row, column). Then save the figure in `folder` and show
    it.

    Columns are settings. The panels of a row share their y axis. If there is only one column, the
    panels are laid out side by side instead, two or three in a line, unless they are `stacked`.
    `height` is the height of a line of panels, in inches. Labels are written at the ends of the
    plotted lines if there is room for them; else the figure has a legend.
    """
    with plt.rc_context(STYLE):
        panels = [(row, column) for row in rows for column in columns]
        is_grid = len(columns) > 1
        side_by_side = 2 if len(panels) == 4 else min(3, len(panels))
        if is_grid or stacked:
            side_by_side = len(columns)
        lines = math.ceil(len(panels) / side_by_side)
        # The width of a column, and of a page, of the printed paper.
        width = 3.25 if len(panels) == 1 and not stacked else 6.75
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
        across = int(
            16 * (width / side_by_side - 0.6)
        )  # letters that fit into a line below a panel
        for ax in figure.axes:
            ax.set_xlabel(textwrap.fill(ax.get_xlabel(), across))
            ax.set_ylabel(textwrap.fill(ax.get_ylabel(), int(10 * height), break_on_hyphens=False))
        for ax, setting in zip(axes[0], columns, strict=False):
            factors = short_commits(setting).replace("_", " ").replace("=", " = ").split(",")
            fit = int(14 * width / side_by_side)  # letters that fit into a line
            ax.set_title("\n".join(textwrap.fill(factor, fit) for factor in factors))
        if is_grid:
            for ax in axes[:, 1:].flat:
                ax.set_ylabel("")
        entries: dict[str, Any] = {}
        labelled = set[str]()
        for ax in figure.axes:
            if not is_grid or ax in axes[:, -1]:
                labelled |= label_ends(ax, height)
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                entries.setdefault(label, handle)
        if not entries.keys() <= labelled:
            longest = 0.5 + 0.06 * max(map(len, entries))  # inches
            n = max(1, int(width / longest))
            figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=n)
        save(figure, folder, name)


def label_ends(ax: Axes, height: float) -> set[str]:
    """Write labels at the right of the axes, at the height at which the lines end, but apart from
    each other. Return the labels; none if they do not fit into `height`, in inches, or if one is
    long.

    A line with a `gid` is labelled with it, and is in no legend."""
    ax.get_ylim()  # brings `transData` up to date
    ends = []
    for drawn in ax.lines:
        label = str(drawn.get_gid() or drawn.get_label())
        y = np.asarray(drawn.get_ydata(), dtype=float)
        if not label.startswith("_") and np.isfinite(y).any():
            at = ax.transData.transform((0, y[np.isfinite(y)][-1]))
            ends.append((ax.transAxes.inverted().transform(at)[1], label, drawn))
    gap = 0.11 / (height - 0.5)  # between lines of text, as a share of the axes' height
    if any(len(label) > LONGEST for _, label, _ in ends):
        ends = []
    ends.sort(key=itemgetter(0))
    n = len(ends)
    if gap * n > 1.2:
        return set()
    places = np.array([y for y, *_ in ends])
    for _ in range(100):  # push labels apart if they are too close
        short = np.maximum(0, gap - np.diff(places)) / 2
        places[:-1] -= short
        places[1:] += short
    for place, (_, label, drawn) in zip(places, ends, strict=True):
        ax.annotate(
            label,
            (1, place),
            (4, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=drawn.get_color(),
        )
    return {label for _, label, drawn in ends if not drawn.get_gid()}


def dodged(table: pd.DataFrame, width: float) -> Iterator[tuple[Variant, float, pd.DataFrame]]:
    """Yield for every variant in a table its look, the offset of its marks along x, and its rows.
    The offsets are spread over `width`, so that marks at the same x do not overlap."""
    n = table["variant"].nunique()
    for i, (look, part) in enumerate(variants(table)):
        yield look, width * (i - (n - 1) / 2) / max(n - 1, 1), part


class _PlainLogFormatter(LogFormatterSciNotation):
    """Write the ticks of a logarithmic axis as plain numbers, such as 1, 2, 4, 10."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        first_digit = f"{x:.0e}"[0]
        # matplotlib writes "" if there is no room for a label.
        is_shown = first_digit in "124" and super().__call__(x, pos)
        return f"{x:g}" if is_shown else ""


def log_if_wide(ax: Axes, values: pd.Series) -> None:
    """Make the y axis logarithmic if all values are positive and span more than a factor of ten."""
    if (values > 0).all() and values.max() > 10 * values.min():
        ax.set_yscale("log")
        ax.yaxis.set(major_formatter=_PlainLogFormatter(), minor_formatter=_PlainLogFormatter())


def name_ticks(ax: Axes, names: Sequence[str]) -> None:
    """Label the positions 0, 1, … of the x axis with names. Wrap names at their spaces, and rotate
    them if they would still overlap."""
    names = [short_commits(name) for name in names]
    room = int(ax.bbox.width / (7 * max(1, len(names))))  # letters
    fit = max(room, *(len(word) for name in names for word in name.split()))
    ax.set_xticks(range(len(names)), [textwrap.fill(name, fit) for name in names])
    if fit > room:
        plt.setp(ax.get_xticklabels(), rotation=40, ha="right", rotation_mode="anchor")


def show(figure: Figure, colours: int = 64) -> None:
    """Show a figure in a notebook as a small PNG, and close it."""
    display(DisplayedImage(small_png(figure, colours), width=int(figure.bbox.width)))
    plt.close(figure)  # otherwise the notebook would show it again


def save(figure: Figure, folder: Path, name: str) -> None:
    """Show a figure, and write it as PNG and as PDF. The same data give the same bytes."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf  # loads fonts, which 02 never needs

    show(figure)
    figure.set_layout_engine("none")  # drawing it for the notebook has laid it out
    figure.set_dpi(200)  # twice as fine as in the notebook, for pages such as the README
    write_bytes(folder / f"{name}.png", small_png(figure))
    with atomic_write(folder / f"{name}.pdf") as temporary:
        # `Figure.savefig` would draw the figure a second time.
        FigureCanvasPdf(figure).print_pdf(temporary, metadata={"CreationDate": None})


def small_png(figure: Figure, colours: int = 64) -> bytes:
    """Draw a figure as a PNG with a palette of `colours` colours. With 64, lines keep their
    colours, and the file has a quarter of its usual size. 8 are enough for one line and text; the
    file then has an eighth of its usual size."""
    canvas, small = FigureCanvasAgg(figure), BytesIO()
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    palette = image.quantize(colours, Image.Quantize.FASTOCTREE)
    palette.save(small, "png", optimize=True)
    return small.getvalue()
