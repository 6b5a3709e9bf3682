"""Digests of the code that decides numbers, computed from what the notebooks' cells import.

A digest covers a notebook's code cells up to the one that makes what it is about, and every module
of this repository that they import, in turn: in a function as well, by a name that stands in a
string, and with the `__init__` of each package on the way, which importing a module runs. Later
cells and what they alone import, figures and prose, come too late to decide anything. So does the
process that draws the curve of a run in training: it is told numbers and gives pictures.

Comments, docstrings and white space are no code. The values of a notebook's parameters are none
either: a run is asked for by them. Modules at the top of this repository count whether anything
here imports them or not: Python or a package may (`sitecustomize`, a module of the standard
library's name, what `*.dist-info` announces). So does all else in `lib/`, and what git tracks in
`notebooks/`, but for sources and what `_NO_DATA` names: code may read it. What else lies beside
notebooks is what people leave there, and with it the checkout is not clean. Not covered is what
else runs before a cell does: the kernel, who starts it, and packages, whose versions a run's
provenance names. Nor is what code may read elsewhere: parameters, plan and text have hashes of
their own.
"""

import ast
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from lib.study.code import git
from lib.study.io import ROOT, sha256
from lib.study.schema import digest


@cache
def training_digest() -> str:
    """Compute the SHA-256 of the code that decides weights and their dev curve."""
    return code_digest(("02_train", "train"))


@cache
def measuring_digest() -> str:
    """Compute the SHA-256 of the code that decides the numbers of given weights; it holds the
    training code, which runs before."""
    return code_digest(("02_train", "write_result"))


@cache
def asking_digest() -> str:
    """Compute the SHA-256 of the code that decides the questions of the task suite: of all that may
    make it."""
    return code_digest(("01_data", "suites_of"), ("02_train", "write_result"))


@cache
def analysing_digest() -> str:
    """Compute the SHA-256 of the code that decides what is concluded from given numbers."""
    return code_digest(("03_analysis", "analyse"))


@cache
def showing_digest() -> str:
    """Compute the SHA-256 of the code that decides all that is said and drawn of given numbers."""
    return code_digest(("03_analysis", None), ("04_figures", None))


def code_digest(*parts: tuple[str, str | None]) -> str:
    """Compute the SHA-256 of the code of some notebooks, each up to the last cell that calls a
    function of a given name (None: all of it), and of the modules that it imports."""
    return digest(code_of(*parts))


def code_of(*parts: tuple[str, str | None]) -> dict[str, str]:
    """Collect the code that `code_digest` covers, by the place of its file."""
    code = {f"notebooks/{name}.ipynb": "\n".join(_cells(name, last)) for name, last in parts}
    waiting = [name for cells in code.values() for name in imported(cells)]
    top = [path for folder in (ROOT, ROOT / "notebooks") for path in folder.iterdir()]
    names = {path.name.partition(".")[0] for path in top}
    waiting += [name for name in names - {"lib", "tests"} if name.isidentifier()]
    seen = set(waiting)
    folders = [ROOT / "lib", *(path for path in top if path.suffix in (".dist-info", ".egg-info"))]
    tracked = (git("-C", str(ROOT), "ls-files", "-z", "--", "notebooks") or "").split("\0")
    files = [ROOT / name for name in tracked if name]
    for path in chain(files, *(folder.rglob("*") for folder in folders)):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and not _NO_DATA.search(name):
            code[name] = sha256(path)
    loaded_from = cache(_loaded_from)  # thousands of names stand in a few folders
    while waiting:
        module = waiting.pop()
        if module.partition(".")[0] not in names:  # a package, as most are
            continue
        for path in _files(module, loaded_from):
            file = path.relative_to(ROOT)
            if file.as_posix() not in code and path.suffix != ".py":
                code[file.as_posix()] = sha256(path)
            elif file.as_posix() not in code:
                source = code[file.as_posix()] = strip_comments(path.read_text("utf-8"))
                new = imported(source, ".".join(file.parent.parts)) - seen
                seen |= new
                waiting += new
    return code


_NO_DATA = re.compile(
    r"\.(py|ipynb)$|__pycache__/|\.DS_Store$"
    r"|^lib/(README\.md|VERSION)$|^notebooks/(README\.md|Snakefile|kernel-metadata\.json)$"
)
"""Sources, which count where they are imported; what Python and systems leave; prose, the commit
that `git archive` names, and what starts a kernel."""


def _cells(notebook: str, last: str | None) -> list[str]:
    """Return the code of a notebook's cells up to the last one that calls `last`; of all, where
    none does. A parameter is there by its name."""
    content = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text("utf-8"))
    code, waiting = [], True
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            lines = _bare_cell("".join(cell["source"]))
            tagged = waiting and "parameters" in cell["metadata"].get("tags", [])
            waiting = waiting and not tagged  # for the first, which is the one that is filled in
            code.append(re.sub(_PARAMETER, _without_value, lines) if tagged else lines)
    calls = [number for number, cell in enumerate(code) if re.search(rf"\b{last} \(", cell)]
    return code[: calls[-1] + 1] if calls else code


def _bare_cell(source: str) -> str:
    """Leave a cell that is no Python, such as a magic, as it stands: there, # begins no comment."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return source
    return strip_comments(source)


_PARAMETER = re.compile(
    r'''^(study|arm|seed|changes)(?: : \w+)? = ("""(?:\\.|[^\\])*?"""|.+)$''', re.MULTILINE
)


def _without_value(line: re.Match[str]) -> str:
    try:
        ast.literal_eval(line[2])
    except (SyntaxError, ValueError):
        return line[0]
    return line[1]


_LOADED = {".py", ".pyc", ".so", ".pyd"}
"""What Python imports from: a library that was compiled goes before the source of its name."""


def _loaded_from(folder: Path) -> dict[str, list[Path]]:
    """Find the files of a folder that Python may import, by the name of their module."""
    files = defaultdict(list)
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix in _LOADED and path.is_file():
            files[path.name.partition(".")[0]].append(path)
    return files


def _files(module: str, loaded_from: Callable[[Path], dict[str, list[Path]]]) -> Iterator[Path]:
    """Find what Python may run of this repository when it imports a module (`x.*`: and all below
    `x`). A file here may stand before a package of the same name."""
    for folder in (ROOT, ROOT / "notebooks"):
        for part in module.split("."):
            if part == "*":
                loaded = [*chain.from_iterable(loaded_from(folder).values())]
                packages = [path for path in folder.glob("*") if path.is_dir()]
            else:
                loaded, packages = [*loaded_from(folder).get(part, ())], [folder / part]
            loaded += [file for each in packages for file in loaded_from(each).get("__init__", ())]
            yield from loaded
            folder = folder / part
            if not loaded and not folder.is_dir():
                break


_IMPORT = re.compile(r"(?:\bfrom ([\w. ]+) )?\bimport \(? ?([\w.,* ]*)")
_IN_STRING = re.compile(r"\blib(?:[./]\w+)+")  # `strip_comments` sets the dots of code apart


@cache
def imported(code: str, package: str = "") -> frozenset[str]:
    """Name the modules that bare code in a package may import: what follows `import`, whether it is
    a module or a name in one, and every module of the library that a string names or gives the
    path of."""
    code = unicodedata.normalize("NFKC", code)  # as Python reads names
    modules = {name.replace("/", ".").removesuffix(".py") for name in _IN_STRING.findall(code)}
    for source, names in _IMPORT.findall(code):
        module = source.replace(" ", "")
        if up := len(module) - len(module.lstrip(".")):
            parents = package.split(".")
            module = ".".join([*parents[: len(parents) - up + 1], module.lstrip(".")]).strip(".")
        modules |= {module} - {""}
        for name in names.split(","):
            word = name.partition(" as ")[0].replace(" ", "")
            modules |= {f"{module}.{word}".strip(".")} if word else set()
    return frozenset(modules)


_TOKEN = re.compile(
    r"""[bBfFrRtTuU]{0,2}(?: "{3}(?:\\.|[^\\])*?"{3} | '{3}(?:\\.|[^\\])*?'{3}
                           | "(?:\\.|[^\\"\n])*" | '(?:\\.|[^\\'\n])*' )
    | \#[^\n]* | \\\n | \n[ \t\f]* | [ \t\f]+ | \d(?:[eE][+-]\d|[\w.])* | \w+ | .""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN = re.compile(r"[bru]*[\"']", re.IGNORECASE)


@cache  # digests hold many of the same files
def strip_comments(source: str) -> str:
    """Take comments and docstrings out of Python source, and write every statement as one line, its
    tokens apart by one space, below one tab for each block around it.

    Every statement that is nothing but a plain string is taken for a docstring. Python's own
    tokenizer takes ten times as long, and cuts f-strings otherwise from version to version.
    """
    lines: list[str] = []
    line: list[str] = []
    indent, blocks, depth = 0, [0], 0
    for token in _TOKEN.findall(re.sub(r"\r\n?", "\n", source) + "\n"):  # as Python reads lines
        first = token[0]
        if first == "\n" and depth == 0:
            if not all(map(_PLAIN.match, line)):
                while indent < blocks[-1]:
                    blocks.pop()
                if indent > blocks[-1]:
                    blocks.append(indent)
                lines.append("\t" * (len(blocks) - 1) + " ".join(line))
            line, indent = [], len(re.split(r"[\n\f]", token)[-1].expandtabs())
        elif first not in "\n \t\f#" and token != "\\\n":
            depth += (first in "([{") - (first in ")]}" and depth > 0)
            line.append(token)
    return "\n".join(lines)
