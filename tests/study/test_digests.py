"""Digests change with the code and with nothing else."""

import ast
import hashlib
import shutil
from pathlib import Path

import pytest

from lib.study import digests
from lib.study.digests import MEASURING, TRAINING, analysing_digest, bare, code_digest
from lib.study.paths import ROOT


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code under digest, which may be edited."""
    for name in {*TRAINING, *MEASURING}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    monkeypatch.setattr(digests, "ROOT", tmp_path)
    return tmp_path


def both() -> tuple[str, str]:
    return code_digest(TRAINING), code_digest(MEASURING)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*TRAINING, *MEASURING}))
def test_comments_docstrings_and_blank_lines_change_no_digest(name: str, copy: Path) -> None:
    before, source = both(), (copy / name).read_text("utf-8")
    first, _, rest = source.partition('"""\n\n')
    edited = f'# Ünïcode\n{first} Another sentence – here.\n"""  # so\n\n\n{rest}\n# the end\n'
    edited = edited.replace("\n    return ", "   # why\n\n    # because\n    return ")
    assert ast.dump(ast.parse(edited)) != ast.dump(ast.parse(source))  # the docstring
    (copy / name).write_text(edited, "utf-8")
    assert both() == before


@pytest.mark.parametrize("name", sorted({*TRAINING, *MEASURING}))
def test_an_edit_to_code_changes_the_digests_of_those_who_use_it(name: str, copy: Path) -> None:
    before = both()
    (copy / name).write_text((copy / name).read_text("utf-8") + "\nLAST = 0\n", "utf-8")
    changed = [one != other for one, other in zip(before, both(), strict=True)]
    assert changed == [name in TRAINING, name in MEASURING]


@pytest.mark.parametrize(
    ("name", "old", "new", "changed"),
    [
        ("lib/run/model.py", "1e-5", "1e-6", [True, True]),
        ("lib/run/calibration.py", "15", "16", [False, True]),
        ("lib/run/training.py", "beta1", "beta2", [True, False]),
    ],
)
def test_one_number_changed_is_another_digest(
    name: str, old: str, new: str, changed: list[bool], copy: Path
) -> None:
    before, source = both(), (copy / name).read_text("utf-8")
    assert old in bare(source)
    (copy / name).write_text(source.replace(old, new), "utf-8")
    assert [one != other for one, other in zip(before, both(), strict=True)] == changed


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
        """# Doc"""; return "# no comment"
    # three
    text = """kept   

    # kept"""
    joined = (
        "a"  # four
        # five
        "b"
    )
    word = f"{'#'} {x!r:>{x}} # kept"
'''
BARE = '''\
x = 1
class A:
    y: int = 2
    def f(self):
        ; return "# no comment"
    text = """kept   

    # kept"""
    joined = (
        "a"
        "b"
    )
    word = f"{'#'} {x!r:>{x}} # kept"'''


def test_text_is_told_from_comments_by_its_place() -> None:
    assert bare(SOURCE) == BARE


def without_docstrings(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if hasattr(node, "body") and isinstance(node.body, list):
            node.body = [
                part
                for part in node.body
                if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
    return ast.dump(tree)


@pytest.mark.parametrize("name", sorted({*TRAINING, *MEASURING} - {"lib/data/corpus.py"}))
def test_what_is_left_is_all_of_the_code(name: str) -> None:
    source = (ROOT / name).read_text("utf-8")
    assert without_docstrings(bare(source)) == without_docstrings(source)


@pytest.mark.parametrize("room", ["analysis", "figures"])
def test_the_analysing_digest_is_of_the_code_in_both_rooms(room: str, copy: Path) -> None:
    def edited(text: str) -> str:
        (copy / "lib" / room).mkdir(exist_ok=True)
        (copy / "lib" / room / "any.py").write_text(text, "utf-8")
        return analysing_digest.__wrapped__()

    first = edited("x = 1\n")
    assert edited('"""What it is."""\n\nx = 1  # one\n') == first
    assert edited("x = 2\n") != first


def test_a_digest_is_of_names_and_sources(copy: Path) -> None:
    (copy / "a.py").write_text("x = 1\n\n\n# why\ny = 2\n", "utf-8")
    expected = hashlib.sha256(b'{"a.py":"x = 1\\ny = 2"}').hexdigest()
    assert code_digest(("a.py",)) == expected


DECIDES_NO_NUMBER = {
    *("lib.data.errors", "lib.study.errors", "lib.study.paths"),
    *("lib.study.config", "lib.study.fields"),  # parameters are compared
    "lib.study.digests",
    *("lib.study.provenance", "lib.study.record", "lib.run.origin", "lib.run.trained"),  # accounts
}
DECIDES_NO_WEIGHTS = DECIDES_NO_NUMBER | {
    "lib.data.synthetic",  # its text is held to a hash
    "lib.data.suite_files",
    "lib.run.checkpoints",  # kept, each under its hash
    *("lib.run.calibration", "lib.run.quantiles"),  # of diagnostics, what no curve holds
    *("lib.run.lifeline", "lib.run.processes"),  # what is started, and ended
}


@pytest.mark.parametrize(
    ("files", "exceptions"), [(TRAINING, DECIDES_NO_WEIGHTS), (MEASURING, DECIDES_NO_NUMBER)]
)
def test_whatever_a_digests_files_import_is_in_it_or_decides_nothing(
    files: tuple[str, ...], exceptions: set[str]
) -> None:
    for name in files:
        for node in ast.walk(ast.parse((ROOT / name).read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lib"):
                parts = [f"{node.module}.{part.name}" for part in node.names]
                modules = [p for p in parts if (ROOT / f"{p.replace('.', '/')}.py").is_file()]
                for module in modules or [node.module]:
                    inside = f"{module.replace('.', '/')}.py" in files
                    assert inside or module in exceptions, (name, module)
