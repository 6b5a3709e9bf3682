"""The lab record as web pages: an index, a page per study, and every executed notebook.

Pages are made from the record and the results alone. They are self-contained and may fetch nothing.
Rendering a notebook takes a tenth of a second, so a page that would not change is kept.
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lib.publish import initial_rms, overlay, pages, wording
from lib.publish.catalogue import StudyEntry, catalogue, index_of, neighbours, why
from lib.publish.plans import plan_accounts
from lib.publish.sources import Sources
from lib.record.archive import SHARED, papers_named, root_hash, superseded
from lib.results import history, trained_with
from lib.study.io import PAPER, TEMPLATES, relative, sha256
from lib.study.metrics import MAIN, MEASURES, measures_in
from lib.study.yaml import UserError

_EVIDENCE = re.compile(r"\]\(papers/[\w-]+/record/([\w-]+/\w+)\.ipynb\)")
"""A link to a notebook of a record, as a README has it."""
_LATER = "<p>Not rendered yet: <code>./run_all.sh record</code> renders it.</p>"


class DamagedError(UserError):
    """Files that could not be shown: a line for each study that has some. All else was built."""


def _title(paper: Path) -> str:
    """Return the title of a paper's manuscript; before there is one, its folder's name."""
    manuscript = paper / "paper.md"
    text = manuscript.read_text("utf-8", "replace") if manuscript.is_file() else ""
    lines = text.splitlines()[:9]
    titles = [line.partition(":")[2].strip(' "') for line in lines if line.startswith("title:")]
    return titles[0] if titles else paper.name


def _answers(paper: Path) -> tuple[Markup, str]:
    """Return the paper's answers, as its README gives them, and the study that the first one is of;
    empty where no README has any."""
    if not (paper / "templates" / "answers.md").is_file():
        return Markup(), ""
    text = Sources(paper).page_part("answers")
    first = _EVIDENCE.search(text)
    html = pages.linked_html(_EVIDENCE.sub(r"](\1.html)", text))
    return Markup(html), first[1].partition("/")[0] if first else ""


def _environment(paper: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES / "record"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {}  # else it sorts what has an order
    filters = (wording.number, wording.literal, wording.estimate, wording.direction, wording.minus)
    environment.filters |= {f.__name__: f for f in (*filters, sha256, history, trained_with)}
    index, fault = index_of(paper)
    environment.globals |= {
        "MEASURES": MEASURES,
        "HEADLINE": measures_in("headline"),
        "MAIN": MAIN,
        "ABOUT": SHARED,
        "CURVES": overlay.CURVES,
        "neighbours": neighbours,
        "pictures": pages.pictures,
        "overlay": overlay,
        "columns_of": overlay.columns,
        "SIZE": initial_rms.SIZE,
        "TITLE": _title(paper),
        "TROUBLE": fault,
        "ROOT_HASH": "" if fault else root_hash(paper),
        "SUPERSEDED": superseded(index),
    }
    environment.globals |= {"ANSWERS": ("", ""), "NO_ANSWERS": ""}
    try:
        environment.globals["ANSWERS"] = _answers(paper)
    except Exception as error:  # a study of theirs has no results here, or a file of it is broken
        environment.globals["NO_ANSWERS"] = why(error)
    try:
        environment.globals["PLANS"] = plan_accounts(paper)
        nothing: dict[str, Any] = {"studies": [], "initial_rms": [], "paper": False, "root": ""}
        environment.get_template("index.html.j2").render(nothing)
    except Exception as error:  # a file can be broken in any way
        environment.globals |= {"PLANS": [], "TROUBLE": fault or f"plans: {why(error)}"}
    return environment


def _marked(page: bytes, made_of: bytes) -> bytes:
    """End a page with the hash of what it is made of and of its bytes."""
    mark = hashlib.sha256(hashlib.sha256(made_of).digest() + page).hexdigest()
    return page + f"<!-- {mark} -->\n".encode()


def build_site(paper: Path | None = None, failed: Collection[Path] = ()) -> list[str]:
    """Bring the pages of a paper's studies (None: `papers/embedding-norm/`) up to date, in its
    `site/`; return which notebooks' pages had to be rendered. Of notebooks that have `failed` only
    these are, and the pages of their studies.

    Raises DamagedError, when all is built, for files that cannot be shown; the pages say so too.
    """
    paper = paper or PAPER
    site, environment, rendered = paper / "site", _environment(paper), []
    recipe = [sha256(Path(pages.__file__)), version("nbconvert"), version("nh3")]
    current: dict[str, list[Path]] = {}

    def write(page: str, template: str, **content: Any) -> Path:
        path = site / page
        path.parent.mkdir(parents=True, exist_ok=True)
        root = "../" * page.count("/")
        text = environment.get_template(template).render(content, root=root, page=page)
        if notebook := content.get("notebook"):
            if failed and notebook.path not in failed:
                if not path.is_file():
                    path.write_text(text.replace("<!-- notebook -->", _LATER), "utf-8", "replace")
                return path
            # What stands around a notebook holds its hash: with the recipe, it is all that the page
            # is made of. The mark at its end is of that and of the page's own bytes.
            made_of = "".join([*recipe, text]).encode("utf-8", "replace")
            previous = path.read_bytes() if path.is_file() else b""
            if previous == _marked(previous[: -len(_marked(b"", b""))], made_of):
                return path
            rendered.append(page)
            html = text.replace("<!-- notebook -->", pages.notebook_html(notebook.path))
            path.write_bytes(_marked(html.encode("utf-8", "replace"), made_of))
            return path
        path.write_text(text, "utf-8", errors="replace")
        return path

    def write_study(study: StudyEntry) -> StudyEntry:
        """Write a study's pages; return it, or what is left of it where its files are damaged."""
        page, context = f"{study.name}/index.html", {"study": study}
        try:
            written = [write(page, "study.html.j2", **context)]
            for each in [*study.shared, *study.runs]:
                written.append(write(each.page, "notebook.html.j2", **context, notebook=each))
        except Exception as error:  # a file can be broken in any way
            study = StudyEntry(study.name, trouble=study.trouble or why(error))
            written = [write(page, "study.html.j2", study=study)]
        current[study.name] = written
        return study

    def write_shared(studies: list[StudyEntry]) -> None:
        of = initial_rms.figures(studies, paper)
        content = {"studies": studies, "initial_rms": of, "paper": pdf.is_file()}
        first = write("index.html", "index.html.j2", **content)
        current[""] = [first, write("compare.html", "compare.html.j2", studies=studies)]
        if of:
            current[""].append(write("initial-rms.html", "initial-rms.html.j2", figures=of))

    files = ("record.css", "state.js", "record.js", "curves.js", "overlay.js", "initial-rms.js")
    beside = [TEMPLATES / "record" / name for name in files]
    pdf = paper / "paper.pdf"
    studies = catalogue(paper)
    if failed:
        studies = [s for s in studies if {n.path for n in [*s.shared, *s.runs]} & set(failed)]
    studies = [write_study(study) for study in studies]
    if not failed or not (site / "index.html").is_file():
        try:
            write_shared(studies)
        except Exception:
            studies = _without_damage(studies, write_study, write_shared)
    for source in [*beside, pdf] if pdf.is_file() else beside:
        current[source.name] = [Path(shutil.copyfile(source, site / source.name))]
    current_files = {path for of in current.values() for path in of}
    for path in sorted(site.rglob("*"), reverse=True):  # left by deleted studies and runs
        if failed:
            break
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif path.is_file() and path not in current_files:
            path.unlink()
    trouble = environment.globals["TROUBLE"]
    faults = [f"{study.name}: {study.trouble}" for study in studies if study.trouble]
    if faults or trouble:
        raise DamagedError("\nerror: ".join(faults or [f"{paper.name}: {trouble}"]))
    return rendered


def _without_damage(
    studies: list[StudyEntry],
    write_study: Callable[[StudyEntry], StudyEntry],
    write_shared: Callable[[list[StudyEntry]], None],
) -> list[StudyEntry]:
    """Find which studies the pages of all cannot show: write these with one study more each time.
    Return all, the damaged ones as what is left of them."""
    written: list[StudyEntry] = []
    for study in studies:
        try:
            write_shared([*written, study])
        except Exception as error:
            study = write_study(StudyEntry(study.name, trouble=study.trouble or why(error)))
        written.append(study)
    write_shared(written)
    return written


def main(names: list[str]) -> None:
    """Build the lab records of some papers (none named: of all) and say where they are."""
    damage = []
    for paper in papers_named(names):
        site, count = relative(paper / "site"), "all but what is damaged"
        try:
            count = f"{len(build_site(paper))} pages rendered anew"
        except DamagedError as error:
            damage.append(str(error))
        print(f"Lab record          {site}/index.html ({count})")
        print(f"To look at it       python -m http.server --directory {site}")
    if damage:
        raise DamagedError("\nerror: ".join(damage))
