"""Runs in a browser: one table of all, one page of curves, and every executed notebook.

A paper's site is made of its records. That of one's own runs, `runs/_site/`, is made of `runs/`,
also while they train. Pages hold all that they show and may fetch nothing. The page of a notebook
and the curves of a study are made again only if what they are made of changed.
"""

import html
import json
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import altair as alt
import nbformat
import nh3
import pandas as pd
from itables import options, to_html_datatable
from itables.javascript import generate_init_offline_itables_html
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from rich.progress import track
from vl_convert import javascript_bundle

from lib.config.errors import UserError
from lib.config.files import atomic_write, read_json, sha256, write_text
from lib.config.metrics import MAIN, MEASURES, measures_in
from lib.config.paths import RUNS, TEMPLATES, listed, relative
from lib.config.schema import digest
from lib.config.study import SCRATCH, Arm, Study, load_study
from lib.config.yaml import Json
from lib.figures.style import in_order, table_looks
from lib.figures.training import thinned
from lib.record.archive import Record, Run, executed_at, papers_named, recorded_studies
from lib.results import STEP_FILE, raw_file, read_raw_file, status_of

PAGES = TEMPLATES / "site"
_templates = Environment(loader=FileSystemLoader(PAGES), autoescape=True, undefined=StrictUndefined)
ENDS = ["mean", "min", "max"]
CODE = [sha256(path) for path in (Path(__file__), *listed(PAGES, "*"))]
"""What makes the pages."""
SECONDS = 10
"""From one look at a study that is watched to the next."""
RECENT = 60.0
"""Seconds: a run that made a step within them is running."""
_exporter = HTMLExporter(
    template_name="basic", exclude_anchor_links=True, optimistic_validation=True
)
# nbconvert's own cleaning knows no table and no heading; and it leaves out some of what a notebook
# may hold, such as the width of an image. So the whole page is cleaned instead, once, by nh3.
_exporter.register_filter("clean_html", lambda fragment: fragment)
_cleaner = nh3.Cleaner(
    attributes=nh3.ALLOWED_ATTRIBUTES | {"*": {"class"}},
    url_schemes={"http", "https", "data"},
    url_relative="deny",  # what stood beside the notebook does not stand beside its page
    # A page holds its own images, and fetches none.
    attribute_filter=lambda _, name, value: (
        None if name == "src" and not value.startswith("data:image/") else value
    ),
    # What scrolls sideways can be reached by keys.
    set_tag_attribute_values={"pre": {"tabindex": "0"}, "table": {"tabindex": "0"}},
)


def notebook_html(path: Path) -> str:
    """Render an executed notebook as safe HTML; where that fails, a note that says why."""
    try:
        page, _ = _exporter.from_notebook_node(nbformat.read(path, as_version=4))
        return _cleaner.clean(page)
    except Exception as error:
        return f"<p>This file cannot be shown as a notebook: {html.escape(repr(error)[:300])}</p>"


def _write(site: Path, page: str, template: str, **content: Any) -> None:
    root = "../" * page.count("/")
    text = _templates.get_template(template).render(page=page, root=root, **content)
    write_text(site / page, text)


def write_notebook(site: Path, page: str, path: Path) -> str:
    """Write the page of a notebook, unless it is there already, and return its name; "" where there
    is no notebook."""
    if not path.is_file():
        return ""
    mark, made = digest([*CODE, sha256(path)]), site / page
    if not made.is_file() or mark.encode() not in made.read_bytes()[:1000]:
        body, status = notebook_html(path), status_of(path)
        said = executed_at([status]) if "commit" in status else ""
        _write(site, page, "notebook.html.j2", mark=mark, status=status, said=said, body=body)
    return page


def progress_of(folder: Path, arm: Arm | None) -> str:
    """Return how far a run is that has no result; "again" if it had one."""
    notebook = status_of(folder / "02_train.ipynb")
    made = folder / STEP_FILE
    if notebook["status"] == "failed":
        return f"failed: {notebook['reason']}"
    if not made.is_file():
        return "begun" if folder.is_dir() else "not begun"
    steps = arm.config.training.iterations if arm else "?"
    step = made.read_text("utf-8")
    age = time.time() - made.stat().st_mtime
    word = "running" if age < RECENT else "trained" if step == str(steps) else "stopped"
    again = " again" if raw_file(folder, "trace").is_file() else ""
    return f"{word}{again}, step {step} of {steps}"


def runs_of(design: Study | None, folder: Path, root: Path) -> dict[str, Run]:
    """Return the runs of a study by their place in its folder, with their result or how far they
    are: as the study orders them, baseline first, and then those that it does not ask for."""
    asked = product(design.arms(), design.seeds) if design else ()
    arms = {f"{arm.id}/seed-{seed}": arm for arm, seed in asked}
    found = [path.relative_to(folder).as_posix() for path in listed(folder, "*/seed-*")]
    runs: dict[str, Run] = {}
    for place in dict.fromkeys([*arms, *found]):
        if (file := root / place / "result.json").is_file():
            runs[place] = json.loads(file.read_bytes())
            continue
        name, _, seed = place.partition("/seed-")
        runs[place] = {"arm": name, "seed": seed, "variant": name, "levels": {}, "measures": {}}
        if arm := arms.get(place):
            runs[place] |= {"variant": arm.variant, "levels": arm.levels}
        runs[place]["status"] = progress_of(folder / place, arm)
    return runs


def row_of(study: str, run: Run, page: str) -> dict[str, Any]:
    """Write a run as a row of the table; its arm leads to its page, if there is one."""
    levels = {factor.rpartition(".")[2]: level for factor, level in run["levels"].items()}
    row: dict[str, Any] = {
        "study": study,
        "arm": run["arm"],
        "seed": str(run["seed"]),
        "status": run["status"],
        **{name: "none" if level is None else level for name, level in levels.items()},
        **{MEASURES[m].title: run["measures"].get(m) for m in (*MAIN, *measures_in("headline"))},
    }
    # Its cells are HTML, because of the link.
    row = {name: html.escape(v) if isinstance(v, str) else v for name, v in row.items()}
    if page:
        row["arm"] = f'<a href="{quote(page)}">{row["arm"]}</a>'
    return row


def curves_of(runs: dict[str, Run], root: Path, kept: Path) -> pd.DataFrame:
    """Return mean, lowest and highest seed of whatever training wrote down, at up to 200 steps, by
    variant and setting. Of the same runs they are read from the file in which they were kept."""
    ended = {place: run for place, run in runs.items() if "steps" in run}
    if not ended:
        return pd.DataFrame()
    made_of = digest([CODE, ended])  # results have the hashes of their raw tables
    curves = pd.read_parquet(kept) if kept.is_file() else pd.DataFrame()
    if curves.attrs.get("made_of") != made_of:
        curves = _mean_and_range(ended, root)
        curves.attrs["made_of"] = made_of
        with atomic_write(kept) as temporary:
            curves.to_parquet(temporary)
    levels = {run["variant"]: [*run["levels"].values(), ""][0] for run in runs.values()}
    return in_order(curves, levels)


def _mean_and_range(runs: dict[str, Run], root: Path) -> pd.DataFrame:
    tables = {
        (run["variant"], run["setting"], place, name): read_raw_file(root / place, name)
        for (place, run), name in product(runs.items(), ("trace", "curve"))
    }
    table = pd.concat(tables, names=["variant", "setting", "run", "table"])
    steps = thinned(table.pop("step"))
    ends = table.groupby(["variant", "setting", steps], sort=False).agg(ENDS)
    ends.columns = ends.columns.map(" ".join)
    return ends.reset_index()


def read_study(site: Path, paper: Path | None, name: str) -> Json:
    """Read what the pages show of a study from a paper's record, or else from `runs/`, and write
    its notebooks' pages: rows of the table, pages of the whole study, verdict, curves, and the
    trouble with reading it."""
    shown: Json = {"name": name, "rows": [], "notebooks": [], "curves": (), "trouble": ""}
    try:
        design, verdict = None, RUNS / name / "verdict.json"
        root = folder = RUNS / name
        if paper:
            record = Record(name, paper)
            folder, root = record.folder, record.raw
            verdict, design = record.verdict_file, record.parameters
        with suppress(UserError):  # its parameters may be gone, or be others now
            design = design or load_study(name)
        shown["verdict"] = read_json(verdict) if verdict.is_file() else {}
        runs = runs_of(design, folder, root)
        shown["curves"] = curves_of(runs, root, site / name / ".curves.parquet")
        for path in listed(folder, "*.ipynb"):
            shown["notebooks"].append(write_notebook(site, f"{name}/{path.stem}.html", path))
        for run, result in runs.items():
            path = folder / run / "02_train.ipynb"
            page = write_notebook(site, f"{name}/{run}.html", path)
            shown["rows"].append(row_of(name, result, page))
    except Exception as error:  # a file can be broken in any way, and the other studies are fine
        shown["trouble"] = repr(error)[:300]
    return shown


def chart_of(studies: list[Json]) -> Json:
    """Draw the curves of one study at a time as a Vega-Lite chart: study and measure are chosen
    above it, the legend picks variants. A line is the mean over seeds, a band reaches from the
    lowest to the highest."""
    table = pd.concat([study["curves"].assign(study=study["name"]) for study in studies])
    measures = list(table.filter(like=" mean").columns.str.removesuffix(" mean"))
    keys: Json = {}
    every: Json = {}
    for of in studies:
        drawn = table_looks(of["curves"])
        found = {f"{of['name']}: {variant}": look for variant, look in drawn.items()}
        keys[of["name"]] = list(found)
        every |= found
    study = alt.param(
        "study",
        bind=alt.binding_select(options=list(keys), name="Study "),
        value=next(iter(keys)),
    )
    measure = alt.param(
        "measure",
        bind=alt.binding_select(options=measures, name="Measure "),
        value="dev_loss",
    )
    picked = alt.selection_point("picked", fields=["key"], bind="legend")
    legend = alt.Legend(
        orient="top",
        columns=2,
        symbolType="stroke",
        symbolSize=600,
        values=alt.ExprRef(f"({json.dumps(keys)})[study]"),  # of the study that is chosen
        labelExpr="slice(datum.label, length(study) + 2)",
    )
    colours = alt.Scale(domain=list(every), range=[one.colour for one in every.values()])
    dashes = alt.Scale(domain=list(every), range=[one.dashes or (1, 0) for one in every.values()])
    base = alt.Chart().encode(
        alt.X("step:Q", axis=alt.Axis(tickMinStep=1)),
        alt.Y("mean:Q", title=None, scale=alt.Scale(zero=False)),
        alt.Color("key:N", scale=colours, legend=legend, title=None),
        opacity=alt.condition(picked, alt.value(1), alt.value(0.05)),
    )
    dash = alt.StrokeDash("key:N", scale=dashes, legend=legend, title=None)
    lines = base.mark_line().encode(dash).add_params(picked)
    bands = base.mark_area(fillOpacity=0.15).encode(y="min:Q", y2="max:Q")
    data = alt.InlineData(table.to_csv(index=False, float_format="%.4g"), format={"type": "csv"})
    ends = {end: f"toNumber(datum[measure + ' {end}'])" for end in ENDS}
    chart = (
        alt.layer(lines, bands, data=data)  # the legend is bound to the first
        .transform_filter("datum.study == study")
        .transform_calculate(key="datum.study + ': ' + datum.variant", **ends)
        .transform_filter("isValid(datum.mean)")
        .properties(width="container", height=300)
        .add_params(study, measure)
    )
    if len(settings := list(table["setting"].unique())) > 1:
        chart = chart.properties(width=310)
        chart = chart.facet(alt.Facet("setting:N", title=None, sort=settings), columns=3)
        chart.autosize = alt.AutoSizeParams(type="pad", resize=True)  # as studies differ
    spec: Json = chart.to_dict()
    return spec


def scripts(site: Path) -> str:
    """Return Vega's scripts, kept beside the pages because bundling them takes a second."""
    kept = site / f".vega-{version('vl-convert-python')}.js"
    if not kept.is_file():
        text = javascript_bundle()  # type: ignore[call-arg]  # its stub asks for code of one's own
        write_text(kept, text)
    return kept.read_text("utf-8")


def table_html(studies: list[Json]) -> str:
    """Write the table of all runs, to be sorted, filtered and searched."""
    table = pd.DataFrame([row for study in studies for row in study["rows"]])
    page = to_html_datatable(
        table.round(4).dropna(axis="columns", how="all").fillna(""),
        connected=False,
        allow_html=True,
        column_filters="header",
        scrollX=True,
        autoWidth=False,
        maxBytes=0,
    )
    return generate_init_offline_itables_html(options.dt_bundle) + page


def build_site(paper: Path | None, names: list[str], refresh: int = 0) -> list[Json]:
    """Bring a site up to date, of studies of a paper's record or of `runs/`, and say where it is.
    With `refresh` its first page loads itself again after as many seconds."""
    site, title = (paper / "site", paper.name) if paper else (RUNS / "_site", "Your runs")
    shown = track(names, title, disable=not sys.stdout.isatty(), transient=True)
    studies = [read_study(site, paper, name) for name in shown]
    drawn = [study for study in studies if len(study["curves"])]
    chart = chart_of(drawn) if drawn else None
    _write(site, "curves.html", "curves.html.j2", chart=chart, vega=scripts(site))
    _write(site, "site.css", "site.css.j2", code=HtmlFormatter().get_style_defs(".highlight"))
    content: Json = {"title": title, "studies": studies, "refresh": refresh}
    _write(site, "index.html", "index.html.j2", table=table_html(studies), **content)
    end = "\r" if refresh else "\n"  # a watched one is said again and again
    print(f"In a browser        {relative(site)}/index.html", end=end, flush=True)
    return studies


def main(names: list[str], watched: str | None = None) -> None:
    """Build the site of one's own runs; of the papers named, or of all where nothing has run; or
    that of a study in `runs/`, and of scratch runs, over and over, until Ctrl-C.

    Raises UserError, when all is built, with a line for each record that cannot be shown.
    """
    while watched:
        build_site(None, [load_study(watched).name, SCRATCH], SECONDS)
        time.sleep(SECONDS)
    own = {path.parents[1].name for path in RUNS.glob("*/*/seed-*")}
    if own and not names:
        build_site(None, sorted(own))
        return
    studies = []
    for paper in papers_named(names):
        studies += build_site(paper, recorded_studies(paper))
    if faults := [f"{study['name']}: {study['trouble']}" for study in studies if study["trouble"]]:
        raise UserError("\nerror: ".join(faults))
