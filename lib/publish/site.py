"""The lab record as web pages: an index with every run, curves, studies, executed notebooks.

Pages are made from records, or from `runs/` where a study has none yet. They hold all that they
show and may fetch nothing. A page is kept while its notebook is the same.
"""

import hashlib
import html
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nbformat
import nh3
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

from lib.figures.style import VARIANTS
from lib.figures.training import thinned
from lib.record.archive import SHARED, Record, Run, paper_of, papers_named, recorded_studies
from lib.results import Folder, raw_file, read_raw_file, status_of
from lib.study.io import PAPER, RUNS, TEMPLATES, read_json, relative, sha256, write_text
from lib.study.metrics import MEASURES, measures_in
from lib.study.yaml import UserError

PROCESSES = 2
CURVES = {"loss": "trace", "dev_loss": "curve", "grad_norm": "trace"}
"""What the page of curves shows, and the raw file that holds it."""


class DamagedError(UserError):
    """Studies that could not be shown, a line for each. All else was built."""


@dataclass(frozen=True)
class Shown:
    """A study as its pages show it."""

    name: str
    folder: Path = Path()
    runs: list[Run] = field(default_factory=list)
    verdict: dict[str, Any] = field(default_factory=dict)
    raw_folder: Callable[[Run], Folder] = lambda run: Path()
    trouble: str = ""

    @property
    def notebooks(self) -> dict[str, Path]:
        """Every executed notebook by the address of its page."""
        shared = [self.folder / f"{name}.ipynb" for name in SHARED]
        pages = {f"{self.name}/{path.stem}.html": path for path in shared if path.is_file()}
        for path in sorted(self.folder.glob("*/seed-*/02_train.ipynb")):
            pages[f"{self.name}/{path.parents[1].name}/{path.parent.name}.html"] = path
        return pages

    @property
    def shared(self) -> list[str]:
        """Pages of the notebooks that are executed once per study."""
        return [page for page in self.notebooks if page.count("/") == 1]

    @property
    def count(self) -> int:
        return len(self.notebooks) - len(self.shared)


def read_study(name: str, paper: Path) -> Shown:
    """Read a study from its record, or from `runs/` where it has none."""
    record, folder = Record(name, paper), RUNS / name
    if record.exists:
        return Shown(name, record.folder, record.runs, record.verdict, record.raw_folder)
    runs = [read_json(path) for path in sorted(folder.glob("*/seed-*/result.json"))]
    verdict = folder / "verdict.json"
    content = read_json(verdict) if verdict.is_file() else {}
    return Shown(name, folder, runs, content, lambda run: folder / run["arm"] / f"seed-{run['seed']}")


def _attribute(tag: str, name: str, value: str) -> str | None:
    """Keep links that only a click follows, and images that stand in the page."""
    kept = {"href": ("https://", "http://"), "src": ("data:image/",)}
    return value if value.startswith(kept.get(name, "")) else None


def sanitise(fragment: str) -> str:
    """Remove from HTML whatever could execute or load something."""
    attributes = {"*": {"class", "title"}, "img": {"src", "width"}, "a": {"href"}}
    attributes |= {tag: {"colspan", "rowspan", "scope"} for tag in ("td", "th")}
    return nh3.clean(
        fragment,
        attributes=attributes,
        attribute_filter=_attribute,
        url_schemes={"http", "https", "data"},
        # For a reader without a mouse, or without eyes.
        set_tag_attribute_values={"pre": {"tabindex": "0"}, "img": {"alt": "output of this cell"}},
    )


@cache
def _exporter(with_code: bool) -> HTMLExporter:
    exporter = HTMLExporter(
        template_name="basic", sanitize_html=True, exclude_anchor_links=True,
        exclude_input=not with_code, exclude_output_prompt=True,
    )  # fmt: skip
    exporter.register_filter("clean_html", sanitise)
    return exporter


def notebook_html(path: Path, with_code: bool = True) -> str:
    """Render an executed notebook as safe HTML; where that fails, a note that says why."""
    try:
        notebook = nbformat.read(path, as_version=4)
        return sanitise(_exporter(with_code).from_notebook_node(notebook)[0])
    except Exception as error:  # a file can be broken in any way, and the other pages are fine
        why = html.escape(f"{type(error).__name__}: {error}"[:300])
        return f"<p>This file cannot be shown as a notebook. Reading it failed with {why}</p>"


@cache
def _environment() -> Environment:
    loader = FileSystemLoader(TEMPLATES / "site")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters["address"] = quote
    return environment


def _write(site: Path, page: str, template: str, **content: Any) -> None:
    text = _environment().get_template(template).render(content, root="../" * page.count("/"))
    write_text(site / page, text)


@cache
def _recipe() -> str:
    """Tell what makes the page of a notebook, besides the notebook."""
    files = [Path(__file__), *sorted((TEMPLATES / "site").iterdir())]
    return " ".join([version("nbconvert"), *map(sha256, files)])


def write_notebook(site: Path, page: str, study: str, path: Path) -> str:
    """Write the page of a notebook; return its address, or "" where it was there already."""
    mark = hashlib.sha256(f"{_recipe()} {sha256(path)}".encode()).hexdigest()
    if (site / page).is_file() and mark in (site / page).read_text("utf-8")[:200]:
        return ""
    title = page.removeprefix(f"{study}/").removesuffix(".html").replace("/", ", ")
    content = {"study": study, "title": title, "status": status_of(path), "mark": mark}
    _write(site, page, "notebook.html.j2", body=notebook_html(path), **content)
    return page


def run_table(studies: list[Shown]) -> pd.DataFrame:
    """Return a row per run: study, arm, a link to its page, measures, and a level of each factor."""
    rows = []
    for study in studies:
        results = {f"{run['arm']}/seed-{run['seed']}": run for run in study.runs}
        for page, path in study.notebooks.items():
            if path.stem == "02_train":
                arm, seed = path.parents[1].name, path.parent.name.removeprefix("seed-")
                run = results.get(f"{arm}/seed-{seed}", {})
                link = f'<a href="{quote(page)}">{html.escape(arm)}</a>'
                row = {"study": study.name, "arm": link, "seed": seed}
                row["status"] = run.get("status") or status_of(path)["status"]
                for name in measures_in("headline"):
                    value = run.get("measures", {}).get(name)
                    row[MEASURES[name].title] = value and round(value, MEASURES[name].digits)
                rows.append(row | {n.partition(".")[2]: v for n, v in run.get("levels", {}).items()})
    return pd.DataFrame(rows)


def curve_table(study: Shown) -> pd.DataFrame:
    """Return the mean, the lowest and the highest seed of each curve at up to 200 steps, by variant
    and setting."""
    parts = []
    for y, file in CURVES.items():
        tables = [
            read_raw_file(folder, file).assign(variant=run["variant"], setting=run["setting"])
            for run in study.runs
            if raw_file(folder := study.raw_folder(run), file).is_file()
        ]
        if tables:
            table = pd.concat(tables).dropna(subset=y)
            by = table.assign(step=thinned(table["step"])).groupby(["variant", "setting", "step"], sort=False)
            parts.append(by[y].agg(["mean", "min", "max"]).assign(measure=y, study=study.name))
    return pd.concat(parts).reset_index() if parts else pd.DataFrame()


def chart_html(studies: list[Shown]) -> str:
    """Draw the curves of one study at a time, chosen as the measure is; the legend picks variants.
    A line is the mean over seeds, a band reaches from the lowest to the highest."""
    import altair as alt

    tables = [table for study in studies if len(table := curve_table(study))]
    if not tables:
        return "<p>No run has left a curve yet.</p>"
    table = pd.concat(tables)
    table["order"] = table.groupby(["study", "variant"], sort=False).ngroup()
    text = table.to_csv(index=False, float_format="%.4g")
    data = alt.InlineData(text, format=alt.CsvDataFormat(type="csv"))
    names = list(table["study"].unique())
    study = alt.param("study", value=names[0], bind=alt.binding_select(options=names, name="Study "))
    measures = alt.binding_select(options=list(CURVES), name="Measure ")
    measure = alt.param("measure", value="dev_loss", bind=measures)
    picked = alt.selection_point("picked", fields=["variant"], bind="legend")
    looks = {"color": [look.colour for look in VARIANTS.values()]}
    looks["strokeDash"] = [list(look.dashes) or [1, 0] for look in VARIANTS.values()]
    style: Any = {"title": None, "sort": alt.EncodingSortField("order", op="min")}  # baseline first
    colour = alt.Color("variant:N", scale=alt.Scale(range=looks["color"]), **style)
    dash = alt.StrokeDash("variant:N", scale=alt.Scale(range=looks["strokeDash"]), **style)
    y: Any = {"title": None, "scale": alt.Scale(zero=False)}
    base = alt.Chart().encode(x="step:Q", color=colour)
    bands = base.mark_area().encode(
        alt.Y("min:Q", **y), y2="max:Q", opacity=alt.condition(picked, alt.value(0.15), alt.value(0))
    )
    lines = base.mark_line().encode(
        alt.Y("mean:Q", **y),
        strokeDash=dash,
        opacity=alt.condition(picked, alt.value(1), alt.value(0.05)),
        tooltip=["variant:N", "setting:N", "step:Q", "mean:Q", "min:Q", "max:Q"],
    )
    chart = (
        alt.layer(bands, lines.add_params(picked), data=data)
        .transform_filter("datum.study == study && datum.measure == measure")
        .properties(width=320, height=220)
        .facet(alt.Facet("setting:N", title=None), columns=3)
        .add_params(study, measure)
    )
    with alt.data_transformers.enable(consolidate_datasets=False):
        page = str(chart.to_html(inline=True, embed_options={"actions": False}))
    return page[page.index("<style>") : page.rindex("</body>")].replace("</head>\n<body>", "", 1)


def table_html(studies: list[Shown]) -> str:
    """Write the table of all runs, to be sorted, filtered and searched."""
    from itables import options, to_html_datatable
    from itables.javascript import generate_init_offline_itables_html

    layout: Any = {"column_filters": "header", "scrollX": True, "classes": "display compact"}
    table = to_html_datatable(
        run_table(studies), table_id="runs", connected=False, allow_html=True, showIndex=False,
        maxBytes=0, pageLength=25, display_logo_when_loading=False, **layout,
    )  # fmt: skip
    return generate_init_offline_itables_html(options.dt_bundle) + table


def contrasts_html(study: Shown) -> str:
    """Write the contrasts of a study in its headline measures as a table."""
    rows = [
        {
            "measure": MEASURES[row["measure"]].title,
            "contrast": f"{row['arm']} − {row['baseline']}",
            "difference [95 % t interval]": MEASURES[row["measure"]].estimate(row),
            "seeds": row["n"],
        }
        for row in study.verdict.get("contrasts", [])
        if row["measure"] in measures_in("headline") and row["mean_delta"] is not None
    ]
    return pd.DataFrame(rows).to_html(index=False, border=0) if rows else ""


def build_site(paper: Path | None = None) -> list[str]:
    """Bring the pages of a paper's studies (None: `papers/embedding-norm/`) up to date, in its
    `site/`; return which notebooks' pages had to be rendered.

    Raises DamagedError, when all is built, for studies that cannot be shown; their pages say so.
    """
    paper = paper or PAPER
    site, studies, tasks = paper / "site", [], []
    started = [path.name for path in RUNS.glob("[!._]*") if path.is_dir()]
    names = {name for name in started if paper_of(name) == paper} | {*recorded_studies(paper)}
    for name in sorted(names):
        try:
            study = read_study(name, paper)
            figures = study.notebooks.get(f"{name}/04_figures.html")
            pictures = notebook_html(figures, with_code=False) if figures else ""
            content = {"contrasts": contrasts_html(study), "pictures": pictures}
        except Exception as error:  # a file can be broken in any way, and the other studies are fine
            study = Shown(name, trouble=" ".join(f"{type(error).__name__}: {error}".split())[:300])
            content = {"contrasts": "", "pictures": ""}
        studies.append(study)
        tasks += [(site, page, name, path) for page, path in study.notebooks.items()]
        _write(site, f"{name}/index.html", "study.html.j2", study=study, **content)
    _environment()
    with ProcessPoolExecutor(PROCESSES) as pool:
        rendered = [*filter(None, pool.map(write_notebook, *zip(*tasks, strict=True), chunksize=8))]
    studies.sort(key=lambda study: study.verdict.get("standing") != "CONFIRMATORY")
    pdf = paper / "paper.pdf"
    if pdf.is_file():
        shutil.copyfile(pdf, site / pdf.name)
    shared = {"paper": paper.name, "pdf": pdf.is_file(), "studies": studies}
    _write(site, "index.html", "index.html.j2", table=table_html(studies), **shared)
    _write(site, "curves.html", "curves.html.j2", chart=chart_html(studies), **shared)
    css = (TEMPLATES / "site" / "site.css").read_text("utf-8")
    write_text(site / "site.css", css + HtmlFormatter().get_style_defs(".highlight"))
    if damaged := [f"{study.name}: {study.trouble}" for study in studies if study.trouble]:
        raise DamagedError("\nerror: ".join(damaged))
    return rendered


def main(names: list[str]) -> None:
    """Build the lab records of some papers (none named: of all) and say where they are."""
    damage = []
    for paper in papers_named(names):
        count = "all but what is damaged"
        try:
            count = f"{len(build_site(paper))} pages rendered anew"
        except DamagedError as error:
            damage.append(str(error))
        print(f"Lab record          {relative(paper / 'site')}/index.html ({count})")
    if damage:
        raise DamagedError("\nerror: ".join(damage))
