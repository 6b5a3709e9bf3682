"""Show runs in a browser: each study's question and answers, a table of all runs, a page of curves
per study, and every executed notebook.

The site of a paper is made from its records. The site of your own runs, `runs/_site/`, is made from
`runs/`, also while they train. A site is complete in itself: it fetches nothing. A notebook's page
and a study's curves are made again only if their sources changed.
"""

import fcntl
import html
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from itertools import product
from math import nan
from pathlib import Path
from typing import Any

import nbformat
import nh3
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from rich.progress import track
from vl_convert import javascript_bundle

from lib.config.contrasts import spoken
from lib.config.errors import UserError
from lib.config.files import read_json, sha256, write_text
from lib.config.metrics import MAIN, MEASURES, measures_in
from lib.config.paths import RUNS, TEMPLATES, listed, relative
from lib.config.plan import Plan, read_plan
from lib.config.schema import digest
from lib.config.study import Arm, Study, load_study
from lib.config.yaml import Json, read_yaml
from lib.publish import curves
from lib.publish.curves import curves_of
from lib.publish.template import Template, direction
from lib.record.archive import (
    Record,
    Run,
    executed_at,
    paper_of,
    papers_named,
    recorded_studies,
)
from lib.results import STEP_FILE, STEPS_FILE, raw_file, status_of
from lib.stats.answers import outcome
from lib.stats.factorial import ENDS, Row, by_setting

PAGES = TEMPLATES / "site"
_templates = Environment(loader=FileSystemLoader(PAGES), autoescape=True, undefined=StrictUndefined)
_templates.policies["json.dumps_kwargs"] = {}  # in the order of the study, not of the alphabet
CODE = [sha256(path) for path in (Path(__file__), Path(curves.__file__), *listed(PAGES, "*"))]
"""Hashes of the files that make the pages."""
VEGA = f"vega-{version('vl-convert-python')}.js"
SECONDS = 10
"""Seconds between two updates while runs train."""
PORT = 8000
SHOWN = [*dict.fromkeys([*MAIN, *measures_in("headline"), *measures_in("summary")])]
"""The measures that the table of runs can show."""
RECENT = 60.0
"""Seconds. A run that made a step within this time is running."""
_FOLDED = """{% extends "basic/index.html.j2" %}
{% block input %}<details><summary>Code</summary>{{ super() }}</details>{% endblock %}"""
_exporter = HTMLExporter(
    raw_template=_FOLDED, exclude_anchor_links=True, optimistic_validation=True
)
# nbconvert's own cleaning drops tables and headings, and misses parts of a notebook, such as the
# width of an image. So nh3 cleans the whole page instead, once.
_exporter.register_filter("clean_html", lambda fragment: fragment)
_cleaner = nh3.Cleaner(
    attributes=nh3.ALLOWED_ATTRIBUTES | {"*": {"class"}},
    url_schemes={"http", "https", "data"},
    url_relative="deny",  # files next to the notebook are not next to its page
    # Images are inside the page; it fetches none.
    attribute_filter=lambda _, name, value: (
        None if name == "src" and not value.startswith("data:image/") else value
    ),
    # The keyboard can then reach what scrolls sideways.
    set_tag_attribute_values={"pre": {"tabindex": "0"}, "table": {"tabindex": "0"}},
)


def notebook_html(path: Path) -> str:
    """Render an executed notebook as safe HTML; if that fails, return a note that says why."""
    try:
        page, _ = _exporter.from_notebook_node(nbformat.read(path, as_version=4))
        page = page.replace("No description has been provided for this image", "Figure")
        return _cleaner.clean(page)
    except Exception as error:
        return f"<p>This file cannot be shown as a notebook: {html.escape(repr(error)[:300])}</p>"


def _write(site: Path, page: str, template: str, **content: Any) -> None:
    root = "../" * page.count("/")
    text = _templates.get_template(template).render(page=page, root=root, **content)
    write_text(site / page, text)


def _is_made(page: Path, mark: str) -> bool:
    """Return whether a page has this `mark`, which is the hash of its sources."""
    return page.is_file() and mark.encode() in page.read_bytes()[:1000]


def write_notebook(site: Path, page: str, path: Path) -> str:
    """Write the page of a notebook, unless it is up to date, and return its name; "" if there is no
    notebook."""
    if not path.is_file():
        return ""
    mark = digest([*CODE, sha256(path)])
    if not _is_made(site / page, mark):
        body, status = notebook_html(path), status_of(path)
        said = executed_at([status]) if "commit" in status else ""
        _write(site, page, "notebook.html.j2", mark=mark, status=status, said=said, body=body)
    return page


def progress_of(folder: Path, arm: Arm | None) -> str:
    """Return how far a run without a result has got. "again" means that it had one before."""
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
    """Map each run's place in the study's folder to its result, or to how far it has got. Runs are
    in the study's order, baseline first; runs that the study does not list come last."""
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
        runs[place] |= {"setting": "", "baseline": name}
        if arm := arms.get(place):
            names = ("variant", "levels", "setting", "baseline")
            runs[place] |= {name: getattr(arm, name) for name in names}
        runs[place]["status"] = progress_of(folder / place, arm)
    return runs


def steps_of(design: Study | None, runs: dict[str, Run], folder: Path) -> tuple[int, int]:
    """Return how many steps the study's runs have made, and how many they take in all."""
    made = asked = 0
    for arm, seed in product(design.arms(), design.seeds) if design else ():
        place, steps = f"{arm.id}/seed-{seed}", arm.config.training.iterations
        asked += steps
        if "steps" in runs[place]:
            made += steps
        elif (file := folder / place / STEP_FILE).is_file():
            made += int(file.read_text("utf-8") or 0)
    return made, asked


def row_of(study: str, run: Run, page: str) -> Json:
    """Return a run as a row of the table, its measures as text. `page` is its notebook's page, or
    ""."""
    shown = {name: run["measures"].get(name) for name in SHOWN}
    values = {n: MEASURES[n].text(value) for n, value in shown.items() if value is not None}
    return {"study": study, "page": page, "measures": values} | {
        name: str(run[name]) for name in ("arm", "seed", "status")
    }


def write_curves(site: Path, name: str, runs: dict[str, Run], root: Path, refresh: int) -> str:
    """Write the page of a study's curves, unless it is up to date, and return its name; "" if no
    run has trained yet."""
    ended = {place: run for place, run in runs.items() if "steps" in run}
    times = [path.stat().st_mtime_ns for path in listed(root, f"*/seed-*/{STEPS_FILE}")]
    page = f"{name}/curves.html"
    mark = digest([CODE, [*runs], ended, times, refresh])  # results hash their raw tables
    if not _is_made(site / page, mark):
        found = curves_of(runs, root)
        if not found["steps"]:
            return ""
        content: Json = {"mark": mark, "study": name, "refresh": refresh, "vega": VEGA}
        _write(site, page, "curves.html.j2", curves=found, **content)
    return page


def answers_of(verdict: Json, plan: Plan | None) -> list[Json]:
    """Return what a study found, as rows of answer, claim, measure and estimate: the answers to the
    hypotheses of its plan, or to its families of tests. For an exploratory study they are its
    differences in the loss, if it has one."""
    tested = {row["hypothesis"]: row for row in verdict.get("hypothesis_tests", ())}
    if tested:
        return [
            _found(row, row["answer"], row["says"])
            | {"more": outcome(row, plan).removeprefix(row["answer"]).strip(": ;") if plan else ""}
            for row in map(_with_numbers, tested.values())
        ]
    rows = verdict.get("tests") or by_setting(verdict.get("effects", ())) or verdict["contrasts"]
    measures = [row["measure"] for row in rows]
    main = next(m for m in ("loss", "bits_per_character", *measures) if m in measures)
    found = []
    for row in rows:
        if row["measure"] == main and not row.get("changes_sign"):
            answer = row.get("answer", direction(row))
            name = row.get("effect") or f"{row['arm']} - {row['baseline']}"
            found.append(_found(_with_numbers(row), answer, spoken(name)) | {"more": ""})
    return found


def _with_numbers(row: Row) -> Row:
    """Return a row of a verdict with NaN in place of JSON's null."""
    return row | {key: nan for key in ENDS if row.get(key) is None}


def _found(row: Row, answer: str, claim: str) -> Json:
    """Return a row of `answers_of`. Its colour says, as in figures, whether the printed interval
    lies on the side of a cost or of a gain."""
    measure = MEASURES[row["measure"]]
    ends = [measure.gain(round(row[end], measure.digits)) for end in ("t_low", "t_high")]
    colour = "helps" if min(ends) > 0 else "costs" if max(ends) < 0 else "neither"
    estimate = measure.estimate(row)
    about = {"answer": answer, "claim": claim, "colour": colour}
    return about | {"measure": measure.title, "estimate": estimate}


def counted(answers: Iterable[Json]) -> str:
    """Count the answers, as in "2 higher, 1 lower"."""
    counts = Counter(row["answer"] for row in answers)
    return ", ".join(f"{n} {answer}" for answer, n in counts.items())


def question_of(name: str, design: Study | None, plan: Plan | None, paper: Path) -> tuple[int, str]:
    """Return a study's rank in its paper's table of studies, and its question there. If the table
    lacks it, the question is its plan's, or one made from its factors."""
    file = paper / "studies.yaml"
    asked = read_yaml(file) if file.is_file() else {}
    if name in asked:
        return list(asked).index(name), asked[name].replace("`", "")
    if plan:
        return len(asked), plan.question
    factors = " and ".join(field.rpartition(".")[2] for field in (design.factors if design else ()))
    verb = "do" if " and " in factors else "does"
    return len(asked), f"what difference {verb} {factors} make?" if factors else ""


def setting_of(design: Study | None) -> str:
    """Return text, size, steps, rate and schedule of a study in one line, without its factors."""
    if not design:
        return ""
    model, training = design.model, design.training
    fixed = {
        "corpus.source": Path(design.corpus.source).name,
        "model.n_layer": f"{model.n_layer} blocks",
        "model.n_embd": f"{model.n_embd} features",
        "training.iterations": f"{training.iterations:,} steps",
        "training.learning_rate": f"rate {training.learning_rate:g}",
        "training.schedule": spoken(training.schedule),
    }
    return ", ".join(words for field, words in fixed.items() if field not in design.factors)


def abstract_of(paper: Path | None) -> str:
    """Return the abstract of a paper's manuscript as HTML; "" if there is none.

    Raises TextError if a claim of the manuscript does not hold."""
    if not paper or not (paper / "paper.md").is_file():
        return ""
    text = Template(paper).render("paper.md")
    _, _, rest = text.partition("::: {.abstract}\n")
    sentences = rest.partition(":::")[0].replace("\n", "\n\n")  # a paragraph each
    return _cleaner.clean(markdown2html(sentences))


def read_study(site: Path, paper: Path | None, name: str, refresh: int = 0) -> Json:
    """Write a study's pages, and return what the first page shows of it: question, answers, rows of
    the table of runs, and the trouble with reading it. It is read from the record of a paper;
    without a paper, from `runs/`."""
    shown: Json = {"name": name, "rows": [], "notebooks": {}, "curves": "", "trouble": ""}
    shown |= {"rank": 0, "question": "", "setting": "", "standing": "", "answers": []}
    shown |= {"done": 0, "steps": (0, 0), "is_training": False}  # steps made and asked
    try:
        design, plan, verdict = None, None, RUNS / name / "verdict.json"
        root = folder = RUNS / name
        if paper:
            record = Record(name, paper)
            folder, root = record.folder, record.raw
            verdict, design = record.verdict_file, record.parameters
        with suppress(UserError):  # its parameters may be gone, or have changed
            design = design or load_study(name)
        if design and design.plan:
            plan = read_plan(design.plan)
        asked = question_of(name, design, plan, paper or paper_of(name))
        shown["rank"], shown["question"] = asked
        shown["setting"] = setting_of(design)
        if verdict.is_file():
            found = read_json(verdict)
            shown["standing"] = found["standing"].lower()
            shown["answers"] = answers_of(found, plan)
        runs = runs_of(design, folder, root)
        shown["steps"] = steps_of(design, runs, folder)
        shown["is_training"] = any(run["status"].startswith("running") for run in runs.values())
        shown["done"] = sum("steps" in run for run in runs.values())
        changes = shown["done"] < len(runs)
        shown["curves"] = write_curves(site, name, runs, root, refresh if changes else 0)
        for path in listed(folder, "*.ipynb"):
            page = write_notebook(site, f"{name}/{path.stem}.html", path)
            shown["notebooks"][path.stem] = page
        for run, result in runs.items():
            path = folder / run / "02_train.ipynb"
            page = write_notebook(site, f"{name}/{run}.html", path)
            shown["rows"].append(row_of(name, result, page))
    except Exception as error:  # a file can be damaged in any way; show the other studies
        shown["trouble"] = repr(error)[:300]
    return shown


def write_scripts(site: Path) -> None:
    """Write Vega's scripts into the site, unless they are there; that takes a second."""
    if not (site / VEGA).is_file():
        write_text(site / VEGA, javascript_bundle())  # type: ignore[call-arg]  # its stub asks for code


def build_site(
    paper: Path | None, names: list[str], refresh: int = 0, left: str = ""
) -> list[Json]:
    """Update the site of a paper, or of `runs/`, and return its studies. With `refresh`, pages that
    may change reload themselves after that many seconds. `left` is the time left, in words."""
    site, title = site_of(paper), paper.name if paper else "Your runs"
    shown = track(names, title, disable=not sys.stdout.isatty() or refresh > 0, transient=True)
    studies = [read_study(site, paper, name, refresh) for name in shown]
    studies.sort(key=lambda study: study["rank"])
    write_scripts(site)
    light, dark = (HtmlFormatter(style=style) for style in ("default", "github-dark"))
    css = {"light": light.get_style_defs(".highlight"), "dark": dark.get_style_defs(".highlight")}
    _write(site, "site.css", "site.css.j2", **css)
    content: Json = {"title": title, "studies": studies, "refresh": refresh, "left": left}
    content["abstract"] = abstract_of(paper)
    measures = {name: MEASURES[name] for name in SHOWN}
    _write(site, "index.html", "index.html.j2", measures=measures, counted=counted, **content)
    return studies


def site_of(paper: Path | None) -> Path:
    """Return the folder of a paper's site; without a paper, of the site of your own runs."""
    return paper / "site" if paper else RUNS / "_site"


def own_studies() -> list[str]:
    """List the studies that have runs in `runs/`."""
    return sorted({path.parents[1].name for path in RUNS.glob("*/*/seed-*")})


def is_sweeping() -> bool:
    """Return whether a sweep is running: it locks its log."""
    try:
        with (RUNS / "sweep.log").open("rb") as log:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


def _server(site: Path) -> ThreadingHTTPServer:
    """Return a server of a folder at a free port, for this machine only."""
    handler = partial(_Quiet, directory=str(site))
    with suppress(OSError):
        return ThreadingHTTPServer(("127.0.0.1", PORT), handler)
    return ThreadingHTTPServer(("127.0.0.1", 0), handler)


def time_left(studies: list[Json], seconds: float, before: int) -> tuple[int, str]:
    """Return how many steps the studies that train have made, and the time left in words, or "" if
    it is unknown. They had made `before` steps `seconds` ago."""
    made, asked = (sum(of["steps"][i] for of in studies if of["is_training"]) for i in (0, 1))
    if not 0 < before < made:
        return made, ""
    minutes = seconds / (made - before) * (asked - made) / 60
    return made, f"about {max(1, minutes):.0f} min left"


def serve() -> None:
    """Serve the site of your own runs at one address, and update it every few seconds. It ends with
    the sweep; without a sweep, with Ctrl-C."""
    site = site_of(None)
    site.mkdir(parents=True, exist_ok=True)
    start, first, left = 0.0, 0, ""
    has_swept, is_on = False, True
    with _server(site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = server.server_port
        while is_on:
            sweeps = is_sweeping()
            is_on, has_swept = sweeps or not has_swept, sweeps or has_swept
            studies = build_site(None, own_studies(), SECONDS if is_on else 0, left)
            made, left = time_left(studies, time.monotonic() - start, first)
            if not start:
                there = f"ssh -L {at}:localhost:{at} {socket.gethostname()}"
                print(f"In a browser        http://localhost:{at}/ (over ssh: {there})", flush=True)
                start, first = time.monotonic(), made
            time.sleep(SECONDS)  # also at the end, so that an open page still loads it
    print(f"The sweep ended     {relative(site)}/index.html")


def main(names: list[str]) -> None:
    """Build the site of your own runs, or of the papers named. If nothing has run here and none is
    named, build that of every paper.

    Raises UserError at the end, with a line for each record that cannot be shown.
    """
    own = own_studies()
    papers = [None] if own and not names else papers_named(names)
    studies = []
    for paper in papers:
        studies += build_site(paper, recorded_studies(paper) if paper else own)
        print(f"In a browser        {relative(site_of(paper))}/index.html")
    faults = [f"{study['name']}: {study['trouble']}" for study in studies if study["trouble"]]
    if faults and papers != [None]:
        raise UserError("\nerror: ".join(faults))
