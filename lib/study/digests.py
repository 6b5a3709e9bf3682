"""Digests of the code that decides a run: what weights and numbers are made by.

They cover code alone. Comments, docstrings and blank lines are taken out by their place in the
source: a syntax tree written out again would differ between versions of Python.
"""

import ast
import io
import tokenize
from functools import cache

from lib.study.fields import digest
from lib.study.paths import ROOT

TRAINING = (
    *("lib/run/model.py", "lib/run/machine.py", "lib/run/training.py"),
    *("lib/run/distributed.py", "lib/run/diagnostics.py"),
    *("lib/data/corpus.py", "lib/data/sources.py", "lib/data/tokenizer.py", "lib/data/subwords.py"),
    *("lib/data/shards.py", "lib/data/tokenised.py", "lib/data/documents.py"),
    *("lib/data/mixture.py", "lib/study/constants.py"),
)
"""What decides weights and their dev curve."""
MEASURING = (
    *("lib/run/model.py", "lib/run/machine.py", "lib/run/evaluation.py", "lib/run/calibration.py"),
    *("lib/run/diagnostics.py", "lib/run/scoring.py", "lib/run/harness.py", "lib/run/stock.py"),
    *("lib/run/measure.py", "lib/run/optional.py", "lib/run/quantiles.py", "lib/run/cost.py"),
    *("lib/data/suite.py", "lib/data/suite_files.py", "lib/data/tasks.py", "lib/data/corpus.py"),
    *("lib/data/sources.py", "lib/data/tokenizer.py", "lib/data/subwords.py", "lib/data/shards.py"),
    *("lib/data/tokenised.py", "lib/data/documents.py", "lib/data/mixture.py"),
    *("lib/data/references.py", "lib/data/synthetic.py", "lib/data/grammar.py"),
    *("lib/data/markov.py", "lib/study/raw.py", "lib/study/constants.py"),
)
"""What decides the numbers of given weights."""
ASKING = (
    *("lib/data/suite.py", "lib/data/suite_files.py", "lib/data/tasks.py", "lib/data/corpus.py"),
    *("lib/data/tokenizer.py", "lib/data/subwords.py", "lib/study/constants.py"),
    "lib/data/references.py",
)
"""What decides the questions of the task suite, and what is reached without a network."""
ANALYSING = (
    *("lib/analysis/*.py", "lib/figures/*.py", "lib/study/constants.py", "lib/study/history.py"),
    *("lib/study/measures.py", "lib/study/plan.py", "lib/study/raw.py", "lib/study/standing.py"),
    "lib/study/variants.py",
)
"""What decides what is said and drawn of given numbers; whole rooms, as a study says what of them
it needs."""


@cache
def training_digest() -> str:
    """SHA-256 of the code that decides weights and their dev curve."""
    return code_digest(TRAINING)


@cache
def measuring_digest() -> str:
    """SHA-256 of the code that decides the numbers of given weights."""
    return code_digest(MEASURING)


@cache
def asking_digest() -> str:
    """SHA-256 of the code that decides the questions of the task suite."""
    return code_digest(ASKING)


@cache
def analysing_digest() -> str:
    """SHA-256 of the code that decides what is said and drawn of given numbers."""
    found = sorted(path for pattern in ANALYSING for path in ROOT.glob(pattern))
    return code_digest(tuple(path.relative_to(ROOT).as_posix() for path in found))


def code_digest(files: tuple[str, ...]) -> str:
    """SHA-256 of the code in some files of the repository, each under its name."""
    return digest({name: bare(ROOT.joinpath(name).read_text("utf-8")) for name in files})


@cache  # both digests hold many of the same files
def bare(source: str) -> str:
    """Take comments, docstrings, trailing blanks and blank lines out of Python source. What stands
    inside any other string stays as it is."""
    lines = source.split("\n")
    comments: set[int] = set()
    texts: set[int] = set()
    docstrings: dict[int, ast.Expr] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
            comments.add(row)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and _is_text(node.value):
            docstrings[node.lineno] = node
        elif isinstance(node, ast.expr) and _is_text(node):
            texts |= set(range(node.lineno, node.end_lineno or 0))

    kept, number = [], 0
    while number < len(lines):
        number += 1
        line = lines[number - 1]
        if docstring := docstrings.get(number):
            number = docstring.end_lineno or number
            start, end = line.encode(), lines[number - 1].encode()  # places count UTF-8 bytes
            line = (start[: docstring.col_offset] + end[docstring.end_col_offset :]).decode()
        elif number in texts - comments:
            kept.append(line)
            continue
        if line.strip():
            kept.append(line.rstrip())
    return "\n".join(kept)


def _is_text(node: ast.AST) -> bool:
    """Tell whether a node is a string, formatted or not."""
    text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return text or isinstance(node, ast.JoinedStr)
