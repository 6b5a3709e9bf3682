"""What is changed to see whether the tests notice."""

from pathlib import Path

import pytest

from lib.study.io import ROOT
from tests import mutants

SOURCE = '''"""A docstring."""
def f(a: int = 3, b: bool = True) -> int | None:
    """Another, é."""
    if not a or f"{a + 1}":
        print("é", a == 2)
    a += 1
    return g(a, b)[1:]


def g():
    return None
'''
CHANGED = {
    "def f(a: int = (4), b: bool = True) -> int | None:",
    "def f(a: int = 3, b: bool = False) -> int | None:",
    "    if (not a and f'{a + 1}'):",
    "    if (not (not a or f'{a + 1}')):",
    '    if (a) or f"{a + 1}":',
    "        pass",
    "        (print(a == 2, 'é'))",
    '        print("é", (a != 2))',
    '        print("é", a == (3))',
    "    pass",
    "    a += (2)",
    "    return None",
    "    return (g(b, a))[1:]",
    "    return g(a, b)[(1 + 1):]",
    "    return g(a, b)[(2):]",
}


def test_a_mutant_is_one_line_that_still_parses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    (tmp_path / "file.py").write_text(SOURCE, "utf-8")
    lines, found = SOURCE.encode().split(b"\n"), set()
    for mutant in mutants.mutants("file.py"):
        row = lines[mutant.line - 1]
        assert mutant.old != mutant.new
        assert row[mutant.start : mutant.end].decode() == mutant.old
        changed = (row[: mutant.start] + mutant.new.encode() + row[mutant.end :]).decode()
        compile(SOURCE.replace(row.decode(), changed), "file.py", "exec")
        found.add(changed)
    inside = {line for line in found if line not in CHANGED}
    assert found >= CHANGED
    assert all('f"' in line for line in inside)  # newer versions of Python see into f-strings


def test_the_tests_of_a_module_are_those_that_name_it() -> None:
    assert "tests/study/test_errors.py" in mutants.naming("lib/study/yaml.py")
    assert "tests/run/test_quantiles.py" not in mutants.naming("lib/study/yaml.py")
    assert all((ROOT / path).is_file() for path in mutants.naming("lib/study/yaml.py"))
