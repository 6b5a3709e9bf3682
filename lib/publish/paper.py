"""The paper: paper.md, with its macros and directives, as PDF (through Typst) and as LaTeX.

Besides the macros of `lib.publish.macros`, which stand for every number, paper.md may hold

    ::: {.needs study=NAME} … :::           left out, with a notice, while the study has no results
    ::: {.figure #fig:x file=final/trend.pdf} caption :::      a file of figures/
    ::: {.table #tbl:x rows=PATH} caption, table :::
                                            the table's last row, once per `row` of the list
    ::: {.include file=params/final.yaml} :::                  a file of the repository, verbatim

and `@key` for a reference, `@fig:x`, `@tbl:x` and `@sec:x` for what bears that label.
"""

import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pypandoc
import typst

from lib.publish.macros import MACRO, MacroError, Sources
from lib.study.errors import ConfigError, unknown
from lib.study.paths import PAPER, ROOT, shown

_OPEN = re.compile(r":{3,} *\{(.*)\} *")
_CLOSE = re.compile(r":{3,} *")
_ATTRIBUTE = re.compile(r"""(\w+)=(?:"([^"]*)"|(\S+))""")
_CITED = re.compile(r"(?<![\w@\\])@([A-Za-z][\w-]*(?::[\w-]+)?)")
_LABEL = re.compile(r"\{[^}]*#((?:fig|tbl|sec):[\w-]+)")


class PaperError(ValueError):
    """A paper that cannot be built; the message names the line and what is wrong in it."""


class Manuscript:
    """paper.md turned, line by line, into Markdown without macros."""

    def __init__(self, paper: Path) -> None:
        self.paper = paper
        self.sources = Sources(paper)
        self.notices: list[str] = []
        self._lines = (paper / "paper.md").read_text("utf-8").splitlines()
        self._at = 0
        self._cited: dict[str, int] = {}
        self._labels: set[str] = set()

    def expanded(self) -> str:
        """Return the Markdown. PaperError, naming the line, for whatever is not there."""
        try:
            text = "\n".join(self._block(top=True)) + "\n"
            self._require_references()
        except (MacroError, ConfigError) as error:
            raise PaperError(f"paper.md, line {self._at}: {error}") from None
        return text

    def _block(self, top: bool = False) -> list[str]:
        """Turn the lines up to the end of the block, which is read too."""
        result: list[str] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            if opened := _OPEN.fullmatch(line):
                result += self._directive(opened[1])
            elif _CLOSE.fullmatch(line):
                if top:
                    raise MacroError("nothing is open that ::: could close")
                return result
            else:
                result.append(self._line(line))
        if not top:
            raise MacroError("a block is still open at the end; close it with :::")
        return result

    def _directive(self, attributes: str) -> list[str]:
        values = {name: quoted or bare for name, quoted, bare in _ATTRIBUTE.findall(attributes)}
        for kind, needed in (("needs", "study"), ("include", "file"), ("figure", "file")):
            if f".{kind}" in attributes and needed not in values:
                raise MacroError(f".{kind} needs {needed}=…")
        if ".needs" in attributes:
            return self._needing(values["study"])
        if ".include" in attributes:
            return ["```", *self._included(values["file"]), "```", *self._block()]
        self._labels.update(_LABEL.findall(f"{{{attributes}"))
        if ".figure" in attributes:
            self._require_figure(values["file"])
        inside = self._rows(values["rows"]) if "rows" in values else self._block()
        return [f"::: {{{attributes}}}", *inside, ":::"]

    def _needing(self, study: str) -> list[str]:
        if self.sources.has(study):
            return self._block()
        start, depth = self._at, 1
        while depth and self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            depth += bool(_OPEN.fullmatch(line)) - bool(_CLOSE.fullmatch(line))
        if depth:
            raise MacroError("a block is still open at the end; close it with :::")
        self.notices.append(f"lines {start}–{self._at} left out: '{study}' has no results yet")
        return []

    def _included(self, name: str) -> list[str]:
        if not (ROOT / name).is_file():
            raise MacroError(f"there is no {name}")
        return (ROOT / name).read_text("utf-8").splitlines()

    def _require_figure(self, name: str) -> None:
        figures = self.paper / "figures"
        if not (figures / name).is_file():
            there = [p.relative_to(figures).as_posix() for p in sorted(figures.glob("*/*.pdf"))]
            raise MacroError(f"figures/{unknown(name, there)}")

    def _rows(self, path: str) -> list[str]:
        """A table whose last line is written once per row."""
        rows = self.sources.rows(path)
        result: list[str] = []
        for line, following in pairwise([*self._lines[self._at :], ""]):
            self._at += 1
            if _CLOSE.fullmatch(line):
                return result
            last = line.startswith("|") and not following.startswith("|")
            result += [self._line(line, row=row) for row in rows] if last else [self._line(line)]
        raise MacroError("a table is still open at the end; close it with :::")

    def _line(self, line: str, **names: Any) -> str:
        for key in _CITED.findall(line):
            self._cited.setdefault(key, self._at)
        self._labels.update(_LABEL.findall(line))
        text = MACRO.sub(lambda macro: self.sources.macro(macro[1], **names), line)
        if "{{" in text:
            raise MacroError("a macro must open and close on one line: {{path:format}}")
        return text

    def _require_references(self) -> None:
        bibliography = (self.paper / "references.bib").read_text("utf-8")
        known = {*re.findall(r"^@\w+\{([^,\s]+),", bibliography, re.MULTILINE), *self._labels}
        for key, line in self._cited.items():
            if key not in known:
                self._at = line
                raise MacroError(f"@{unknown(key, sorted(known))}")


def convert(markdown: str, to: str, paper: Path) -> str:
    """Turn expanded Markdown into Typst or LaTeX by the paper's own template and filter."""
    templates = paper / "templates" / "paper"
    options = [f"--template={templates}/template.{to}", f"--lua-filter={templates}/filter.lua"]
    options += ["--syntax-highlighting=none", "--natbib"] if to == "latex" else []
    try:
        return str(pypandoc.convert_text(markdown, to, "markdown", extra_args=options))
    except RuntimeError as error:
        raise PaperError(f"pandoc: {error}") from None


def build(paper: Path = PAPER) -> list[str]:
    """Write paper.pdf and paper.tex beside paper.md; return what was left out, and why.

    The same files give the same bytes. Raises PaperError.
    """
    manuscript = Manuscript(paper)
    markdown = manuscript.expanded()
    (paper / "paper.tex").write_text(convert(markdown, "latex", paper), "utf-8")
    source = convert(markdown, "typst", paper).encode()
    try:
        # Only fonts that Typst brings, so that every machine sets the same page. The stub of
        # `compile` wants source and root to be of one type; they need not be.
        pdf: bytes = typst.compile(  # type: ignore[type-var]
            source, root=paper, ignore_system_fonts=True, timestamp=0
        )
    except typst.TypstError as error:
        raise PaperError(f"Typst: {error.diagnostic}") from None
    (paper / "paper.pdf").write_bytes(pdf)
    return manuscript.notices


def main() -> int:
    """Command line: build the paper, and say what was left out and where it lies."""
    try:
        notices = build()
    except PaperError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for notice in notices:
        print(f"paper.md, {notice}")
    print(f"Paper               {shown(PAPER / 'paper.pdf')}, {shown(PAPER / 'paper.tex')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
