"""Digests change with the code that decides numbers, wherever it stands, and with nothing else."""

import ast
import io
import json
import re
import shutil
import tokenize
from collections.abc import Callable
from pathlib import Path

import pytest

from lib.study import digests
from lib.study.digests import bare, code_of, imported
from lib.study.paths import NOTEBOOKS, ROOT

NAMES = ("training", "measuring", "asking", "analysing", "showing")
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("lib/**/*.py"))
CODE = sorted({*code_of(("02_train", "write_result")), *code_of(("03_analysis", None))} & {*FILES})
WEIGHTS, NUMBERS, QUESTIONS, CLAIMS = (
    ["training", "measuring", "asking"],
    ["measuring", "asking"],
    ["asking"],
    ["analysing", "showing"],
)
"""What changes with code that decides weights, and so on: numbers are of the weights, and questions
may be made wherever they are asked."""


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code, which may be edited."""
    shutil.copytree(ROOT / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("*cache__"))
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks")
    monkeypatch.setattr(digests, "ROOT", tmp_path)
    return tmp_path


def all_digests() -> dict[str, str]:
    return {name: getattr(digests, f"{name}_digest").__wrapped__() for name in NAMES}


def changed_by(edit: Callable[[], object]) -> list[str]:
    before = all_digests()
    edit()
    return [name for name, value in all_digests().items() if value != before[name]]


def replace(path: Path, old: str, new: str) -> None:
    source = path.read_text("utf-8")
    assert old in source
    path.write_text(source.replace(old, new, 1), "utf-8")


def append(path: Path, text: str = "LAST = 0\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text("utf-8") if path.is_file() else "") + f"\n{text}", "utf-8")


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("data/__init__.py", "", "import lib.run.training\n", [*WEIGHTS]),
        ("run/__init__.py", "", "x = 1\n", [*WEIGHTS]),
        ("__init__.py", "", "x = 1\n", [*WEIGHTS, *CLAIMS]),
        ("study/plan.py", ">> 1", ">> 2", [*WEIGHTS, *CLAIMS]),  # the drawing of seeds
        ("study/fields.py", "beta2: ", "beta3: ", [*WEIGHTS, *CLAIMS]),
        ("study/fields.py", " = 0.95", " = 0.96", [*WEIGHTS, *CLAIMS]),
        ("study/config.py", "exclude", "include", [*WEIGHTS, *CLAIMS]),
        ("run/model.py", "1e-5", "1e-6", [*WEIGHTS]),
        ("run/distributed.py", "minutes=5", "minutes=6", [*WEIGHTS]),  # named by a string
        ("run/progress.py", "EVERY = 2", "EVERY = 3", [*WEIGHTS]),  # called in every step
        ("run/calibration.py", "15", "16", [*NUMBERS]),
        ("run/harness.py", "1", "2", [*NUMBERS]),  # imported where the suite is asked
        ("data/tasks.py", "4", "5", [*NUMBERS]),
        ("data/description.py", "2**20", "2**19", [*QUESTIONS]),
        ("analysis/paired.py", "0.5", "0.6", [*CLAIMS]),
        ("analysis/__init__.py", "", "x = 1\n", [*CLAIMS]),
        ("study/standing.py", "reasons = []", "reasons = ['']", [*CLAIMS]),
        ("study/history.py", 'f"yes: ', 'f"no: ', [*CLAIMS]),
        ("study/measures.py", '"lower"', '"higher"', [*CLAIMS]),
        ("study/measures.py", "validation perplexity", "perplexity", [*CLAIMS]),
        ("study/variants.py", "#0072B2", "#0072B3", ["showing"]),
        ("figures/style.py", "1", "2", ["showing"]),
        ("publish/archive.py", "1", "2", []),
        ("workflow/sweep.py", "1", "2", []),
    ],
)
def test_an_edit_changes_the_digests_of_what_it_decides(
    file: str, old: str, new: str, changed: list[str], copy: Path
) -> None:
    path = copy / "lib" / file
    edit = (lambda: replace(path, old, new)) if old else (lambda: append(path, new))
    assert sorted(changed_by(edit)) == sorted(changed)


def edit_cell(notebook: Path, holding: str, code: str, *, before: bool = True) -> None:
    """Write code into the cell that holds some text."""
    content = json.loads(notebook.read_text("utf-8"))
    (cell,) = [c for c in content["cells"] if holding in "".join(c["source"])]
    own = "".join(cell["source"])
    cell["source"] = f"{code}\n{own}" if before else own.replace(holding, code)
    notebook.write_text(json.dumps(content), "utf-8")


@pytest.mark.parametrize(
    ("notebook", "holding", "changed"),
    [
        ("02_train", "import glob", [*WEIGHTS]),
        ("02_train", "from lib.run.training import train", [*WEIGHTS]),
        ("02_train", 'study: str = "final"', [*WEIGHTS]),  # beside the parameters
        ("02_train", "load_corpus(this", [*WEIGHTS]),
        ("02_train", "= train(", [*WEIGHTS]),
        ("02_train", "= measure(", [*NUMBERS]),
        ("02_train", "= write_result(", [*NUMBERS]),
        ("02_train", "run_takeaway(result)", []),
        ("02_train", "show_training(trained", []),
        ("01_data", "= suites_of(", [*QUESTIONS]),
        ("01_data", "show_symbols(text", []),
        ("03_analysis", "= analyse(", [*CLAIMS]),
        ("03_analysis", "report.seed_tables(", ["showing"]),
        ("04_figures", "figure.draw()", ["showing"]),
        ("00_kaggle", "pack(study", []),
    ],
)
def test_a_cell_decides_what_is_made_in_it_and_after_it(
    notebook: str, holding: str, changed: list[str], copy: Path
) -> None:
    path = copy / "notebooks" / f"{notebook}.ipynb"
    assert changed_by(lambda: edit_cell(path, holding, "x = 1")) == changed


@pytest.mark.parametrize(
    ("code", "same"),
    [
        ('"smoke"', True),
        ("'probe'  # mine", True),
        ('("sm"\n    "oke")', True),
        ("{1: [2.5, None, True]}", True),
        ("print() or 'final'", False),
        ('f"{print()}"', False),
        ("'final'; import os", False),
    ],
)
def test_the_value_of_a_parameter_is_no_code(code: str, same: bool, copy: Path) -> None:
    path = copy / "notebooks" / "02_train.ipynb"
    assert (changed_by(lambda: edit_cell(path, '"final"', code, before=False)) == []) == same


def test_what_only_shows_is_imported_after_what_is_made() -> None:
    """A later import reaches nothing that was made before it."""
    shows = {"lib/figures/__init__.py", "lib/study/variants.py", "lib/study/measures.py"}
    weights, numbers = code_of(("02_train", "train")), code_of(("02_train", "write_result"))
    assert not shows & {*weights, *numbers}
    assert not [name for name in numbers if name.startswith(("lib/analysis/", "lib/publish/"))]
    assert not [name for name in weights if "suite" in name or "measure" in name]
    whole = code_of(("02_train", None))
    assert shows <= set(whole)
    assert whole["notebooks/02_train.ipynb"].startswith(numbers["notebooks/02_train.ipynb"])
    assert numbers["notebooks/02_train.ipynb"].startswith(weights["notebooks/02_train.ipynb"])


IMPORTS = [
    "import lib.run.extra",
    "import lib.run.extra as y",
    "import os, lib.run.extra as y",
    "from lib.run import extra",
    "from lib.run import model, extra as y",
    "from lib.run.extra import x",
    "from lib.run.extra import *",
    "from lib.run import (\n    model,  # one\n    extra,\n)",
    "from lib.run \\\n    import extra",
    "from lib . run import extra",
    "from . import extra",
    "from .extra import x",
    "from ..run import extra",
    "from .. import run; from ..run.extra import x",
    "from lib.run import *",
    "def f():\n    from lib.run import extra",
    "def f():\n    if 1: import lib.run.extra",
    "class A:\n    import lib.run.extra",
    "try:\n    import lib.run.extra\nexcept ImportError: pass",
    "import importlib\nimportlib.import_module('lib.run.extra')",
    '__import__("lib.run.extra")',
    "WORKER = 'lib.run.extra'",
    "command = 'python -m lib.run.extra STUDY'",
    "script = '''\nfrom lib.run.extra import (\n    x)\n'''",
    "f'{__import__(\"lib.run.extra\")}'",
]


@pytest.mark.parametrize("line", IMPORTS)
def test_a_new_module_counts_however_it_is_imported(line: str, copy: Path) -> None:
    append(copy / "lib" / "run" / "extra.py", "x = 1\n")
    assert changed_by(lambda: append(copy / "lib" / "run" / "machine.py", line + "\n")) == WEIGHTS
    assert changed_by(lambda: append(copy / "lib" / "run" / "extra.py")) == WEIGHTS


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"lib/deep/er/extra.py": ""}, "import lib.deep.er.extra"),  # packages without __init__
        ({"lib/deep/__init__.py": "from .extra import *", "lib/deep/extra.py": ""},
         "from lib.deep import x"),
        ({"lib/deep/__init__.py": "", "lib/deep/er/__init__.py": "from . import extra",
          "lib/deep/er/extra.py": ""}, "from lib.deep import *"),
        ({"lib/deep/__init__.py": "__all__ = ['extra']", "lib/deep/extra.py": ""},
         "from lib.deep import *"),
        ({"lib/deep/__init__.py": "", "lib/deep/other.py": "", "lib/deep/extra.py": ""},
         "import lib.deep.extra.x"),
        ({"pandas.py": "import extra", "extra.py": ""}, "import pandas"),
        ({"notebooks/pandas/__init__.py": "from pandas import extra",
          "notebooks/pandas/extra.py": ""}, "import pandas"),
    ],
)  # fmt: skip
def test_packages_count_on_the_way_to_a_module_and_what_stands_before_others(
    files: dict[str, str], line: str, copy: Path
) -> None:
    append(copy / "lib" / "run" / "machine.py", line + "\n")
    for name, text in files.items():
        assert [n for n in changed_by(lambda n=name, t=text: append(copy / n, t + "\n"))
                           if n in WEIGHTS] == WEIGHTS or name.endswith("other.py")  # fmt: skip
    (extra,) = [name for name in files if name.endswith("extra.py")]
    assert [name for name in changed_by(lambda: append(copy / extra)) if name in WEIGHTS] == WEIGHTS


def test_nothing_imported_by_words_that_are_no_import() -> None:
    code = bare('important = "from a to b"\nraise E from error\n"""import lib.run.model"""\n')
    assert imported(code) == frozenset()


DYNAMIC = re.compile(
    r"""(?<![.]\ )\b(?:__import__|exec|eval|compile)\ \(
      | \bimport_module\ \((?!\ ["']\w+(?:\.\w+)*["']\ \))
      | \b(?:runpy|imp|zipimport|pkgutil|marshal|pickle|spec_from_\w+|module_from_spec)\b
      | \w*(?:File|Source)Loader\b | \bextend_path\b | \bmeta_path\b | \bpath_hooks\b
      | \bsys\ \.\ (?:path|modules)\b | \b__path__\b
      | (?<!description\ =\ )(?<!description\ =\ main\ \.\ )__doc__\b""",
    re.VERBOSE,
)
"""What loads code that its source does not name, or makes code of a docstring."""


ALLOWED = {
    "lib/data/suite.py": {"__doc__"},  # what 01_data says of a task
    "lib/workflow/session.py": {"sys . path"},  # read
}


@pytest.mark.parametrize("name", FILES)
def test_the_library_loads_nothing_that_its_source_does_not_name(name: str) -> None:
    code = bare((ROOT / name).read_text("utf-8"))
    found = {match.group() for match in DYNAMIC.finditer(code)}
    assert found <= ALLOWED.get(name, set())


@pytest.mark.parametrize(
    "code", ["__import__(name)", "import_module(name)", "importlib.import_module('.a', 'lib')",
             "exec(text)", "import runpy", "sys.path.insert(0, x)"]
)  # fmt: skip
def test_a_dynamic_import_is_found(code: str) -> None:
    assert DYNAMIC.search(bare(code))
    assert not DYNAMIC.search(bare("import_module('lib.a'); re.compile(x); model.eval()"))


def test_the_library_holds_nothing_that_python_would_load_but_its_sources() -> None:
    found = {path.suffix for path in (ROOT / "lib").rglob("*") if path.is_file()}
    assert found <= {".py", ".pyc", ""}


@pytest.mark.parametrize("name", CODE)
def test_comments_docstrings_and_white_space_are_no_code(name: str) -> None:
    source = (ROOT / name).read_text("utf-8")
    first, _, rest = source.partition('"""\n')
    edited = f'# Ünïcode\n{first} Another sentence – here.\n"""  # so\n\n\n{rest}\n# the end\n'
    edited = edited.replace("\n    return ", "   # why\n\n    # because\n    return   ")
    edited = edited.replace("(\n", "( # first\n\n  ")
    assert ast.dump(ast.parse(edited)) != ast.dump(ast.parse(source))  # the docstring
    assert bare(edited) == bare(source)


SOURCE = '''\
"""Module — ä.

# no comment"""
x = 1  # one
"""Of an attribute."""


class A:
    """Class."""  # two

    y: int = 2   
    """Over
    two lines."""
    def f(self):
        """# Doc
        """
        return "# no comment"
    # three
    text = """kept   

    # kept"""
    joined = (
        "a"  # four
        # five
        "b"
    )
    word = f"{'#'} {x!r:>{x}} # kept"
    f"{print()}"
    if x: \\
        'no docstring' + rb'\\'"'
'''
BARE = '''\
x = 1
class A :
	y : int = 2
	def f ( self ) :
		return "# no comment"
	text = """kept   

    # kept"""
	joined = ( "a" "b" )
	word = f"{'#'} {x!r:>{x}} # kept"
	f"{print()}"
	if x : 'no docstring' + rb'\\'"\''''


def test_text_is_told_from_comments_by_its_place() -> None:
    assert bare(SOURCE) == BARE


def tokens(source: str) -> list[str]:
    """What Python's own tokenizer finds, without comments and white space; of any version, an
    f-string in one."""
    lines, found, begun = source.splitlines(keepends=True), [], []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "FSTRING_START":
            begun.append(token.start)
        elif kind == "FSTRING_END":
            (row, column), (last, end) = begun.pop(), token.end
            text = "".join(lines[row - 1 : last])
            text = text[column : len(text) - len(lines[last - 1]) + end]
            found += [] if begun else [text]
        elif not begun and kind not in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT"):
            found.append(token.string)
    return found


@pytest.mark.parametrize("name", FILES)
def test_all_of_the_code_is_left_as_pythons_own_tokenizer_reads_it(name: str) -> None:
    source = (ROOT / name).read_text("utf-8")
    left = ["".join(each.split()) for each in tokens(re.sub(r"(?m)^\t*", "", bare(source)))]
    whole = tokens(source)
    texts = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    docstrings = {ast.get_source_segment(source, text) for text in texts}
    kept = ["".join(each.split()) for each in whole if each not in docstrings]
    assert "".join(left) == "".join(kept)


def test_the_order_of_files_is_no_matter_and_their_names_are(copy: Path) -> None:
    code = code_of(("02_train", "train"))
    assert digests.digest(dict(reversed(code.items()))) == digests.training_digest.__wrapped__()
    moved = lambda: (copy / "lib/run/cost.py").rename(copy / "lib/run/price.py")  # noqa: E731
    assert changed_by(moved) == NUMBERS
