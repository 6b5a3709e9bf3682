"""The lab record as web pages: an index, a page per study, and every executed notebook.

The pages are derived from the record and the results, hold all that they show, and may fetch
nothing. A page is written only when what it is made of has changed.
"""

import argparse
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lib.publish import pages
from lib.publish.archive import sha256
from lib.publish.catalogue import catalogue
from lib.publish.exhibits import index_content, run_content, run_page, shared_content, study_content
from lib.study.fields import digest
from lib.study.paths import PAPER, TEMPLATES, shown

_INPUTS = re.compile(rb'<meta name="inputs" content="([0-9a-f]{64})">')


class Site:
    """Pages under one folder, written where their inputs have changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[str] = []
        self._kept: set[Path] = set()
        templates = TEMPLATES / "record"
        self._environment = Environment(
            loader=FileSystemLoader(templates),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        # What a page is made by, besides its inputs.
        sources = [*sorted(templates.iterdir()), Path(pages.__file__)]
        self._recipe = [sha256(source) for source in sources]
        self._recipe += [version(name) for name in ("nbconvert", "nh3")]
        for name in ("record.css", "record.js"):
            self.copy(templates / name)

    def copy(self, source: Path) -> None:
        """Put a file beside the index."""
        self._write(source.name, source.read_bytes())

    def page(
        self, path: str, template: str, content: dict[str, Any], notebook: Path | None = None
    ) -> None:
        """Write a page from plain values, and from a notebook whose hash is among them."""
        inputs = digest([self._recipe, template, content])
        self._kept.add(self.folder / path)
        if _inputs_of(self.folder / path) == inputs:
            return
        body = Markup(pages.notebook_html(notebook)) if notebook else ""
        root = "../" * path.count("/")
        text = self._environment.get_template(template).render(
            content, inputs=inputs, root=root, body=body
        )
        self._write(path, text.encode())

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        self._kept.add(path)
        if path.is_file() and path.read_bytes() == content:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(content)
        partial.replace(path)
        self.written.append(name)

    def remove_others(self) -> None:
        """Delete what an earlier build has left of studies and runs that are no more."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            elif path.is_file() and path not in self._kept:
                path.unlink()


def build_site(folder: Path | None = None) -> Site:
    """Bring the pages under `folder` (None: `papers/embedding-norm/site/`) up to date."""
    site = Site(folder or PAPER / "site")
    studies = catalogue()
    paper = PAPER / "paper.pdf"
    if paper.is_file():
        site.copy(paper)
    for study in studies:
        site.page(f"{study.name}/index.html", "study.html.j2", study_content(study))
        for name, notebook in study.shared.items():
            content = shared_content(study, name, notebook)
            site.page(f"{study.name}/{name}.html", "notebook.html.j2", content, notebook.path)
        for run in study.runs:
            content = run_content(study, run)
            site.page(run_page(run), "notebook.html.j2", content, run.notebook.path)
    site.page("index.html", "index.html.j2", index_content(studies, paper.is_file()))
    site.remove_others()
    return site


def _inputs_of(page: Path) -> str:
    """Return the hash of what an existing page was made of; empty when there is none."""
    if not page.is_file():
        return ""
    with page.open("rb") as file:
        found = _INPUTS.search(file.read(500))
    return found[1].decode() if found else ""


def main(arguments: list[str] | None = None) -> int:
    """Command line: build the lab record and say where it is."""
    argparse.ArgumentParser(prog="python -m lib.publish.site", description=main.__doc__).parse_args(
        arguments
    )
    site = build_site()
    print(
        f"Lab record          {shown(site.folder)}/index.html ({len(site.written)} files written)"
    )
    print(f"To look at it       python -m http.server --directory {shown(site.folder)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
