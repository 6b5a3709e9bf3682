"""The lab record as web pages: an index, a page per study, and every executed notebook.

Pages are made from the record and the results alone. They are self-contained and may fetch nothing.
Rendering a notebook takes a tenth of a second, so a page that would not change is kept.
"""

import hashlib
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lib.publish import overlay, pages, wording
from lib.publish.archive import SHARED, papers_named, read_index, root_hash
from lib.publish.catalogue import catalogue, neighbours
from lib.publish.plans import plan_accounts
from lib.study.errors import exit_status
from lib.study.measures import MAIN, MEASURES, measures_in
from lib.study.paths import PAPER, TEMPLATES, shown
from lib.study.provenance import history, trained_with
from lib.study.record import sha256


def _title(paper: Path) -> str:
    """The title of a paper's manuscript; before there is one, its folder's name."""
    manuscript = paper / "paper.md"
    lines = manuscript.read_text("utf-8").splitlines() if manuscript.is_file() else []
    titles = [line.partition(":")[2].strip(' "') for line in lines[:9] if line.startswith("title:")]
    return titles[0] if titles else paper.name


def _environment(paper: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES / "record"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {}  # else it sorts what has an order
    environment.filters |= {"sha256": sha256, "shown": shown}
    environment.filters |= {"history": history, "trained_with": trained_with}
    environment.filters |= {
        name: getattr(wording, name) for name in ("number", "literal", "estimate", "direction")
    }
    environment.globals |= {
        "MEASURES": MEASURES,
        "HEADLINE": measures_in("headline"),
        "MAIN": MAIN,
        "ABOUT": SHARED,
        "CURVES": overlay.CURVES,
        "neighbours": neighbours,
        "pictures": pages.pictures,
        "overlay": overlay,
        "PLANS": plan_accounts(paper),
        "TITLE": _title(paper),
        "ROOT_HASH": root_hash(paper),
        "SUPERSEDED": [name for name, entry in read_index(paper).items() if "superseded" in entry],
    }
    return environment


def _marked(page: bytes, made_of: bytes) -> bytes:
    """End a page with the hash of what it is made of and of its bytes."""
    mark = hashlib.sha256(hashlib.sha256(made_of).digest() + page).hexdigest()
    return page + f"<!-- {mark} -->\n".encode()


def build_site(paper: Path | None = None) -> list[str]:
    """Bring the pages of a paper's studies (None: `papers/embedding-norm/`) up to date, in its
    `site/`; return which notebooks' pages had to be rendered."""
    paper = paper or PAPER
    site, environment, rendered = paper / "site", _environment(paper), []
    recipe = [sha256(Path(pages.__file__)), version("nbconvert"), version("nh3")]
    current: set[Path] = set()

    def write(page: str, template: str, **content: Any) -> None:
        path = site / page
        current.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        root = "../" * page.count("/")
        text = environment.get_template(template).render(content, root=root, page=page)
        if notebook := content.get("notebook"):
            # What stands around a notebook holds its hash: with the recipe, it is all that the page
            # is made of. The mark at its end is of that and of the page's own bytes.
            made_of = "".join([*recipe, text]).encode("utf-8", "replace")
            there = path.read_bytes() if path.is_file() else b""
            if there == _marked(there[: -len(_marked(b"", b""))], made_of):
                return
            rendered.append(page)
            html = text.replace("<!-- notebook -->", pages.notebook_html(notebook.path))
            path.write_bytes(_marked(html.encode("utf-8", "replace"), made_of))
            return
        path.write_text(text, "utf-8", errors="replace")

    studies = catalogue(paper)
    for study in studies:
        write(f"{study.name}/index.html", "study.html.j2", study=study)
        for notebook in [*study.shared, *study.runs]:
            write(notebook.page, "notebook.html.j2", study=study, notebook=notebook)
    beside = [TEMPLATES / "record" / name for name in ("record.css", "record.js", "curves.js")]
    pdf = paper / "paper.pdf"
    write("index.html", "index.html.j2", studies=studies, paper=pdf.is_file())
    write("compare.html", "compare.html.j2", studies=studies)
    for source in [*beside, pdf] if pdf.is_file() else beside:
        current.add(Path(shutil.copyfile(source, site / source.name)))
    for path in sorted(site.rglob("*"), reverse=True):  # left by deleted studies and runs
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif path.is_file() and path not in current:
            path.unlink()
    return rendered


@exit_status
def main(names: list[str]) -> None:
    """Command line: build the lab records of some papers (none named: of all) and say where they
    are."""
    for paper in papers_named(names):
        rendered, site = build_site(paper), shown(paper / "site")
        print(f"Lab record          {site}/index.html ({len(rendered)} pages rendered anew)")
        print(f"To look at it       python -m http.server --directory {site}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
