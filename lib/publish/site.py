"""The lab record as web pages: an index with every run, curves, studies, executed notebooks.

Pages are made from records, or from `runs/` where a study has none yet. They hold all that they
show and may fetch nothing. The page of a notebook is kept while that is the same.
"""

import html
import sys
import zipfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nbformat
import nh3
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from nbconvert import HTMLExporter, TemplateExporter
from nbconvert.filters import Highlight2HTML
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

from lib.config.io import RUNS, TEMPLATES, read_json, relative, write_text
from lib.config.metrics import MAIN, MEASURES, measures_in
from lib.config.yaml import UserError
from lib.figures.style import VARIANTS
from lib.figures.training import thinned
from lib.record.archive import RAW_ZIP, Record, Run, paper_of, papers_named, recorded_studies
from lib.results import Folder, raw_file, read_raw_file, status_of

PAGES = TEMPLATES / "site"
_templates = Environment(loader=FileSystemLoader(PAGES), autoescape=True, undefined=StrictUndefined)
PROCESSES = 2
CURVES = {"loss": "trace", "dev_loss": "curve", "grad_norm": "trace"}
"""What the page of curves shows, and the raw file that holds it."""
FOCUS = {"tabindex": "0"}
"""Of what scrolls sideways: keys may scroll it."""


@dataclass
class Shown:
    """A study as its pages show it."""

    name: str
    folder: Path = Path()
    runs: list[Run] = field(default_factory=list)
    verdict: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Path] = field(default_factory=dict)
    """Executed notebooks of the whole study by the address of their page."""
    notebooks: dict[str, Path] = field(default_factory=dict)
    """Those of runs, likewise."""
    trouble: str = ""


def read_study(name: str, paper: Path) -> Shown:
    """Read a study from its record, or from `runs/` where it has none."""
    record = Record(name, paper)
    if record.exists:
        folder, runs, verdict = record.folder, record.runs, record.verdict
    else:
        folder = RUNS / name
        runs = [read_json(path) for path in sorted(folder.glob("*/seed-*/result.json"))]
        runs.sort(key=lambda run: bool(run["arm"] != run["baseline"]))  # the baseline first
        file = folder / "verdict.json"
        verdict = read_json(file) if file.is_file() else {}
    shown = Shown(name, folder, runs, verdict)
    for path in sorted([*record.place.glob("*.ipynb"), *folder.glob("*.ipynb")]):
        shown.shared[f"{name}/{path.stem}.html"] = path
    for path in sorted(folder.glob("*/seed-*/02_train.ipynb")):
        shown.notebooks[f"{name}/{path.parents[1].name}/{path.parent.name}.html"] = path
    return shown


def _attribute(tag: str, name: str, value: str) -> str | None:
    """Keep links that only a click follows, and images that stand in the page."""
    kept = {"href": ("https://", "http://"), "src": ("data:image/",)}
    return value if value.startswith(kept.get(name, "")) else None


_sanitise = nh3.Cleaner(
    attributes=nh3.ALLOWED_ATTRIBUTES | {"*": {"class", "title"}},
    attribute_filter=_attribute,
    url_schemes={"http", "https", "data"},
    # For a reader without a mouse, or without eyes.
    set_tag_attribute_values={"pre": FOCUS, "table": FOCUS, "img": {"alt": "output of this cell"}},
).clean
"""Remove from a fragment of HTML whatever could execute or load something."""


@cache
def _exporter(with_code: bool) -> HTMLExporter:
    exporter = HTMLExporter(
        template_name="basic",
        sanitize_html=True,
        exclude_anchor_links=True,
        exclude_input=not with_code,
        default_preprocessors=[],
    )
    exporter.register_filter("clean_html", _sanitise)
    exporter.register_filter("highlight_code", Highlight2HTML(pygments_lexer="ipython3"))
    return exporter


def notebook_html(path: Path, with_code: bool = True) -> str:
    """Render an executed notebook as safe HTML; where that fails, a note that says why."""
    try:
        notebook = nbformat.read(path, as_version=4)
        # HTMLExporter's own method parses the page once more, which takes half of the time.
        return _sanitise(TemplateExporter.from_notebook_node(_exporter(with_code), notebook)[0])
    except Exception as error:
        why = html.escape(f"{type(error).__name__}: {error}"[:300])
        return f"<p>This file cannot be shown as a notebook. Reading it failed with {why}</p>"


def _write(site: Path, page: str, template: str, **content: Any) -> None:
    text = _templates.get_template(template).render(content, root="../" * page.count("/"))
    write_text(site / page, text)


def write_notebook(site: Path, study: str, page: str, path: Path) -> bool:
    """Write the page of a notebook, unless it is there already; tell whether it was written."""
    made_from = [Path(__file__), *sorted(PAGES.iterdir()), path]
    mark = sha256(b"".join(file.read_bytes() for file in made_from)).hexdigest()
    if (site / page).is_file() and mark in (site / page).read_text("utf-8")[:1000]:
        return False
    title = page.removeprefix(f"{study}/").removesuffix(".html").replace("/", ", ")
    content = {"study": study, "title": title, "status": status_of(path), "mark": mark}
    _write(site, page, "notebook.html.j2", body=notebook_html(path), **content)
    return True


def write_study(paper: Path, name: str) -> tuple[Shown, pd.DataFrame, list[str]]:
    """Write the pages of a study; return it, its curves, and the pages that were written anew."""
    site = paper / "site"
    curves = pd.DataFrame()
    rendered = []
    outputs = ""
    try:
        study = read_study(name, paper)
        curves = curve_table(study)
        for page, path in (study.shared | study.notebooks).items():
            if write_notebook(site, name, page, path):
                rendered.append(page)
        for path in study.shared.values():
            if path.stem != "01_data":
                outputs += notebook_html(path, with_code=False)
    except Exception as error:  # a file can be broken in any way, and the other studies are fine
        study = Shown(name, trouble=" ".join(f"{type(error).__name__}: {error}".split())[:300])
    _write(site, f"{name}/index.html", "study.html.j2", study=study, outputs=outputs)
    print(f"{name}: {len(rendered)} pages", file=sys.stderr, flush=True)
    return study, curves, rendered


def curve_table(study: Shown) -> pd.DataFrame:
    """Return the mean, the lowest and the highest seed of each curve at up to 200 steps, by variant
    and setting."""
    raw_zip = study.folder / RAW_ZIP
    root: Folder = zipfile.Path(raw_zip) if raw_zip.is_file() else study.folder
    parts = []
    for y, file in CURVES.items():
        tables = []
        for run in study.runs:
            folder = root / run["arm"] / f"seed-{run['seed']}"
            if raw_file(folder, file).is_file():
                table = read_raw_file(folder, file)
                tables.append(table.assign(variant=run["variant"], setting=run["setting"]))
        if tables:
            table = pd.concat(tables).dropna(subset=y)
            arms = table.groupby(["variant", "setting", thinned(table["step"])], sort=False)
            parts.append(arms[y].agg(["mean", "min", "max"]).assign(measure=y, study=study.name))
    table = pd.concat(parts).reset_index() if parts else pd.DataFrame(columns=["variant"])
    return table.assign(order=table.groupby("variant", sort=False).ngroup())


def chart_html(table: pd.DataFrame) -> str:
    """Draw the curves of one study at a time, chosen as the measure is; the legend picks variants.
    A line is the mean over seeds, a band reaches from the lowest to the highest."""
    import altair as alt

    studies = list(table["study"].unique())
    study = alt.binding_select(options=studies, name="Study ")
    measure = alt.binding_select(options=list(CURVES), name="Measure ")
    picked = alt.selection_point("picked", fields=["variant"], bind="legend")
    order = alt.EncodingSortField("order", op="min")  # the baseline first, black and solid
    colours = alt.Scale(range=[look.colour for look in VARIANTS.values()])
    dashes = alt.Scale(range=[list(look.dashes) or [1, 0] for look in VARIANTS.values()])
    legend = alt.Legend(
        orient="top", columns=3, symbolType="stroke", symbolSize=400, symbolOpacity=1
    )
    base = alt.Chart().encode(
        alt.X("step:Q"),
        alt.Y("mean:Q", title=None, scale=alt.Scale(zero=False)),
        alt.Color("variant:N", scale=colours, sort=order, legend=legend, title=None),
    )
    lines = base.mark_line().encode(
        strokeDash=alt.StrokeDash("variant:N", scale=dashes, sort=order, legend=None),
        opacity=alt.condition(picked, alt.value(1), alt.value(0.05)),
    )
    bands = base.mark_area().encode(
        y="min:Q", y2="max:Q", opacity=alt.condition(picked, alt.value(0.15), alt.value(0))
    )
    text = table.to_csv(index=False, float_format="%.4g")
    data = alt.InlineData(text, format=alt.CsvDataFormat(type="csv"))
    chart = (
        alt.layer(bands, lines.add_params(picked), data=data)
        .transform_filter("datum.study == study && datum.measure == measure")
        .properties(width=320, height=220)
        .facet(alt.Facet("setting:N", title=None), columns=3)
        .add_params(alt.param("study", bind=study, value=studies[0]))
        .add_params(alt.param("measure", bind=measure, value="dev_loss"))
    )
    with alt.data_transformers.enable(consolidate_datasets=False):
        page = str(chart.to_html(inline=True, embed_options={"actions": False}))
    return page[page.index("<style>") : page.rindex("</body>")].replace("</head>\n<body>", "", 1)


def table_html(studies: list[Shown]) -> str:
    """Write the table of all runs, to be sorted, filtered and searched: measures and levels."""
    from itables import options, to_html_datatable
    from itables.javascript import generate_init_offline_itables_html

    rows = []
    for study in studies:
        results = {f"{study.name}/{run['arm']}/seed-{run['seed']}.html": run for run in study.runs}
        for page, path in study.notebooks.items():
            begun: Run = {"status": status_of(path)["status"], "measures": {}, "levels": {}}
            run = results.get(page, begun)
            _, arm, seed = page.removesuffix(".html").split("/")
            link = f'<a href="{quote(page)}">{html.escape(arm)}</a>'
            row = {"study": study.name, "arm": link, "seed": seed[5:], "status": run["status"]}
            for name in dict.fromkeys((*MAIN, *measures_in("headline"))):
                row[MEASURES[name].title] = run["measures"].get(name)
            for name, level in run["levels"].items():
                row[name.partition(".")[2]] = level
            rows.append(row)
    table = to_html_datatable(
        pd.DataFrame(rows).round(4),
        table_id="runs",
        connected=False,
        allow_html=True,
        column_filters="header",
        scrollX=True,
        showIndex=False,
        pageLength=25,
        maxBytes=0,
        classes="display compact",
        display_logo_when_loading=False,
    )
    return generate_init_offline_itables_html(options.dt_bundle) + table


def build_site(paper: Path) -> list[str]:
    """Bring the pages of a paper's studies up to date, in its `site/`; return which notebooks'
    pages had to be rendered.

    Raises UserError, when all is built, with a line for each study that cannot be shown; its page
    says so.
    """
    site, pdf = paper / "site", (paper / "paper.pdf").is_file()
    begun = [path.name for path in RUNS.glob("[!._]*/") if paper_of(path.name) == paper]
    names = {*begun, *recorded_studies(paper)}
    with ProcessPoolExecutor(PROCESSES) as pool:
        written = list(pool.map(partial(write_study, paper), sorted(names)))
    written.sort(key=lambda each: each[0].verdict.get("standing") != "CONFIRMATORY")
    studies = [study for study, _, _ in written]
    shared = {"paper": paper.name, "pdf": pdf, "studies": studies}
    _write(site, "index.html", "index.html.j2", table=table_html(studies), **shared)
    table = pd.concat([curves for _, curves, _ in written])
    chart = chart_html(table) if len(table) else "<p>No run has left a curve yet.</p>"
    _write(site, "curves.html", "curves.html.j2", chart=chart)
    css = (PAGES / "site.css").read_text("utf-8")
    write_text(site / "site.css", css + HtmlFormatter().get_style_defs(".highlight"))
    if faults := [f"{study.name}: {study.trouble}" for study in studies if study.trouble]:
        raise UserError("\nerror: ".join(faults))
    return [page for _, _, pages in written for page in pages]


def main(names: list[str]) -> None:
    """Build the lab records of some papers (none named: of all) and say where they are."""
    for paper in papers_named(names):
        rendered = build_site(paper)
        place = relative(paper / "site" / "index.html")
        print(f"Lab record          {place} ({len(rendered)} pages rendered anew)")
