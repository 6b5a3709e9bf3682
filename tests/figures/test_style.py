import ast
import itertools
import re
from io import BytesIO
from typing import get_args

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from lib.config.contrasts import spoken
from lib.config.paths import ROOT
from lib.config.schema import EmbeddingNorm
from lib.figures.style import STYLE, VARIANTS, Variant, facets, looks, save, table_looks

SETTINGS = ["embedding_std=0.02", "embedding_std=0.3", "embedding_std=1"]
UNKNOWN = ["plain", *(f"dropout={i}" for i in range(5))]


def test_every_normalization_of_the_schema_has_a_look_of_its_own():
    """That of the recipe in CONTRIBUTING, too."""
    assert set(get_args(EmbeddingNorm)) <= set(VARIANTS)
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (line,) = re.findall(r"^    \"half\": Variant\((.*)\),$", text, re.MULTILINE)
    known = VARIANTS | {"half": Variant(*ast.literal_eval(f"({line})"))}
    for one, other in itertools.combinations(known.values(), 2):
        for field in ("label", "colour", "dashes", "marker"):
            assert getattr(one, field) != getattr(other, field)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    "names", [UNKNOWN, ["layernorm", "none", "x"], [str(i) for i in range(43)]]
)
def test_a_baseline_is_black_and_solid_whatever_its_name_and_no_other_looks_like_it(names, ordered):
    found = looks(names, ordered=ordered)
    assert [look.label for look in found.values()] == [spoken(name) for name in names]
    baseline, *others = found.values()
    assert (baseline.colour, baseline.dashes) == ("#000000", ())
    assert not [look for look in others if look.colour == "#000000" or look.dashes == ()]
    assert len({(look.colour, look.dashes) for look in found.values()}) == len(names)
    assert len({look.dashes for look in found.values()}) == min(len(names), 8)
    if "layernorm" not in names or ordered:
        known = {look.dashes for look in VARIANTS.values()}
        assert not {look.dashes for look in others} & known
    if ordered:  # one hue, from light to dark
        colours = [to_rgb(look.colour) for look in others]
        assert all(max(colour) == colour[2] for colour in colours)
        assert sorted(colours, key=sum, reverse=True) == colours


def test_a_table_without_its_baseline_has_the_looks_of_the_whole_study():
    """A categorical column holds all variants of the study, in order."""
    names = pd.Categorical(["b", "c"], ["a", "b", "c"])
    found = table_looks(pd.DataFrame({"variant": names}))
    assert found == {name: looks("abc")[name] for name in "bc"}
    plain = table_looks(pd.DataFrame({"variant": ["b"]}))
    assert plain["b"].colour == "#000000"  # of a single run


def test_the_same_data_gives_the_same_small_files(tmp_path):
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(3.4, 2))
            figure.add_subplot().plot([1, 2, 3])
            save(figure, folder, "trend")
        paths = sorted(folder.iterdir())
        assert [path.name for path in paths] == ["trend.pdf", "trend.png"]
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1]
    image = Image.open(BytesIO(contents[0][1]))
    assert (image.width, image.mode) == (680, "P")  # 200 dots per inch, of a palette


def test_a_small_file_keeps_the_colours_of_its_lines(tmp_path):
    colours = [known.colour for known in VARIANTS.values()]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7, 3))
        for ax in figure.subplots(1, 2):
            for i, colour in enumerate(colours):
                ax.plot([0, 1, 2], [i, i + 2, i], color=colour, linewidth=3)  # has whole pixels
                ax.fill_between([0, 1, 2], [i, i + 2, i], i - 1, color=colour, alpha=0.15)
        save(figure, tmp_path, "lines")
    image = Image.open(tmp_path / "lines.png").convert("RGB")
    kept = np.array([rgb for _, rgb in image.getcolors(1 << 16)])
    for colour in colours:
        away = np.abs(kept - 255 * np.array(to_rgb(colour))).max(axis=1)
        assert away.min() <= 2


def test_a_sheet_has_a_row_per_measure_and_a_column_per_setting(tmp_path, shown):
    with facets("f", tmp_path, ["a", "b"], SETTINGS) as axes:
        for (row, setting), ax in axes.items():
            ax.plot([0, 1], [0, 1 + SETTINGS.index(setting)], label="none")
            ax.set(xlabel="step", ylabel=row)
    (figure,) = shown
    assert list(axes) == [(row, setting) for row in "ab" for setting in SETTINGS]
    first, *others = (axes["a", setting] for setting in SETTINGS)
    titles = [f"embedding std = {x}" for x in ("0.02", "0.3", "1")]
    assert [ax.get_title() for ax in (first, *others)] == titles
    for ax in axes.values():
        assert ax.get_ylim() == pytest.approx((-0.15, 3.15))  # that of the widest
    assert [ax.get_ylabel() for ax in (first, *others)] == ["a", "", ""]
    assert not figure.legends  # the line is labelled where it ends
    assert [[text.get_text() for text in ax.texts] for ax in axes.values()] == 2 * [
        [],
        [],
        ["none"],
    ]
    assert figure.get_suptitle() == ""  # the caption says it
    assert figure.get_figwidth() == 6.75
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.pdf", "f.png"]


@pytest.mark.parametrize("ends", [[1.0, 1.01, 0.99], [0.0, 1.0, 2.0]])
def test_line_labels_are_in_order_and_apart(ends, tmp_path, shown):
    with facets("f", tmp_path, ["a"], [""], height=2.0) as axes:
        ax = axes["a", ""]
        for i, end in enumerate(ends):
            ax.plot([0, 1], [5 * i, end], label=f"line {i}")
        ax.axhline(1.005, gid="bigram")
    (figure,) = shown
    assert not figure.legends
    figure.set_layout_engine("constrained")  # which `save` takes off again
    figure.canvas.draw()
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
    order = sorted({**{f"line {i}": y for i, y in enumerate(ends)}, "bigram": 1.005}.items(),
                   key=lambda item: item[1])  # fmt: skip
    assert sorted(boxes, key=lambda label: boxes[label].y0) == [label for label, _ in order]
    top = ax.transData.transform((0, max(ends)))[1]
    if max(ends) == 2.0:  # alone, it stands where its line ends
        assert (boxes["line 2"].y0 + boxes["line 2"].y1) / 2 == pytest.approx(top, abs=3)
    spans = sorted((box.y0, box.y1) for box in boxes.values())
    assert all(below[1] <= above[0] + 1 for below, above in itertools.pairwise(spans))
    assert all(box.x0 > ax.bbox.x1 and box.x1 <= figure.bbox.x1 for box in boxes.values())


@pytest.mark.parametrize("labels", [["x" * 25], [f"line {i}" for i in range(20)]])
def test_lines_with_long_names_or_too_many_have_a_legend(labels, tmp_path, shown):
    with facets("f", tmp_path, ["a"], [""]) as axes:
        for label in labels:
            axes["a", ""].plot([0, 1], [0, 1], label=label)
    (legend,) = shown[0].legends
    assert [text.get_text() for text in legend.get_texts()] == labels
    assert len(axes["a", ""].texts) == 0


def test_a_long_label_below_a_panel_is_wrapped_and_whole(tmp_path, shown):
    with facets("f", tmp_path, ["a"], [""]) as axes:
        axes["a", ""].set_xlabel("initial RMS of the stream, relative to its branches")
    (figure,) = shown
    figure.set_layout_engine("constrained")
    figure.canvas.draw()
    box = axes["a", ""].xaxis.label.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
