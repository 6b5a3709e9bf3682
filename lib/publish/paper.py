"""The paper as PDF (through Typst) and as LaTeX, and the answers in the README.

paper.md is a template (see `lib.publish.sources`) of Pandoc's Markdown. In it stand further

    ::: {.figure #fig:x file=final/trend.pdf} caption :::      a file of figures/
    ::: {.table #tbl:x} caption, table :::

and `@key` for a reference, `@fig:x`, `@tbl:x` and `@sec:x` for what has that label.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pypandoc
import typst

from lib.publish.archive import root_hash
from lib.publish.plans import write_accounts
from lib.publish.sources import Sources, TextError
from lib.study.errors import ConfigError, unknown
from lib.study.paths import PAPER, ROOT, shown

_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CITED = re.compile(r"(?<![\w@\\])@([A-Za-z][\w-]*(?::[\w-]+)?)")
_LABEL = re.compile(r"\{[^}]*#((?:fig|tbl|sec):[\w-]+)")
_FIGURE = re.compile(r"^:::.*\.figure.* file=([^\s}]+)", re.MULTILINE)
_ROOT = re.compile(r"(?<=^Root of records, results and plans: `)[^`]*", re.MULTILINE)
_ANSWERS = re.compile(r"(<!-- answers: .*? -->\n\n).*?(\n\n<!-- end of answers -->)", re.DOTALL)


def filled_in(paper: Path, sources: Sources) -> str:
    """Fill in paper.md. TextError, naming the line, for a value, reference or figure that is not
    there, or a block that is not closed."""
    source = (paper / "paper.md").read_text("utf-8")
    _require_closed(source)
    markdown = sources.render("paper.md")
    bibliography = (paper / "references.bib").read_text("utf-8")
    keys = re.findall(r"^@\w+\{([^,\s]+),", bibliography, re.MULTILINE)
    figures = [p.relative_to(paper / "figures") for p in sorted(paper.glob("figures/*/*.pdf"))]
    cited = _CITED.findall(_CODE.sub("", markdown))
    _require("@", cited, [*keys, *_LABEL.findall(markdown)], source)
    _require("file=", _FIGURE.findall(markdown), [path.as_posix() for path in figures], source)
    return markdown


def _require(mark: str, names: Iterable[str], there: list[str], source: str) -> None:
    for name in names:
        if name not in there:
            place = re.search(rf"{mark}{re.escape(name)}(?![\w-])", source)
            line = source[: place.start()].count("\n") + 1 if place else "?"
            raise TextError(f"paper.md, line {line}: {mark}{unknown(name, there)}")


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
    """Turn Markdown into Typst or LaTeX by the paper's own template and filter."""
    templates = paper / "templates" / "paper"
    options = [f"--template={templates}/template.{to}", f"--lua-filter={templates}/filter.lua"]
    options += ["--syntax-highlighting=none", "--natbib"] if to == "latex" else []
    try:
        return str(pypandoc.convert_text(markdown, to, "markdown", extra_args=options))
    except RuntimeError as error:
        raise TextError(f"pandoc: {error}") from None


def build(paper: Path = PAPER) -> Sources:
    """Write paper.pdf, paper.tex and plans.json beside paper.md; return what they are made of.

    The same files give the same bytes. Raises TextError.
    """
    sources = Sources(paper)
    markdown = filled_in(paper, sources)
    (paper / "paper.tex").write_text(convert(markdown, "latex", paper), "utf-8")
    source = convert(markdown, "typst", paper).encode()
    try:
        # Only fonts that Typst brings, so that every machine sets the same page. The stub of
        # `compile` wants source and root to be of one type; they need not be.
        pdf: bytes = typst.compile(  # type: ignore[type-var]
            source, root=paper, ignore_system_fonts=True, timestamp=0
        )
    except typst.TypstError as error:
        raise TextError(f"Typst: {error.diagnostic}") from None
    (paper / "paper.pdf").write_bytes(pdf)
    write_accounts(paper)
    return sources


def with_answers(sources: Sources, readme: str) -> str:
    """The text of the README with the study's answers, between the two comments that frame
    them, and with the root of the record that they rest on. TextError where these are missing."""
    items = re.split(r"\n(?=\d\. )", sources.render("templates/answers.md"))
    answers = "\n".join(" ".join(item.split()) for item in items)
    written, found = _ANSWERS.subn(lambda frame: frame[1] + answers + frame[2], readme)
    if found != 1:
        raise TextError("README.md: <!-- answers: … --> and <!-- end of answers --> are missing")
    return _ROOT.sub(root_hash(), written)


def write_answers(sources: Sources, readme: Path = ROOT / "README.md") -> None:
    """Bring the answers in the README up to date."""
    text = readme.read_text("utf-8")
    written = with_answers(sources, text)
    if written != text:
        readme.write_text(written, "utf-8")


def main() -> int:
    """Command line: build the paper, write the answers, and say what was left out."""
    try:
        sources = build()
        write_answers(sources)
    except (TextError, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for study in sources.left_out:
        print(f"Left out            what needs '{study}'; run ./run_all.sh params/{study}.yaml")
    print(f"Paper               {shown(PAPER / 'paper.pdf')}, {shown(PAPER / 'paper.tex')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
