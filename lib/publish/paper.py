"""Build a paper as PDF (by Typst) and as LaTeX, and the computed parts of the READMEs.

paper.md is Pandoc's Markdown and a template (see `lib.publish.template`). It may also have

    ::: {.figure #fig:x file=findings/when.pdf} caption :::      a file of figures/
    ::: {.table #tbl:x} caption, table :::

and `@key` for a reference, and `@fig:x`, `@tbl:x` or `@sec:x` for a figure, table or section.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pypandoc
import typst

from lib.config.errors import UsageError, suggest
from lib.config.files import write_bytes, write_text
from lib.config.paths import CHECKOUT, TEMPLATES, relative
from lib.publish.template import Template, TextError, studies_of
from lib.record.archive import papers_named

PAGES = {"answers": "README.md", "studies": "params/README.md"}
"""Templates in the paper's folder → the page that each fills a part of."""
_CITED = re.compile(r"(?<![\w@\\`])@([A-Za-z][\w-]*(?::[\w-]+)?)")


def convert(markdown: str, to: str) -> str:
    """Convert Markdown to "typst" or "latex". Pandoc sets the quotes, because Typst would print the
    apostrophe of "GPT-2's" as a prime."""
    folder = str(TEMPLATES / "paper")  # as working folder, because Pandoc decodes %20 in a path
    options = [f"--template=template.{to}", "--lua-filter=filter.lua"]
    if to == "latex":
        options += ["--syntax-highlighting=none", "--natbib"]
    try:
        return str(pypandoc.convert_text(markdown, to + "-smart", "md", options, cworkdir=folder))
    except RuntimeError as error:
        raise TextError(f"paper.md: pandoc: {error}") from None


def make_files(paper: Path) -> dict[Path, bytes]:
    """Return a paper's PDF, its LaTeX and the pages that it fills, by path. The same sources give
    the same bytes. Raises TextError if something cannot be built."""
    template = Template(paper)
    markdown = template.render("paper.md")
    _require_references(paper, markdown)
    try:
        # Only the fonts inside Typst, so that every machine makes the same page. The type stub
        # wants source and root to be of one type, but they need not be.
        pdf: bytes = typst.compile(  # type: ignore[type-var]
            convert(markdown, "typst").encode(), root=paper, ignore_system_fonts=True, timestamp=0
        )
    except typst.TypstError as error:
        raise TextError(f"paper.md: {error.diagnostic}") from None
    files = {paper / "paper.pdf": pdf, paper / "paper.tex": convert(markdown, "latex").encode()}
    for name, page in PAGES.items():
        if (paper / "templates" / f"{name}.md").is_file():
            text = template.render(f"templates/{name}.md").strip()
            files[CHECKOUT / page] = _filled(CHECKOUT / page, name, text).encode()
    return files


def _require_references(paper: Path, markdown: str) -> None:
    bibliography = (paper / "references.bib").read_text("utf-8")
    known = re.findall(r"^@\w+\{([^,\s]+),", bibliography, re.MULTILINE)
    known += re.findall(r"\{[^}]*#((?:fig|tbl|sec):[\w-]+)", markdown)
    source = (paper / "paper.md").read_text("utf-8")
    for key in _CITED.findall(markdown):
        if key not in known:
            line = re.split(rf"@{key}(?![\w-])", source)[0].count("\n") + 1
            raise TextError(f"paper.md, line {line}: @{suggest(key, known)}")


def _filled(page: Path, name: str, text: str) -> str:
    """Return a page with the text between the two comments that mark the place."""
    frame = re.compile(rf"(<!-- {name}: .*? -->\n\n).*?(\n\n<!-- end of {name} -->)", re.DOTALL)
    before = page.read_text("utf-8")
    filled, count = frame.subn(lambda match: match[1] + text + match[2], before)
    if count != 1:
        raise TextError(
            f"{relative(page)}: the comments around its {name} are missing; restore them"
        )
    return filled


def check(paper: Path) -> Iterator[str]:
    """Yield each file of a paper that differs from what its sources and the results give, or why
    the paper cannot be built."""
    try:
        for path, content in make_files(paper).items():
            if not path.is_file() or path.read_bytes() != content:
                yield f"{relative(path)}: is out of date; run ./run_all.sh paper"
    except TextError as error:
        yield str(error)


def write_manuscript(paper: Path) -> None:
    """Write a first manuscript, with a table, contrasts and a figure for each study of a paper."""
    head = (TEMPLATES / "manuscript.md").read_text("utf-8").partition("<!-- study -->\n")[0]
    write_text(paper / "paper.md", head.replace("PAPER", paper.name))
    (paper / "references.bib").touch()
    for study in studies_of(paper):
        add_section(paper, study)


def add_section(paper: Path, study: str) -> None:
    """Append a section on a study to a manuscript. Raises UsageError if it has no results."""
    if study not in (known := studies_of(paper)):
        raise UsageError(f"--add: {suggest(study, known)} in {relative(paper)}/results/")
    template = (TEMPLATES / "manuscript.md").read_text("utf-8")
    section = template.partition("<!-- study -->\n")[2].replace("STUDY", study)
    manuscript = (paper / "paper.md").read_text("utf-8")
    write_text(paper / "paper.md", manuscript + section)


def written_on(paper: Path) -> list[str]:
    """List the studies that a manuscript names."""
    text = (paper / "paper.md").read_text("utf-8")
    return [name for name in studies_of(paper) if re.search(rf"(?<![\w-]){name}(?![\w-])", text)]


def main(names: list[str], add: str | None = None) -> None:
    """Build the papers named, or all that have a manuscript. If a named paper has none, write a
    first one. To named papers, add a section on the study `add`."""
    if add and not names:
        raise UsageError("--add: name the paper as well: ./run_all.sh paper PAPER --add STUDY")
    for paper in papers_named(names):
        if not (paper / "paper.md").is_file():
            if not names:
                continue
            write_manuscript(paper)
            print(f"First manuscript    {relative(paper / 'paper.md')}: a draft for you to rewrite")
        if add and add not in written_on(paper):
            add_section(paper, add)
        for path, content in make_files(paper).items():
            write_bytes(path, content)
        named = written_on(paper)
        if others := [study for study in studies_of(paper) if study not in named]:
            how = f"./run_all.sh paper {paper.name} --add {others[0]}"
            print(f"Not in paper.md     {', '.join(others)} ({how} adds a section)")
        print(f"Paper               {relative(paper / 'paper.pdf')}")
