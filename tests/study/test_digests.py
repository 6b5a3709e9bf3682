"""Digests change with the code that decides numbers, wherever it stands, and with nothing else."""

import ast
import contextlib
import io
import itertools
import json
import re
import shutil
import subprocess
import tokenize
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from lib.study.digests import code_of, imported, strip_comments

from lib.study import digests
from lib.study.io import NOTEBOOKS, ROOT

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


untouched = cache(all_digests)
"""Of a copy in which nothing was edited: whichever asks first."""
Changed = Callable[[Callable[[], object]], list[str]]


@pytest.fixture
def changed_by(copy: Path) -> Changed:
    """Name the digests that differ after an edit of the copy from those after the last one."""
    now = dict(untouched())

    def changed_by(edit: Callable[[], object]) -> list[str]:
        before = dict(now)
        edit()
        now.update(all_digests())
        return [name for name in NAMES if now[name] != before[name]]

    return changed_by


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
        ("data/__init__.py", "", "import lib.run.trainer\n", [*WEIGHTS]),
        ("run/__init__.py", "", "x = 1\n", [*WEIGHTS]),
        ("__init__.py", "", "x = 1\n", [*WEIGHTS, *CLAIMS]),
        ("study/plan.py", ">> 1", ">> 2", [*WEIGHTS, *CLAIMS]),  # the drawing of seeds
        ("study/schema.py", "beta2: ", "beta3: ", [*WEIGHTS, *CLAIMS]),
        ("study/schema.py", " = 0.95", " = 0.96", [*WEIGHTS, *CLAIMS]),
        ("study/study.py", "exclude", "include", [*WEIGHTS, *CLAIMS]),
        ("run/model.py", "1e-5", "1e-6", [*WEIGHTS]),
        ("run/distributed.py", "minutes=5", "minutes=6", [*WEIGHTS]),  # named by a string
        ("workflow/live.py", "WRITE_INTERVAL = 1", "WRITE_INTERVAL = 3", [*WEIGHTS]),
        ("run/evaluate.py", "N_BINS = 15", "N_BINS = 16", [*NUMBERS]),
        ("run/lm_eval.py", "1", "2", [*NUMBERS]),  # imported where the suite is asked
        ("data/tasks.py", "4", "5", [*NUMBERS]),
        ("data/description.py", "2**20", "2**19", [*QUESTIONS]),
        ("analysis/paired.py", "0.5", "0.6", [*CLAIMS]),
        ("analysis/__init__.py", "", "x = 1\n", [*CLAIMS]),
        ("study/preregistration.py", "reasons = []", "reasons = ['']", [*CLAIMS]),
        ("study/history.py", 'f"yes: ', 'f"no: ', [*CLAIMS]),
        ("study/metrics.py", '"lower"', '"higher"', [*CLAIMS]),
        ("study/metrics.py", "validation perplexity", "perplexity", [*CLAIMS]),
        ("figures/style.py", "#0072B2", "#0072B3", ["showing"]),
        ("figures/style.py", "1", "2", ["showing"]),
        ("publish/site.py", "1", "2", []),
        ("workflow/sweep.py", "1", "2", []),
    ],
)
def test_an_edit_changes_the_digests_of_what_it_decides(
    file: str, old: str, new: str, changed: list[str], copy: Path, changed_by: Changed
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
        ("02_train", "from lib.run.trainer import begin, train", [*WEIGHTS]),
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
        ("00_kaggle", "pack(name", []),
    ],
)
def test_a_cell_decides_what_is_made_in_it_and_after_it(
    notebook: str, holding: str, changed: list[str], copy: Path, changed_by: Changed
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
        ('"""\nname: mine  # and more\nseeds: [0]\n"""', True),
        ('"""mine""" + str(print())', False),
        ("print() or 'final'", False),
        ('f"{print()}"', False),
        ("'final'; import os", False),
    ],
)
def test_the_value_of_a_parameter_is_no_code(
    code: str, same: bool, copy: Path, changed_by: Changed
) -> None:
    path = copy / "notebooks" / "02_train.ipynb"
    assert (changed_by(lambda: edit_cell(path, '"final"', code, before=False)) == []) == same


def test_what_a_scratch_run_changes_is_no_code_either(copy: Path, changed_by: Changed) -> None:
    path, none = copy / "notebooks" / "02_train.ipynb", "changes: dict = {}"
    other = 'changes: dict = {"training.learning_rate": 1.0e-2}'
    assert changed_by(lambda: edit_cell(path, none, other, before=False)) == []
    assert changed_by(lambda: edit_cell(path, other, none + ".copy()", before=False)) == WEIGHTS


@pytest.mark.parametrize("given", [False, True], ids=["another name", "a second cell"])
def test_only_what_a_run_is_asked_for_by_has_no_value_in_a_digest(
    given: bool, copy: Path, changed_by: Changed
) -> None:
    path = copy / "notebooks" / "02_train.ipynb"
    own = 'study: str = "final"'
    edit_cell(path, own, "scale = 1.0")
    if given:
        content = json.loads(path.read_text("utf-8"))
        cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": ["seed = 3"]}
        (place,) = [n for n, c in enumerate(content["cells"]) if own in "".join(c["source"])]
        content["cells"].insert(place + 1, cell)
        path.write_text(json.dumps(content), "utf-8")
    changed_by(lambda: None)  # with that cell
    old, new = ("seed = 3", "seed = 4") if given else ("scale = 1.0", "scale = 2.0")
    assert changed_by(lambda: edit_cell(path, old, new, before=False)) == WEIGHTS


def test_what_only_shows_is_imported_after_what_is_made() -> None:
    """A later import reaches nothing that was made before it."""
    shows = {"lib/figures/__init__.py", "lib/figures/style.py", "lib/study/metrics.py"}
    weights, numbers = code_of(("02_train", "train")), code_of(("02_train", "write_result"))
    assert not shows & {*weights, *numbers}
    rooms = ("lib/analysis/", "lib/publish/", "lib/record/")
    assert not [name for name in numbers if name.startswith(rooms)]
    assert sorted(name for name in numbers if "workflow" in name) == [  # and not what draws
        "lib/workflow/__init__.py",
        "lib/workflow/live.py",
    ]
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
    "subprocess.run([sys.executable, 'lib/run/extra.py'])",
    "command = 'python -m lib.run.extra STUDY'",
    "script = '''\nfrom lib.run.extra import (\n    x)\n'''",
    "f'{__import__(\"lib.run.extra\")}'",
]


@pytest.mark.parametrize("line", IMPORTS)
def test_a_module_is_named_however_it_is_imported(line: str) -> None:
    assert {"lib.run.extra", "lib.run.*"} & imported(strip_comments(f"{line}\n"), "lib.run")


@pytest.mark.parametrize("line", ["from . import extra", "from lib.run import *", IMPORTS[-1]])
def test_a_new_module_counts_where_it_is_imported(
    line: str, copy: Path, changed_by: Changed
) -> None:
    changed_by(lambda: append(copy / "lib" / "run" / "extra.py", "x = 1\n"))
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
    files: dict[str, str], line: str, copy: Path, changed_by: Changed
) -> None:
    changed_by(lambda: append(copy / "lib" / "run" / "machine.py", line + "\n"))
    for name, text in files.items():
        assert [n for n in changed_by(lambda n=name, t=text: append(copy / n, t + "\n"))
                           if n in WEIGHTS] == WEIGHTS or name.endswith("other.py")  # fmt: skip
    (extra,) = [name for name in files if name.endswith("extra.py")]
    assert [name for name in changed_by(lambda: append(copy / extra)) if name in WEIGHTS] == WEIGHTS


@pytest.mark.parametrize(
    "file",
    [
        "sitecustomize.py",  # which Python imports when it starts
        "usercustomize/__init__.py",
        "sched.py",  # stands before the standard library's, whoever imports that
        "notebooks/sched.py",
        "own-1.0.dist-info/entry_points.txt",  # by which packages find what to import
    ],
)
def test_what_python_finds_at_the_top_counts_whether_it_is_named_or_not(
    file: str, copy: Path, changed_by: Changed
) -> None:
    assert sorted(changed_by(lambda: append(copy / file))) == sorted([*WEIGHTS, *CLAIMS])
    assert changed_by(lambda: append(copy / "tests" / "__init__.py")) == []


@pytest.mark.parametrize(
    "file",
    [
        "lib/run/model.cpython-311-x86_64-linux-gnu.so",  # which Python loads before the source
        "lib/run/model/__init__.pyc",
        "lib/run/factors.json",
        "lib/run/tables/.factors.npz",
        "lib/run/README.md",
        "lib/data/synthetic.packed",
        "notebooks/factors.csv",
    ],
)
def test_what_code_may_read_beside_it_counts(file: str, copy: Path, changed_by: Changed) -> None:
    path = copy / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    for words in (["init", "-q"], ["add", file]):
        subprocess.run(["git", "-C", copy, *words], check=True)
    changed_by(lambda: None)  # with the file
    edit = lambda: path.write_bytes(path.read_bytes() + b"1")  # noqa: E731
    assert sorted(changed_by(edit)) == sorted([*WEIGHTS, *CLAIMS])


@pytest.mark.parametrize(
    "file",
    [
        *("lib/README.md", "lib/VERSION", "lib/run/__pycache__/model.cpython-311.pyc"),
        *("notebooks/README.md", "notebooks/Snakefile", "notebooks/kernel-metadata.json"),
        "notebooks/my-runs.csv",  # no part of the repository
        *("notebooks/02_train.py", "notebooks/.ipynb_checkpoints/02_train-checkpoint.ipynb"),
    ],
)
def test_prose_and_what_starts_a_kernel_are_no_data(
    file: str, copy: Path, changed_by: Changed
) -> None:
    assert changed_by(lambda: append(copy / file)) == []


def test_a_name_is_read_as_python_reads_it() -> None:
    code = strip_comments("from lib.run import \uff45xtra\n")  # a wide e
    assert "lib.run.extra" in imported(code)


def test_what_follows_a_number_sign_in_a_magic_is_no_comment(
    copy: Path, changed_by: Changed
) -> None:
    path = copy / "notebooks" / "02_train.ipynb"
    changed_by(lambda: edit_cell(path, "import glob", "%env SCALE=#1"))
    other = lambda: edit_cell(path, "SCALE=#1", "SCALE=#2", before=False)  # noqa: E731
    assert changed_by(other) == WEIGHTS


def test_nothing_imported_by_words_that_are_no_import() -> None:
    code = strip_comments(
        'important = "from a to b"\nraise E from error\n"""import lib.run.model"""\n'
    )
    assert imported(code) == frozenset()


ANYWHERE = {*re.findall(r"\w+", """
    __import__ exec import_module importlib builtins __builtins__ locate entry_points CDLL cdll
    PyDLL ctypes load_library cpp_extension UnsafeLoader FullLoader unsafe_load runpy imp
    zipimport pkgutil pydoc marshal pickle dill joblib cloudpickle CodeType FunctionType
    InteractiveInterpreter timeit get_ipython spec_from_file_location module_from_spec
    spec_from_loader SourceFileLoader SourcelessFileLoader ExtensionFileLoader extend_path
    meta_path path_hooks __path__ weights_only allow_pickle read_pickle addsitedir load_module
    __loader__ __subclasses__ dictConfig fileConfig ImportString set_executable trust_remote_code
    load_extension getoutput getstatusoutput PackageImporter posix_spawn hub subprocess startfile
    create_subprocess_shell create_subprocess_exec pty Loader CLoader CUnsafeLoader
    CFullLoader full_load full_load_all unsafe_load_all shelve _pickle _imp _frozen_importlib
    dlopen cffi run_cell interact InteractiveConsole cProfile pdb bdb doctest HDFStore read_hdf
    ForwardRef get_type_hints import_item numexpr sympify mock __self__ __globals__ __code__
    chdir fchdir
""")} | {f"{start}{kind}" for start in ("exec", "spawn") for kind in
         ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")}  # fmt: skip
"""Names of what loads code that its source does not name: called, passed on, or imported."""
BUILTIN = {"eval", "compile", "globals", "__doc__"}
"""Names that stand for something else behind a dot or as a field."""
ATTRIBUTES = {"os.system", "os.popen", "sys.path", "sys.modules", "torch.jit", "torch.export"}
PLAIN = {"os", "sys"}
"""Modules that go by their own name."""
SEARCHED = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"}
"""Variables by which a process finds other code of the same names."""
DESCRIPTION = {"description=__doc__", "description=main.__doc__"}
ALLOWED = {
    "lib/data/suite.py": {"__doc__"},  # what 01_data says of a task
    # What --help says; pytest's -m; find_spec.
    "lib/workflow/cli.py": {
        *("__doc__", "marks", "importlib", "sys.executable", "execv", "subprocess"),
    },
    "lib/workflow/kaggle.py": {"sys.path", "subprocess"},  # read; a sweep
    "lib/workflow/importing.py": {"__doc__", "sys.executable"},  # --help; the sender's code
    "lib/figures/study.py": {"__doc__"},  # what a figure's caption says
    "lib/record/receipts.py": {"importlib"},  # find_spec
    "lib/record/build.py": {"importlib"},  # find_spec: whether a package is installed
    "lib/study/provenance.py": {"importlib"},  # find_spec
    # Asks the code of older commits.
    "lib/record/replay.py": {
        *("protocol_1.PROGRAMS[command]", "inspect.getsource(asked)", "runpy"),
        *("sys.executable", "subprocess", "PYTHONPATH"),
    },
    # Start a kernel, or Snakemake, git, nvidia-smi, Slurm's commands, training processes.
    "lib/workflow/forked.py": {"sys.executable", "PYTHONPATH"},
    "lib/publish/findings.py": {"PYTHONPATH"},
    "lib/workflow/sweep.py": {"subprocess", "PYTHONPATH"},
    "lib/run/processes.py": {"subprocess", "PYTHONPATH"},
    **{
        f"lib/{name}.py": {"subprocess"}
        for name in (
            "study/git",
            *(f"workflow/{n}" for n in ("gpus", "progress", "slurm", "verify")),
        )
    },
    "lib/run/checkpoint.py": {"weights_only"},  # True: tensors alone, no code
    "lib/run/lm_eval.py": {"chdir"},  # to where the suite lies, and back
    # A kernel's packages, and the kernel, or what asks older commits; imported by no notebook.
    "lib/record/warm.py": {
        *("importlib", "import_module", "runpy", "exec", "sys.path", "sys.modules", "chdir"),
        *("'-m'", "'-c'"),  # one of which a command must hold
        "PYTHONPATH",
    },
    "lib/record/asked.py": {"exec"},  # in a tree of theirs
    "lib/workflow/rehearsal.py": {"mock", "run_cell"},  # the cells of 03 and 04
    "lib/study/yaml.py": {"get_ipython", "Loader"},  # how errors are shown; a safe one
    # Whether there is a notebook; and what draws, which is only told numbers.
    "lib/workflow/live.py": {
        *("get_ipython", "f'{__package__}.watching'", "subprocess", "PYTHONPATH"),
    },
}


def dynamic(source: str) -> set[str]:
    """Find what loads code that the source does not name, or makes code of a docstring."""
    found, tree = set(), ast.parse(source)
    fields = {  # `compile: bool` of a class is no use of the builtin
        each.target
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.AnnAssign)
    }
    described = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and ast.unparse(node) in DESCRIPTION
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        words: list[str] = []
        if isinstance(node, ast.Name) and node not in fields | described:
            words = [node.id] if node.id in ANYWHERE | BUILTIN else []
        elif isinstance(node, ast.Attribute) and node not in described:
            words = [node.attr] if node.attr in ANYWHERE | {"__doc__"} else []
            words += {ast.unparse(node)} & ATTRIBUTES
        elif isinstance(node, ast.keyword):
            words = [node.arg] if node.arg in ANYWHERE | {"shell"} else []
        elif isinstance(node, ast.Constant):
            words = [node.value] if node.value in SEARCHED else []
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            names = [f"{module}.{each.name}" for each in node.names]
            plain = module == "importlib.metadata"  # versions, except for its entry points
            words = [w for name in names for w in name.split(".")[2 * plain :] if w in ANYWHERE]
            words += {*names} & ATTRIBUTES
            words += [each.name for each in node.names if each.asname and each.name in PLAIN]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            texts = [*node.args, *(each.value for each in node.keywords)]
            is_plain = node.func.attr == "query" and isinstance(texts[0], ast.Constant)
            words = [node.func.attr] if texts and not is_plain else []
            words = [word for word in words if word in {"eval", "query"}]  # of a table
        found |= {*words}
    return found | passed_on(tree) | unnamed_programs(tree) | unseen_names(source, tree)


def passed_on(tree: ast.Module) -> set[str]:
    """Find modules that stand elsewhere than before a dot: what is taken of them may be named by
    any text."""
    nodes = [*ast.walk(tree)]
    imports = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules = {each.asname or each.name.partition(".")[0] for each in imports}
    modules |= PLAIN
    before_a_dot = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    names = [node for node in nodes if isinstance(node, ast.Name) and node not in before_a_dot]
    return {node.id for node in names if node.id in modules}


def unseen_names(source: str, tree: ast.Module) -> set[str]:
    """Find modules of the library that a text names, though no digest sees it: the text is written
    in parts, or with escapes. And what a text would load if it were evaluated, as an annotation
    is, or as a program."""
    texts = {
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    texts -= {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found, seen = set(), imported(strip_comments(source))
    for text in (str(node.value) for node in texts):
        found |= {name for name in imported(text) if name.startswith("lib.")} - seen
        with contextlib.suppress(SyntaxError, ValueError), warnings.catch_warnings(action="ignore"):
            found |= dynamic(text) - {text} if re.search(r"[(=;\s]", text) else set()
    return found


FLAG = re.compile(r"(?:.*\s)?-[A-Za-z]*[mc]\s*(?:lib[\w.]*\.)?(?:[%{].*)?", re.DOTALL)
"""How a text ends after which Python takes a module to run, or a program."""


def unnamed_programs(tree: ast.Module) -> set[str]:
    """Find what stands behind -m or -c in a command and is no text that is written out there, nor a
    name that the module gives such a text once; and a flag behind which nothing stands."""
    given = [
        node
        for each in tree.body
        if isinstance(each, ast.Assign | ast.AnnAssign) and isinstance(each.value, ast.Constant)
        for node in (each.targets if isinstance(each, ast.Assign) else [each.target])
    ]
    nodes = [*ast.walk(tree)]
    bound = [n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
    bound += [node.arg for node in nodes if isinstance(node, ast.arg)]
    bound += [(n.asname or n.name).partition(".")[0] for n in nodes if isinstance(n, ast.alias)]
    constants = {n.id for n in given if isinstance(n, ast.Name) and bound.count(n.id) == 1}
    found, behind = set(), dict[ast.AST, ast.AST]()
    for node in nodes:
        row = getattr(node, "elts", []) or (node.args if isinstance(node, ast.Call) else [])
        behind |= dict(itertools.pairwise(row))
        behind |= {node: node for node in row[-1:] if ast.unparse(node) == "sys.executable"}
    for node, program in behind.items():  # a file, or what is piped to it
        flag = isinstance(program, ast.Constant) and str(program.value).startswith(("-m", "-c"))
        if ast.unparse(node) == "sys.executable" and not flag:
            found.add("sys.executable")
    for node in nodes:
        text = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(text, str) or not FLAG.fullmatch(text):
            continue
        program = behind.get(node)
        literal = isinstance(program, ast.Constant) and isinstance(program.value, str)
        named = isinstance(program, ast.Name) and program.id in constants
        if not (text.strip().startswith("-") and (literal or named)):
            found.add(ast.unparse(program or node))
    return found


def cells() -> dict[str, str]:
    """The code cells of every notebook, by the notebook's name and the cell's number."""
    return {
        f"{path.stem}:{number}": "".join(cell["source"])
        for path in sorted(NOTEBOOKS.glob("*.ipynb"))
        for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"])
        if cell["cell_type"] == "code"
    }


@pytest.mark.slow
def test_the_library_loads_nothing_that_its_source_does_not_name() -> None:
    found = {name: dynamic((ROOT / name).read_text("utf-8")) for name in FILES}
    assert not {n: words for n, words in found.items() if words - ALLOWED.get(n, set())}


def test_the_library_links_to_nothing_and_imports_all_that_it_holds() -> None:
    """What lies behind a link to a folder, and a source that is only read, is in no digest."""
    folders = [ROOT / "lib", NOTEBOOKS]
    assert not [path for folder in folders for path in folder.rglob("*") if path.is_symlink()]
    sources = [strip_comments(code) for code in cells().values()]
    named = imported((ROOT / "run_all.sh").read_text("utf-8")).union(*map(imported, sources))
    for name in FILES:
        package = name.rpartition("/")[0].replace("/", ".")
        named |= imported(strip_comments((ROOT / name).read_text("utf-8")), package)
    modules = {name.removesuffix(".py").replace("/", ".") for name in FILES} - named
    others = {module for module in modules if not module.endswith("__init__")}
    assert others <= {"lib.workflow.watching"}  # by the name of its package


def test_the_library_is_in_the_encoding_in_which_it_is_read() -> None:
    for name in FILES:
        with (ROOT / name).open("rb") as file:
            assert tokenize.detect_encoding(file.readline)[0] == "utf-8", name
        head = (ROOT / name).read_text("utf-8").splitlines()[:2]
        assert not [line for line in head if re.match(r"[ \t\f]*#.*?coding[:=]", line)], name


def test_a_notebook_loads_nothing_that_its_cells_do_not_name() -> None:
    """A cell that is no Python, such as a magic, does not even parse."""
    for name, code in cells().items():
        begins = "import glob" in code  # finds the repository, and puts it on the path
        assert dynamic(code) <= ({"sys.path"} if begins else set()), name


@pytest.mark.parametrize(
    "code", ["__import__(name)", "import_module(name)", "importlib.import_module('.a', 'lib')",
             "from importlib import import_module as im", "load = importlib.import_module",
             "import importlib as i", "import pydoc as p", "pydoc.locate(name)", "map(exec, [s])",
             "from importlib.metadata import entry_points as e", "getattr(builtins, 'ex' + 'ec')",
             "torch.load(p, weights_only=False)", "yaml.load(s, Loader=yaml.UnsafeLoader)",
             "np.load(p, allow_pickle=True)", "os.system(s)", "from os import system as s",
             "ctypes.CDLL('x')", "partial(eval, s)()", "run = compile", "import runpy",
             "subprocess.run([sys.executable, '-m', f'lib.run.{K}'])",
             "command = ('-m', 'lib.run.' + K)", "sys.path.insert(0, x)", "exec(text)",
             "m = 'lib.x.' + k\nrun([python, '-m', m])", "run(python, '-m', m)",
             "run([python, '-m', *words])", "run([python, '-m'] + [m])", "flag = '-m'",
             "M = 'lib.a'\nM += k\nrun([python, '-m', M])", "run([python, '-Im', '.'.join(m)])",
             "M = 'lib.a'\ndef f(M): run([python, '-m', M])", "run([python, '-c', 'import ' + m])",
             "from lib.a import M\nM = 'lib.a'\nrun([python, '-m', M])", "run(f'python -m {m}')",
             "run(('python -m ' + m).split())", "run('python -m %s' % m)",
             "run('python -m {}'.format(m))", "run([python, f'-mlib.run.{m}'])",
             "run('python -m lib.run.' + m)",
             "def f():\n    m = 'lib.a'\n    run([python, '-m', m])",
             "run([python, '-m', 'lib\\x2eextra'])", "run([python, '-m', 'lib' '.extra'])",
             "run([python, '-c', 'import\\tlib.extra'])", "x: '__import__(name)'",
             "run([python, '-c', 'import runpy; runpy.run_path(name)'])",
             "run([sys.executable, ROOT / 'lib' / 'extra.py'])", "run([sys.executable], input=s)",
             "run([sys.executable, '-'], input=s)", "pd.read_pickle(p)", "site.addsitedir(p)",
             "__loader__.load_module(name)", "torch.hub.load(p, 'x')",
             "subprocess.run(text, shell=True)", "from subprocess import check_output as c",
             "os.execve(p, a, e)", "os.spawnl(mode, p)", "asyncio.create_subprocess_shell(s)",
             "yaml.load(s, Loader=yaml.Loader)", "from yaml import CLoader", "yaml.full_load(s)",
             "shelve.open(p)", "import _pickle as c", "torch.jit.load(p)", "FFI().dlopen(p)",
             "import os as o\no.system(s)", "getattr(os, 'sys' + 'tem')(s)", "vars(sys)['path']",
             "import yaml\ngetattr(yaml, 'unsafe' + '_load')(s)", "import torch as t\nf(t)",
             "globals()['__builtins__']", "print.__self__", "f.__globals__", "pd.eval(s)",
             "table.eval(s)", "table.query(s)", "table.query(expr=s)", "pd.read_hdf(p)",
             "InteractiveShell().run_cell(s)", "ForwardRef(s)", "get_type_hints(f)", "pdb.run(s)",
             "os.chdir(p)\nimport extra", "with contextlib.chdir(p): import extra",
             "run([python, '-m', 'lib.a'], env={'PYTHONPATH': p})", "mock.patch(name, x)"]
)  # fmt: skip
def test_a_dynamic_import_is_found(code: str) -> None:
    assert dynamic(code)


def test_what_only_sounds_like_a_dynamic_import_is_let_pass() -> None:
    code = "re.compile(x); model.eval(); torch.compile(f); run(['-m', 'lib.run.model', f'{x}'])"
    code += "; t.query('n > 3'); os.path.join(a, b); import numpy as np; np.eye(3); x.globals"
    code += "\nWORKER = 'lib.run.model'\nrun([python, '-m', WORKER, *words]); x['-m-']"
    assert not dynamic(f"{code}\nparser(description=__doc__)\nclass A:\n    compile: bool = False")


def test_the_library_holds_nothing_but_its_sources_and_a_text() -> None:
    """Whatever else lay there would be in every digest."""
    found = [path for path in (ROOT / "lib").rglob("*") if path.is_file()]
    others = [path for path in found if path.suffix not in (".py", ".pyc")]
    names = [str(path.relative_to(ROOT / "lib")) for path in sorted(others)]
    assert names == ["README.md", "VERSION", "data/synthetic.packed"]


@pytest.mark.parametrize("name", CODE)
def test_comments_docstrings_and_white_space_are_no_code(name: str) -> None:
    source = (ROOT / name).read_text("utf-8")
    first, _, rest = source.partition('"""\n')
    edited = f'# Ünïcode\n{first} Another sentence – here.\n"""  # so\n\n\n{rest}\n# the end\n'
    edited = edited.replace("\n    return ", "   # why\n\n    # because\n    return   ")
    edited = edited.replace("(\n", "( # first\n\n  ")
    assert ast.dump(ast.parse(edited)) != ast.dump(ast.parse(source))  # the docstring
    assert strip_comments(edited) == strip_comments(source)


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
    assert strip_comments(SOURCE) == BARE


@pytest.mark.parametrize(
    ("source", "other"),
    [
        ("x = 1  # one\ny = 2\n", "x = 1  # one\r"),  # as a cell may end its lines
        ("if x:\n    y = 1\n    z = 2\n", "if x:\n    y = 1\n   \fz = 2\n"),
    ],
)
def test_lines_end_and_blocks_begin_where_python_has_them(source: str, other: str) -> None:
    """A form feed sets the column to 0, so that `z = 2` is in no block."""
    other = other.replace("\r", "\ry = 2\n")
    same = ast.dump(ast.parse(source)) == ast.dump(ast.parse(other))
    assert (strip_comments(source) == strip_comments(other)) == same


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
    left = [
        "".join(each.split()) for each in tokens(re.sub(r"(?m)^\t*", "", strip_comments(source)))
    ]
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


def test_the_order_of_files_is_no_matter_and_their_names_are(
    copy: Path, changed_by: Changed
) -> None:
    code = code_of(("02_train", "train"))
    assert digests.digest(dict(reversed(code.items()))) == digests.training_digest.__wrapped__()
    moved = lambda: (copy / "lib/run/cost.py").rename(copy / "lib/run/price.py")  # noqa: E731
    assert changed_by(moved) == NUMBERS
