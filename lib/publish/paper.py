"""The paper as PDF (through Typst) and as LaTeX, and the computed parts of the READMEs.

paper.md is a template (see `lib.publish.sources`) of Pandoc's Markdown. In it stand further

    ::: {.figure #fig:x file=final/trend.pdf} caption :::      a file of figures/
    ::: {.table #tbl:x} caption, table :::

and `@key` for a reference, `@fig:x`, `@tbl:x` and `@sec:x` for what has that label.
"""

import re
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pikepdf
import pypandoc
import typst

from lib.publish.plans import FILE, has_history, plan_accounts, write_accounts
from lib.publish.sources import Sources, TextError
from lib.record.archive import papers_named
from lib.study.io import ROOT, TEMPLATES, read_json, relative, write_bytes, write_text
from lib.study.yaml import suggest

_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CITED = re.compile(r"(?<![\w@\\])@([A-Za-z][\w-]*(?::[\w-]+)?)")
_LABEL = re.compile(r"\{[^}]*#((?:fig|tbl|sec):[\w-]+)")
_FIGURE = re.compile(r"^:::.*\.figure.* file=([^\s}]+)", re.MULTILINE)
MANUSCRIPT = TEMPLATES / "manuscript.md"
"""Of which a paper is begun."""
PAGES = {"answers": "README.md", "studies": "params/README.md", "root": "papers/README.md"}
"""Templates of what is computed, and the page where each stands."""
_COMPUTED = re.compile(r"(<!-- (\w+): .*? -->\n\n).*?(\n\n<!-- end of \2 -->)", re.DOTALL)


def filled_in(paper: Path, sources: Sources) -> str:
    """Fill in paper.md. TextError, naming the line, for a value, reference or figure that is not
    there, or a block that is not closed."""
    source = (paper / "paper.md").read_text("utf-8")
    _require_closed(source)
    markdown = sources.render("paper.md")
    bibliography = (paper / "references.bib").read_text("utf-8")
    keys = re.findall(r"^@\w+\{([^,\s]+),", bibliography, re.MULTILINE)
    figures = [p.relative_to(paper / "figures") for p in sorted(paper.glob("figures/[!.]*/*.pdf"))]
    cited = _CITED.findall(_CODE.sub("", markdown))
    _require("@", cited, [*keys, *_LABEL.findall(markdown)], source)
    _require("file=", _FIGURE.findall(markdown), [path.as_posix() for path in figures], source)
    return markdown


def _require(mark: str, names: Iterable[str], known: list[str], source: str) -> None:
    for name in names:
        if name not in known:
            match = re.search(rf"{mark}{re.escape(name)}(?![\w-])", source)
            line = source[: match.start()].count("\n") + 1 if match else "?"
            raise TextError(f"paper.md, line {line}: {mark}{suggest(name, known)}")


def _require_closed(source: str) -> None:
    opened: list[int] = []
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith(":::") and "{" in line:
            opened.append(number)
        elif line.startswith(":::"):
            if not opened:
                raise TextError(f"paper.md, line {number}: nothing is open that ::: could close")
            opened.pop()
    if opened:
        raise TextError(f"paper.md, line {opened[-1]}: this block is not closed; write :::")


def convert(markdown: str, to: str, paper: Path) -> str:
    """Turn Markdown into Typst or LaTeX by the template and filter of the paper, or else of the
    house."""
    own_templates = paper / "templates" / "paper"
    templates = own_templates if own_templates.is_dir() else TEMPLATES / "paper"
    options = [f"--template={templates}/template.{to}", f"--lua-filter={templates}/filter.lua"]
    options += ["--syntax-highlighting=none", "--natbib"] if to == "latex" else []
    try:
        return str(pypandoc.convert_text(markdown, to, "markdown", extra_args=options))
    except RuntimeError as error:
        raise TextError(f"pandoc: {error}") from None


def make_files(paper: Path, sources: Sources) -> dict[str, bytes]:
    """Make paper.tex and paper.pdf of paper.md: the same bytes of the same files. Raises
    TextError."""
    markdown = filled_in(paper, sources)
    latex, source = (convert(markdown, to, paper).encode() for to in ("latex", "typst"))
    try:
        # Only fonts that Typst brings, so that every machine sets the same page. The stub of
        # `compile` wants source and root to be of one type; they need not be.
        pdf: bytes = typst.compile(  # type: ignore[type-var]
            source, root=paper, ignore_system_fonts=True, timestamp=0
        )
    except typst.TypstError as error:
        raise TextError(f"Typst: {error.diagnostic}") from None
    return {"paper.tex": latex, "paper.pdf": _saved(pdf, object_stream_mode=_PACKED)}


_PACKED, _ONE_BY_ONE = pikepdf.ObjectStreamMode.generate, pikepdf.ObjectStreamMode.disable


def _saved(pdf: bytes, **how: Any) -> bytes:
    output = BytesIO()
    with pikepdf.open(BytesIO(pdf)) as opened:
        opened.save(output, deterministic_id=True, **how)
    return output.getvalue()


def same(existing: bytes, expected: bytes) -> bool:
    """Tell whether a file is as it was made; a PDF, but for how it was packed."""
    if existing == expected or not expected.startswith(b"%PDF"):
        return existing == expected
    try:
        return uncompressed(existing) == uncompressed(expected)
    except pikepdf.PdfError:
        return False


def uncompressed(pdf: bytes) -> bytes:
    """Unpack the streams of a PDF, which builds of zlib pack differently. pikepdf.PdfError for what
    is no PDF."""
    decoded = pikepdf.StreamDecodeLevel.generalized
    return _saved(pdf, object_stream_mode=_ONE_BY_ONE, compress_streams=False,
                  stream_decode_level=decoded)  # fmt: skip


def build(paper: Path) -> Sources:
    """Write paper.pdf, paper.tex and plans.json beside paper.md; return what they are made of.
    Raises TextError, and then writes nothing."""
    sources = Sources(paper)
    for name, content in make_files(paper, sources).items():
        write_bytes(paper / name, content)
    write_accounts(paper)
    return sources


def with_computed(sources: Sources, name: str, page: str) -> str:
    """Fill in the computed part of a page, between two comments that name its template. TextError
    where there is no such part."""

    def part(frame: re.Match[str]) -> str:
        return frame[1] + sources.page_part(frame[2]) + frame[3]

    if [frame[2] for frame in _COMPUTED.finditer(page)] != [name]:
        raise TextError(
            f"{PAGES[name]} lacks a computed part, between <!-- {name}: … --> and <!-- end of "
            f"{name} -->; restore it from git"
        )
    return _COMPUTED.sub(part, page)


def write_pages(sources: Sources, root: Path = ROOT) -> None:
    """Bring the computed parts of the READMEs up to date."""
    for name, page in PAGES.items():
        text = (root / page).read_text("utf-8")
        written = with_computed(sources, name, text)
        if written != text:
            write_text(root / page, written)


def answers_readme(paper: Path) -> bool:
    """Tell whether the computed parts of the READMEs are those of this paper."""
    return (paper / "templates" / "answers.md").is_file()


def check_texts(paper: Path) -> Iterator[str]:
    """Yield what of a paper, and of the READMEs if their answers are the paper's, is not what the
    results say."""
    if not (paper / "paper.md").is_file():
        return
    try:
        accounts = paper / FILE
        if has_history() and accounts.is_file() and read_json(accounts) != plan_accounts(paper):
            yield f"{FILE} is not what git says of the plans; run ./run_all.sh paper"
        sources = Sources(paper)
        for name, content in make_files(paper, sources).items():
            path = paper / name
            if not path.is_file() or not same(path.read_bytes(), content):
                what = f"{relative(path)} is not what its sources and the results give"
                yield f"{what}; run ./run_all.sh paper"
        if not answers_readme(paper):
            return
        for name, page in PAGES.items():
            text = (ROOT / page).read_text("utf-8")
            if with_computed(sources, name, text) != text:
                yield f"{page} does not say what the results do; run ./run_all.sh paper"
    except Exception as error:  # a file can be broken in any way
        yield f"the paper cannot be built: {error}"


def begin(paper: Path) -> None:
    """Write a first manuscript: table, contrasts and a figure of each of a paper's studies."""
    head, section = MANUSCRIPT.read_text("utf-8").split("<!-- study -->\n")
    studies = sorted(path.name.partition(".")[0] for path in paper.glob("results/*.verdict.json"))
    sections = "".join(section.replace("STUDY", name) for name in studies)
    text = head.replace("PAPER", paper.name) + sections
    write_text(paper / "paper.md", text)
    (paper / "references.bib").touch()


def main(names: list[str]) -> None:
    """Build the papers named, or all that have a manuscript; begin one where a paper that is named
    has none. Bring the READMEs up to date, and say what was left out."""
    for paper in papers_named(names):
        written = (paper / "paper.md").is_file()
        if not written and not names:
            continue
        if not written:
            begin(paper)
            print(f"First manuscript    {relative(paper / 'paper.md')}: yours to rewrite")
        sources = build(paper)
        if answers_readme(paper):
            write_pages(sources)
        if sources.left_out:
            print(f"Left out            what needs {', '.join(sources.left_out)}: no results")
        if sources.unused:
            print(f"Not in the paper    {', '.join(sources.unused)}: recorded, but paper.md quotes")
            print(f"                    nothing of it; write a section, as {relative(MANUSCRIPT)}")
            print("                    begins one for each STUDY, or delete paper.md to begin anew")
        print(
            f"Paper               {relative(paper / 'paper.pdf')}, {relative(paper / 'paper.tex')}"
        )
