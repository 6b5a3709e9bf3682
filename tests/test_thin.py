"""The library stays thin: a promise to whoever wants to read it, by numbers."""

import ast
import io
import re
import subprocess
import tokenize

import pytest

from lib.config.io import ROOT

NODES_PER_LINE = 12.03
"""Nodes of the syntax tree per line of code: 5 % above those of the library before it was cut, so
that lines are not packed denser to meet a number."""
_PRAGMA = re.compile("  # (?:type: ignore|noqa).*")
"""What a tool is told at the end of a line."""
_NO_CODE = {tokenize.COMMENT, tokenize.NL}
_BEGINNINGS = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(path):
    """Count the lines of a Python file that are no blanks, comments or docstrings."""
    lines = set()
    previous = tokenize.INDENT
    for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
        if token.type in _NO_CODE:
            continue
        is_docstring = token.type == tokenize.STRING and previous in _BEGINNINGS
        if token.type not in _BEGINNINGS and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
        previous = token.type
    return len(lines)


def tracked(*patterns):
    command = ["git", "ls-files", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def total(paths):
    return sum(map(lines_of_code, paths))


def written(path):
    """Give the lines of a template or Snakefile that say something."""
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def test_the_library_and_the_tests_grow_by_no_line():
    """The promise is 7,000 lines of code in 60 files, and 9,500 of tests; these bounds are what is
    reached: whoever raises one says for which feature."""
    files = tracked("lib/*.py")
    assert total(files) <= 7_740
    assert len(files) <= 60
    assert total(tracked("tests/*.py")) <= 9_520


def test_no_code_moves_elsewhere_to_meet_a_number():
    for notebook in tracked("notebooks/*.py"):
        assert lines_of_code(notebook) < 60, notebook.name
    assert len(written(ROOT / "notebooks" / "Snakefile")) <= 90
    assert total(tracked("papers/**/*.py")) <= 700
    assert sum(len(written(path)) for path in tracked("papers/*/templates/**")) <= 900


def test_lines_are_not_packed_to_meet_a_number():
    files = tracked("lib/*.py")
    trees = [ast.parse(path.read_text("utf-8")) for path in files]
    assert sum(1 for tree in trees for _ in ast.walk(tree)) / total(files) <= NODES_PER_LINE
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [call for call in calls if getattr(call.func, "id", "") in ("exec", "eval")]
    for path in tracked("lib/*.py", "tests/*.py", "notebooks/*.py", "papers/**/*.py"):
        lines = [_PRAGMA.sub("", line) for line in path.read_text("utf-8").splitlines()]
        assert max(map(len, lines), default=0) <= 100, path
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
        assert not [t for t in tokens if t.type == tokenize.OP and t.string == ";"], path
