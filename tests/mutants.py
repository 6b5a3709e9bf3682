"""Change one line of `lib/` at a time, in a copy, and see whether a test fails.

    ./run_all.sh test --mutants N [--seed S] [--fast | --all] [lib/FILE.py …] [tests/…]

First the tests run as the code is, and it is noted which of them run which line, also by their
fixtures. Then, for each of N mutants drawn at random, those run that run its line, the quickest
first. A line that none runs in its own process (at import, in a notebook) is tried with the test
files that name its module.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
MARKS = {
    "fast": "not slow and not long and not benchmark",
    "usual": "not long and not benchmark",
    "all": "not benchmark",
}
NOTES, PLAN = "MUTANTS_NOTES", "MUTANTS_PLAN"
"""Environment variables: the folder to note lines in; the file of the tests to run, in order."""
PATIENCE = 60
"""Seconds that a mutant has beside three times those of its tests: for imports."""
TIMED_OUT = 124
"""The status of tests that ran out of time. pytest's own: 0 passed, 5 there are none."""
SWAPS: dict[type, type] = {
    **{ast.Eq: ast.NotEq, ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.In: ast.NotIn, ast.Is: ast.IsNot},
    **{ast.NotEq: ast.Eq, ast.LtE: ast.Lt, ast.GtE: ast.Gt, ast.NotIn: ast.In, ast.IsNot: ast.Is},
    **{ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add},
    **{ast.Mult: ast.Div, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult},  # `/` joins paths, too
}


class Mutant(NamedTuple):
    file: str
    line: int
    start: int
    end: int
    old: str
    new: str


def mutants(file: str) -> Iterator[Mutant]:
    """Yield the changes of one line that a file of `lib/` allows; none of text or imports."""
    source = (ROOT / file).read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        for part, new in changes(node):
            old = ast.get_source_segment(source, part) or ""
            try:  # in an f-string, older versions of Python tell other places
                (found,) = ast.parse(old).body
            except (SyntaxError, ValueError):
                continue
            same = ast.dump(part) in (ast.dump(found), ast.dump(getattr(found, "value", found)))
            if same and part.lineno == part.end_lineno and old != new:
                yield Mutant(file, part.lineno, part.col_offset, part.end_col_offset or 0, old, new)


def changes(node: Any) -> Iterator[tuple[Any, str]]:
    """Yield a node of a syntax tree, or a part of it, with what it may become."""

    def having(**fields: Any) -> tuple[Any, str]:
        return node, f"({ast.unparse(type(node)(**{**vars(node), **fields}))})"

    match node:
        case ast.Compare(ops=[op, *rest]) if type(op) in SWAPS:
            yield having(ops=[SWAPS[type(op)](), *rest])
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in SWAPS:
            yield having(op=SWAPS[type(op)]())
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, f"({value + 1})"
        case ast.Call(args=[one, other, *rest]):
            yield having(args=[other, one, *rest])
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Slice(lower=lower, upper=upper):
            yield from ((b, f"({ast.unparse(b)} + 1)") for b in (lower, upper) if b is not None)
        case ast.Return(value=value) if value is not None:
            yield node, "return None"
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield node, "pass"


class Plugin:
    """What pytest does in a copy: note which test runs which line, or run what is planned."""

    def __init__(self) -> None:
        self.lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self.tests: dict[str, Any] = {}
        self.failed: set[str] = set()
        self.plan = json.loads(Path(os.environ[PLAN]).read_text()) if PLAN in os.environ else None

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """Note under a name the lines of `lib/` that run meanwhile in this thread."""
        lines, here = self.lines[name], f"{ROOT}/lib/"

        def line(frame: Any, event: str, _: object) -> Any:
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            return line

        def call(frame: Any, event: str, _: object) -> Any:
            return line if frame.f_code.co_filename.startswith(here) else None

        former = sys.gettrace()
        sys.settrace(None if self.plan else call)
        try:
            yield
        finally:
            sys.settrace(former)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        with self.noted(f"{fixturedef.baseid}::{fixturedef.argname}"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        with self.noted(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        start, result = time.monotonic(), (yield)
        marks = {mark.name for mark in item.iter_markers()}
        fixtures = [each for of in item._fixtureinfo.name2fixturedefs.values() for each in of]
        self.tests[item.nodeid] = {
            "tier": "all" if "long" in marks else "usual" if "slow" in marks else "fast",
            "seconds": time.monotonic() - start,
            "runs": [item.nodeid, *(f"{each.baseid}::{each.argname}" for each in fixtures)],
        }
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.plan:
            places = {name: number for number, name in enumerate(self.plan)}
            items[:] = [item for item in items if item.nodeid in places]
            items.sort(key=lambda item: places[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.plan:
            print(f"\nKILLED BY {report.nodeid}")
        elif report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if not self.plan:
            lines = {
                name: [f"{f[len(str(ROOT)) + 1 :]}:{n}" for f, n in of]
                for name, of in self.lines.items()
            }
            sound = {name: test for name, test in self.tests.items() if name not in self.failed}
            note = Path(os.environ[NOTES], f"{os.getpid()}.json")
            note.write_text(json.dumps({"lines": lines, "tests": sound}))


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest, called with `-p tests.mutants`, do as `Plugin` says."""
    config.pluginmanager.register(Plugin())


def copied(to: Path) -> Path:
    """Copy the checkout, with git's history, but neither what running it leaves nor its caches. One
    more blank line makes it differ from its commit, as it will with a mutant."""
    clone = ("git", "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(to))
    subprocess.run(clone, check=True)
    left_out = shutil.ignore_patterns(".git", ".venv", "runs", "*cache*", ".snakemake")
    shutil.copytree(ROOT, to, ignore=left_out, symlinks=True, dirs_exist_ok=True)
    subprocess.run(["git", "reset", "--quiet"], cwd=to, check=True)
    with (to / "lib" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write("\n")
    return to


def tested(
    tree: Path, words: list[str], seconds: float | None, **variables: str
) -> tuple[int, str]:
    """Run pytest in a tree; return its status (TIMED_OUT: as many seconds went by) and output."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"} | variables
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants", "--hypothesis-seed=0"]
    process = subprocess.Popen([*command, *words], cwd=tree, env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)  # fmt: skip
    try:
        said, _ = process.communicate(timeout=seconds)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return TIMED_OUT, ""


def naming(file: str) -> set[str]:
    """The test files that name a module of `lib/`."""
    room, name = Path(file).parent.name, Path(file).stem
    named = re.compile(rf"lib\.{room}\.{name}\b|from lib\.{room} import .*\b{name}\b")
    paths = (ROOT / "tests").rglob("test_*.py")
    return {str(p.relative_to(ROOT)) for p in paths if named.search(p.read_text("utf-8"))}


def main(words: list[str]) -> None:
    """Print the seed, then what became of every mutant, then how many were killed."""
    parser = argparse.ArgumentParser(prog="./run_all.sh test", description=__doc__)
    parser.add_argument("--mutants", type=int, metavar="N", required=True)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    for tier in ("fast", "all"):
        parser.add_argument(f"--{tier}", dest="tier", action="store_const", const=tier)
    options = parser.parse_intermixed_args(words)
    marks = MARKS[options.tier or "usual"]
    files = [path for path in options.paths if not path.startswith("tests")]
    files = files or sorted(str(p.relative_to(ROOT)) for p in (ROOT / "lib").rglob("*.py"))
    found = [mutant for file in files for mutant in mutants(file)]
    drawn = random.Random(options.seed).sample(found, min(options.mutants, len(found)))
    print(
        f"Seed {options.seed}: {len(drawn)} of {len(found)} mutants of {len(files)} files",
        flush=True,
    )

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        workers = os.cpu_count() or 1
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            trees.put(copied(Path(folder, str(number))))
        tree, notes = trees.get(), Path(folder, "notes")
        notes.mkdir()
        chosen = [path for path in options.paths if path.startswith("tests")]
        parallel = ["-n", str(workers), "--dist", "loadfile", "-m", marks, *chosen]
        tested(tree, parallel, None, **{NOTES: str(notes)})
        trees.put(tree)
        tests, running = {}, defaultdict(set)
        for note in [json.loads(path.read_text()) for path in notes.iterdir()]:
            tests |= note["tests"]
            by_name = note["lines"]
            for name, test in note["tests"].items():
                for line in {line for by in test["runs"] for line in by_name.get(by, [])}:
                    running[line].add(name)
        print(f"{len(tests)} tests passed as the code is", flush=True)

        def tried(mutant: Mutant) -> str | None:
            """Which test killed a mutant; None when it survived."""
            names = running[f"{mutant.file}:{mutant.line}"]
            if not names:
                near = naming(mutant.file)
                names = {name for name in tests if name.partition("::")[0] in near}
            if not names:
                return None
            order = sorted(names, key=lambda name: tests[name]["seconds"])
            tree = trees.get()
            file, plan = tree / mutant.file, tree.with_suffix(".json")
            plan.write_text(json.dumps(order))
            text = file.read_bytes()
            lines = text.split(b"\n")
            row = lines[mutant.line - 1]
            lines[mutant.line - 1] = row[: mutant.start] + mutant.new.encode() + row[mutant.end :]
            file.write_bytes(b"\n".join(lines))
            seconds = PATIENCE + 3 * sum(tests[name]["seconds"] for name in order)
            where = sorted({name.partition("::")[0] for name in order})
            status, said = tested(tree, ["-x", "-m", marks, *where], seconds, **{PLAN: str(plan)})
            file.write_bytes(text)
            trees.put(tree)
            if by := re.search(r"KILLED BY (.*)", said):
                return f"{tests.get(by[1], {}).get('tier', '?')}: {by[1]}"
            return {0: None, 5: None, TIMED_OUT: "time"}.get(status, "imports")

        killed = 0
        with ThreadPoolExecutor(workers) as pool:
            for mutant, by in zip(drawn, pool.map(tried, drawn), strict=True):
                killed += by is not None
                what = f"{mutant.file}:{mutant.line}: {mutant.old} → {mutant.new}"
                print(f"{what}: {f'killed by {by}' if by else 'SURVIVED'}", flush=True)
    print(f"{killed} of {len(drawn)} mutants killed ({killed / max(1, len(drawn)):.0%})")


if __name__ == "__main__":
    main(sys.argv[1:])
